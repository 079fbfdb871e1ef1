"""Batches built from Arrow columns in the sender: retried, renumbered, split, refused, and never duplicated."""

import random
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.producer.arrow_send import ArrowDelivery, ArrowSend, StoredRows
from ottla.client.producer.partitioner import StickyPartitioner
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.messages.produce import ProduceResponse
from ottla.protocol.records.record_batch import HEADER_SIZE, open_batch, read_records
from ottla.types import TopicPartition
from tests.support.seeds import each_seed
from tests.support.worlds.producer_world import ProducerWorld

P0 = TopicPartition("t", 0)


def send(world: ProducerWorld, table: pa.Table) -> ArrowDelivery:
    """What AsyncProducer does with a table, without a network."""
    sending = ArrowSend(
        table,
        "t",
        config=world.config,
        view=world.view,
        accumulator=world.accumulator,
        sticky=StickyPartitioner(world.config.batch_size, world.random.choice, lambda _: range(1)),
        record_bytes_max=world.config.max_request_size - HEADER_SIZE,
        clock=lambda: world.now,
    )
    sending.plan()
    for batch in sending.batches():
        assert world.accumulator.add_batch(batch), "the buffer is full"
    return sending.delivery


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"value": [f"{i}" for i in range(first, first + count)]})


def texts(first: int, count: int) -> list[str]:
    return [f"{i}" for i in range(first, first + count)]


def batch_on(message: Any) -> bytes:
    return bytes(message.topic_data[0].partition_data[0].records)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_that_is_too_large_is_split(codec: str) -> None:
    world = ProducerWorld(max_records=3, compression_type=codec)
    delivery = send(world, numbers(0, 20))
    world.send("after")
    world.settle()
    assert world.log() == [*texts(0, 20), "after"]
    assert delivery.result(0) == {P0: StoredRows(0, 19, 20)}
    assert delivery.done()
    assert "stored" in repr(delivery)


def test_a_retry_after_a_lost_response_stores_nothing_twice() -> None:
    world = ProducerWorld(batch_size=200)
    delivery = send(world, numbers(0, 30))
    world.poll()
    world.answer_next()  # the producer id
    world.poll()
    world.answer_next("lose answer")
    assert len(world.log()) > 0
    world.settle()
    assert world.log() == texts(0, 30)
    assert delivery.result(0)[P0].rows == 30


def test_batches_after_a_refused_one_are_renumbered_without_changing_bytes_in_flight() -> None:
    world = ProducerWorld(batch_size=150)
    first = send(world, numbers(0, 4))
    world.settle()
    assert first.result(0)
    refused = send(world, numbers(4, 3))
    behind = send(world, numbers(7, 3))
    world.broker.answers.append(ErrorCode.INVALID_RECORD)
    world.poll()
    assert len(world.on_the_wire) == 2
    sent_before = batch_on(world.on_the_wire[1][1])
    kept = world.on_the_wire[1][1].topic_data[0].partition_data[0].records
    world.settle()
    assert bytes(kept) == sent_before, "bytes in flight must not change"
    assert world.log() == texts(0, 4) + texts(7, 3)
    assert behind.result(0)[P0].rows == 3
    error = refused.exception()
    assert error is not None
    assert error.code == ErrorCode.INVALID_RECORD
    assert error.detail.startswith("row 0, for t-0: ")
    assert "(3 of 3 rows failed)" in error.detail
    with pytest.raises(KafkaError):
        refused.result(0)
    assert "failed" in repr(refused)


def test_the_error_names_the_invalid_row() -> None:
    world = ProducerWorld(partitions=2, enable_idempotence=False)
    table = pa.table({"value": texts(0, 6), "partition": [0, 1, 0, 1, 0, 1]})
    delivery = send(world, table)
    (request,) = world.poll()
    response = world.broker.produce(world.on_the_wire.popleft()[1])
    for result in response.responses[0].partition_responses:
        if result.index == 1:
            result.error_code = ErrorCode.INVALID_RECORD
            blamed = ProduceResponse.BatchIndexAndErrorMessage(batch_index=2, batch_index_error_message="no key")
            result.record_errors = [blamed]
    request.on_response(response, 9, world.now)
    error = delivery.exception()
    assert error is not None
    assert error.detail == "row 5, for t-1: no key (3 of 6 rows failed)", "the third of partition 1"


def test_row_numbers_count_through_all_chunks_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.protocol.arrow.arrow_rows.ROWS_AT_ONCE", 4)
    world = ProducerWorld(enable_idempotence=False, max_in_flight_requests_per_connection=1)
    world.broker.answers.extend([ErrorCode.NONE, ErrorCode.INVALID_RECORD])
    delivery = send(world, numbers(0, 10))
    world.settle()
    assert world.log() == [*texts(0, 4), *texts(8, 2)]
    error = delivery.exception()
    assert error is not None
    assert error.detail.startswith("row 4, for t-0: ")
    assert error.detail.endswith("(4 of 10 rows failed)")
    bad = pa.table({"value": texts(0, 10), "timestamp": [5] * 9 + [-5]})
    with pytest.raises(KafkaError, match="row 9: the timestamp -5 is negative"):
        send(world, bad)
    assert len(world.log()) == 6, "none of its rows was sent"


def test_batches_of_a_transaction_are_marked_transactional() -> None:
    world = ProducerWorld(enable_idempotence=False)
    send(world, numbers(0, 3))
    (batch,) = world.accumulator.unfinished
    assert open_batch(batch.encode(0, None, True)).is_transactional  # type: ignore[arg-type]
    assert [record.value for record in read_records(batch.encode(0, None, True))] == [b"0", b"1", b"2"]  # type: ignore[arg-type]


def test_result_times_out_when_no_response_arrives() -> None:
    world = ProducerWorld()
    delivery = send(world, numbers(0, 3))
    with pytest.raises(TimeoutError, match="3 rows"):
        delivery.result(0.01)
    assert not delivery.done()
    assert delivery.exception() is None
    assert "in flight" in repr(delivery)


@each_seed(40)
def test_every_row_is_stored_once_and_in_order_despite_network_failures(seed: int) -> None:
    source = random.Random(seed)
    world = ProducerWorld(
        seed=seed, batch_size=source.choice([100, 200, 1000]), max_records=source.choice([2, 5, 1000])
    )
    promises: list[ArrowDelivery] = []
    count = 0
    for _ in range(60):
        if source.random() < 0.3:
            size = source.randint(1, 12)
            promises.append(send(world, numbers(count, size)))
            count += size
        if source.random() < 0.3:
            world.send(f"{count}")
            count += 1
        world.poll()
        if world.on_the_wire and source.random() < 0.7:
            world.answer_next()
        elif source.random() < 0.3:
            # The connection breaks: the broker got the first few requests, and all responses are lost.
            received = source.randrange(len(world.on_the_wire) + 1)
            for i in range(len(world.on_the_wire)):
                world.answer_next("lose answer" if i < received else "lose request")
        world.now += source.choice([0, 1, 150])
    world.settle()
    assert world.log() == texts(0, count)
    assert all(promise.done() and promise.result(0)[P0].rows == promise.count for promise in promises)
