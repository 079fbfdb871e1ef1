"""Commits while a group rebalances, simulated: asynchronous commits, deleted topics, seeks, cancelled listeners."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import asyncio
import contextlib
from typing import Any

import pytest

from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.model import CommittedOffset
from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.errors import ErrorCode, KafkaError
from ottla.testing.world import World
from ottla.types import TopicPartition
from tests.support.seeds import each_seed

QUICK = {"auto_offset_reset": "earliest", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000}
P0 = TopicPartition("t", 0)


async def fill(world: World, topic: str, count: int) -> None:
    async with world.producer() as producer:
        for number in range(count):
            await producer.send(topic, f"{number}", partition=0)


async def make(world: World, *topics: str, records: int = 10) -> None:
    async with world.admin() as admin:
        for topic in topics:
            await admin.create_topic(topic, partitions=1)
    for topic in topics:
        await fill(world, topic, records)


async def read(consumer: AsyncConsumer, count: int, **options: Any) -> None:
    while count > 0:
        count -= len(await consumer.poll(1_000, **options))


@each_seed(4)
def test_asynchronous_commits_of_a_listener_complete_before_the_rebalance(seed: int) -> None:
    """JoinGroup has its own connection: if it overtook the commit, the commit's generation would be stale."""
    consumer: AsyncConsumer
    outcomes: list[KafkaError | None] = []

    def note(offsets: dict[TopicPartition, CommittedOffset], error: KafkaError | None) -> None:
        outcomes.append(error)

    class Committing(RebalanceListener):
        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            await consumer.commit_async(callback=note)

    async def story(world: World) -> None:
        nonlocal consumer
        await make(world, "t")
        consumer = world.consumer(group_id="g", enable_auto_commit=False, **QUICK)
        async with consumer:
            await consumer.subscribe(["t"], listener=Committing())
            await read(consumer, 10)
            await consumer.enforce_rebalance()
            for _ in range(20):
                await consumer.poll(200)
            assert outcomes == [None]

    World(seed).run(story)


def test_an_asynchronous_commit_of_a_removed_member_fails_in_its_callback() -> None:
    """Whether the coordinator refuses it or the member knows already, the user's loop continues."""
    outcomes: list[KafkaError | None] = []

    async def story(world: World) -> None:
        await make(world, "t")
        settings = QUICK | {"max_poll_interval_ms": 6_000}
        async with world.consumer(group_id="g", enable_auto_commit=False, **settings) as consumer:
            await consumer.subscribe(["t"])
            await read(consumer, 10)
            await asyncio.sleep(20)  # longer than max.poll.interval.ms
            await consumer.commit_async()
            await consumer.commit_async(callback=lambda offsets, error: outcomes.append(error))
            with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
                await consumer.commit()
            await read(consumer, 10)
            assert [error.code for error in outcomes if error] == [ErrorCode.UNKNOWN_MEMBER_ID]

    World(1).run(story)


def test_seeking_back_is_committed_even_while_an_older_commit_is_in_flight() -> None:
    """Otherwise the older commit would win, and the next owner would skip ten records."""

    async def story(world: World) -> None:
        await make(world, "t", records=20)
        async with world.consumer(group_id="g", auto_commit_interval_ms=3_600_000, **QUICK) as consumer:
            await consumer.subscribe(["t"])
            await read(consumer, 10, max_records=10)
            await consumer.commit()
            await read(consumer, 10, max_records=10)
            await consumer.commit_async()
            await consumer.seek(P0, 10)
        async with world.admin() as admin:
            assert (await admin.list_group_offsets("g"))[P0].offset == 10

    World(1).run(story)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_deleted_topic_does_not_delay_the_rebalance(strategy: str) -> None:
    async def story(world: World) -> None:
        await make(world, "t", "u")
        settings = QUICK | {"auto_commit_interval_ms": 3_600_000, "metadata_max_age_ms": 2_000}
        async with world.consumer(
            group_id="g", partition_assignment_strategy=strategy, allow_auto_create_topics=False, **settings
        ) as consumer:
            await consumer.subscribe(["t", "u"])
            await read(consumer, 20)
            async with world.admin() as admin:
                await admin.delete_topics(["t"])
            began = world.loop.time()
            while P0 in await consumer.assignment():
                await consumer.poll(200)
            assert world.loop.time() - began < 10

    World(1).run(story)


