"""Clusters whose metadata store is on other machines, as etcd is: deaths are noticed when a lease ends, answers take
long, and the store can be away for longer than any lease."""

import asyncio
from typing import Any

from ottla.testing.cluster_world import ClusterWorld
from tests.support.seeds import each_seed
from tests.support.worlds.cluster_load import PLAIN, Load
from tests.support.worlds.cluster_stage import busy, by_seed, new_leader, partition, run_cluster

LEASE_MS = 3_000
AWAY_S = 10


def on_etcd(seed: int) -> dict[str, Any]:
    return by_seed(seed) | {"notices_death": False, "session_timeout_ms": LEASE_MS}


@each_seed(2)
def test_a_broker_that_restarts_within_its_lease_waits_for_its_own_earlier_registration(seed: int) -> None:
    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        await asyncio.sleep(1)
        leader = world.leader_of(PLAIN)
        leader.kill()
        epoch = world.image.brokers[leader.id].epoch
        started = world.loop.time()
        await leader.start()
        assert world.image.brokers[leader.id].epoch > epoch
        assert world.loop.time() - started < LEASE_MS / 1000 + 2.5

    run_cluster(seed, story, **on_etcd(seed))


@each_seed(2)
def test_all_sessions_end_while_the_store_is_away_and_everything_goes_on_when_it_is_back(seed: int) -> None:
    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        await asyncio.sleep(0.5)
        epochs = {broker_id: broker.epoch for broker_id, broker in world.image.brokers.items()}
        world.hub.is_away = True
        await asyncio.sleep(AWAY_S)
        acknowledged = len(load.acknowledged)
        load.sends(20)
        await asyncio.sleep(2)
        assert len(load.acknowledged) == acknowledged, "nobody can be sure to lead any more"
        world.hub.is_away = False
        await world.until(
            lambda: all(
                broker_id in world.image.brokers and world.image.brokers[broker_id].epoch > epoch
                for broker_id, epoch in epochs.items()
            ),
            "all brokers have registered again",
            30,
        )

    run_cluster(seed, story, **on_etcd(seed))


@each_seed(2)
def test_a_leader_dies_while_the_store_is_slow(seed: int) -> None:
    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        world.hub.delay_ms = (50, 400)
        await asyncio.sleep(1)
        leader = world.leader_of(PLAIN)
        leader.kill()
        await new_leader(world, leader)
        world.hub.delay_ms = (0.2, 5)
        await leader.start()
        assert partition(world).leader != -1

    run_cluster(seed, story, **on_etcd(seed))
