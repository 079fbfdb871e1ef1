"""Spark's drivers, commits, tasks and executors are killed at every step; the output is the input, exactly once.

Spec: R9, F2. Starting Spark is what costs time here. So one driver runs through every kind of kill that Spark recovers
from by itself or by restarting the query, and one is killed with its JVM. The full matrix is in the long lane. All
kills use failpoints (`ottla/spark/sink/failpoints.py`) in the code path that production runs.
"""

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.core.model import LATEST
from ottla.types import TopicPartition
from tests.support.processes.oracle import Target
from tests.support.processes.spark_driver import LIMIT_S, Driver, start
from tests.support.waiting import eventually, until

PARTITIONS = 2
PLACES = ["before-decision", "after-decision", "after-part-commit", "after-commit"]
"""Where the driver commits. At after-part-commit one part is committed and the other is held back: see `failpoints`."""


@pytest.fixture(scope="module")
def two_phase() -> Iterator[Target]:
    with Broker.embedded(settings={"transaction.two.phase.commit.enable": True}) as running:
        yield Target("two-phase", running.bootstrap, running.pid)


RESTARTS = 12
"""More than the number of kills: Spark may also fail a batch because of what a kill caused."""


class Story:
    """One query from one topic to another, and the drivers that run it."""

    def __init__(self, bootstrap: str, name: str, directory: Path, *, query: str = "copy", **task: Any) -> None:
        self.bootstrap, self.directory, self.starts = bootstrap, directory, 0
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
        self.starts += 1
        return start(self.task, self.directory / f"driver-{self.starts}.log", failpoint)

    def failpoints(self, action: str, *places: str) -> str:
        """One action at each place, once. Parts are committed concurrently, so one is held back for the others."""
        chosen = [f"{place}:{action}:{self.directory / place}" for place in places]
        if "after-part-commit" in places:
            chosen.append(f"before-part-commit:hold:{self.directory / 'held'}")
        return ",".join(chosen)

    def kill_at(self, place: str) -> None:
        """Starts the driver and kills it, with its JVM, once it has reached this place."""
        (self.directory / "held").unlink(missing_ok=True)
        driver = self.start(self.failpoints("stop", place))
        try:
            driver.wait_for(self.directory / place)
        finally:
            driver.kill()

    def written(self) -> list[str]:
        """What a read_committed consumer reads, sorted."""
        partitions = [TopicPartition(self.output, index) for index in range(PARTITIONS)]
        settings = {"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}
        with Consumer(settings) as consumer, Admin(bootstrap_servers=self.bootstrap) as admin:
            # Others use the same brokers, so the question is whether anything is open in this output.
            wanted = dict.fromkeys(partitions, LATEST)
            eventually(
                lambda: admin.list_offsets(wanted) == admin.list_offsets(wanted, isolation_level="read_committed"),
                LIMIT_S,
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
    """Orders, and the totals of their windows that a batch query would give. The last window stays open."""
    sent: list[str] = []
    totals: dict[int, tuple[int, int]] = {}
    for number in range(200):
        at = 1_700_000_000 + number // 2
        sent.append(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), "amount": number}))
        start = at - at % 10
        count, amount = totals.get(start, (0, 0))
        totals[start] = (count + 1, amount + number)
    sent.append(json.dumps({"at": "2030-01-01T00:00:00Z", "amount": 0}))
    answer = [
        json.dumps({"start": start, "orders": count, "amount": amount}, separators=(",", ":"))
        for start, (count, amount) in totals.items()
    ]
    return sent, sorted(answer)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_windowed_aggregation_is_exact_through_every_kind_of_kill(
    two_phase: Target, topic: str, tmp_path: Path
) -> None:
    """On two executors, each with its own JVM. A task fails after it prepared, a Python worker and an executor are
    killed, and the process that commits is killed before the decision, after it, between two EndTxns and before Spark's
    commit log has the batch. Spark retries the tasks; the query is restarted after each killed commit.
    """
    story = Story(
        two_phase.bootstrap, topic, tmp_path, query="windows", restarts=RESTARTS, master="local-cluster[2,1,512]"
    )
    sent, totals = orders()
    story.produce(sent)
    in_tasks = {action: tmp_path / f"task-{action}" for action in ("fail", "kill", "kill-executor")}
    tasks = ",".join(f"after-prepare:{action}:{path}" for action, path in in_tasks.items())
    printed = story.start(f"{story.failpoints('kill', *PLACES)},{tasks}").wait()
    assert "Lost executor" in printed
    assert all(path.exists() for path in [*in_tasks.values(), *(tmp_path / place for place in PLACES)])
    assert story.written() == totals


