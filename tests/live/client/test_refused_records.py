"""An invalid record is refused alone, with an error that names the cause; other records are stored."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import asyncio
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest

from ottla import Admin, AsyncProducer, Consumer, Producer
from ottla.client.producer.accumulator import Accumulator
from ottla.client.transactions.errors import TransactionAbortable
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.types import TopicPartition
from tests.support.clients.callbacks import call_in_clients_thread
from tests.support.waiting import PATIENCE_S

WOULD_DEADLOCK = "a blocking call inside a callback of the client would deadlock"


class Whole:
    """An integer type of another library, like numpy's."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


@pytest.fixture
def one_partition(broker: Any, topic: str) -> str:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    return topic


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a timestamp in seconds": ({"timestamp": time.time() * 1000}, "timestamp must be a whole number, not 1"),
    "a timestamp as text": ({"timestamp": "now"}, "timestamp must be a whole number, not 'now'"),
    "a timestamp of 71 bits": ({"timestamp": 2**70}, "more than 64 bits"),
    "a negative timestamp": ({"timestamp": -5}, "negative"),
    "a header named in bytes": ({"headers": [(b"h", b"v")]}, "name of a header must be text, not bytes"),
    "a header named by a number": ({"headers": {1: b"v"}}, "name of a header must be text, not int"),
    "a header without a name": ({"headers": [(None, b"v")]}, "name of a header must be text, not NoneType"),
    "a header that is no UTF-8": ({"headers": [("\ud800", b"v")]}, "name of a header cannot be encoded as UTF-8"),
    "a header with a number": ({"headers": [("h", 1)]}, "header 'h' must be bytes, text or None, not int"),
    "a header that is no pair": ({"headers": ["ab"]}, "header must be a pair of a name and a value, not 'ab'"),
    "headers that are no pairs": ({"headers": "ab"}, "headers must be pairs .* not str"),
    "headers that are a number": ({"headers": 5}, "headers must be pairs .* not int"),
    "a partition as text": ({"partition": "0"}, "partition must be a whole number, not '0'"),
    "a partition that is true": ({"partition": True}, "partition must be a whole number, not True"),
    "a key that is a number": ({"key": 5}, "key must be bytes, text or None, not int"),
    "a key that is no UTF-8": ({"key": "\ud800"}, "key cannot be encoded as UTF-8"),
}


@pytest.mark.parametrize(("arguments", "said"), BAD.values(), ids=BAD.keys())
def test_a_bad_record_is_refused_and_the_good_ones_around_it_are_stored(
    broker: Any, one_partition: str, arguments: dict[str, Any], said: str
) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=50) as producer:
        producer.partitions_for(one_partition)
        for send in (producer.send, producer.try_send):
            before = producer.send(one_partition, b"before")
            with pytest.raises((TypeError, OttlaError, KafkaError), match=said):
                send(one_partition, b"bad", **arguments)
            after = producer.send(one_partition, b"after")
            assert after.result(PATIENCE_S).offset == before.result(PATIENCE_S).offset + 1
        producer.flush(300_000)
        assert not producer._async._accumulator.unfinished
        assert producer._async._accumulator.buffered_bytes == 0


