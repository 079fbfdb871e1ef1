"""When a broker stops responding, every call ends in time and names the address that did not respond."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.client.admin.admin import AsyncAdmin
from ottla.client.admin.transaction_model import PreparedTransaction
from ottla.client.stores.snapshot_store import read_between
from ottla.errors import KafkaError
from ottla.testing.world import BOOTSTRAP, World
from ottla.types import TopicPartition

P0 = TopicPartition("t", 0)
TIMEOUT_MS = 5_000
IN_TIME = {"default_api_timeout_ms": TIMEOUT_MS}
SETTINGS = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}

ADMIN: dict[str, Callable[[AsyncAdmin], Awaitable[Any]]] = {
    "topics": lambda admin: admin.list_topics(),
    "create": lambda admin: admin.create_topic("u"),
    "describe": lambda admin: admin.describe_topics(["t"]),
    "cluster": lambda admin: admin.describe_cluster(),
    "offsets": lambda admin: admin.list_offsets({P0: -1}),
    "delete": lambda admin: admin.delete_records({P0: 1}),
    "directories": lambda admin: admin.describe_log_dirs([0]),
    "groups": lambda admin: admin.list_groups(),
    "a group": lambda admin: admin.describe_groups(["g"]),
    "group offsets": lambda admin: admin.list_group_offsets("g"),
    "transactions": lambda admin: admin.list_transactions(),
    "prepared": lambda admin: admin.abort_prepared(PreparedTransaction("x", 1, 0)),
}


async def check(world: World, call: Awaitable[Any]) -> None:
    started = world.loop.time()
    with pytest.raises(KafkaError) as caught:
        await call
    assert world.loop.time() - started < TIMEOUT_MS / 1_000 + 1.1
    assert BOOTSTRAP in str(caught.value), caught.value


@pytest.mark.parametrize("call", ADMIN)
@pytest.mark.parametrize("request_timeout_ms", [2_000, 30_000])
def test_admin_calls(call: str, request_timeout_ms: int) -> None:
    async def story(world: World) -> None:
        settings: dict[str, Any] = IN_TIME | {"request_timeout_ms": request_timeout_ms}
        async with AsyncAdmin({"bootstrap.servers": BOOTSTRAP}, **settings) as admin:
            await admin.create_topic("t", partitions=1)
            await admin.list_offsets({P0: -1})
            world.network.partition("outside", "broker")
            await check(world, ADMIN[call](admin))

    World(1, **SETTINGS).run(story)


@pytest.mark.parametrize("call", ["end offsets", "position", "committed", "commit", "partitions"])
def test_calls_of_a_consumer(call: str) -> None:
    async def story(world: World) -> None:
        async with world.consumer(group_id="g", **IN_TIME) as consumer:
            async with world.producer() as producer:
                await producer.send_and_wait("t", b"v")
            await consumer.assign([P0])
            await consumer.position(P0)
            await consumer.commit({P0: 0})
            world.network.partition("outside", "broker")
            if call == "position":
                await consumer.seek_to_end()
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "end offsets": lambda: consumer.end_offsets([P0]),
                "position": lambda: consumer.position(P0),
                "committed": lambda: consumer.committed([P0]),
                "commit": lambda: consumer.commit({P0: 1}, timeout_ms=TIMEOUT_MS),
                "partitions": lambda: consumer.partitions_for("u"),
            }
            await check(world, calls[call]())

    World(1, **SETTINGS).run(story)


@pytest.mark.parametrize("call", ["send", "partitions", "begin", "offsets", "end"])
def test_calls_of_a_producer(call: str) -> None:
    async def story(world: World) -> None:
        async with world.producer(transactional_id="x", max_block_ms=TIMEOUT_MS) as producer:
            if call != "begin":
                await producer.init_transactions()
                await producer.begin_transaction()
                await producer.send_and_wait("t", b"v")
            else:
                await producer.partitions_for("t")
            world.network.partition("outside", "broker")
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "send": lambda: producer.send("u", b"v"),
                "partitions": lambda: producer.partitions_for("u"),
                "begin": producer.init_transactions,
                "offsets": lambda: producer.send_offsets_to_transaction({P0: 1}, "g"),
                "end": producer.commit_transaction,
            }
            await check(world, calls[call]())

    World(1, **SETTINGS).run(story)


def test_restoring_a_snapshot_store() -> None:
    """It knows the offsets to read, and then no record arrives."""

    async def story(world: World) -> None:
        async with world.producer() as producer:
            await producer.send_and_wait("t", b"v")
        async with world.consumer(auto_offset_reset="earliest", **IN_TIME) as reader:
            await reader.assign([P0])
            await reader.position(P0)
            world.network.partition("outside", "broker")
            await check(world, read_between(reader, P0, 0, 1))

    World(1, **SETTINGS).run(story)
