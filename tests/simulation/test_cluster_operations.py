"""Operating a simulated cluster: moving replicas, failback, growing, stopping, power failures. Spec: B10."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla import NewTopic, TopicPartition
from ottla.errors import KafkaError
from ottla.metadata.image import PartitionImage
from ottla.testing.cluster_world import ClusterWorld
from tests.support.seeds import each_seed

T0 = TopicPartition("t", 0)


def run(story: Callable[[ClusterWorld], Awaitable[None]], seed: int, **settings: Any) -> None:
    ClusterWorld(seed, **settings).run(story)


def t0(world: ClusterWorld, topic: str = "t") -> PartitionImage:
    return world.image.topics[topic].partitions[0]


async def in_sync(world: ClusterWorld, *brokers: int) -> None:
    def is_so() -> bool:
        return t0(world).leader in world.image.brokers and set(t0(world).isr) == set(brokers)

    await world.until(is_so, f"{brokers} are in sync")


async def send(world: ClusterWorld, *values: str) -> None:
    async with world.producer(acks="all") as producer:
        for value in values:
            await producer.send("t", value.encode())


async def read(world: ClusterWorld, count: int) -> list[str]:
    async with world.consumer(auto_offset_reset="earliest") as consumer:
        await consumer.assign([T0])
        found: list[str] = []
        while len(found) < count:
            found += [(record.value or b"").decode() for record in await consumer.poll(1)]
        return found


def end_of(world: ClusterWorld, broker_id: int) -> int:
    broker = world.brokers[broker_id].broker
    assert broker is not None
    return broker.services.replicas.log_directory.logs[T0].log_end_offset


def has_moved(world: ClusterWorld, topic: str) -> bool:
    return not t0(world, topic).is_reassigning


async def create(world: ClusterWorld, *replicas: int, **configs: str) -> None:
    async with world.admin() as admin:
        topic = NewTopic("t", assignments={0: replicas}, configs=configs)
        await admin.create_topics([topic])


@each_seed(1)
def test_a_partition_moves_to_other_brokers_with_its_records(seed: int) -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, 0, 1)
        await send(world, "before")
        async with world.admin() as admin:
            await admin.alter_partition_reassignments({T0: [3, 2]})
            await send(world, "during")
            await world.until(lambda: not t0(world).is_reassigning, "the reassignment is complete")
            assert (t0(world).replicas, set(t0(world).isr)) == ((3, 2), {2, 3})
            await world.until(lambda: t0(world).leader in (2, 3), "one of the new replicas leads")
            assert await admin.list_partition_reassignments() == {}
        await send(world, "after")
        for old in (0, 1):
            world.brokers[old].kill()
        assert await read(world, 3) == ["before", "during", "after"]

    run(story, seed, brokers=4)


@each_seed(1)
def test_a_move_to_a_dead_broker_waits_and_can_be_cancelled(seed: int) -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, 0, 1)
        world.brokers[2].kill()
        await world.until(lambda: 2 not in world.image.brokers, "broker 2 is gone")
        async with world.admin() as admin:
            with pytest.raises(KafkaError, match="broker 9"):
                await admin.alter_partition_reassignments({T0: [0, 9]})
            await admin.alter_partition_reassignments({T0: [0, 2]})
            await send(world, "a")
            assert (await admin.list_partition_reassignments())[T0].adding_replicas == (2,)
            await admin.alter_partition_reassignments({T0: None})
            assert (t0(world).replicas, t0(world).is_reassigning) == ((0, 1), False)
        await send(world, "b")
        assert await read(world, 2) == ["a", "b"]

    run(story, seed)


@each_seed(1)
def test_internal_topics_grow_as_brokers_join(seed: int) -> None:
    """The group that the first broker served alone survives the death of that broker. KIP-115."""

    async def story(world: ClusterWorld) -> None:
        for broker_id in (1, 2):
            await world.brokers[broker_id].stop()
        await create(world, 0)
        await send(world, "a")
        async with world.consumer(group_id="g", auto_offset_reset="earliest") as consumer:
            await consumer.subscribe(["t"])
            while not await consumer.poll(1):
                pass
            await consumer.commit()
        name = "__consumer_offsets"
        assert t0(world, name).replicas == (0,)
        await world.start_all()
        await world.until(
            lambda: all(len(p.isr) == 3 and not p.is_reassigning for p in world.image.topics[name].partitions),
            "every partition has three replicas in sync",
        )
        world.brokers[0].kill()
        async with world.admin() as admin:
            assert (await admin.list_group_offsets("g"))[T0].offset == 1

    run(story, seed, offsets_topic_num_partitions="4")


@each_seed(1)
def test_leadership_returns_after_a_restart_by_itself_and_on_request(seed: int) -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, 1, 0, 2)
        await in_sync(world, 0, 1, 2)
        await world.brokers[1].stop()
        await world.until(lambda: t0(world).leader == 0, "leadership was handed over")
        await world.brokers[1].start()
        await in_sync(world, 0, 1, 2)
        assert t0(world).leader == 0
        async with world.admin() as admin:
            assert await admin.elect_leaders([T0]) == {T0: None}
        assert t0(world).leader == 1
        world.brokers[1].kill()
        await world.until(lambda: t0(world).leader == 0, "another leader")
        await world.brokers[1].start()
        await world.until(lambda: t0(world).leader == 1, "leadership returned by itself", patience_s=30)
        await send(world, "a")

    run(story, seed)


@each_seed(1)
def test_a_stopping_broker_hands_over_and_clients_notice_nothing(seed: int) -> None:
    async def story(world: ClusterWorld) -> None:
        await create(world, 0, 1, 2)
        await in_sync(world, 0, 1, 2)
        async with world.producer(acks="all") as producer:
            for round_ in range(3):
                stopping = asyncio.ensure_future(world.brokers[round_].stop())
                for number in range(20):
                    await producer.send("t", f"{round_}-{number}".encode())
                await stopping
                await world.brokers[round_].start()
                await in_sync(world, 0, 1, 2)
        assert len(set(await read(world, 60))) == 60

    run(story, seed)


@each_seed(4)
def test_after_a_power_failure_of_all_brokers_nothing_acknowledged_on_a_survivor_is_lost(seed: int) -> None:
    """Every broker lost what it had not synced. The one that has most becomes leader, once all are back."""

    async def story(world: ClusterWorld) -> None:
        await create(world, 0, 1, 2)
        await in_sync(world, 0, 1, 2)
        await send(world, *"abcdef")
        for broker in world.brokers.values():
            broker.kill(power_loss=True)
        for broker_id in (2, 1):
            await world.brokers[broker_id].start()
        await asyncio.sleep(1)
        survived = [end_of(world, broker_id) for broker_id in (1, 2)]
        assert t0(world).leader not in (1, 2), "broker 0 may have more"
        await world.brokers[0].start()
        await in_sync(world, 0, 1, 2)
        assert {end_of(world, broker_id) for broker_id in range(3)} == {end_of(world, 0)}
        assert end_of(world, 0) >= max(survived)
        await send(world, "g")

    run(story, seed)


@each_seed(1)
def test_a_broker_that_was_unregistered_is_not_awaited(seed: int) -> None:
    async def story(world: ClusterWorld) -> None:
        async with world.admin() as admin:
            await world.brokers[2].stop()
            await world.until(lambda: 2 not in world.image.brokers, "broker 2 is gone")
            await admin.unregister_broker(2)
            assert set(world.image.known_brokers) == {0, 1}
            with pytest.raises(KafkaError, match="not currently registered"):
                await admin.unregister_broker(2)
            with pytest.raises(KafkaError, match="is running"):
                await admin.unregister_broker(1)

    run(story, seed)


@each_seed(1)
def test_added_replicas_join_even_if_they_fetch_before_the_leader_knows_them(seed: int) -> None:
    """Images are not equally old everywhere: a leader may hold a fetch of a follower that it learns of later."""

    async def story(world: ClusterWorld) -> None:
        async with world.admin() as admin:
            for number in range(20):
                name, first = f"t{number}", number % 3
                others = ((number + 2) % 3, (number + 1) % 3)
                await admin.create_topics([NewTopic(name, assignments={0: (first,)})])
                await admin.alter_partition_reassignments({TopicPartition(name, 0): others})
                await world.until(functools.partial(has_moved, world, name), f"{name} has moved")

    run(story, seed)
