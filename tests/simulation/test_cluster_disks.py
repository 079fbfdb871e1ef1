"""One broker of a cluster cannot store any more: another replica takes over, and nothing is lost. Spec: R1, R6"""

import asyncio

from ottla.testing.cluster_world import ClusterWorld, SimBroker
from tests.support.seeds import each_seed
from tests.support.worlds.cluster_check import find_replica
from tests.support.worlds.cluster_load import PLAIN, Load
from tests.support.worlds.cluster_stage import by_seed, run_cluster


def leader_id(world: ClusterWorld) -> int:
    return world.image.topics[PLAIN].partitions[0].leader


def isr(world: ClusterWorld) -> set[int]:
    return set(world.image.topics[PLAIN].partitions[0].isr)


def fill(broker: SimBroker) -> None:
    broker.platter.capacity_bytes = broker.platter.used_bytes()


@each_seed(2)
def test_a_leader_whose_disk_is_full_hands_over(seed: int) -> None:
    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(100)
        await asyncio.sleep(0.3)
        full = world.leader_of(PLAIN)
        fill(full)
        load.sends(60)
        await world.until(lambda: leader_id(world) not in (-1, full.id), "another broker leads", 10)
        before = len(load.acknowledged)
        await world.until(lambda: len(load.acknowledged) > before, "records are acknowledged again", 10)
        full.platter.capacity_bytes = None

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_commits_do_not_wait_for_a_follower_whose_disk_is_full(seed: int) -> None:
    """It leaves the in-sync set at once, not after replica.lag.time.max.ms, and returns when there is space."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(100)
        await asyncio.sleep(0.3)
        full = world.followers_of(PLAIN)[0]
        fill(full)
        load.sends(60)
        await world.until(lambda: full.id not in isr(world), "the follower has left the in-sync set", 5)
        for _ in range(100):
            await asyncio.sleep(0.03)
            assert full.id not in isr(world), "it cannot store, even while there is nothing to store"
        full.platter.capacity_bytes = None
        await world.until(lambda: full.id in isr(world), "it is in sync again", 60)

    run_cluster(seed, story, replica_lag_time_max_ms="30000", **by_seed(seed))


@each_seed(2)
def test_a_follower_acknowledges_only_what_it_has_synced(seed: int) -> None:
    """With ottla.flush.before.ack: its next fetch tells the leader what it has."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(60)
        looks = 0
        for _ in range(400):
            await asyncio.sleep(0.002)
            leader = find_replica(world, leader_id(world), PLAIN, 0)
            assert leader is not None
            for broker_id, follower in leader.followers.items():
                copy = find_replica(world, broker_id, PLAIN, 0)
                assert copy is not None
                assert follower.log_end_offset <= copy.log.flushed_offset
                looks += follower.log_end_offset > 0
        assert looks > 100

    run_cluster(seed, story, ottla_flush_before_ack="true", **by_seed(seed))
