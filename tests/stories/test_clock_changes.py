"""Somebody sets the wall clock of a machine while a broker and its clients run: timeouts take as long as before."""

import asyncio

import pytest

from ottla.client.producer.producer import AsyncProducer
from ottla.errors import KafkaError
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


async def abandoned(world: World, timeout_ms: int = 60_000) -> None:
    """An open transaction of one record, whose producer died."""
    producer = await begun(world, timeout_ms=timeout_ms)
    await producer.close(timeout_ms=0)


async def is_open(world: World) -> bool:
    """Whether an open transaction hides the record after it from read_committed consumers."""
    async with world.consumer(isolation_level="read_committed") as consumer:
        ends = await consumer.end_offsets([("orders", 0)])
    return next(iter(ends.values())) == 0


@CHANGES
def test_a_transaction_times_out_after_its_timeout_whatever_the_clock_says(jump_ms: int) -> None:
    async def story(world: World) -> None:
        await abandoned(world)
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
        await abandoned(world, timeout_ms=900_000)
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
        await abandoned(world)
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
        await abandoned(world)
        await asyncio.sleep(20)
        world.kill_broker()
        world.broker_clock.jump(-DAY)
        await world.start_broker()
        await asyncio.sleep(55)
        assert await is_open(world)
        await asyncio.sleep(20)
        assert not await is_open(world)

    World(seed=3, num_partitions="1").run(story)


# --- what expires by time -----------------------------------------------------------------------------------

KEEPING = {
    # Everything is kept for eight hours, and a jump of the clock is held for two.
    "ottla_clock_jump_grace_ms": str(2 * HOUR),
    "log_retention_ms": str(8 * HOUR),
    "offsets_retention_minutes": "480",
    "transactional_id_expiration_ms": str(8 * HOUR),
    # Few checks and few partitions, so that simulated days are short.
    "log_retention_check_interval_ms": "600000",
    "offsets_retention_check_interval_ms": "600000",
    "transaction_remove_expired_transaction_cleanup_interval_ms": "600000",
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "600000",
    "offsets_topic_num_partitions": "1",
    "transaction_state_log_num_partitions": "1",
    "num_partitions": "1",
}
EVERYTHING = ["records", "offsets", "transactional id"]


async def fill(world: World) -> None:
    """A record, a committed offset and a transactional id, all idle from now on."""
    producer = await begun(world)
    await producer.commit_transaction()
    await producer.close()
    async with world.admin() as admin:
        await admin.alter_group_offsets("billing", {("orders", 0): 1})


async def kept(world: World) -> list[str]:
    async with world.admin() as admin:
        found = {
            "records": bool(await world.read_all("orders")),
            "offsets": bool(await admin.list_group_offsets("billing")),
            "transactional id": bool(await admin.list_transactions()),
        }
    return [name for name, is_there in found.items() if is_there]


async def hours(count: float) -> None:
    await asyncio.sleep(count * 3600)


def keeping(seed: int, **settings: str) -> World:
    return World(seed=seed, **{**KEEPING, **settings})


def test_old_data_expires() -> None:
    async def story(world: World) -> None:
        await fill(world)
        await hours(7.9)
        assert await kept(world) == EVERYTHING
        await hours(0.5)
        assert await kept(world) == []

    keeping(5).run(story)


@pytest.mark.parametrize("when", ["running", "killed", "rebooted"])
def test_a_clock_that_jumps_a_month_ahead_deletes_nothing_during_the_grace_period(when: str) -> None:
    async def story(world: World) -> None:
        await fill(world)
        await hours(0.2)
        if when != "running":
            world.kill_broker(power_loss=when == "rebooted")
        world.broker_clock.jump(30 * DAY)
        if when != "running":
            await world.start_broker()
        await hours(1.9)
        assert await kept(world) == EVERYTHING
        await hours(0.5)
        assert await kept(world) == [], "after the grace period the new time counts"

    keeping(6, ottla_flush_before_ack="true").run(story)


