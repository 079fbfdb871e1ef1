"""The check that every simulated cluster ends with finds a broker whose memory differs from its logs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla import NewTopic, TopicPartition
from ottla.coordinator.group.records import offset_key
from ottla.testing.cluster_world import ClusterWorld, SimBroker
from tests.support import fresh_load
from tests.support.seeds import base_seed

T0 = TopicPartition("t", 0)
Change = Callable[[SimBroker], None]


def forget_the_offset(machine: SimBroker) -> None:
    """In memory only: the log still holds it."""
    assert machine.broker is not None
    coordinators = machine.broker.services.coordinators
    assert coordinators is not None
    for runtime in coordinators.runtimes():
        for hosted in runtime.active_shards():
            if "offset g t-0" in hosted.shard.hard_state():
                hosted.shard.replay(0, offset_key("g", "t", 0), None, 0)


def forget_the_batch(machine: SimBroker) -> None:
    """That the producer sent last: its duplicate would be accepted."""
    assert machine.broker is not None
    machine.broker.services.replicas.log_directory.logs[T0].producers.entries()[0].batches.clear()


CHANGES = pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(forget_the_offset, r"broker-\d at .*: offset g t-0: live 'nothing', fresh load b", id="shard"),
        pytest.param(forget_the_batch, r"broker-\d at .*: t-0, recovery from offset 0: producers is", id="log"),
    ],
)


def run(end: Callable[[ClusterWorld], Awaitable[Any]]) -> None:
    """A story with a committed offset and a record."""

    async def story(world: ClusterWorld) -> None:
        async with world.admin() as admin:
            await admin.create_topics([NewTopic("t", assignments={0: (0, 1, 2)})])
        async with world.producer(acks="all") as producer:
            await producer.send_and_wait("t", b"a")
        async with world.consumer(group_id="g") as consumer:
            await consumer.commit({T0: 1})
        await asyncio.sleep(1)
        await end(world)

    ClusterWorld(base_seed(), offsets_topic_num_partitions="1", transaction_state_log_num_partitions="1").run(story)


@CHANGES
def test_a_difference_at_the_end_of_a_run_is_found(change: Change, message: str) -> None:
    async def end(world: ClusterWorld) -> None:
        for machine in world.brokers.values():
            change(machine)

    with pytest.raises(AssertionError, match=message), fresh_load.watched():
        run(end)


@CHANGES
def test_a_difference_before_a_kill_is_found(change: Change, message: str) -> None:
    async def end(world: ClusterWorld) -> None:
        for machine in world.brokers.values():
            change(machine)
            machine.kill()

    with pytest.raises(AssertionError, match=message), fresh_load.watched():
        run(end)


def test_brokers_that_were_killed_or_are_paused_do_not_differ() -> None:
    async def end(world: ClusterWorld) -> None:
        world.brokers[0].kill()
        world.brokers[1].pause()
        await asyncio.sleep(10)

    with fresh_load.watched():
        run(end)
