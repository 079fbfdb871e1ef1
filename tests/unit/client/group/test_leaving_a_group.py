"""Leaving a group: after an error, with a failing listener, or at the end of the assigned partitions."""

import asyncio
from typing import Any

import pytest

from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.group.rebalance_listener import RebalanceListener, has_own_lost
from ottla.errors import KafkaError, OttlaError
from ottla.testing.world import World
from ottla.types import TopicPartition

COUNT = 20
T0 = TopicPartition("t", 0)


async def filled(world: World, partitions: int = 1) -> None:
    async with world.admin() as admin:
        await admin.create_topic("t", partitions=partitions)
    async with world.producer() as producer:
        for number in range(COUNT):
            await producer.send("t", str(number), partition=number % partitions)


def member(world: World, **settings: Any) -> AsyncConsumer:
    settings = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
    return world.consumer(**settings)


async def read(consumer: AsyncConsumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [record.offset for record in await consumer.poll(1_000, max_records=count - len(found))]
    return found


async def committed(world: World) -> dict[TopicPartition, Any]:
    async with world.admin() as admin:
        return dict(await admin.list_group_offsets("g"))


# --- with an error ------------------------------------------------------------------------------------------


class Committing(RebalanceListener):
    """As in the docs: saves positions in on_partitions_revoked, and does not override on_partitions_lost."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.heard: list[str] = []

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.heard.append("revoked")
        await self.consumer.commit()


class Losing(Committing):
    """Tries to store its position in on_partitions_lost too."""

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.heard.append(f"lost {partitions[0]}")
        await self.consumer.commit()


@pytest.mark.parametrize(("kind", "heard"), [(Committing, []), (Losing, ["lost t-0"])])
def test_closing_after_an_error_stores_no_unprocessed_positions(
    kind: type[Committing], heard: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        await filled(world)
        with pytest.raises(ValueError, match="processing failed"):  # noqa: PT012 - the block is what is tested
            async with member(world) as consumer:
                listener = kind(consumer)
                await consumer.subscribe(["t"], listener=listener)
                await read(consumer, 3)
                await consumer.commit({T0: 1})
                raise ValueError("processing failed")
        assert listener.heard == heard
        assert (await committed(world))[T0].offset == 1
        async with member(world) as consumer:
            await consumer.subscribe(["t"])
            assert await read(consumer, 1) == [1], (
                "unprocessed records come again, at once, because the member has left"
            )

    World(1).run(story)
    assert ("on_partitions_lost failed" in caplog.text) == bool(heard), "the user's error is the one that is raised"


def test_closing_normally_stores_the_positions() -> None:
    async def story(world: World) -> None:
        await filled(world)
        async with member(world) as consumer:
            listener = Losing(consumer)
            await consumer.subscribe(["t"], listener=listener)
            await read(consumer, 3)
        assert listener.heard == ["revoked"]
        assert (await committed(world))[T0].offset == 3

    World(1).run(story)


def test_has_own_lost_detects_an_overridden_method() -> None:
    class Bare:
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None: ...

    class BareLosing(Bare):
        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None: ...

    assert [has_own_lost(each) for each in (None, RebalanceListener(), Bare(), Committing(None))] == [False] * 4
    assert has_own_lost(BareLosing())
    assert has_own_lost(Losing(None))


# --- with a listener that fails -----------------------------------------------------------------------------


class Failing(RebalanceListener):
    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        raise ValueError("the disk is full")


def test_a_failing_listener_does_not_prevent_leaving_the_group() -> None:
    async def story(world: World) -> None:
        await filled(world)
        async with member(world) as consumer:
            await consumer.subscribe(["t"], listener=Failing())
            await read(consumer, 1)
            await consumer.commit_async({T0: 1})
            with pytest.raises(ValueError, match="the disk is full"):
                await consumer.unsubscribe()
            assert await consumer.subscription() == set()
            assert await consumer.assignment() == set()
            with pytest.raises(OttlaError, match="not subscribed to any topics"):
                await consumer.poll()
            assert (await committed(world))[T0].offset == 1, "the commit in flight was waited for"
            await consumer.subscribe(["t"])
            assert await read(consumer, 1) == [1]

    World(1).run(story)


def test_close_raises_the_listeners_error_after_leaving() -> None:
    async def story(world: World) -> None:
        await filled(world)
        consumer = member(world)
        await consumer.subscribe(["t"], listener=Failing())
        await read(consumer, 1)
        with pytest.raises(ValueError, match="the disk is full"):
            await consumer.close()
        async with world.admin() as admin:
            (group,) = await admin.describe_groups(["g"])
        assert group.state == "Empty"

    World(1).run(story)


# --- at the end ---------------------------------------------------------------------------------------------


async def until_end(consumer: AsyncConsumer, seen: list[tuple[int, int]], pause_s: float = 0) -> None:
    async with consumer:
        await consumer.subscribe(["t"])
        while not await consumer.is_at_end():
            records = await consumer.poll(200)
            seen += [(record.partition, record.offset) for record in records]
            await asyncio.sleep(pause_s)
            try:
                await consumer.commit()
            except KafkaError:
                pass  # the group has rebalanced: the records come again


def test_a_member_that_has_not_joined_is_not_at_the_end() -> None:
    async def story(world: World) -> None:
        await filled(world)
        async with member(world) as consumer:
            assert not await consumer.is_at_end()
            await consumer.subscribe(["t"])
            assert not await consumer.is_at_end()
            await read(consumer, COUNT - 1)
            assert not await consumer.is_at_end()
            await read(consumer, 1)
            assert await consumer.is_at_end()
            await consumer.enforce_rebalance()
            assert not await consumer.is_at_end(), "it may be assigned partitions next"

    World(1).run(story)


def test_a_missing_topic_has_no_end() -> None:
    async def story(world: World) -> None:
        async with member(world, allow_auto_create_topics=False) as consumer:
            await consumer.subscribe(["t"])
            for _ in range(20):
                await consumer.poll(1_000)
                assert not await consumer.is_at_end()

    World(1, auto_create_topics_enable="false").run(story)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_without_partitions_are_at_the_end(strategy: str) -> None:
    async def story(world: World) -> None:
        await filled(world, partitions=2)
        seen: list[tuple[int, int]] = []
        everybody = [until_end(member(world, partition_assignment_strategy=strategy), seen) for _ in range(4)]
        await asyncio.wait_for(asyncio.gather(*everybody), 120)
        assert set(seen) == {(number % 2, number // 2) for number in range(COUNT)}

    for seed in range(3):
        World(seed).run(story)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_late_member_leaves_nothing_unread(strategy: str) -> None:
    """A new member of a cooperative group has no partitions until the others have revoked some. Whether it waits for
    that or stops: the others are not at the end meanwhile, so one of them reads those partitions."""

    async def story(world: World) -> None:
        await filled(world, partitions=2)
        settings = {"partition_assignment_strategy": strategy, "max_poll_records": 1}
        seen: list[tuple[int, int]] = []
        first = asyncio.ensure_future(until_end(member(world, **settings), seen, pause_s=0.2))
        await asyncio.sleep(world.random.uniform(3, 7))  # while the first one reads, or just before
        second = asyncio.ensure_future(until_end(member(world, **settings), seen, pause_s=0.2))
        await asyncio.wait_for(asyncio.gather(first, second), 120)
        assert set(seen) == {(number % 2, number // 2) for number in range(COUNT)}

    for seed in range(5):
        World(seed).run(story)
