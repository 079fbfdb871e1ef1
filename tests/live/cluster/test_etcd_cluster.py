"""Three brokers with their metadata in three members of etcd: both are killed, paused and cut off under load.

Each broker listens on a loopback address of its own, as on three hosts. Nothing that was acknowledged is lost or stored
twice, nothing hangs, and a dead broker is replaced within its lease.
"""

import base64
import time
from collections.abc import Iterator

import pytest

from ottla.client.blocking import Admin
from tests.support.processes.cluster_load import QUICK, Load, Outage
from tests.support.processes.etcd import EtcdCluster
from tests.support.processes.etcd_brokers import EtcdBrokers
from tests.support.waiting import PATIENCE_S, stretched

LEASE_S = stretched(3_000) / 1000
"""Three seconds, more on a busy machine: a broker that does not get the processor must not lose its lease."""
FAILOVER_S = LEASE_S + 0.5
BUSY_S = stretched(3_000) / 1000
"""Added to every bound: the machine that runs the tests is busy."""
BACK_OFF_S = stretched(6_000) / 1000
"""A client that asks just before the election gets the dead leader again, and asks later: librdkafka took up to
five more seconds."""
CLIENTS = ("ottla", "confluent-kafka")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def members(etcd_program: str) -> Iterator[EtcdCluster]:
    with EtcdCluster(members=3, heartbeat_ms=min(stretched(100), 400)) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def cluster(members: EtcdCluster) -> Iterator[EtcdBrokers]:
    settings = {**QUICK, "broker.session.timeout.ms": str(int(LEASE_S * 1000))}
    with EtcdBrokers(members, settings=settings) as brokers:
        yield brokers


@pytest.fixture(autouse=True)
def all_run(members: EtcdCluster, cluster: EtcdBrokers) -> Iterator[None]:
    """Every test finds all processes running, and no way cut."""
    yield
    for member in members.members:
        if member.process is None:
            member.start()
        elif member.is_paused:
            member.resume()
    for way in cluster.ways.values():
        way.restore()
    members.await_ready()
    cluster.restore()


def test_clients_continue_within_the_lease_of_a_broker_that_is_killed(cluster: EtcdBrokers, topic: str) -> None:
    """Spec: B10"""
    with Load(cluster, topic, clients=CLIENTS) as load:
        outage = load.kill("leader")
        load.finish()
        check_failover(outage)


def test_nobody_notices_that_etcd_was_away_for_less_than_a_lease(
    cluster: EtcdBrokers, members: EtcdCluster, topic: str
) -> None:
    """Brokers go on serving what they lead."""
    with Load(cluster, topic, clients=CLIENTS) as load:
        epochs = [state.leader_epoch for state in cluster.describe(topic)]
        outage = load.suffer("kill the leader of etcd", 0, members.leader().kill)
        load.finish()
        assert outage.longest_s < LEASE_S + BUSY_S, outage
        assert [state.leader_epoch for state in cluster.describe(topic)] == epochs
        assert load.rebalances == {}


# --- the long lane ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("role", ["leader", "coordinator", "controller", "follower"])
def test_every_role_can_be_killed(cluster: EtcdBrokers, topic: str, role: str) -> None:
    with Load(cluster, topic, clients=CLIENTS) as load:
        for _ in range(2):
            outage = load.kill(role)
            check_failover(outage)
        load.finish()


@pytest.mark.long
def test_all_members_of_etcd_restart(cluster: EtcdBrokers, members: EtcdCluster, topic: str) -> None:
    with Load(cluster, topic, clients=CLIENTS) as load:
        for _ in range(2):
            load.suffer("restart etcd", 0, members.restart)
        cluster.await_in_sync(topic)
        load.finish()


@pytest.mark.long
def test_etcd_is_paused_for_ten_seconds(cluster: EtcdBrokers, members: EtcdCluster, topic: str) -> None:
    """acks=all waits when no broker can be sure of its place; reading goes on; everything continues afterwards."""

    def pause() -> None:
        members.pause()
        time.sleep(10)
        members.resume()

    with Load(cluster, topic, clients=CLIENTS) as load:
        load.suffer("pause etcd", 0, pause)
        cluster.await_in_sync(topic)
        load.finish()


