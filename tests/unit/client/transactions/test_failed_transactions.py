"""A transaction that was open for too long, or that lacks a record, cannot be committed: what the producer reports, and
how it continues. A whole broker in a simulated world. Spec: E1, E3.
"""

# ruff: noqa: SLF001  (chooses the transaction version)

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla import AsyncProducer
from ottla.client.transactions.errors import TransactionAbortable, TransactionFatal
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.testing.world import World

SETTINGS = {"offsets_topic_num_partitions": "2", "transaction_state_log_num_partitions": "2"}
TIMEOUT_MS = 5_000

Step = Callable[[AsyncProducer], Awaitable[Any]]


async def commit(producer: AsyncProducer) -> None:
    await producer.commit_transaction()


async def send_more(producer: AsyncProducer) -> None:
    await producer.send_and_wait("t", b"too late", partition=0)


async def send_elsewhere(producer: AsyncProducer) -> None:
    await producer.send_and_wait("t", b"too late", partition=1)


async def send_offsets(producer: AsyncProducer) -> None:
    await producer.send_offsets_to_transaction({("t", 0): 1}, "g")


async def transactional(world: World, version: int = 2) -> AsyncProducer:
    admin = world.admin()
    await admin.create_topic("t", partitions=2)
    await admin.close()
    producer = world.producer(transactional_id="x", transaction_timeout_ms=TIMEOUT_MS, linger_ms=0)
    assert producer._transactional.manager is not None
    if version == 1:
        producer._transactional.manager.transaction_version = lambda: 1
    await producer.init_transactions()
    return producer


async def committed(world: World) -> list[bytes | None]:
    async with world.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        await consumer.assign([("t", 0), ("t", 1)])
        found: list[bytes | None] = []
        while not await consumer.is_at_end():
            found += [record.value for record in await consumer.poll(1_000)]
        return found


@pytest.mark.parametrize("step", [commit, send_more, send_elsewhere, send_offsets], ids=lambda step: step.__name__)
def test_after_a_timeout_the_error_says_so_and_the_producer_continues(step: Step) -> None:
    """Spec: E3. Abort, and begin the next transaction with the same producer."""

    async def story(world: World) -> None:
        producer = await transactional(world)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"early", partition=0)
        await asyncio.sleep(60)
        with pytest.raises(KafkaError) as caught:
            await step(producer)
        assert not isinstance(caught.value, TransactionFatal)
        with pytest.raises(TransactionAbortable, match=r"transaction\.timeout\.ms \(5000 ms\)"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"next", partition=0)
        await producer.close()
        assert await committed(world) == [b"next"]

    World(1, **SETTINGS).run(story)


@pytest.mark.parametrize("step", [commit, send_more], ids=lambda step: step.__name__)
def test_with_transaction_version_1_the_error_says_so_too(step: Step) -> None:
    """There a timeout cannot be told from a newer producer with the same id: both are fenced."""

    async def story(world: World) -> None:
        producer = await transactional(world, version=1)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"early", partition=0)
        await asyncio.sleep(60)
        with pytest.raises(KafkaError):
            await step(producer)
        with pytest.raises(KafkaError, match=r"transaction\.timeout\.ms \(5000 ms\)"):
            await producer.commit_transaction()
        await producer.close()
        assert await committed(world) == []

    World(1, **SETTINGS).run(story)


def test_a_producer_that_is_fenced_after_its_timeout_is_fatal() -> None:
    """Spec: E3. Whether it timed out or was fenced shows when it aborts."""

    async def story(world: World) -> None:
        producer = await transactional(world)
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"early", partition=0)
        await asyncio.sleep(60)
        successor = world.producer(transactional_id="x")
        await successor.init_transactions()
        async with successor.transaction():
            await successor.send("t", b"successor", partition=0)
        with pytest.raises(KafkaError):
            await producer.commit_transaction()
        with pytest.raises(TransactionFatal) as caught:
            await producer.abort_transaction()
        assert caught.value.code == ErrorCode.PRODUCER_FENCED
        await producer.close()
        async with successor.transaction():
            await successor.send("t", b"again", partition=0)
        await successor.close()
        assert await committed(world) == [b"successor", b"again"]

    World(1, **SETTINGS).run(story)


async def too_large(producer: AsyncProducer) -> None:
    await producer.send("t", bytes(2_000_000))


async def no_such_partition(producer: AsyncProducer) -> None:
    await producer.send("t", b"v", partition=9)


async def wrong_type(producer: AsyncProducer) -> None:
    await producer.send("t", {"a": 1})  # type: ignore[arg-type]


async def bad_header(producer: AsyncProducer) -> None:
    await producer.send("t", b"v", headers=[(b"name", b"v")])  # type: ignore[list-item]


async def tried(producer: AsyncProducer) -> None:
    producer.try_send("t", bytes(2_000_000))


async def given_up(producer: AsyncProducer) -> None:
    await asyncio.wait_for(producer.send("later", b"v"), 0.0001)


async def ignoring(producer: AsyncProducer, reject: Step) -> None:
    async with producer.transaction():
        with contextlib.suppress(KafkaError, OttlaError, TimeoutError):
            await reject(producer)


@pytest.mark.parametrize(
    "reject",
    [too_large, no_such_partition, wrong_type, bad_header, tried, given_up],
    ids=lambda reject: reject.__name__,
)
def test_a_transaction_that_lacks_a_record_cannot_be_committed(reject: Step) -> None:
    """Spec: E1. Even if the application ignores what send() raised, as in the Java client."""

    async def story(world: World) -> None:
        producer = await transactional(world)
        await producer.begin_transaction()
        await producer.send("t", b"one", partition=0)
        with pytest.raises((KafkaError, OttlaError, TimeoutError)):
            await reject(producer)
        with pytest.raises(TransactionAbortable, match=r"send\(\) rejected a record of the transaction"):
            await producer.send("t", b"two", partition=0)
        with pytest.raises(TransactionAbortable, match=r"send\(\) rejected a record of the transaction"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        with pytest.raises(TransactionAbortable):
            await ignoring(producer, reject)
        async with producer.transaction():
            await producer.send("t", b"three", partition=0)
        await producer.close()
        assert await committed(world) == [b"three"]

    World(1, **SETTINGS).run(story)
