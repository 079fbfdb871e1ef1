"""Transactions over three brokers with three replicas each, while brokers die, stop and pause at every point: between
PREPARE, each marker and COMPLETE, and while partitions are being verified. Spec: E6, R1, B10"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.testing.cluster_world import SimBroker
from tests.support.processes.copier import FatefulDisk
from tests.support.seeds import each_seed
from tests.support.wire.transactional import NEW, OLD, Protocol, TransactionalProducer
from tests.support.worlds.cluster_check import check_fresh_loads, settle
from tests.support.worlds.cluster_transactions import ClusterStage, run_story

PROTOCOLS = pytest.mark.parametrize("protocol", [OLD, NEW], ids=["old", "new"])
REPLICATED = {"min_insync_replicas": "2", "replica_lag_time_max_ms": "4000"}


async def transact(producer: TransactionalProducer, number: int, *, commit: bool) -> None:
    """One record for each partition, and an offset."""
    for partition in range(3):
        await producer.send("t", partition, [b"%d" % number])
    await producer.send_offsets("g", {("t", 0): number})
    await (producer.commit() if commit else producer.abort())


async def check(stage: ClusterStage, expected: list[bytes], offset: int) -> None:
    """Every transaction ended one way everywhere, and nothing is left open."""
    await settle(stage.world)
    for partition in range(3):
        for _ in range(300):
            if stage.log(partition).first_unstable_offset is None:
                break
            await asyncio.sleep(0.1)
        found = await stage.values(partition)
        assert found == expected, f"partition {partition}: {found}"
        assert stage.log(partition).first_unstable_offset is None, "a transaction hangs"
    assert await stage.client.committed_offset("g", "t", 0) == offset
    await settle(stage.world)
    check_fresh_loads(stage.world)


async def three_transactions(stage: ClusterStage, protocol: Protocol) -> None:
    producer = await stage.producer(protocol)
    await transact(producer, 1, commit=True)
    await transact(producer, 2, commit=False)
    await transact(producer, 3, commit=True)


async def killed_at(stage: ClusterStage, protocol: Protocol, victim: SimBroker, countdown: int, back_s: float) -> int:
    """The victim dies after its n-th write, and returns a while later. Returns the number of writes."""
    world, died = stage.world, asyncio.Event()

    def die() -> None:
        victim.kill()
        died.set()

    await settle(world)
    await victim.stop()
    disk = FatefulDisk(victim.platter, None, die)
    victim.platter.disk = lambda: disk  # type: ignore[method-assign]
    await victim.start()
    del victim.platter.disk
    await settle(world)
    # Its leaderships return before the transactions begin.
    await asyncio.sleep(8)
    started = disk.steps
    disk.countdown = started + countdown if countdown else None

    async def revive() -> None:
        await died.wait()
        await asyncio.sleep(back_s)
        await victim.start()

    reviving = asyncio.ensure_future(revive())
    await three_transactions(stage, protocol)
    await asyncio.sleep(1)
    reviving.cancel() if not died.is_set() else await reviving
    await check(stage, [b"1", b"3"], 3)
    return disk.steps - started


@PROTOCOLS
@each_seed(2)
def test_a_broker_may_die_after_any_write(seed: int, protocol: Protocol) -> None:
    async def story(stage: ClusterStage) -> None:
        rng = stage.world.random
        victim = stage.world.brokers[rng.randrange(3)]
        await killed_at(stage, protocol, victim, rng.randint(1, 45), rng.choice((0.0, 0.3, 5.0)))

    run_story(story, replicas=3, seed=seed, **REPLICATED)


@pytest.mark.long
@PROTOCOLS
@pytest.mark.parametrize("broker_id", range(3))
def test_each_broker_may_die_after_every_write(broker_id: int, protocol: Protocol) -> None:
    """The coordinator, the group's coordinator, and the third broker, in turn."""

    def run(countdown: int) -> int:
        async def story(stage: ClusterStage) -> int:
            return await killed_at(stage, protocol, stage.world.brokers[broker_id], countdown, 0.3)

        try:
            return int(run_story(story, replicas=3, seed=countdown, **REPLICATED))
        except BaseException as error:
            error.add_note(f"killed after write {countdown}")
            raise

    writes = run(0)
    assert writes > 20, "three transactions need many writes"
    for countdown in range(1, writes + 1):
        run(countdown)


async def disturbed(stage: ClusterStage, protocol: Protocol, disturb: Callable[[], Awaitable[None]]) -> list[bytes]:
    """Transactions follow each other while something happens to the brokers. Returns what was committed."""
    await settle(stage.world)
    producer = await stage.producer(protocol)
    committed: list[bytes] = []
    over = asyncio.ensure_future(disturb())
    number = 0
    while not over.done() or number < 3:
        number += 1
        await asyncio.sleep(stage.world.random.choice((0.0, 0.5, 1.0)))
        await transact(producer, number, commit=number % 3 != 2)
        if number % 3 != 2:
            committed.append(b"%d" % number)
    await over
    return committed


def last_offset(committed: list[bytes]) -> int:
    return int(committed[-1])


@PROTOCOLS
@each_seed(2)
def test_leaders_and_coordinators_move_back_and_forth(seed: int, protocol: Protocol) -> None:
    """Clean stops and starts: leadership is handed over, and returns."""

    async def story(stage: ClusterStage) -> None:
        async def disturb() -> None:
            for _ in range(3):
                broker = stage.world.random.choice(stage.world.up)
                await asyncio.sleep(stage.world.random.uniform(0, 1))
                await broker.stop()
                await asyncio.sleep(stage.world.random.uniform(0, 1))
                await broker.start()
                await asyncio.sleep(stage.world.random.uniform(0, 5))

        committed = await disturbed(stage, protocol, disturb)
        await check(stage, committed, last_offset(committed))

    run_story(story, replicas=3, seed=seed, **REPLICATED)


@PROTOCOLS
@each_seed(2)
def test_paused_and_separated_brokers(seed: int, protocol: Protocol) -> None:
    """A coordinator or leader that does not know yet that it was replaced, and questions that get no answer."""

    async def story(stage: ClusterStage) -> None:
        world = stage.world

        async def disturb() -> None:
            for _ in range(3):
                one, other = world.random.sample(list(world.brokers.values()), 2)
                await asyncio.sleep(world.random.uniform(0, 1))
                match world.random.randrange(3):
                    case 0:
                        one.pause()
                    case 1:
                        world.part(one, other)
                    case _:
                        world.part(one, world.store)
                await asyncio.sleep(world.random.uniform(0, 8))
                world.heal()
                await asyncio.sleep(world.random.uniform(0, 3))

        committed = await disturbed(stage, protocol, disturb)
        await check(stage, committed, last_offset(committed))

    run_story(story, replicas=3, seed=seed, **REPLICATED)
