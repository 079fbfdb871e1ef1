"""Replicas that catch up can be slowed down, so that clients keep their bandwidth (KIP-73)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla import NewTopic, TopicPartition
from ottla.broker.handler_support.fetching.follower_reading import FollowerReading
from ottla.replication import throttling
from ottla.replication.following import LeaderFetches
from ottla.testing.cluster_world import ClusterWorld
from tests.support.seeds import each_seed

T0 = TopicPartition("t", 0)
RATE = 100_000
ROLES = ("leader", "follower")
FIXED_SEED = 1
"""For stories whose rule is switched off."""


def run(story: Callable[[ClusterWorld], Awaitable[None]], seed: int) -> None:
    ClusterWorld(seed).run(story)


async def filled(world: ClusterWorld, *replicas: int, megabytes: int = 1) -> None:
    async with world.admin() as admin:
        await admin.create_topics([NewTopic("t", assignments={0: replicas})])
    async with world.producer(acks="all") as producer:
        for _ in range(megabytes * 50):
            await producer.send("t", bytes(world.random.randbytes(20_000)))


async def throttle(world: ClusterWorld, role: str, replicas: str = "*", rate: int = RATE) -> None:
    async with world.admin() as admin:
        await admin.alter_configs("topic", "t", {f"{role}.replication.throttled.replicas": replicas})
        for broker in world.brokers:
            await admin.alter_configs("broker", str(broker), {f"{role}.replication.throttled.rate": str(rate)})
    await asyncio.sleep(0.5)


def in_sync(world: ClusterWorld) -> set[int]:
    return set(world.image.topics["t"].partitions[0].isr)


async def seconds_to_move(world: ClusterWorld, *replicas: int) -> float:
    start = world.loop.time()
    async with world.admin() as admin:
        await admin.alter_partition_reassignments({T0: replicas})
    await world.until(lambda: in_sync(world) == set(replicas), "all are in sync", 120)
    return world.loop.time() - start


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("names_it", [True, False])
@each_seed(1)
def test_a_throttled_replica_catches_up_at_the_rate(seed: int, role: str, names_it: bool) -> None:
    async def story(world: ClusterWorld) -> None:
        await filled(world, 0, megabytes=2)
        throttled = {"leader": "0:0", "follower": "0:1"}[role]
        await throttle(world, role, throttled if names_it else "0:2,1:0,1:1")
        duration = await seconds_to_move(world, 0, 1)
        if names_it:
            assert 17 < duration < 23, "2 MB at 0.1 MB/s"
        else:
            assert duration < 2, "another replica is throttled"

    run(story, seed)


@pytest.mark.parametrize("role", ROLES)
@each_seed(1)
def test_other_partitions_and_replicas_in_sync_do_not_wait(seed: int, role: str) -> None:
    """Records of a throttled topic are committed at once, while another replica of it waits."""

    async def story(world: ClusterWorld) -> None:
        await filled(world, 0, 1)
        await throttle(world, role, rate=1_000)
        async with world.admin() as admin:
            await admin.alter_partition_reassignments({T0: (0, 1, 2)})
        await asyncio.sleep(1)
        async with world.producer(acks="all") as producer:
            for _ in range(20):
                start = world.loop.time()
                await producer.send_and_wait("t", bytes(5_000))
                assert world.loop.time() - start < 0.2, "a replica in sync was throttled"
        assert in_sync(world) == {0, 1}
        await throttle(world, role, rate=10_000_000)
        await world.until(lambda: in_sync(world) == {0, 1, 2}, "all are in sync", 10)

    run(story, seed)


@pytest.mark.parametrize("role", ROLES)
def test_without_the_rule_the_replica_is_not_slowed_down(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling.ReplicationQuota, "wait_ms", lambda self, now: 0)
    with pytest.raises(AssertionError, match="2 MB at"):
        test_a_throttled_replica_catches_up_at_the_rate(FIXED_SEED, role, names_it=True)


def test_without_the_rule_replicas_in_sync_wait_for_their_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FollowerReading, "_waits_for_quota", lambda self, topic, asked: topic == throttled_topic(self))
    with pytest.raises(AssertionError, match="in sync"):
        test_other_partitions_and_replicas_in_sync_do_not_wait(FIXED_SEED, "leader")


def throttled_topic(reading: FollowerReading) -> bytes:
    return reading.context.services.image.topics["t"].topic_id


def test_without_the_rule_replicas_in_sync_do_not_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderFetches, "catching_up", lambda self: list(self.partitions.values()))
    with pytest.raises(AssertionError, match="in sync"):
        test_other_partitions_and_replicas_in_sync_do_not_wait(FIXED_SEED, "follower")


@each_seed(1)
def test_a_throttled_follower_costs_its_leader_few_answers(seed: int) -> None:
    """Appends to a partition that waits for the quota do not wake the follower's fetch each time."""

    async def story(world: ClusterWorld) -> None:
        await filled(world, 0)
        await throttle(world, "leader", rate=1_000)
        async with world.admin() as admin:
            await admin.alter_partition_reassignments({T0: (0, 1)})
        await asyncio.sleep(2)
        before = fetch_count(world, 1)
        async with world.producer(acks=1, enable_idempotence=False) as producer:
            for _ in range(500):
                await producer.send("t", b"x")
                await asyncio.sleep(0.01)
        asked = fetch_count(world, 1) - before
        assert asked < 40, f"{asked} fetches in five seconds"

    run(story, seed)


def fetch_count(world: ClusterWorld, broker_id: int) -> int:
    """How many fetches a broker has sent as a follower."""
    broker = world.brokers[broker_id].broker
    assert broker is not None
    fetchers = broker.services.replicas.fetchers
    assert fetchers is not None
    return sum(fetcher.fetches._number for fetcher in fetchers._leaders.values())  # noqa: SLF001
