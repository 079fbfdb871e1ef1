"""The faults of tests/live/cluster on three Apache Kafka nodes: what holds for Ottla's cluster holds for Kafka's.

A script that no broker can pass proves nothing, so it runs against Kafka too. The long lane only: each fault takes
Kafka about ten seconds.
"""

from collections.abc import Iterator

import pytest

from tests.support.processes.cluster import KafkaCluster
from tests.support.processes.cluster_load import ALL_CLIENTS, Load
from tests.support.processes.oracle import oracle_available

PAUSE_S = 13.5
ROLES = ["leader", "coordinator", "controller", "follower"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.oracle,
    pytest.mark.java,
    # kafka-python does not close the sockets of brokers that it has lost.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def nodes_of_the_module() -> Iterator[KafkaCluster]:
    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    settings = {"offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "5"}
    with KafkaCluster(settings=settings) as running:
        yield running


@pytest.fixture
def cluster(nodes_of_the_module: KafkaCluster) -> KafkaCluster:
    nodes_of_the_module.restore()
    return nodes_of_the_module


@pytest.mark.parametrize("role", ROLES)
def test_every_client_continues_when_a_node_is_killed(cluster: KafkaCluster, topic: str, role: str) -> None:
    with Load(cluster, topic, clients=ALL_CLIENTS) as load:
        load.kill(role)
        load.fail_back()
        load.finish()
        print(*load.outages, load.errors(), load.rebalances, sep="\n")


@pytest.mark.parametrize("role", ["leader", "controller"])
def test_every_client_continues_when_a_node_is_paused(cluster: KafkaCluster, topic: str, role: str) -> None:
    with Load(cluster, topic, clients=ALL_CLIENTS) as load:
        load.pause(role, PAUSE_S)
        load.finish()
        print(*load.outages, load.errors(), load.rebalances, sep="\n")


def test_every_client_continues_through_a_rolling_restart(cluster: KafkaCluster, topic: str) -> None:
    with Load(cluster, topic, clients=ALL_CLIENTS) as load:
        load.roll()
        load.fail_back()
        load.finish()
        print(*load.outages, load.errors(), load.rebalances, sep="\n")
