"""The exactly-once sink on three brokers: leaders, coordinators and the controller are killed in the middle of batches.

Spec: R9, F2. The query stops at a failpoint of the sink, a broker is killed there, and the query goes on before that
broker is back. The output, read with read_committed, is the input exactly once.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.spark.sink.ledger import Names
from tests.support.processes.cluster import TRANSACTION, Cluster, OttlaCluster
from tests.support.processes.spark_story import NUMBERS, PLACES, Story, orders

SINK = "copy"
SETTINGS = {
    "transaction.two.phase.commit.enable": "true",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[OttlaCluster]:
    with OttlaCluster(settings=SETTINGS) as running:
        yield running


def victims(cluster: Cluster, story: Story) -> list[Callable[[], int]]:
    """The roles to kill, one after the other: the broker is looked up when its turn comes."""
    names = Names(SINK)
    return [
        lambda: cluster.leader(story.output),
        lambda: cluster.coordinator(names.task(0), TRANSACTION),
        lambda: cluster.coordinator(names.driver, TRANSACTION),
        lambda: cluster.leader(story.input),
        cluster.controller,
    ]


def run_with_kills(cluster: Cluster, story: Story, places: list[str]) -> None:
    """At each of these places the query waits until a broker is dead. The broker before it is back by then."""
    driver = story.start(story.failpoints("stop", *places))
    turns = iter(victims(cluster, story))
    try:
        for place in places:
            reached = story.directory / place
            driver.wait_for(reached)
            cluster.restore()
            for topic in (story.input, story.output, "__transaction_state"):
                cluster.await_in_sync(topic)
            cluster.nodes[next(turns)()].kill()
            Path(f"{reached}.go").touch()
            if place == "after-part-commit":
                Path(f"{story.directory / 'held'}.go").touch()
        driver.wait()
    finally:
        driver.kill()
    cluster.restore()


def test_a_copy_is_exact_while_leaders_and_coordinators_are_killed(
    cluster: OttlaCluster, topic: str, tmp_path: Path
) -> None:
    story = Story(cluster.bootstrap, topic, tmp_path, options={"sinkName": SINK})
    story.produce(NUMBERS)
    run_with_kills(cluster, story, ["after-prepare", *PLACES])
    assert story.written() == NUMBERS


@pytest.mark.long
def test_a_windowed_aggregation_is_exact_while_leaders_and_coordinators_are_killed(
    cluster: OttlaCluster, topic: str, tmp_path: Path
) -> None:
    story = Story(cluster.bootstrap, topic, tmp_path, query="windows", options={"sinkName": SINK})
    sent, totals = orders()
    story.produce(sent)
    run_with_kills(cluster, story, ["after-prepare", *PLACES])
    assert story.written() == totals
