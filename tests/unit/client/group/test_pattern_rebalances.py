"""Members with a pattern: how many rebalances a new topic causes."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from ottla.testing.world import World

if TYPE_CHECKING:
    from ottla import AsyncConsumer


async def poll_forever(consumer: "AsyncConsumer") -> None:
    while True:
        await consumer.poll(200)


async def generation(consumer: "AsyncConsumer") -> int:
    return (await consumer.group_metadata()).generation_id


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_new_topic_that_matches_the_pattern_causes_one_rebalance(strategy: str) -> None:
    """The members look for topics at different times. The first that finds one makes the others look too. Spec: B6."""

    async def story(world: World) -> None:
        admin = world.admin()
        await admin.create_topic("orders-eu", partitions=3)
        settings = {"group_id": "g", "partition_assignment_strategy": strategy, "allow_auto_create_topics": False}
        members = [world.consumer(**settings, metadata_max_age_ms=age_s * 1000) for age_s in (31, 47, 58)]
        for member in members:
            await member.subscribe(pattern="orders-.*")
        polling = [asyncio.ensure_future(poll_forever(member)) for member in members]
        await asyncio.sleep(20)
        before = [await generation(member) for member in members]
        assert len(set(before)) == 1
        await admin.create_topic("orders-us", partitions=3)
        await asyncio.sleep(180)
        partitions = [str(partition) for member in members for partition in await member.assignment()]
        assert sorted(partitions) == [f"orders-{place}-{number}" for place in ("eu", "us") for number in range(3)]
        # A cooperative group may need a second one, to move partitions that were assigned already (KIP-429).
        assert (await generation(members[0])) - before[0] == 1
        await admin.delete_topics(["orders-us"])
        await asyncio.sleep(180)
        assert (await generation(members[0])) - before[0] == 2
        for task in polling:
            task.cancel()
        for member in members:
            await member.close()
        await admin.close()

    World(3).run(story)


def test_members_join_although_topics_cannot_be_listed() -> None:
    """Listing topics before joining is an optimization: a rebalance must not wait for it while brokers fail."""

    async def story(world: World) -> None:
        admin = world.admin()
        await admin.create_topic("orders-eu", partitions=2)
        consumer = world.consumer(group_id="g", session_timeout_ms=6_000)
        await consumer.subscribe(pattern="orders-.*")
        polling = asyncio.ensure_future(poll_forever(consumer))
        await asyncio.sleep(10)
        for _ in range(3):
            world.kill_broker()
            await asyncio.sleep(15)
            await world.start_broker()
            await asyncio.sleep(15)
        assert len(await consumer.assignment()) == 2
        polling.cancel()
        await consumer.close()
        await admin.close()

    World(4).run(story)
