"""The executor's side of the source: reads a range of offsets as Arrow batches, over a consumer kept between tasks."""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.client.blocking import Consumer
from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.consumer.fetcher import RANGE_BYTES_MIN, RECORD_BYTES_EXPECTED
from ottla.clock import monotonic
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.spark.explaining import BrokersUnavailable
from ottla.spark.source.offsets import METADATA_DELAY_S, OffsetRange, recreated
from ottla.spark.workers import SettingsKey, settings_key
from ottla.types import ZERO_UUID, TopicPartition

if TYPE_CHECKING:
    import pyarrow

    from ottla.protocol.arrow.arrow_batches import ColumnBuilder
    from ottla.protocol.records.record_batch import Section

ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 2 * 1024 * 1024
"""The limits of an Arrow batch: this many rows, or the record batch that reaches this many bytes. Together with the two
fetches in flight they bound a task's memory."""

COLUMNS = {"timestampType": "timestamp_type"}
"""Ottla's own names for Spark's columns, if they differ."""

IDLE_CONSUMERS_MAX = 4
"""How many consumers a worker keeps for the next task. Spark ends a worker that was idle for a minute."""

BYTES_AT_ONCE = 8 * 1024 * 1024
"""The expected bytes of the ranges that a task reads at the same time."""

EXISTENCE_CHECK_MS = 2_000
"""How long to wait for records before checking whether the topic still exists."""

METADATA_RETRY_MS = 100

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
    """Reads partitions from one offset to another."""

    async def start(self, pieces: Sequence[OffsetRange], topic_ids: Mapping[str, bytes]) -> None:
        """Starts reading ranges of different partitions. OFFSET_OUT_OF_RANGE if a topic has another id."""
        # Otherwise the next range would wait for the topic's metadata again.
        self._positions.pinned_topics = frozenset(piece.partition.topic for piece in pieces)
        await self.assign([piece.partition for piece in pieces])
        for partition, begin, end in pieces:
            state = self._positions.state(partition)
            state.fetch_until, state.topic_id = end, topic_ids.get(partition.topic, ZERO_UUID)
            await self.seek(partition, begin)

    async def next_fetches(self, timeout_ms: int) -> list[CompletedFetch]:
        """At least one fetch and at most one per partition, not decoded; empty after `timeout_ms`.

        The caller reads them while the next ones are in flight.
        """
        deadline = self._network.now() + timeout_ms
        while True:
            self._reader.raise_errors()
            fetched: list[CompletedFetch] = []
            while len(fetched) < len(self._positions.states) and (one := self._fetcher.take_fetch()) is not None:
                fetched.append(one)
            if fetched:
                self._network.wake()
                return fetched
            remaining_ms = deadline - self._network.now()
            if remaining_ms <= 0:
                return []
            await self._network.until(self._reader.has_something_to_do, remaining_ms)

    async def is_gone(self, partition: TopicPartition) -> bool:
        """Whether the partition does not exist, checked again after stale metadata had time to refresh."""
        deadline = self._network.now() + METADATA_DELAY_S * 1000
        while True:
            try:
                await self.beginning_offsets([partition])
                return False
            except KafkaError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    return False
            if self._network.now() >= deadline:
                return True
            await asyncio.sleep(METADATA_RETRY_MS / 1000)

    async def saw_other_topic_id(self, partition: TopicPartition, topic_id: bytes) -> bool:
        """Whether the error was about the topic and not the offset: a broker reported another topic id."""
        return self._positions.state(partition).topic_id not in (topic_id, ZERO_UUID)

    async def has_other_topic_id(self, topic: str, topic_id: bytes) -> bool:
        """Whether the topic of this name has another id, checked again after stale metadata had time to refresh."""
        view, deadline = self._network.view, self._network.now() + METADATA_DELAY_S * 1000

        def is_expected() -> bool:
            return view.topic_id(topic) in (topic_id, ZERO_UUID)

        while not is_expected():
            if self._network.now() >= deadline:
                return True
            view.request_update()
            await self._network.until(is_expected, METADATA_RETRY_MS)
        return False

    async def stop_fetching(self) -> None:
        """Stops fetching, and keeps the connections for the next range."""
        await self.assign([])


class RangeConsumer(Consumer):
    """The blocking API of AsyncRangeConsumer."""

    _async: AsyncRangeConsumer

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._async = AsyncRangeConsumer(settings)

    def start(self, pieces: Sequence[OffsetRange], topic_ids: Mapping[str, bytes]) -> None:
        return self._call(self._async.start(pieces, topic_ids))

    def next_fetches(self, timeout_ms: int) -> list[CompletedFetch]:
        return self._call(self._async.next_fetches(timeout_ms))

    def is_gone(self, partition: TopicPartition) -> bool:
        return self._call(self._async.is_gone(partition))

    def saw_other_topic_id(self, partition: TopicPartition, topic_id: bytes) -> bool:
        return self._call(self._async.saw_other_topic_id(partition, topic_id))

    def has_other_topic_id(self, topic: str, topic_id: bytes) -> bool:
        return self._call(self._async.has_other_topic_id(topic, topic_id))

    def stop_fetching(self) -> None:
        return self._call(self._async.stop_fetching())