def test_a_topic_and_a_table_are_exact_through_a_killed_driver(two_phase: Target, topic: str, tmp_path: Path) -> None:
    """Spec: E10. The driver is killed with its JVM after the decision of a batch, in the middle of the table's batches.

    The rows of the table and the ledger entry of their batch are in one database transaction.
    """
    table = tmp_path / "copied.db"
    story = Story(two_phase.bootstrap, topic, tmp_path, database=str(table))
    story.produce(NUMBERS)

    def stored() -> list[str]:
        with contextlib.closing(sqlite3.connect(table, timeout=30)) as database:
            try:
                return sorted(value for (value,) in database.execute("select value from copied"))
            except sqlite3.OperationalError:  # the table does not exist yet
                return []

    first = story.start(story.failpoints("stop", "after-decision"))
    try:
        first.wait_for(tmp_path / "after-decision")
        assert until(lambda: bool(stored()), LIMIT_S), first.printed()[-3000:]
    finally:
        first.kill()
    story.start().wait()
    assert story.written() == NUMBERS
    assert stored() == NUMBERS


# --- the long lane: each kind by itself, and drivers killed at every place ------------------------------------


@pytest.mark.long
def test_a_copy_through_four_killed_drivers_is_exact(two_phase: Target, topic: str, tmp_path: Path) -> None:
    """At the end there are two drivers on one checkpoint: the slow one continues after the other has finished."""
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


@pytest.mark.long
@pytest.mark.oracle
def test_a_copy_whose_commits_are_killed_four_times_is_exact_on_apache_kafka(
    kafka: Target, topic: str, tmp_path: Path
) -> None:
    """Spec: F5."""
    story = Story(kafka.bootstrap, topic, tmp_path, restarts=RESTARTS)
    story.produce(NUMBERS)
    story.start(story.failpoints("kill", *PLACES)).wait()
    assert all((tmp_path / place).exists() for place in PLACES)
    assert story.written() == NUMBERS


@pytest.mark.long
def test_tasks_that_fail_and_workers_that_are_killed_after_they_prepared_are_retried(
    two_phase: Target, topic: str, tmp_path: Path
) -> None:
    story = Story(two_phase.bootstrap, topic, tmp_path, master="local[2,4]")
    story.produce(NUMBERS)
    failed, killed = tmp_path / "failed", tmp_path / "killed"
    story.start(f"after-prepare:fail:{failed},after-prepare:kill:{killed}").wait()
    assert failed.exists()
    assert killed.exists()
    assert story.written() == NUMBERS


@pytest.mark.long
def test_an_executor_that_is_killed_with_prepared_parts_is_replaced(
    two_phase: Target, topic: str, tmp_path: Path
) -> None:
    """Two executors, each with its own JVM. Spark starts another one and retries the lost tasks there."""
    story = Story(two_phase.bootstrap, topic, tmp_path, master="local-cluster[2,1,512]")
    story.produce(NUMBERS)
    killed = tmp_path / "killed"
    printed = story.start(f"after-prepare:kill-executor:{killed}").wait()
    assert killed.exists()
    assert "Lost executor" in printed
    assert story.written() == NUMBERS
