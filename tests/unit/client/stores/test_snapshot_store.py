"""State and offsets in topics, simulated: restored from the last incremental record and the full snapshot it points to.

Spec: E10.
"""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from ottla import AsyncConsumer
from ottla.client.stores.snapshot_store import AsyncSnapshotStore
from ottla.errors import KafkaError
from ottla.testing.world import World
from ottla.types import TopicPartition
from tests.support.seeds import each_seed

INPUT = TopicPartition("numbers", 0)
COUNT = 15
STEPS = [
    "opened",
    "restored",
    "replayed",
    "begun",
    "sent",
    "incremental sent",
    "committed",
    "before full",
    "full sent",
    "full committed",
]


class CrashError(Exception):
    pass


class Totals:
    """A stateful task: after each number it writes the sum so far. The sum is its state."""

    def __init__(self, world: World, crash_step: str | None, crash_at: int, pause_s: float = 0.0) -> None:
        self.world = world
        self.pause_s = pause_s
        self.crash_step = crash_step
        self.crash_at = crash_at
        self.replayed = 0

    def reached(self, step: str, position: int = 0) -> None:
        if step == self.crash_step and position >= self.crash_at:
            raise CrashError

    async def run(self) -> None:
        settings = {"bootstrap.servers": "127.0.0.1:9092", "linger.ms": 0}
        places: dict[str, Any] = {"incremental": ("offsets", 0), "full": ("state", 0)}
        store = await AsyncSnapshotStore.open(
            settings, transactional_id="totals", **places, clock=self.world.loop.clock
        )
        consumer = self.world.consumer(auto_offset_reset="earliest")
        try:
            self.reached("opened")
            await self._work(store, consumer)
        finally:
            await consumer.close()
            await store.producer.close(timeout_ms=0)  # as after a crash: no transaction is ended

    async def _work(self, store: AsyncSnapshotStore, consumer: AsyncConsumer) -> None:
        total = int(store.restored.state or b"0")
        position = store.restored.state_offsets.get(INPUT, 0)
        self.reached("restored")
        await consumer.assign([INPUT])
        await consumer.seek(INPUT, position)
        resume_at = store.restored.offsets.get(INPUT, 0)
        while position < resume_at:  # only what came after the full snapshot
            for record in await consumer.poll(1_000, max_records=resume_at - position):
                total += int(record.value or b"0")
                position = record.offset + 1
                self.replayed += 1
        self.reached("replayed")
        while position < COUNT:
            records = list(await consumer.poll(1_000, max_records=2))
            if not records:
                continue
            following, sums = records[-1].offset + 1, total
            async with store.transaction({INPUT: following}):
                self.reached("begun", following)
                for record in records:
                    sums += int(record.value or b"0")
                    await store.producer.send("totals", f"{sums}", partition=0)
                await asyncio.sleep(self.pause_s)
                self.reached("sent", following)
                if self.crash_step == "incremental sent" and following >= self.crash_at:
                    snapshots = store._snapshots  # noqa: SLF001 - to crash between two of its records
                    await snapshots.send_incremental({INPUT: following}, snapshots.full_offset)
                    await store.producer.flush()
                    raise CrashError
            total, position = sums, following
            self.reached("committed", following)
            if position % 5 == 0:
                self.reached("before full", following)
                if self.crash_step == "full sent" and following >= self.crash_at:
                    await store.producer.begin_transaction()
                    await store.producer.send_and_wait("state", f"{total}", partition=0)
                    raise CrashError
                await store.save_full(b"%d" % total)
                self.reached("full committed", following)


async def set_up(world: World) -> list[bytes]:
    admin = world.admin()
    for name in ("numbers", "totals", "offsets", "state"):
        await admin.create_topic(name, partitions=1)
    await admin.close()
    sums, total = [], 0
    async with world.producer() as producer:
        for number in range(COUNT):
            await producer.send("numbers", f"{number}", partition=0)
            total += number
            sums.append(b"%d" % total)
    return sums


async def visible(world: World, topic: str) -> list[Any]:
    async with world.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        place = TopicPartition(topic, 0)
        await consumer.assign([place])
        (end,) = (await consumer.end_offsets([place])).values()
        found: list[Any] = []
        while await consumer.position(place) < end:
            found += list(await consumer.poll(500))
        return found


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_neither_loses_nor_repeats(step: str) -> None:
    """Spec: E10. The output has every sum once, whenever the task dies and however often."""

    async def story(world: World) -> None:
        sums = await set_up(world)
        for crash_at in (1, 4, 5, 8, 10, 13):
            with contextlib.suppress(CrashError):
                await Totals(world, step, crash_at).run()
        await Totals(world, None, 0).run()
        assert [record.value for record in await visible(world, "totals")] == sums

    World(7, transaction_state_log_num_partitions="2").run(story)


