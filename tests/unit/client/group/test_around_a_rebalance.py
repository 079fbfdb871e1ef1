"""What a member does before, between and after its rebalances, and in which order. A whole broker, simulated."""

import asyncio

from ottla.assignors import Assignment, RangeAssignor
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.group.rebalance_listener import RebalanceListener
from ottla.testing.world import World
from ottla.types import TopicPartition

QUICK = {"group_id": "g", "auto_offset_reset": "earliest", "session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000}
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class NotingAssignor(RangeAssignor):
    """`range`, which records its arguments."""

    name = "noting"

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def on_assignment(self, assignment: Assignment, generation: int = -1) -> None:
        self.events.append(f"on_assignment {sorted(p.partition for p in assignment.partitions)}")


class Diary(RebalanceListener):
    """Records its calls, with the offsets that are committed at that moment."""

    def __init__(self, world: World, events: list[str]) -> None:
        self.world = world
        self.events = events

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        await self.note("revoked", partitions)

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        await self.note("assigned", partitions)

    async def note(self, what: str, partitions: list[TopicPartition]) -> None:
        async with self.world.admin() as admin:
            committed = await admin.list_group_offsets("g")
        numbers = sorted(partition.partition for partition in partitions)
        self.events.append(f"{what} {numbers} with {sum(offset.offset for offset in committed.values())} committed")


async def create(world: World, records: int) -> None:
    async with world.admin() as admin:
        await admin.create_topic("t", partitions=2)
    async with world.producer() as producer:
        for number in range(records):
            await producer.send("t", f"{number}", partition=number % 2)


async def read(consumer: AsyncConsumer, count: int) -> None:
    while count > 0:
        count -= len(await consumer.poll(1_000))


def test_a_member_commits_revokes_joins_and_is_assigned_in_this_order() -> None:
    """Spec: B7. Nothing is committed by hand, and the interval of auto-commit is an hour."""

    async def story(world: World) -> None:
        await create(world, 20)
        events: list[str] = []
        settings = {**QUICK, "auto_commit_interval_ms": 3_600_000}
        async with (
            world.consumer(**settings, partition_assignment_strategy=[NotingAssignor(events)]) as stays,
            world.consumer(**settings, partition_assignment_strategy=[NotingAssignor([])]) as joins,
        ):
            await stays.subscribe(["t"], listener=Diary(world, events))
            await read(stays, 20)
            await joins.subscribe(["t"])
            joining = asyncio.ensure_future(joins.poll(30_000))
            while len(await stays.assignment()) != 1:
                assert not await stays.poll(200)
            assert events == [
                "on_assignment [0, 1]",
                "assigned [0, 1] with 0 committed",
                "revoked [0, 1] with 20 committed",
                f"on_assignment {(kept := [p.partition for p in await stays.assignment()])}",
                f"assigned {kept} with 20 committed",
            ]
            assert not await joining, "it starts at the committed offset, where nothing is left to read"
            (taken,) = await joins.assignment()
            assert {taken, *await stays.assignment()} == {P0, P1}
            assert await joins.position(taken) == 10

    World(1).run(story)


def test_a_member_may_process_for_longer_than_its_session() -> None:
    """Spec: B8. Heartbeats do not need poll(): only `max.poll.interval.ms` limits the time between two of them."""

    async def story(world: World) -> None:
        await create(world, 20)
        async with world.consumer(**QUICK, enable_auto_commit=False) as consumer:
            await consumer.subscribe(["t"])
            await read(consumer, 20)
            before = await consumer.group_metadata()
            await asyncio.sleep(240)  # 40 sessions
            await consumer.commit()
            assert await consumer.group_metadata() == before
            async with world.admin() as admin:
                (group,) = await admin.describe_groups(["g"])
                assert (group.state, [member.member_id for member in group.members]) == ("Stable", [before.member_id])
                assert {p: offset.offset for p, offset in (await admin.list_group_offsets("g")).items()} == {
                    P0: 10,
                    P1: 10,
                }

    World(2).run(story)
