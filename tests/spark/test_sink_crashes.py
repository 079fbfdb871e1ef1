"""R9: Spark's drivers, commits, tasks and workers are killed in the middle; the output is the input, exactly once (F2).

One chain of crashes each, on one checkpoint, so that every start has to mend what the one before it left. A start of
Spark is what costs here: drivers are killed in one chain, and in the others the processes that commit or write, which
Spark starts again by itself.
"""

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes.oracle import Target
from tests.support.processes.spark_driver import Driver, start
from tests.support.waiting import eventually, until

from ottla import Broker
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.core.model import LATEST
from ottla.types import TopicPartition

PARTITIONS = 2
PLACES = ["before-decision", "after-decision", "between-commits", "after-commit"]


@pytest.fixture(scope="module")
def two_phase() -> Iterator[Target]:
    with Broker.embedded(settings={"transaction.two.phase.commit.enable": True}) as running:
        yield Target("two-phase", running.bootstrap, running.pid)


class Story:
    """One query from one topic to another, and the drivers that run it."""

    def __init__(self, bootstrap: str, name: str, directory: Path, *, query: str = "copy", **task: Any) -> None:
        self.bootstrap, self.directory = bootstrap, directory
        self.input, self.output = f"{name}-in", f"{name}-out"
        self.task = {
            "bootstrap": bootstrap,
            "input": self.input,
            "output": self.output,
            "checkpoint": str(directory / "checkpoint"),
            "query": query,
            "rows_per_batch": 70,
            "conf": {
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.memory": "700m",
                "spark.executor.memory": "512m",
                "spark.local.dir": str(directory / "local"),
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
            },
            **task,
        }
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(self.input, partitions=PARTITIONS)
            admin.create_topic(self.output, partitions=PARTITIONS)

    def produce(self, values: list[str]) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            for number, value in enumerate(values):
                producer.send(self.input, value, partition=number % PARTITIONS)
            producer.flush()

    def start(self, failpoint: str = "") -> Driver:
        return start(self.task, failpoint)

    def kill_at(self, place: str) -> None:
        """Starts the driver and kills it when it has come to this place."""
        reached = self.directory / place
        driver = self.start(f"{place}:stop:{reached}")
        try:
            driver.wait_for(reached)
        finally:
            driver.kill()

    def kill_commits(self) -> str:
        """A failpoint that kills whoever commits, once at each place."""
        return ",".join(f"{place}:kill:{self.directory / place}" for place in PLACES)

    def written(self) -> list[str]:
        """What a reader of committed records finds, sorted."""
        partitions = [TopicPartition(self.output, index) for index in range(PARTITIONS)]
        settings = {"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}
        with Consumer(settings) as consumer, Admin(bootstrap_servers=self.bootstrap) as admin:
            # Others use the same brokers, so the question is whether anything is open in this output.
            wanted = dict.fromkeys(partitions, LATEST)
            eventually(
                lambda: admin.list_offsets(wanted) == admin.list_offsets(wanted, isolation_level="read_committed"), 100
            )
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)
            found = []
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += [(record.value or b"").decode() for record in consumer.poll(1000)]
        return sorted(found)


NUMBERS = [f"{number:03}" for number in range(200)]


def orders() -> tuple[list[str], list[str]]:
    """Orders in time, and the totals of their windows that a batch query would give: the last one stays open."""
    told, totals = [], {}
    for number in range(200):
        at = 1_700_000_000 + number // 2
        told.append(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), "amount": number}))
        start = at - at % 10
        count, amount = totals.get(start, (0, 0))
        totals[start] = (count + 1, amount + number)
    told.append(json.dumps({"at": "2030-01-01T00:00:00Z", "amount": 0}))
    answer = [
        json.dumps({"start": start, "orders": count, "amount": amount}, separators=(",", ":"))
        for start, (count, amount) in totals.items()
    ]
    return told, sorted(answer)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_copy_through_four_killed_drivers_is_exact(two_phase: Target, topic: str, tmp_path: Path) -> None:
    """And at the end two drivers on one checkpoint: the slow one wakes up when the other has done its work."""
    story = Story(two_phase.bootstrap, topic, tmp_path)
    story.produce(NUMBERS)
    for place in PLACES:
        story.kill_at(place)
    reached = tmp_path / "second"
    slow = story.start(f"before-decision:stop:{reached}")
    try:
        slow.wait_for(reached)
        story.start().wait()
        Path(f"{reached}.go").touch()
        with pytest.raises(RuntimeError, match=r"the checkpoint is older than the sink|another driver owns this sink"):
            slow.wait()
    finally:
        slow.kill()
    assert story.written() == NUMBERS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_windowed_aggregation_whose_commits_die_four_times_equals_the_batch_answer(
    two_phase: Target, topic: str, tmp_path: Path
) -> None:
    """The process that commits is killed at each place, Spark calls abort(), and the query is started again."""
    story = Story(two_phase.bootstrap, topic, tmp_path, query="windows", restarts=len(PLACES))
    told, answer = orders()
    story.produce(told)
    story.start(story.kill_commits()).wait()
    assert all((tmp_path / place).exists() for place in PLACES)
    assert story.written() == answer


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.timeout(900)
def test_a_copy_whose_commits_die_four_times_is_exact_on_apache_kafka(
    kafka: Target, topic: str, tmp_path: Path
) -> None:
    """F5."""
    story = Story(kafka.bootstrap, topic, tmp_path, restarts=len(PLACES))
    story.produce(NUMBERS)
    story.start(story.kill_commits()).wait()
    assert all((tmp_path / place).exists() for place in PLACES)
    assert story.written() == NUMBERS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tasks_that_fail_and_workers_that_die_after_they_prepared_are_run_again(
    two_phase: Target, topic: str, tmp_path: Path
) -> None:
    story = Story(two_phase.bootstrap, topic, tmp_path, master="local[2,4]")
    story.produce(NUMBERS)
    failed, killed = tmp_path / "failed", tmp_path / "killed"
    story.start(f"after-prepare:fail:{failed},after-prepare:kill:{killed}").wait()
    assert failed.exists() and killed.exists()
    assert story.written() == NUMBERS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_executor_that_dies_with_prepared_parts_is_replaced(two_phase: Target, topic: str, tmp_path: Path) -> None:
    """Two executors, each a Java of its own; Spark starts another one and runs the lost tasks there."""
    story = Story(two_phase.bootstrap, topic, tmp_path, master="local-cluster[2,1,512]")
    story.produce(NUMBERS)
    killed = tmp_path / "killed"
    printed = story.start(f"after-prepare:kill-executor:{killed}").wait()
    assert killed.exists() and "Lost executor" in printed
    assert story.written() == NUMBERS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_table_through_a_killed_driver_is_exact(two_phase: Target, topic: str, tmp_path: Path) -> None:
    """E10: rows and the note of their batch are in one transaction of the database."""
    table = tmp_path / "copied.db"
    story = Story(two_phase.bootstrap, topic, tmp_path, database=str(table))
    story.produce(NUMBERS)

    def stored() -> list[str]:
        with contextlib.closing(sqlite3.connect(table, timeout=30)) as database:
            try:
                return sorted(value for (value,) in database.execute("select value from copied"))
            except sqlite3.OperationalError:  # there is no such table yet
                return []

    first = story.start()
    try:
        assert until(lambda: bool(stored()), 240), first.printed()[-3000:]
    finally:
        first.kill()
    story.start().wait()
    assert stored() == NUMBERS
