"""The executor's side of the source: reads a range of offsets as Arrow batches, over a consumer kept between tasks."""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ottla.client.blocking import Consumer
from ottla.client.consumer import AsyncConsumer
from ottla.clock import monotonic
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.protocol.record_batch import Record
from ottla.spark.offsets import OffsetRange
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow

ROWS_PER_BATCH = 10_000
"""The most rows of one Arrow batch: what a task holds in memory is bounded by it and by what one fetch brings."""

IDLE_CONSUMERS_MAX = 4
"""Consumers that a worker keeps for the next task. Spark ends a worker that was idle for a minute, and them with it."""

GLANCE_MS = 2_000
"""How long to wait for records before asking whether the topic is still there."""

DEFAULTS = {
    "auto.offset.reset": "none",
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
    "client.id": "ottla-spark",
    "max.partition.fetch.bytes": "4194304",
}
"""The consumer settings of the source that differ from the client's own."""

log = logging.getLogger("ottla.spark")


class AsyncRangeConsumer(AsyncConsumer):
    """Reads one partition at a time, from one offset to another."""

    async def start(self, partition: TopicPartition, offset: int) -> None:
        await self.assign([partition])
        await self.seek(partition, offset)

    async def read_on(self, partition: TopicPartition, timeout_ms: int) -> tuple[list[Record], int]:
        """The next records and the offset after them, which moves past markers and gaps too. Waits for any move."""
        state = self._positions.state(partition)
        assert state.position is not None
        before = state.position
        deadline = self._network.now() + timeout_ms
        while True:
            self._raise_errors()
            taken = self._fetcher.take(ROWS_PER_BATCH)
            if taken or (state.position is not None and state.position > before):
                self._network.wake()  # fetches the next while these are worked on
                assert state.position is not None
                return taken.get(partition, []), state.position
            remaining_ms = deadline - self._network.now()
            if remaining_ms <= 0:
                return [], before
            await self._network.until(self._is_worth_a_look, remaining_ms)

    async def is_gone(self, partition: TopicPartition) -> bool:
        """Whether the brokers say that there is no such partition."""
        try:
            await self.beginning_offsets([partition])
        except KafkaError as error:
            return error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return False

    async def rest(self) -> None:
        """Stops fetching, and keeps the connections for the next range."""
        await self.assign([])


class RangeConsumer(Consumer):
    """As AsyncRangeConsumer, for a worker's own thread."""

    _async: AsyncRangeConsumer

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._async = AsyncRangeConsumer(settings)

    def start(self, partition: TopicPartition, offset: int) -> None:
        return self._call(self._async.start(partition, offset))

    def read_on(self, partition: TopicPartition, timeout_ms: int) -> tuple[list[Record], int]:
        return self._call(self._async.read_on(partition, timeout_ms))

    def is_gone(self, partition: TopicPartition) -> bool:
        return self._call(self._async.is_gone(partition))

    def rest(self) -> None:
        return self._call(self._async.rest())


_idle: dict[tuple[tuple[str, str], ...], RangeConsumer] = {}
"""Consumers that no task uses just now, by their settings. A worker runs one task after the other."""


def borrow(settings: Mapping[str, str]) -> RangeConsumer:
    return _idle.pop(_key(settings), None) or RangeConsumer({**DEFAULTS, **settings})


def give_back(settings: Mapping[str, str], consumer: RangeConsumer) -> None:
    consumer.rest()
    before = _idle.pop(_key(settings), None)
    if before is not None:
        before.close()
    _idle[_key(settings)] = consumer
    while len(_idle) > IDLE_CONSUMERS_MAX:
        _idle.pop(next(iter(_idle))).close()


def _key(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))