def test_a_bad_first_record_leaves_nothing_pending(broker: Any, one_partition: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        with pytest.raises(KafkaError, match="64 bits") as caught:
            producer.send(one_partition, b"bad", timestamp=2**70)
        assert caught.value.code == ErrorCode.INVALID_TIMESTAMP
        producer.flush(300_000)


def test_a_transaction_with_a_rejected_record_cannot_be_committed(broker: Any, one_partition: str) -> None:
    """Spec: E1. From the thread of the caller; in the simulation the same for every kind of rejection."""
    settings = {"bootstrap.servers": broker.bootstrap}
    with Producer(settings, transactional_id=one_partition) as producer:
        producer.init_transactions()
        wrong: Any = 1.5
        for send in (producer.send, producer.send_and_wait, producer.try_send):
            producer.begin_transaction()
            producer.send(one_partition, b"lost")
            with pytest.raises(TypeError):
                send(one_partition, b"b", timestamp=wrong)
            with pytest.raises(TransactionAbortable, match="rejected a record of the transaction"):
                producer.commit_transaction()
            producer.abort_transaction()
        with producer.transaction():
            producer.send(one_partition, b"a")
    with Consumer(settings, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([(one_partition, 0)])
        assert [record.value for record in consumer.poll(300_000)] == [b"a"]


def test_integer_types_of_other_libraries_are_accepted(broker: Any, one_partition: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        number: Any = Whole(5)
        stored = producer.send_and_wait(one_partition, b"v", timestamp=number, partition=Whole(0))  # type: ignore[arg-type]
        assert (stored.partition, stored.timestamp) == (0, 5)


def test_an_error_while_appending_leaves_no_batch_and_no_reserved_memory() -> None:
    class Failing(Accumulator):
        def append_to(self, *_: Any) -> Any:
            raise MemoryError

    accumulator = Failing(batch_size=1000, linger_ms=0, buffer_memory=10_000, wake=lambda: None)
    with pytest.raises(MemoryError):
        accumulator.append(TopicPartition("t", 0), 5, None, b"v", (), 100)
    assert accumulator.buffered_bytes == 0
    assert not accumulator.unfinished
    assert not accumulator.partitions(0)


def test_headers_from_an_iterator_are_sent_to_a_topic_that_was_unknown(broker: Any, one_partition: str) -> None:
    def headers() -> Iterator[tuple[str, bytes]]:
        yield "h", b"v"

    settings = {"bootstrap.servers": broker.bootstrap}
    with Producer(settings) as producer:
        producer.send_and_wait(one_partition, b"v", headers=headers())
    with Consumer(settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([(one_partition, 0)])
        assert [record.headers for record in consumer.poll(300_000)] == [(("h", b"v"),)]


# Topics


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (None, "a topic must be text, not NoneType"),
        (b"orders", "a topic must be text, not bytes"),
        (5, "a topic must be text, not int"),
        (["orders"], "a topic must be text, not list"),
        ("", "the name of a topic is empty"),
        ("\ud800", "the name of a topic cannot be encoded as UTF-8"),
    ],
)
def test_an_invalid_topic_is_refused_and_the_next_one_works(
    broker: Any, one_partition: str, name: Any, said: str
) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for call in (producer.send, producer.partitions_for):
            with pytest.raises((TypeError, OttlaError, KafkaError), match=said):
                call(name)
        if name != "\ud800":  # try_send() asks nobody for a topic that it does not know
            with pytest.raises((TypeError, KafkaError), match=said):
                producer.try_send(name)
        assert producer.send_and_wait(one_partition, b"v").offset == 0


def test_an_arrow_table_for_an_invalid_topic_is_refused(broker: Any, one_partition: str) -> None:
    pa = pytest.importorskip("pyarrow")
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        bad: Any = 5
        with pytest.raises(TypeError, match="a topic must be text"):
            producer.send_arrow(pa.table({"value": [b"v"]}), bad)
        with pytest.raises(KafkaError, match="the name of a topic is empty"):
            producer.send_arrow(pa.table({"value": [b"v"]}), "")
        with pytest.raises(KafkaError, match="the name of a topic is empty"):
            producer.send_arrow(pa.table({"value": [b"v", b"w"], "topic": ["", one_partition]}))
        assert producer.send_arrow(pa.table({"value": [b"v"]}), one_partition).result(PATIENCE_S)


def test_a_consumer_reads_on_after_an_invalid_topic(broker: Any, one_partition: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_and_wait(one_partition, b"v")
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        nothing: Any = None
        with pytest.raises(TypeError, match="a topic must be text"):
            consumer.assign([TopicPartition(nothing, 0)])
        consumer.assign([(one_partition, 0)])
        assert [record.value for record in consumer.poll(300_000)] == [b"v"]


def test_a_string_enum_member_is_a_topic(broker: Any, one_partition: str) -> None:
    class Topic(StrEnum):
        ORDERS = one_partition

    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        assert [producer.send_and_wait(Topic.ORDERS, b"v").offset for _ in range(2)] == [0, 1]


# Blocking calls that would deadlock


@pytest.mark.parametrize("wait", ["result", "send_and_wait"])
def test_blocking_inside_a_callback_raises_instead_of_deadlocking(broker: Any, one_partition: str, wait: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        said: list[str] = []

        def callback(delivery: Any) -> None:
            assert delivery.result().offset >= 0  # what is done needs no waiting
            try:
                if wait == "result":
                    producer.send(one_partition, b"from a callback").result(PATIENCE_S)
                else:
                    producer.send_and_wait(one_partition, b"from a callback")
            except OttlaError as error:
                said.append(error.message)

        call_in_clients_thread(producer, one_partition, callback)
        assert said == [WOULD_DEADLOCK]
        with Producer(bootstrap_servers=broker.bootstrap) as another:
            assert another.send_and_wait(one_partition, b"not held up").offset > 0


def test_result_on_the_producers_own_loop_raises_instead_of_deadlocking(broker: Any, one_partition: str) -> None:
    pa = pytest.importorskip("pyarrow")

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap) as producer:
            delivery = await producer.send(one_partition, b"v")
            with pytest.raises(OttlaError, match=WOULD_DEADLOCK):
                delivery.result(PATIENCE_S)
            assert (await delivery).offset == 0
            assert delivery.result().offset == 0
            rows = await producer.send_arrow(pa.table({"value": [b"w"]}), one_partition)
            with pytest.raises(OttlaError, match=WOULD_DEADLOCK):
                rows.result(PATIENCE_S)
            assert await rows == rows.result()

    asyncio.run(main())


def test_result_of_a_blocking_producer_works_on_another_event_loop(broker: Any, one_partition: str) -> None:
    """For example in a notebook, whose cells run inside a loop."""

    async def cell() -> None:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            assert producer.send(one_partition, b"v").result(PATIENCE_S).offset == 0

    asyncio.run(cell())
