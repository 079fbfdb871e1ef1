"""Methods of the blocking API that do more than wait for the async method of the same name.

tools/make_blocking.py lets the method `poll` of Consumer call `consumer_poll` here, and so on. It appends the docstring
of the function to that of the method.
"""
# ruff: noqa: SLF001 - these functions are the bodies of methods, and use the parts of the async clients

import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.client.consumer.arrow import iteration_wait_ms
from ottla.client.consumer.deserializing import DeserializedRecord
from ottla.client.core.arguments import (
    ByPartition,
    OffsetLike,
    Timeout,
    as_poll_timeout_ms,
    check_listener,
)
from ottla.client.core.interceptors import intercept_consume
from ottla.client.core.model import Bytes, ConsumerRecord, HeadersLike, RecordMetadata, Records
from ottla.client.producer.arrow_send import ArrowDelivery
from ottla.client.producer.speedups import BlockingSender, Delivery
from ottla.errors import KafkaError

if TYPE_CHECKING:
    import re

    import pyarrow as pa

    from ottla.client.blocking.consumer import Consumer, DeserializingConsumer
    from ottla.client.blocking.producer import Producer, SerializingProducer
    from ottla.client.group.consumer_coordinator import CommitCallback

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

# --- producer ---------------------------------------------------------------------------------------------------


def producer_send_slowly(
    producer: "Producer",
    topic: str,
    value: Bytes,
    key: Bytes,
    partition: int | None,
    timestamp: int | None,
    headers: HeadersLike,
) -> Delivery:
    # send() itself is inherited from BlockingSender, which is compiled. It comes here for records with headers or a
    # timestamp, and if the topic is not known or the buffer is full. Only the last two need the loop.
    producer._calls.check_process()
    inner = producer._async
    try:
        sent = inner._send_or_wait(topic, value, key, partition, timestamp, headers)
        return sent if isinstance(sent, Delivery) else producer._call(sent)
    except BaseException as error:
        inner._transactional.note_rejected(error)
        raise


def producer_try_send(
    producer: "Producer",
    topic: str,
    value: Bytes,
    *,
    key: Bytes,
    partition: int | None,
    timestamp: int | None,
    headers: HeadersLike,
) -> Delivery | None:
    producer._calls.check_process()
    return producer._async.try_send(topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers)


def producer_send_and_wait(
    producer: "Producer",
    topic: str,
    value: Any,
    *,
    key: Any,
    partition: int | None,
    timestamp: int | None,
    headers: HeadersLike,
) -> RecordMetadata:
    return producer.send(topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers).result()


def serializing_producer_send(
    producer: "SerializingProducer",
    topic: str,
    value: Any,
    *,
    key: Any,
    partition: int | None,
    timestamp: int | None,
    headers: HeadersLike,
) -> Delivery:
    with producer._async._transactional.rejections:
        made_key, made_value, made_headers = producer._serializers.apply(topic, key, value, headers)
    return BlockingSender.send(
        producer, topic, made_value, key=made_key, partition=partition, timestamp=timestamp, headers=made_headers
    )


def serializing_producer_try_send(
    producer: "SerializingProducer",
    topic: str,
    value: Any,
    *,
    key: Any,
    partition: int | None,
    timestamp: int | None,
    headers: HeadersLike,
) -> Delivery | None:
    with producer._async._transactional.rejections:
        made_key, made_value, made_headers = producer._serializers.apply(topic, key, value, headers)
    return producer_try_send(
        producer, topic, made_value, key=made_key, partition=partition, timestamp=timestamp, headers=made_headers
    )


def producer_send_arrow(producer: "Producer", table: Any, topic: str | None) -> ArrowDelivery:
    producer._calls.check_process()
    inner = producer._async
    inner._raise_if_over()
    with inner._transactional.rejections:
        sending = inner._sending(table, topic)
        producer._call(inner._until_topics(sending))
        sending.plan()
        # Batches are built in the caller's thread, while the loop sends those before.
        for batch in sending.batches():
            inner._raise_if_over()
            try:
                while not inner._accumulator.add_batch(batch):
                    producer._call(inner._until_room_again())
            except KafkaError as error:
                raise sending.explain(error) from None
        return sending.delivery


def producer_continue_as(producer: "Producer", transactional_id: str) -> None:
    producer._call(producer._async.continue_as(transactional_id))
    producer.config = producer._async.config


@contextlib.contextmanager
def producer_transaction(producer: "Producer") -> Iterator[None]:
    transactional = producer._async._transactional
    producer.begin_transaction()
    try:
        yield
        if transactional.can_end:
            producer.commit_transaction()
    except BaseException:
        if transactional.can_end:
            producer.abort_transaction()
        raise


