"""Spark's drivers, commits, tasks and executors are killed at every step; the output is the input, exactly once.

Spec: R9, F2. Starting Spark is what costs time here. So one driver runs through every kind of kill that Spark recovers
from by itself or by restarting the query, and one is killed with its JVM. The full matrix is in the long lane. All
kills use failpoints (`ottla/spark/sink/failpoints.py`) in the code path that production runs.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Broker
from tests.support.processes.oracle import Target
from tests.support.processes.spark_driver import LIMIT_S
from tests.support.processes.spark_story import NUMBERS, PLACES, Story, orders
from tests.support.waiting import until


@pytest.fixture(scope="module")
def two_phase() -> Iterator[Target]:
    with Broker.embedded(settings={"transaction.two.phase.commit.enable": True}) as running:
        yield Target("two-phase", running.bootstrap, running.pid)


RESTARTS = 12
"""More than the number of kills: Spark may also fail a batch because of what a kill caused."""


pytestmark = pytest.mark.slow


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