def test_after_the_clock_is_corrected_everything_is_kept_for_its_time() -> None:
    async def story(world: World) -> None:
        await fill(world)
        world.broker_clock.jump(30 * DAY)
        await hours(1)
        world.broker_clock.jump(-30 * DAY)
        await hours(6.9)
        assert await kept(world) == EVERYTHING
        await hours(0.5)
        assert await kept(world) == []

    keeping(7).run(story)


def test_a_new_time_that_is_right_can_be_accepted_at_run_time() -> None:
    async def story(world: World) -> None:
        await fill(world)
        world.broker_clock.jump(30 * DAY)
        await hours(0.5)
        assert await kept(world) == EVERYTHING
        async with world.admin() as admin:
            await admin.alter_configs("broker", "0", {"ottla.clock.jump.grace.ms": "0"})
        await hours(0.5)
        assert await kept(world) == []

    keeping(8).run(story)


def test_a_clock_that_jumps_back_keeps_everything_longer_by_as_much() -> None:
    async def story(world: World) -> None:
        await fill(world)
        world.broker_clock.jump(-10 * HOUR)
        await hours(17.9)
        assert await kept(world) == EVERYTHING
        await hours(0.5)
        assert await kept(world) == []

    keeping(9).run(story)


# --- timestamps that go back --------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_records_are_found_by_time_although_the_log_append_time_went_back(restarts: bool) -> None:
    async def story(world: World) -> None:
        async with world.admin() as admin:
            configs = {
                "message.timestamp.type": "LogAppendTime",
                "index.interval.bytes": "1",
                "segment.bytes": "1048576",
            }
            await admin.create_topic("events", partitions=1, configs=configs)
        times = []
        async with world.producer() as producer:
            for number in range(30):
                if number in (10, 20):
                    world.broker_clock.jump(-HOUR if number == 10 else HOUR // 2)
                sent = await producer.send_and_wait("events", b"%d" % number)
                times.append(sent.timestamp)
                await asyncio.sleep(60)
        assert times[10] < times[0]
        assert max(times) == times[9], "the first ten records are the latest"
        if restarts:
            world.kill_broker()
            await world.start_broker()
        async with world.consumer() as consumer:
            for target in [*times, *(time + 1 for time in times)]:
                found = next(iter((await consumer.offsets_for_times({("events", 0): target})).values()))
                first = next((offset for offset, time in enumerate(times) if time >= target), None)
                assert (None if found is None else found.offset) == first, target

    World(seed=10).run(story)


# --- clients ------------------------------------------------------------------------------------------------


@CHANGES
def test_a_producers_delivery_timeout_is_not_affected_by_its_clock(jump_ms: int) -> None:
    async def story(world: World) -> float:
        async with world.producer(delivery_timeout_ms=30_000, request_timeout_ms=5_000, linger_ms=0) as producer:
            await producer.send_and_wait("orders", b"before")
            world.kill_broker()
            started = world.loop.time()
            delivery = await producer.send("orders", b"lost")
            await asyncio.sleep(5)
            world.client_clock.jump(jump_ms)
            with pytest.raises(KafkaError):
                await delivery
            return world.loop.time() - started

    assert 29 < World(seed=11, num_partitions="1").run(story) < 36


@CHANGES
def test_a_member_of_a_group_stays_in_it_while_clocks_are_set(jump_ms: int) -> None:
    async def story(world: World) -> None:
        async with world.producer() as producer, world.consumer(group_id="g", auto_offset_reset="earliest") as consumer:
            await producer.send_and_wait("orders", b"before")
            await consumer.subscribe(["orders"])
            assert [record.value for record in await consumer.poll(30_000)] == [b"before"]
            async with world.admin() as admin:
                (before,) = await admin.describe_groups(["g"])
                for clock in (world.client_clock, world.broker_clock):
                    clock.jump(jump_ms)
                    for _ in range(30):
                        await consumer.poll(2_000)
                (after,) = await admin.describe_groups(["g"])
                assert [member.member_id for member in after.members] == [member.member_id for member in before.members]
            await producer.send_and_wait("orders", b"after")
            assert [record.value for record in await consumer.poll(30_000)] == [b"after"]

    World(seed=12, num_partitions="1").run(story)