# --- consumer ---------------------------------------------------------------------------------------------------


def consumer_subscribe(
    consumer: "Consumer",
    topics: Iterable[str] | None,
    *,
    pattern: "re.Pattern[str] | str | None",
    listener: Any,
) -> None:
    """The listener is called in the thread that polls, and may use the consumer."""
    check_listener(listener)
    here = None if listener is None else consumer._calls.callers_thread.wrap(listener)
    return consumer._call(consumer._async.subscribe(topics, pattern=pattern, listener=here))


def consumer_commit_async(
    consumer: "Consumer", offsets: ByPartition[OffsetLike] | None, callback: "CommitCallback | None"
) -> None:
    """The callback runs in the thread that makes that call."""
    here = None if callback is None else consumer._calls.callers_thread.wrap(callback)
    return consumer._call(consumer._async.commit_async(offsets, here))


def consumer_wakeup(consumer: "Consumer") -> None:
    """This is the only method that another thread may call while one is in poll()."""
    return consumer._calls.run_from_any_thread(consumer._async.wakeup())


def consumer_poll(consumer: "Consumer", timeout_ms: Timeout, *, max_records: int | None) -> Records:
    wait_ms = as_poll_timeout_ms(timeout_ms)  # checked even if there is nothing to wait for
    reader = consumer._async._reader
    records = _poll(
        consumer, lambda: reader.take_records(max_records), lambda: reader.poll_records(wait_ms, max_records)
    )
    return intercept_consume(reader.interceptors, records) if reader.interceptors else records


def consumer_poll_arrow(
    consumer: "Consumer",
    timeout_ms: Timeout,
    *,
    max_records: int | None,
    timestamp_unit: str,
    columns: Sequence[str] | None,
) -> "pa.RecordBatch":
    wait_ms = as_poll_timeout_ms(timeout_ms)
    inner = consumer._async
    return _poll(
        consumer,
        inner._arrow_taker(max_records, timestamp_unit, columns),
        lambda: inner.poll_arrow(wait_ms, max_records=max_records, timestamp_unit=timestamp_unit, columns=columns),
    )


def _poll(consumer: "Consumer", take: Callable[[], T | None], poll: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `take` finds without the loop, else the result of `poll`."""
    reader = consumer._async._reader
    try:
        taken = consumer._calls.try_here(lambda: reader.take_here(take)) or consumer._call(poll())
        reader.confirm()
        return taken
    except Exception:
        raise
    except BaseException:  # Ctrl-C: the records have not reached the caller, so the next call returns them again
        with contextlib.suppress(Exception):
            consumer._call(reader.give_back())
        raise


def consumer_iter_arrow(
    consumer: "Consumer",
    *,
    timeout_ms: Timeout | None,
    until_end: bool,
    max_records: int | None,
    timestamp_unit: str,
    columns: Sequence[str] | None,
) -> "Iterator[pa.RecordBatch]":
    wait_ms = iteration_wait_ms(timeout_ms, until_end)
    while not (until_end and consumer.is_at_end()):
        batch = consumer.poll_arrow(wait_ms, max_records=max_records, timestamp_unit=timestamp_unit, columns=columns)
        if batch.num_rows:
            yield batch
        elif timeout_ms is not None:
            return


def consumer_iter(consumer: "Consumer") -> Iterator[ConsumerRecord]:
    reader = consumer._async._reader
    ready = reader.buffer.ready
    while True:
        if consumer._calls.try_here(lambda: reader.take_here(reader.take_into_buffer)):
            reader.confirm()
        else:
            consumer._call(reader.fill_buffer())
        while ready:
            yield ready.popleft()


def deserializing_consumer_poll(
    consumer: "DeserializingConsumer[K, V]", timeout_ms: Timeout, *, max_records: int | None
) -> list[DeserializedRecord[K, V]]:
    states = consumer._async._positions.states
    consumer._deserializers.raise_failure(states)
    records = consumer_poll(consumer, timeout_ms, max_records=max_records)
    try:
        read, back = consumer._deserializers.all(records)
    except BaseException:  # Ctrl-C: none of them has reached the caller
        for partition, batch in records.by_partition.items():
            consumer.seek(partition, batch[0].offset)
        raise
    for partition, offset in back.items():
        consumer.seek(partition, offset)
    if not read:
        consumer._deserializers.raise_failure(states)
    return read


def deserializing_consumer_iter(consumer: "DeserializingConsumer[K, V]") -> Iterator[DeserializedRecord[K, V]]:
    for record in consumer_iter(consumer):
        try:
            read = consumer._deserializers.one(record)
        except BaseException:  # an error, or Ctrl-C: the record has not reached the caller
            consumer.seek((record.topic, record.partition), record.offset)
            raise
        yield read