@pytest.mark.long
@pytest.mark.parametrize("role", ["leader", "controller"])
def test_a_broker_is_cut_off_from_etcd(cluster: EtcdBrokers, topic: str, role: str) -> None:
    """The others take over after its lease. It does not acknowledge what they do not have, and comes back."""
    with Load(cluster, topic, clients=CLIENTS) as load:
        victim = load.victim(role)
        way = cluster.ways[victim]
        outage = load.suffer(f"cut off the {role}", victim, way.cut)
        check_failover(outage)
        deadline = time.monotonic() + PATIENCE_S
        while any(state.leader == victim for state in cluster.describe(topic, _other(cluster, victim))):
            assert time.monotonic() < deadline, "nobody took over"
            time.sleep(0.05)
        way.restore()
        cluster.await_in_sync(topic)
        load.finish()


@pytest.mark.long
def test_a_rolling_restart_with_etcd_is_not_noticed(cluster: EtcdBrokers, topic: str) -> None:
    with Load(cluster, topic, clients=CLIENTS) as load:
        load.roll()
        load.finish()
        assert load.errors() == {}
        assert load.rebalances == {}


@pytest.mark.long
def test_a_thousand_partitions_are_created_elected_and_deleted(
    cluster: EtcdBrokers, members: EtcdCluster, topic: str
) -> None:
    """More than one transaction of etcd can change."""
    prefix = base64.b64encode(f"{cluster.prefix}/brokers/topics/{topic}".encode()).decode()
    end = base64.b64encode(f"{cluster.prefix}/brokers/topics/{topic}0".encode()).decode()
    stored = {"key": prefix, "range_end": end, "count_only": True}
    cluster.create_topic(topic, partitions=1_000)
    assert int(members.leader().ask("kv/range", stored)["count"]) == 1_001
    victim = cluster.leader(topic)
    cluster.nodes[victim].kill()
    deadline = time.monotonic() + PATIENCE_S
    while any(state.leader in (victim, -1) for state in cluster.describe(topic)):
        assert time.monotonic() < deadline, "some partitions have no leader"
        time.sleep(0.05)
    cluster.start(victim)
    cluster.await_in_sync(topic)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_topics([topic])
    assert "count" not in members.leader().ask("kv/range", stored), "no key is left"


@pytest.mark.long
def test_a_broker_is_paused_beyond_its_lease(cluster: EtcdBrokers, topic: str) -> None:
    with Load(cluster, topic, clients=CLIENTS) as load:
        load.pause("leader", 1.5 * LEASE_S)
        load.finish()


@pytest.mark.long
def test_etcd_is_slow(cluster: EtcdBrokers, topic: str) -> None:
    """Every answer takes 0.4 seconds: leases hold, clients notice nothing, and a dead broker is replaced."""
    with Load(cluster, topic, clients=CLIENTS) as load:
        epochs = [state.leader_epoch for state in cluster.describe(topic)]
        proxies = [proxy for way in cluster.ways.values() for proxy in way.proxies]

        def slow_down() -> None:
            for proxy in proxies:
                proxy.delay_s = 0.2
            time.sleep(2 * LEASE_S)

        try:
            outage = load.suffer("slow etcd", 0, slow_down)
            assert outage.longest_s < BUSY_S, outage
            assert [state.leader_epoch for state in cluster.describe(topic)] == epochs
            outage = load.kill("leader")
            check_failover(outage, BUSY_S)
        finally:
            for proxy in proxies:
                proxy.delay_s = 0.0
        load.finish()


@pytest.mark.long
def test_everything_restarts_at_once(cluster: EtcdBrokers, members: EtcdCluster, topic: str) -> None:
    with Load(cluster, topic, clients=CLIENTS) as load:

        def restart() -> None:
            for node in cluster.nodes.values():
                node.kill()
            members.restart()
            for node in cluster.nodes.values():
                node.launch()
            cluster.await_ready()

        load.suffer("restart everything", 0, restart)
        cluster.await_in_sync(topic)
        load.finish()


def check_failover(outage: Outage, extra_s: float = 0.0) -> None:
    """A dead broker was replaced within its lease: the clients say when they noticed."""
    assert min(outage.gaps_s.values()) < FAILOVER_S + BUSY_S + extra_s, outage
    assert outage.longest_s < FAILOVER_S + BACK_OFF_S + BUSY_S + extra_s, outage


def _other(cluster: EtcdBrokers, victim: int) -> int:
    return next(node for node in cluster.nodes if node != victim)
