"""Somebody sets the wall clock of a machine while a broker and its clients run: timeouts take as long as before."""

import asyncio

import pytest

from ottla.client.producer.producer import AsyncProducer
from ottla.testing.world import World

HOUR = 3_600_000
DAY = 24 * HOUR
CHANGES = pytest.mark.parametrize("jump_ms", [-DAY, 7 * DAY], ids=["back", "forward"])


async def begun(world: World, transactional_id: str = "t1", timeout_ms: int = 60_000) -> AsyncProducer:
    """A producer with an open transaction of one record."""
    producer = world.producer(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    await producer.init_transactions()
    await producer.begin_transaction()
    await (await producer.send("orders", b"in a transaction"))
    return producer


async def is_open(world: World) -> bool:
    """Whether an open transaction keeps the record after it from readers of committed records."""
    async with world.consumer(isolation_level="read_committed") as consumer:
        ends = await consumer.end_offsets([("orders", 0)])
    return next(iter(ends.values())) == 0


@CHANGES
def test_a_transaction_times_out_after_its_timeout_whatever_the_clock_says(jump_ms: int) -> None:
    async def story(world: World) -> None:
        await begun(world)
        await asyncio.sleep(20)
        world.broker_clock.jump(jump_ms)
        await asyncio.sleep(30)
        assert await is_open(world), "50 of 60 seconds have passed"
        await asyncio.sleep(25)
        assert not await is_open(world)

    World(seed=1, num_partitions="1").run(story)


def test_many_small_steps_of_the_clock_do_not_add_up() -> None:
    """A machine whose clock runs fast, and is set back by a second every minute."""

    async def story(world: World) -> None:
        await begun(world, timeout_ms=900_000)
        for _ in range(14):
            await asyncio.sleep(60)
            world.broker_clock.jump(-1_900)
        assert await is_open(world)
        await asyncio.sleep(75)
        assert not await is_open(world)

    World(seed=4, num_partitions="1").run(story)


@pytest.mark.parametrize(("down_s", "left_s"), [(0, 40), (15, 25)])
def test_a_restarted_coordinator_counts_from_the_start_of_the_transaction(down_s: int, left_s: int) -> None:
    async def story(world: World) -> None:
        await begun(world)
        await asyncio.sleep(20)
        world.kill_broker()
        await asyncio.sleep(down_s)
        await world.start_broker()
        await asyncio.sleep(left_s - 5)
        assert await is_open(world)
        await asyncio.sleep(20)
        assert not await is_open(world)

    World(seed=2, num_partitions="1").run(story)


def test_after_a_restart_with_the_clock_set_back_a_transaction_gets_its_timeout_once_more() -> None:
    """The start of the transaction is in the future: nothing is known about its age but that it is not negative."""

    async def story(world: World) -> None:
        await begun(world)
        await asyncio.sleep(20)
        world.kill_broker()
        world.broker_clock.jump(-DAY)
        await world.start_broker()
        await asyncio.sleep(55)
        assert await is_open(world)
        await asyncio.sleep(20)
        assert not await is_open(world)

    World(seed=3, num_partitions="1").run(story)