def read_range(
    piece: OffsetRange,
    settings: Mapping[str, str],
    schema: "pyarrow.Schema",
    *,
    fail_on_data_loss: bool,
    poll_timeout_ms: int,
) -> "Iterator[pyarrow.RecordBatch]":
    """The records of a range, in order. Ends when the position has passed the end, whatever the last offsets hold."""
    consumer = borrow(settings)
    is_whole = False
    try:
        yield from _read(consumer, piece, schema, fail_on_data_loss, poll_timeout_ms)
        is_whole = True
    except GeneratorExit:  # Spark has rows enough
        is_whole = True
        raise
    finally:
        if is_whole:
            give_back(settings, consumer)
        else:
            consumer.close()


def _read(
    consumer: RangeConsumer, piece: OffsetRange, schema: "pyarrow.Schema", fail_on_data_loss: bool, poll_timeout_ms: int
) -> "Iterator[pyarrow.RecordBatch]":
    partition, position, end = piece
    consumer.start(partition, position)
    patience = Patience(poll_timeout_ms)
    while position < end:
        try:
            records, moved_to = consumer.read_on(partition, patience.glance_ms())
        except KafkaError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            moved_to = after_loss(consumer, piece, position, fail_on_data_loss)
            records = []
            consumer.start(partition, moved_to)
        if moved_to == position:
            if patience.is_over():
                raise OttlaError(
                    f"nothing came of {partition} from offset {position} on for {poll_timeout_ms} ms, "
                    f"and the batch goes up to {end}",
                    "Are the brokers there? kafkaConsumer.pollTimeoutMs says how long to wait for them.",
                )
            if consumer.is_gone(partition):
                lost(
                    f"{partition} was deleted while offsets {position} to {end - 1} were to be read", fail_on_data_loss
                )
                return
            continue
        patience.begin_anew()
        position = moved_to
        if records:
            if records[-1].offset >= end:
                records = [record for record in records if record.offset < end]
            yield to_batch(records, partition, schema)


def after_loss(consumer: RangeConsumer, piece: OffsetRange, position: int, fail_on_data_loss: bool) -> int:
    """Where to go on when the brokers do not have the offset that we are at."""
    partition, _, end = piece
    earliest = consumer.beginning_offsets([partition])[partition]
    if earliest <= position:
        latest = consumer.end_offsets([partition])[partition]
        text = f"{partition} ends at offset {latest}, and the batch goes from {position} to {end}: its end was cut off"
        lost(text, fail_on_data_loss)
        return end
    text = f"offsets {position} to {min(earliest, end) - 1} of {partition} are gone; the first there is {earliest}"
    lost(text, fail_on_data_loss)
    return min(earliest, end)


LOSS_HINT = (
    "Records are kept for retention.ms or up to retention.bytes of a topic: raise them, or run the query more often. "
    "To go on without the lost records set failOnDataLoss to false."
)


def lost(text: str, fail_on_data_loss: bool) -> None:
    """Records are gone that a query has yet to read: an error or a warning."""
    if fail_on_data_loss:
        raise OttlaError(f"data loss: {text}", LOSS_HINT)
    log.warning("data loss: %s", text)


class Patience:
    """How long nothing may come."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.begin_anew()

    def begin_anew(self) -> None:
        self._deadline = monotonic() + self._timeout_ms / 1000

    def glance_ms(self) -> int:
        return max(1, min(GLANCE_MS, int((self._deadline - monotonic()) * 1000)))

    def is_over(self) -> bool:
        return monotonic() >= self._deadline


def to_batch(records: list[Record], partition: TopicPartition, schema: "pyarrow.Schema") -> "pyarrow.RecordBatch":
    import pyarrow as pa

    count = len(records)
    columns: list[Any] = [
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.repeat(partition.topic, count),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.timestamp * 1000 for record in records], schema.field("timestamp").type),
        pa.repeat(pa.scalar(0, pa.int32()), count),
    ]
    if "headers" in schema.names:
        rows = [[{"key": key, "value": value} for key, value in record.headers] for record in records]
        columns.append(pa.array(rows, schema.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
