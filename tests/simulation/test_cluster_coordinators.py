"""Groups and transactions in a cluster whose coordinators die and move. Spec: B10, R1, R2, R5

Each story ends with all checks of tests/support/worlds/cluster_check.py.
"""

import asyncio
from typing import Any

import pytest

from ottla.metadata.changes.cluster_changes import ClusterChanges
from ottla.testing.cluster_world import ClusterWorld, SimBroker
from ottla.testing.sim_disk import SimDisk, SimPlatter
from tests.support.seeds import each_seed
from tests.support.worlds.cluster_check import settle
from tests.support.worlds.cluster_faults import KILL, LONG_PAUSE, Faults
from tests.support.worlds.cluster_load import PLAIN, QUICK, Load
from tests.support.worlds.cluster_stage import by_seed, run_cluster


async def coordinator_of(world: ClusterWorld, group: str = "g") -> SimBroker:
    async with world.admin(default_api_timeout_ms=60_000) as admin:
        return world.brokers[(await admin.find_coordinators([group]))[group].node_id]


@each_seed(2)
def test_a_group_gets_over_the_death_of_its_coordinator_at_any_moment(seed: int) -> None:
    """In a join, in a sync, in a commit: acknowledged commits are kept, and the group reads everything."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(60)
        for number in range(3):
            load.joins_group(f"m{number}")
            await asyncio.sleep(world.random.uniform(0, 0.3))
        for _ in range(3):
            coordinator = await coordinator_of(world)
            await asyncio.sleep(world.random.uniform(0, 0.6))
            if world.random.random() < 0.7:
                coordinator.kill()
                await asyncio.sleep(world.random.uniform(0, 2))
                await coordinator.start()
            else:
                coordinator.pause()
                await asyncio.sleep(world.random.uniform(1, 7))
                coordinator.resume()

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_members_keep_their_ids_and_generation_when_the_coordinator_moves(seed: int) -> None:
    """Also when it moves back (failback): no rebalance. Offsets can be committed again at once."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(10)
        settings = {"group_id": "g", "session_timeout_ms": 30_000, "heartbeat_interval_ms": 500, **QUICK}
        consumers = [world.consumer(**settings, auto_offset_reset="earliest") for _ in range(2)]
        for consumer in consumers:
            await consumer.subscribe([PLAIN])

        async def identities() -> list[Any]:
            found = []
            for consumer in consumers:
                metadata = await consumer.group_metadata()
                found.append((metadata.member_id, metadata.generation_id))
            return found

        async def poll(seconds: float) -> None:
            end = world.loop.time() + seconds
            while world.loop.time() < end:
                await asyncio.gather(*(consumer.poll(250) for consumer in consumers))

        await poll(4)
        before = await identities()
        assert before[0][1] == before[1][1] > 0
        for _ in range(2):
            coordinator = await coordinator_of(world)
            coordinator.kill()
            await poll(4)
            await consumers[0].commit({(PLAIN, 0): 1})
            await coordinator.start()
            await settle(world)
            await poll(4)
            assert await identities() == before, "the group has rebalanced"
        for consumer in consumers:
            await consumer.close()

    run_cluster(seed, story, **by_seed(seed))


class FatefulDisk(SimDisk):
    """Counts the appends and syncs of one broker, and calls `fate` after the n-th."""

    def __init__(self, platter: SimPlatter, countdown: int, fate: Any) -> None:
        super().__init__(platter)
        self.countdown = countdown
        self._fate = fate

    def append(self, handle: int, buffers: Any) -> int:
        written = super().append(handle, buffers)
        self._step()
        return written

    def sync(self, handle: int) -> None:
        super().sync(handle)
        self._step()

    def _step(self) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            self._fate()


@each_seed(3)
def test_transactions_end_one_way_everywhere_whatever_write_the_broker_dies_after(seed: int) -> None:
    """A broker dies after one of its writes: between PREPARE, each marker and COMPLETE, or anywhere else."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends_transactions(3)
        await settle(world)
        victim = world.random.choice(list(world.brokers.values()))
        died = asyncio.Event()

        def die() -> None:
            victim.kill()
            died.set()

        await victim.stop()
        disk = FatefulDisk(victim.platter, world.random.randint(20, 140), die)
        victim.platter.disk = lambda: disk  # type: ignore[method-assign]
        await victim.start()
        del victim.platter.disk

        async def revive() -> None:
            await died.wait()
            await asyncio.sleep(world.random.choice((0.0, 0.5, 5.0)))
            await victim.start()

        reviving = asyncio.ensure_future(revive())
        await settle(world)
        load.sends_transactions(8)
        load.sends_transactions(8)
        load.reads(committed=True)
        await asyncio.sleep(8)
        reviving.cancel() if not died.is_set() else await reviving

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_transactions_survive_the_deaths_and_pauses_of_coordinators(seed: int) -> None:
    async def story(world: ClusterWorld, load: Load) -> None:
        for _ in range(3):
            load.sends_transactions(15)
        load.reads(committed=True)
        await asyncio.sleep(0.5)
        await Faults(world, (KILL, KILL, LONG_PAUSE)).strike(4)

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_no_producer_id_is_given_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if a broker does not learn whether its block of ids was committed, or dies with ids left."""
    given: list[range] = []
    allocate = ClusterChanges.allocate_producer_ids

    async def watched(self: ClusterChanges, count: int = 1) -> int:
        first = await allocate(self, count)
        given.append(range(first, first + count))
        return first

    monkeypatch.setattr(ClusterChanges, "allocate_producer_ids", watched)

    async def story(world: ClusterWorld, load: Load) -> None:
        for number in range(8):
            load.sends(3)
            if number % 3 == 1:
                broker = world.random.choice(world.up)
                world.part(broker, world.store)
                await asyncio.sleep(world.random.uniform(0, 5))
                world.heal()
            elif number % 3 == 2:
                broker = world.random.choice(world.up)
                broker.kill()
                await asyncio.sleep(world.random.uniform(0, 1))
                await broker.start()

    run_cluster(seed, story, **by_seed(seed))
    ids = [each for block in given for each in block]
    assert len(ids) >= 8
    assert len(set(ids)) == len(ids), "a producer id was given twice"


RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS = {broker: {"broker.rack": f"rack-{broker}"} for broker in range(3)}


@each_seed(2)
def test_reading_from_followers_shows_only_what_is_committed(seed: int) -> None:
    """Consumers read from the replica in their rack (KIP-392), while leaders die. No record is shown before it is
    committed, none that was aborted, none is skipped and none comes twice."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(60)
        load.sends_transactions(15)
        for broker in range(3):
            load.reads(committed=True, client_rack=f"rack-{broker}")
            load.reads(committed=False, client_rack=f"rack-{broker}")
        await asyncio.sleep(0.5)
        await Faults(world, (KILL, LONG_PAUSE)).strike(3)

    run_cluster(seed, story, settings_of=RACKS, replica_selector_class=RACK_AWARE, **by_seed(seed))