def test_a_deleted_topic_does_not_delay_commits_of_other_topics() -> None:
    async def story(world: World) -> None:
        await make(world, "t", "u")
        async with world.consumer(
            group_id="g", auto_commit_interval_ms=1_000, allow_auto_create_topics=False, auto_offset_reset="earliest"
        ) as consumer:
            await consumer.assign([("t", 0), ("u", 0)])
            await read(consumer, 20)
            async with world.admin() as admin:
                await admin.delete_topics(["t"])
            for _ in range(10):
                await consumer.poll(200)
            began = world.loop.time()
            await consumer.commit({("u", 0): 5})
            assert world.loop.time() - began < 5

    World(1).run(story)


def test_a_listener_cancelled_with_its_poll_is_called_again() -> None:
    """It may have been about to seek(). Without it, reading would start at the committed offset."""
    consumer: AsyncConsumer
    heard: list[str] = []

    class Seeking(RebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            heard.append("assigned")
            await asyncio.sleep(1)
            for partition in partitions:
                await consumer.seek(partition, 5)

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            heard.append("revoked")

    async def story(world: World) -> None:
        nonlocal consumer
        await make(world, "t")
        consumer = world.consumer(group_id="g", enable_auto_commit=False, **QUICK)
        async with consumer:
            await consumer.subscribe(["t"], listener=Seeking())
            while not heard:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await consumer.poll(10_000)
            records = await consumer.poll(10_000)
            assert [record.offset for record in records] == [5, 6, 7, 8, 9]
        assert heard == ["assigned", "assigned", "revoked"]

    World(1).run(story)


def test_the_first_of_two_listener_failures_is_raised() -> None:
    class Failing(RebalanceListener):
        fails = False

        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            if self.fails:
                raise ValueError("revoked")

        def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            if self.fails:
                raise ValueError("assigned")

    async def story(world: World) -> None:
        await make(world, "t", "u")
        settings = {"group_id": "g", "partition_assignment_strategy": "cooperative-sticky", **QUICK}
        listener, errors = Failing(), []
        async with world.consumer(**settings) as first, world.consumer(**settings) as second:
            await first.subscribe(["t", "u"], listener=listener)
            while len(await first.assignment()) < 2:
                await first.poll(200)
            listener.fails = True
            await second.subscribe(["t", "u"])
            while not await second.assignment():
                try:
                    await first.poll(100)
                except ValueError as error:
                    errors.append(str(error))
                await second.poll(100)
            listener.fails = False
            assert errors[0] == "revoked"
            assert len(await first.assignment()) == 1

    World(1).run(story)


def test_a_cancelled_listener_is_not_called_again_after_unsubscribe() -> None:
    heard: list[list[TopicPartition]] = []

    class Slow(RebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            heard.append(partitions)
            await asyncio.sleep(1)

    async def story(world: World) -> None:
        await make(world, "t")
        async with world.consumer(group_id="g", **QUICK) as consumer:
            await consumer.subscribe(["t"], listener=Slow())
            while not heard:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await consumer.poll(10_000)
            await consumer.unsubscribe()
            await consumer.assign([P0])
            await read(consumer, 10)
        assert heard == [[P0]]

    World(1).run(story)


def test_deleted_topics_leave_nothing_in_memory() -> None:
    async def story(world: World) -> None:
        async with world.consumer(group_id="g", **QUICK) as consumer:
            for day in range(5):
                await make(world, f"day-{day}")
                await consumer.subscribe([f"day-{day}"])
                await read(consumer, 10)
                await consumer.commit()
            assert consumer._group is not None
            assert list(consumer._group.commits.committed) == [TopicPartition("day-4", 0)]
            assert list(consumer._fetcher._buffered) == [TopicPartition("day-4", 0)]

    World(1).run(story)
