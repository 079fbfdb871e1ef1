"""Stories about brokers that lose power: what was written and not synced may be gone, in part or as a whole. Spec: R6

Each ends with all checks of tests/support/worlds/cluster_check.py.
"""

import asyncio

from ottla.testing.cluster_world import ClusterWorld
from tests.support.seeds import each_seed
from tests.support.worlds.cluster_check import settle
from tests.support.worlds.cluster_load import PLAIN, Load
from tests.support.worlds.cluster_stage import busy, by_seed, in_sync, isr, new_leader, partition, run_cluster


@each_seed(3)
def test_a_broker_that_lost_power_does_not_bring_its_gaps_into_the_cluster(seed: int) -> None:
    """Nothing is flushed before the acknowledgement: what the broker lost, the other replicas have."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        for _ in range(3):
            await asyncio.sleep(world.random.uniform(0.2, 1))
            victim = world.random.choice([world.leader_of(PLAIN), *world.brokers.values()])
            victim.kill(power_loss=True)
            await asyncio.sleep(world.random.choice((0.0, 0.02, 1.0)))
            await victim.start()
            await settle(world)

    run_cluster(seed, story, **by_seed(seed))


@each_seed(3)
def test_all_brokers_lose_power_and_nothing_flushed_is_lost(seed: int) -> None:
    """With ottla.flush.before.ack, acks=all survives the loss of all machines at once."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load, count=40)
        for _ in range(2):
            await asyncio.sleep(world.random.uniform(0.2, 1))
            for broker in world.brokers.values():
                broker.kill(power_loss=True)
            order = list(world.brokers.values())
            world.random.shuffle(order)
            for broker in order:
                await asyncio.sleep(world.random.choice((0.0, 0.5, 3.0)))
                load.start(broker.start())
            await asyncio.sleep(3)

    run_cluster(seed, story, ottla_flush_before_ack="true", **by_seed(seed))


@each_seed(2)
def test_only_the_last_replica_in_sync_may_lead_again(seed: int) -> None:
    """Its followers died before it did. They return first, and have to wait for it."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(20)
        await asyncio.sleep(1)
        leader, followers = world.leader_of(PLAIN), world.followers_of(PLAIN)
        for follower in followers:
            follower.kill()
        await world.until(lambda: isr(world) == {leader.id}, "the leader is alone in sync", 30)
        load.sends(20)
        await asyncio.sleep(1)
        leader.kill(power_loss=True)
        for follower in followers:
            await follower.start()
        await asyncio.sleep(8)
        assert partition(world).leader in (-1, leader.id), "a replica that misses records leads"
        await leader.start()

    run_cluster(seed, story, min_insync_replicas="1", ottla_flush_before_ack="true", **by_seed(seed))


@each_seed(3)
def test_one_broker_loses_power_and_the_others_are_only_killed(seed: int) -> None:
    """Nobody was stopped cleanly, and nothing was flushed: the broker with the longest log leads once all are back."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        await asyncio.sleep(world.random.uniform(0.3, 1.2))
        leader, order = world.leader_of(PLAIN), list(world.brokers.values())
        for broker in order:
            broker.kill(power_loss=broker is leader)
        world.random.shuffle(order)
        for broker in order:
            await asyncio.sleep(world.random.choice((0.0, 0.1, 4.0)))
            load.start(broker.start())

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_one_replica_alone_acknowledges_nothing_that_two_must_have(seed: int) -> None:
    """min.insync.replicas=2: records that the leader wrote while it was alone are lost with its power, and were never
    acknowledged. A follower that was stopped before still has everything that was acknowledged (KIP-966)."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(20)
        await asyncio.sleep(1)
        leader, followers = world.leader_of(PLAIN), world.followers_of(PLAIN)
        for follower in followers:
            await follower.stop()
        load.sends(20)
        await asyncio.sleep(5)
        leader.kill(power_loss=True)
        await asyncio.gather(*(broker.start() for broker in world.brokers.values()))

    run_cluster(seed, story, **by_seed(seed))


@each_seed(3)
def test_a_follower_that_lost_power_is_in_sync_only_when_it_has_caught_up_again(seed: int) -> None:
    """The leader remembers how far the follower was before it lost power. That counts for nothing now (KIP-903)."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        for _ in range(3):
            await asyncio.sleep(world.random.uniform(0.2, 0.8))
            leader = world.leader_of(PLAIN)
            follower, other = world.followers_of(PLAIN)
            other.kill()
            follower.kill(power_loss=True)
            await follower.start()
            await in_sync(world, follower, True)
            leader.kill()
            await new_leader(world, leader)
            await other.start()
            await leader.start()
            await settle(world)

    run_cluster(seed, story, **by_seed(seed))
