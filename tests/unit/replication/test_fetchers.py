"""When a follower fetches: not while its disk takes no writes, and again soon after."""

import random
from typing import Any

from ottla.replication.broker_peers import BrokerPeers
from ottla.replication.fetchers import ReplicaFetchers
from tests.support.worlds.data_world import DataWorld
from tests.support.worlds.log_world import FailingDisk


def test_a_replica_whose_write_failed_is_fetched_when_the_disk_takes_writes_again(tmp_path: Any) -> None:
    """A former leader with a full disk would be in sync at once: it has everything, and nothing is written yet."""
    disk = FailingDisk()
    world = DataWorld(str(tmp_path), disk=disk)
    world.topic("orders", replicas=(1, 0))
    replica = world.replica("orders")

    async def follow() -> ReplicaFetchers:
        fetchers = ReplicaFetchers(world.replicas, BrokerPeers(0), rng=random.Random(1))
        fetchers.follow(replica)
        return fetchers

    disk.fails("append")
    world.replicas.cannot_store(replica)
    fetchers = world.run(follow())
    followed = fetchers._leaders[1].fetches.find(replica)  # noqa: SLF001 - nothing is sent, so nothing else shows it
    assert followed is not None
    world.wait(3_000)
    assert followed.is_delayed
    disk.works()
    world.wait(3_000)
    assert not followed.is_delayed
    assert not replica.has_failed_write
    fetchers.stop()
    world.close()


def test_a_replica_whose_sync_failed_is_not_fetched(tmp_path: Any) -> None:
    """Its fetches would tell the leader that it is in sync."""
    world = DataWorld(str(tmp_path))
    world.topic("orders", replicas=(1, 0))
    replica = world.replica("orders")
    replica.storage_failure = "sync failed"

    async def follow() -> ReplicaFetchers:
        fetchers = ReplicaFetchers(world.replicas, BrokerPeers(0), rng=random.Random(1))
        fetchers.follow(replica)
        return fetchers

    fetchers = world.run(follow())
    assert fetchers._leaders == {}  # noqa: SLF001
    world.close()
