"""The producer in a simulated world: blocking calls end in time, whatever the brokers do."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import asyncio
from typing import Any

import pytest

from ottla.client.core.cluster_view import Leader
from ottla.client.transactions.errors import TransactionAbortable
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.testing.world import World
from ottla.types import TopicPartition

SETTINGS = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}
QUICK = {"request_timeout_ms": 2_000, "delivery_timeout_ms": 10_000, "max_block_ms": 20_000, "linger_ms": 0}


@pytest.mark.parametrize("wrong", ["5", None, 5.5, -1, 2**63, True])
def test_an_invalid_offset_is_refused_before_it_joins_the_transaction(wrong: Any) -> None:
    async def story(world: World) -> None:
        async with world.producer(transactional_id="x", **QUICK) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("t", b"v")
                with pytest.raises(OttlaError, match="offset for t-0"):
                    await producer.send_offsets_to_transaction({("t", 0): wrong}, "g")
                await producer.send_offsets_to_transaction({("t", 0): 5}, "g")
        assert [value for _, value in await world.read_all("t")] == [b"v"]

    World(1, **SETTINGS).run(story)


def test_close_respects_its_timeout() -> None:
    """The abort and the records in flight share the timeout."""

    async def story(world: World) -> None:
        producer = world.producer(transactional_id="x", **QUICK)
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send("t", b"v"))
        world.network.partition("outside", "broker")
        await producer.send("t", b"w")
        await asyncio.sleep(0.01)
        started = world.loop.time()
        await producer.close(timeout_ms=1_500)
        assert world.loop.time() - started < 1.6

    World(1, **SETTINGS).run(story)


def test_flush_waits_for_all_records_and_leaves_failures_to_their_deliveries() -> None:
    async def story(world: World) -> None:
        async with world.producer(**QUICK) as producer:
            await (await producer.send("t", b"v"))
            world.network.partition("outside", "broker")
            delivery = await producer.send("t", b"w")
            await producer.flush()
            error = delivery.exception()
            assert error is not None
            assert error.code == ErrorCode.REQUEST_TIMED_OUT

    World(1, **SETTINGS).run(story)


def test_a_record_in_flight_fails_after_the_delivery_timeout() -> None:
    """A retry sent just before is not waited for, but its sequence number is not reused."""

    async def story(world: World) -> None:
        async with world.producer(**QUICK) as producer:
            await (await producer.send("t", b"before"))
            world.network.partition("outside", "broker")
            started = world.loop.time()
            lost = await producer.send("t", b"lost")
            with pytest.raises(KafkaError, match="not stored within 10000 ms"):
                await lost
            assert 9.99 < world.loop.time() - started < 10.1
            world.network.heal()
            after = await producer.send_and_wait("t", b"after")
        assert (after.offset, b"after") in await world.read_all("t")

    World(1, **SETTINGS).run(story)


def test_a_transaction_ends_only_after_the_last_request_in_flight() -> None:
    async def story(world: World) -> None:
        async with world.producer(transactional_id="x", **QUICK) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await (await producer.send("t", b"aborted"))
            world.network.partition("outside", "broker")
            with pytest.raises(TransactionAbortable):  # noqa: PT012 - either call may notice
                await producer.send("t", b"late")
                await producer.commit_transaction()
            aborting = asyncio.ensure_future(producer.abort_transaction())
            await asyncio.sleep(0.1)
            assert producer._sender.is_writing
            assert producer._transactional.manager is not None
            assert not producer._transactional.manager._is_waiting, "the end would overtake the record"
            world.network.heal()
            await aborting
            async with producer.transaction():
                await producer.send("t", b"committed")
        async with world.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as reader:
            await reader.assign([("t", 0)])
            assert [record.value for record in await reader.poll(5_000)] == [b"committed"]

    World(1, **SETTINGS).run(story)


def test_records_without_a_leader_do_not_block_other_partitions() -> None:
    """More than half of the buffer is for a partition without a leader."""

    async def story(world: World) -> None:
        async with world.producer(buffer_memory=10_000, batch_size=500, **QUICK) as producer:
            admin = world.admin()
            await admin.create_topic("t", partitions=2)
            await admin.close()
            await producer.partitions_for("t")
            view = producer._network.view
            find_leader = view.find_leader

            def no_leader_of_0(partition: TopicPartition) -> Leader | None:
                return find_leader(partition) if partition.partition else None

            view.find_leader = no_leader_of_0  # type: ignore[method-assign]
            for _ in range(60):
                await producer.send("t", b"x" * 79, partition=0)
            started = world.loop.time()
            for _ in range(60):
                await producer.send("t", b"x" * 79, partition=1)
            assert world.loop.time() - started < 2
            await producer.close(timeout_ms=0)

    World(1, **SETTINGS).run(story)


def test_a_record_larger_than_the_free_buffer_waits_for_memory() -> None:
    """Less than half of the buffer is used, and still the record does not fit: waiting must let the network send."""

    async def story(world: World) -> None:
        settings = QUICK | {"linger_ms": 5_000}
        async with world.producer(buffer_memory=10_000, batch_size=500, **settings) as producer:
            await producer.partitions_for("t")
            small = await producer.send("t", b"x" * 100)
            large = await producer.send("t", b"y" * 9_950)
            await producer.flush()
            assert (await small).offset < (await large).offset

    World(1, **SETTINGS).run(story)