idle: dict[SettingsKey, RangeConsumer] = {}
"""Consumers that no task uses at the moment, by their settings. A worker runs one task after the other."""

_of_parents: list[RangeConsumer] = []
"""Consumers inherited by a forked process. They are never closed here, because that would disturb the parent."""


def _leave_to_parent() -> None:
    _of_parents.extend(idle.values())
    idle.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


def borrow(settings: Mapping[str, str]) -> RangeConsumer:
    return idle.pop(settings_key(settings), None) or RangeConsumer({**DEFAULTS, **settings})


def give_back(settings: Mapping[str, str], consumer: RangeConsumer) -> None:
    consumer.stop_fetching()
    before = idle.pop(settings_key(settings), None)
    if before is not None:
        before.close()
    idle[settings_key(settings)] = consumer
    while len(idle) > IDLE_CONSUMERS_MAX:
        idle.pop(next(iter(idle))).close()


def read_ranges(
    pieces: Sequence[OffsetRange],
    settings: Mapping[str, str],
    schema: "pyarrow.Schema",
    *,
    fail_on_data_loss: bool,
    poll_timeout_ms: int,
    topic_ids: Mapping[str, bytes] | None = None,
) -> "Iterator[pyarrow.RecordBatch]":
    """The records of ranges of different partitions, in order within each. Small ranges are read at the same time.

    A range ends when the position has reached its end, also if that is a marker. `topic_ids` are those of the topics
    that the ranges were planned for, as far as they are known.
    """
    if not pieces:
        return
    consumer = borrow(settings)
    reader = RangeReader(consumer, topic_ids or {}, schema, fail_on_data_loss, poll_timeout_ms)
    is_whole = False
    try:
        for group in groups_of(pieces):
            yield from reader.read(group)
        is_whole = True
    except GeneratorExit:  # Spark has enough rows
        is_whole = True
        raise
    finally:
        if is_whole:
            give_back(settings, consumer)
        else:
            consumer.close()