@each_seed(5)
def test_sums_are_written_exactly_once_despite_kills_and_partitions(seed: int) -> None:
    """Spec: E10. The broker dies, the network is cut or lets nothing through, the task dies, all at random."""

    async def story(world: World) -> None:
        rng, sums = world.random, await set_up(world)

        async def work() -> None:
            for _ in range(100):
                try:
                    step, at = rng.choice([*STEPS, None]), rng.randint(1, COUNT)
                    await Totals(world, step, at, pause_s=0.2).run()
                    if step is None:
                        return
                except (CrashError, KafkaError):
                    await asyncio.sleep(0.05)
            raise AssertionError("no instance reached the end")

        working = asyncio.ensure_future(work())
        while not working.done():
            await asyncio.sleep(rng.uniform(0, 2))
            chance = rng.random()
            if chance < 0.3:
                world.network.cut_all()
            elif chance < 0.5:
                world.network.partition("outside", "broker")
                await asyncio.sleep(rng.uniform(0, 8))
                world.network.heal()
            elif chance < 0.8:
                world.kill_broker()
                await asyncio.sleep(rng.uniform(0, 2))
                await world.start_broker()
        await working
        await Totals(world, None, 0).run()
        assert [record.value for record in await visible(world, "totals")] == sums

    World(seed, transaction_state_log_num_partitions="2").run(story)


def test_only_input_after_the_full_snapshot_is_replayed() -> None:
    """Spec: E10."""

    async def story(world: World) -> None:
        await set_up(world)
        with contextlib.suppress(CrashError):
            await Totals(world, "committed", 13).run()  # a full snapshot at 10, incremental ones up to 13 or 14
        last = Totals(world, None, 0)
        await last.run()
        assert 0 < last.replayed <= 4
        incremental = [json.loads(record.value) for record in await visible(world, "offsets")]
        assert [each["offsets"]["numbers"]["0"] for each in incremental] == sorted(
            each["offsets"]["numbers"]["0"] for each in incremental
        )
        snapshots = {record.offset for record in await visible(world, "state")}
        assert {each["full"] for each in incremental} <= snapshots | {-1}

    World(8, transaction_state_log_num_partitions="2").run(story)


def test_an_open_transaction_of_another_id_does_not_hide_the_last_snapshot() -> None:
    """Spec: E10. Behind it, a read_committed reader would find only an older snapshot, and repeat the input since."""

    async def story(world: World) -> None:
        await set_up(world)
        settings = {"bootstrap.servers": "127.0.0.1:9092"}
        places: dict[str, Any] = {"incremental": ("offsets", 0), "full": ("state", 0), "clock": world.loop.clock}
        other = await AsyncSnapshotStore.open(settings, transactional_id="other", **places)
        async with await AsyncSnapshotStore.open(settings, transactional_id="x", **places) as store:
            async with store.transaction({INPUT: 3}):
                pass
            await other.producer.begin_transaction()
            await other._snapshots.send_incremental({INPUT: 1}, -1)  # noqa: SLF001 - it stays open
            await other.producer.flush()
            async with store.transaction({INPUT: 9}):
                pass
        opening = asyncio.ensure_future(AsyncSnapshotStore.open(settings, transactional_id="x", **places))
        await asyncio.sleep(5)
        assert not opening.done(), "restored while the end of the partition cannot be read"
        await other.producer.commit_transaction()
        async with await opening as again:
            assert again.restored.offsets == {INPUT: 9}
        await other.close()

    World(10, transaction_state_log_num_partitions="2").run(story)


def test_the_last_incremental_record_is_found_behind_many_aborted_ones() -> None:
    async def story(world: World) -> None:
        await set_up(world)
        settings = {"bootstrap.servers": "127.0.0.1:9092"}
        places: dict[str, Any] = {"incremental": ("offsets", 0), "full": ("state", 0)}
        async with await AsyncSnapshotStore.open(
            settings, transactional_id="x", **places, clock=world.loop.clock
        ) as store:
            async with store.transaction({INPUT: 3}):
                pass
            for _ in range(30):
                with contextlib.suppress(CrashError):
                    async with store.transaction({INPUT: 9}):
                        await store._snapshots.send_incremental({INPUT: 9}, -1)  # noqa: SLF001
                        await store.producer.flush()
                        raise CrashError
            assert store.offsets == {INPUT: 3}
        async with await AsyncSnapshotStore.open(
            settings, transactional_id="x", **places, clock=world.loop.clock
        ) as again:
            assert again.restored.offsets == {INPUT: 3}
            assert again.restored.state is None

    World(9, transaction_state_log_num_partitions="2").run(story)
