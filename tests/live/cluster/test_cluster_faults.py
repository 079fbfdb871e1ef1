"""Brokers of a cluster are killed, paused and restarted while clients of every kind produce, read and commit.

Nothing that was acknowledged is lost or stored twice, records keep their order, and every member reads all of them. A
few of the faults run by default; the long lane has all of them with every client library.
"""

import threading

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from tests.support.processes.cluster import OttlaCluster
from tests.support.processes.cluster_load import ALL_CLIENTS, SESSION_MS, Load
from tests.support.waiting import slowness
from tests.support.wire.raw import RawConnection, batch

PAUSE_S = 1.5 * SESSION_MS / 1000
ROLES = ["leader", "coordinator", "controller", "follower"]
FAST = ("ottla", "confluent-kafka", "aiokafka")
OUTAGE_S = 5.0
"""A generous bound, on an idle machine. `./run bench --only cluster` measures how long it takes."""

pytestmark = [
    pytest.mark.slow,
    # kafka-python does not close the sockets of brokers that it has lost.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_clients_continue_when_the_leader_is_killed(cluster: OttlaCluster, topic: str) -> None:
    """Spec: B10"""
    with Load(cluster, topic, clients=FAST) as load:
        outage = load.kill("leader")
        load.finish()
        assert outage.longest_s < OUTAGE_S * slowness(), outage


def test_a_client_that_asks_right_after_a_kill_gets_the_new_leader(cluster: OttlaCluster, topic: str) -> None:
    """The answer waits for the election. A client that gets the dead leader again would wait for its back-off.

    It waits for half a second: on a busy machine an election may take longer, so it has more than three attempts.
    """
    cluster.create_topic(topic, 3)
    told: list[bool] = []
    while told.count(True) < 3:
        victim = cluster.leader(topic)
        asked = next(node for node in cluster.nodes if node != victim)
        cluster.coordinator("a group")
        cluster.nodes[victim].kill()
        leaders = {state.leader for state in cluster.describe(topic, asked)}
        told.append(min(leaders) > 0 and victim not in leaders and cluster.coordinator("a group") != victim)
        assert all(told) or slowness() > 2
        assert told.count(False) < 10
        cluster.start(victim)
        cluster.await_in_sync(topic)


def test_a_rolling_restart_is_not_noticed(cluster: OttlaCluster, topic: str) -> None:
    """Spec: B10, R5"""
    with Load(cluster, topic, clients=FAST) as load:
        load.roll()
        load.fail_back()
        load.finish()
        assert load.errors() == {}
        assert load.rebalances == {}


def test_a_broker_that_stops_names_the_new_leader_before_it_closes_connections(
    cluster: OttlaCluster, topic: str
) -> None:
    """A client that learns of the new leader moves immediately; one that loses its connection has to look for it."""
    cluster.create_topic(topic)
    leaving = cluster.nodes[cluster.leader(topic)]
    with RawConnection(leaving.bootstrap) as connection:
        data = [ProduceRequest.PartitionProduceData(index=0, records=batch(b"x"))]
        wanted = ProduceRequest.TopicProduceData(name=topic, partition_data=data)
        request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[wanted])
        stopping = threading.Thread(target=leaving.terminate)
        stopping.start()
        codes: list[int] = []
        while not codes or codes[-1] == ErrorCode.NONE:
            response = connection.ask(request, 10)
            (answer,) = response.responses[0].partition_responses
            codes.append(answer.error_code)
        stopping.join()
    assert codes[-1] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.port) == (answer.current_leader.leader_id, cluster.nodes[endpoint.node_id].port)
    assert endpoint.node_id != leaving.id


def test_a_broker_that_has_stopped_stays_in_the_list_of_brokers_for_a_moment(cluster: OttlaCluster, topic: str) -> None:
    """librdkafka forgets the partitions of a broker that vanishes from the list: they had no leader for seconds.

    The moment is five seconds: on a busy machine a broker may take longer to end, so it has several attempts.
    """
    cluster.create_topic(topic)
    for attempt in range(10):
        leader = cluster.leader(topic)
        cluster.nodes[leader].terminate()
        listed = {broker.node_id for broker in cluster.ask(MetadataRequest(topics=[]), 12).brokers}
        assert cluster.leader(topic) != leader
        if leader in listed:
            return
        assert slowness() > 2, f"broker {leader} vanished at once"
        assert attempt < 9, f"broker {leader} always vanished at once"
        cluster.start(leader)
        cluster.await_in_sync(topic)


def test_clients_continue_when_the_leader_is_paused_beyond_its_session(
    impatient_cluster: OttlaCluster, topic: str
) -> None:
    with Load(impatient_cluster, topic, clients=("ottla", "confluent-kafka")) as load:
        load.pause("leader", PAUSE_S)
        load.finish()


# --- the long lane ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.java
@pytest.mark.parametrize("role", ROLES)
def test_every_client_continues_when_a_broker_is_killed(cluster: OttlaCluster, topic: str, role: str) -> None:
    with Load(cluster, topic, clients=ALL_CLIENTS) as load:
        for _ in range(3):
            load.kill(role)
        load.fail_back()
        load.finish()
        assert load.rebalances == {}


@pytest.mark.long
@pytest.mark.java
@pytest.mark.parametrize("role", ROLES)
def test_every_client_continues_when_a_broker_is_paused(impatient_cluster: OttlaCluster, topic: str, role: str) -> None:
    with Load(impatient_cluster, topic, clients=ALL_CLIENTS) as load:
        for _ in range(2):
            load.pause(role, PAUSE_S)
        load.finish()


@pytest.mark.long
@pytest.mark.java
def test_no_client_notices_rolling_restarts(cluster: OttlaCluster, topic: str) -> None:
    with Load(cluster, topic, clients=ALL_CLIENTS) as load:
        for _ in range(3):
            load.roll()
            load.fail_back()
        load.finish()
        assert load.errors() == {}
        assert load.rebalances == {}


@pytest.mark.long
@pytest.mark.java
def test_every_client_continues_through_one_fault_after_the_other(impatient_cluster: OttlaCluster, topic: str) -> None:
    with Load(impatient_cluster, topic, clients=ALL_CLIENTS) as load:
        for role in ROLES:
            load.kill(role)
            load.pause(role, PAUSE_S)
        load.roll()
        load.finish()