def groups_of(pieces: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """Ranges to read at the same time. Their first fetches together should not exceed BYTES_AT_ONCE."""
    groups: list[list[OffsetRange]] = []
    expected_bytes = 0
    for piece in pieces:
        own_bytes = max(RANGE_BYTES_MIN, piece.size * RECORD_BYTES_EXPECTED)
        if not groups or expected_bytes + own_bytes > BYTES_AT_ONCE:
            groups.append([])
            expected_bytes = 0
        groups[-1].append(piece)
        expected_bytes += own_bytes
    return groups


class RangeReader:
    """Reads ranges of offsets with one consumer."""

    def __init__(
        self,
        consumer: RangeConsumer,
        topic_ids: Mapping[str, bytes],
        schema: "pyarrow.Schema",
        fail_on_data_loss: bool,
        poll_timeout_ms: int,
    ) -> None:
        self._consumer = consumer
        self._topic_ids = topic_ids
        self._schema = schema
        self._fail_on_data_loss = fail_on_data_loss
        self._poll_timeout_ms = poll_timeout_ms

    def read(self, pieces: Sequence[OffsetRange]) -> "Iterator[pyarrow.RecordBatch]":
        """Reads all ranges concurrently. If one fails, the rest is read one after the other."""
        left = {piece.partition: piece for piece in pieces}
        if len(left) > 1:
            yield from self._read_together(left)
        for piece in left.values():
            yield from self._read_one(piece)

    def _read_together(self, left: dict[TopicPartition, OffsetRange]) -> "Iterator[pyarrow.RecordBatch]":
        """Leaves the ranges that could not be read in `left`."""
        self._consumer.start(list(left.values()), self._topic_ids)
        while left:
            try:
                fetches = self._consumer.next_fetches(min(EXISTENCE_CHECK_MS, self._poll_timeout_ms))
            except KafkaError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                return
            if not fetches:
                return
            yield from batches_of(fetches, {partition: piece.end for partition, piece in left.items()}, self._schema)
            for fetched in fetches:
                partition, _, end = left[fetched.partition]
                if fetched.next_offset >= end:
                    del left[partition]
                else:
                    left[partition] = OffsetRange(partition, fetched.next_offset, end)

    def _read_one(self, piece: OffsetRange) -> "Iterator[pyarrow.RecordBatch]":
        consumer, fail_on_data_loss, poll_timeout_ms = self._consumer, self._fail_on_data_loss, self._poll_timeout_ms
        partition, position, end = piece
        topic_id = self._topic_ids.get(partition.topic, ZERO_UUID)
        consumer.start([piece], self._topic_ids)
        deadline = FetchDeadline(poll_timeout_ms)
        while position < end:
            try:
                fetches = consumer.next_fetches(deadline.wait_ms())
            except KafkaError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                if topic_id == ZERO_UUID or not consumer.saw_other_topic_id(partition, topic_id):
                    position = after_loss(consumer, piece, position, fail_on_data_loss)
                elif consumer.has_other_topic_id(partition.topic, topic_id):
                    lost(recreated(partition.topic), fail_on_data_loss)
                    return  # the next batch reads the new topic from its beginning
                consumer.start([OffsetRange(partition, position, end)], self._topic_ids)
                continue
            if not fetches:
                if deadline.is_over():
                    raise BrokersUnavailable(
                        f"no records of {partition} from offset {position} on within {poll_timeout_ms} ms; "
                        f"the batch ends at {end}",
                        "Are the brokers running? kafkaConsumer.pollTimeoutMs sets how long to wait for them.",
                    )
                if consumer.is_gone(partition):
                    lost(
                        f"{partition} was deleted before offsets {position} to {end - 1} were read",
                        fail_on_data_loss,
                    )
                    return
                continue
            deadline.restart()
            yield from batches_of(fetches, {partition: end}, self._schema)
            position = fetches[-1].next_offset


def batches_of(
    fetches: Sequence[CompletedFetch], ends: Mapping[TopicPartition, int], schema: "pyarrow.Schema"
) -> "Iterator[pyarrow.RecordBatch]":
    """The records of fetches before their `ends`. Moves each `next_offset` past its fetch, or past its end.

    Small fetches of several partitions share a batch: each batch costs time in Spark, and in the sink.
    """
    import pyarrow as pa

    from ottla.protocol.arrow.arrow_batches import ColumnBuilder

    columns = [COLUMNS.get(name, name) for name in schema.names]
    while unread := [each for each in fetches if not each.is_exhausted and each.next_offset < ends[each.partition]]:
        planned = next_sections(unread)
        sections = [section for _, found in planned for section in found]
        builder = ColumnBuilder(sections, max_records=ROWS_PER_BATCH, timestamp_unit="us", columns=columns)
        for fetched, found in planned:
            if not builder.is_full:
                add_sections(builder, fetched, found, ends[fetched.partition])
        if builder.rows:
            yield pa.RecordBatch.from_arrays(builder.finish().columns, schema=schema)


def next_sections(fetches: Sequence[CompletedFetch]) -> "list[tuple[CompletedFetch, list[Section]]]":
    """The sections of the next Arrow batch."""
    planned: list[tuple[CompletedFetch, list[Section]]] = []
    rows, size_bytes = ROWS_PER_BATCH, BYTES_PER_BATCH
    for fetched in fetches:
        if rows <= 0 or size_bytes <= 0:
            break
        sections = fetched.sections(rows, size_bytes)
        planned.append((fetched, sections))
        rows -= sum(section.header.record_count for section in sections)
        size_bytes -= sum(section.end - section.start for section in sections)
    return planned


def add_sections(builder: "ColumnBuilder", fetched: CompletedFetch, sections: "Sequence[Section]", end: int) -> None:
    """Adds the records of a fetch before `end`, until the builder is full."""
    for section in sections:
        if section.header.base_offset >= end:
            fetched.took(end)
            return
        before = builder.rows
        try:
            is_whole = builder.add(*fetched.partition, section, fetched.next_offset, end)
        except KafkaError:
            raise
        except OttlaError as error:
            raise OttlaError(error.message, TIMESTAMP_HINT) from None
        if is_whole:
            fetched.took()
            continue
        # The batch is full and the rest of the section is for the next one, or the section contains the end.
        if not builder.is_full:
            fetched.took(end)
        elif builder.rows > before:
            fetched.took(builder.last_offset + 1)
        return


def after_loss(consumer: RangeConsumer, piece: OffsetRange, position: int, fail_on_data_loss: bool) -> int:
    """Where to continue if the brokers no longer have the current offset."""
    partition, _, end = piece
    earliest = consumer.beginning_offsets([partition])[partition]
    if earliest <= position:
        latest = consumer.end_offsets([partition])[partition]
        text = f"{partition} ends at offset {latest}, but the batch goes from {position} to {end}: it was truncated"
        lost(text, fail_on_data_loss)
        return end
    text = f"offsets {position} to {min(earliest, end) - 1} of {partition} no longer exist; it begins at {earliest}"
    lost(text, fail_on_data_loss)
    return min(earliest, end)


TIMESTAMP_HINT = (
    "Spark's timestamps are microseconds and cannot hold it. Start after the record (startingOffsets), or use a topic "
    "with message.timestamp.type=LogAppendTime."
)

LOSS_HINT = (
    "A topic keeps records for retention.ms or up to retention.bytes: raise them, or run the query more often. "
    "To continue without the lost records set failOnDataLoss to false."
)


def lost(text: str, fail_on_data_loss: bool) -> None:
    """Reports records that were deleted before the query read them, as an error or a warning."""
    if fail_on_data_loss:
        raise OttlaError(f"data loss: {text}", LOSS_HINT)
    log.warning("data loss: %s", text)


class FetchDeadline:
    """A deadline that restarts with every fetch."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.restart()

    def restart(self) -> None:
        self._deadline = monotonic() + self._timeout_ms / 1000

    def wait_ms(self) -> int:
        return max(1, min(EXISTENCE_CHECK_MS, int((self._deadline - monotonic()) * 1000)))

    def is_over(self) -> bool:
        return monotonic() >= self._deadline
