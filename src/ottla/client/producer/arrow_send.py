"""Sends Arrow tables: assigns rows to partitions, encodes batches, and tracks their delivery.

`AsyncProducer.send_arrow` and `Producer.send_arrow` are thin wrappers around these steps:

    sending = ArrowSend(table, topic, ...)              # rejects a wrong schema
    ... wait until sending.topics are known ...
    sending.plan()                                      # rejects invalid rows before the first one is sent
    for batch in sending.batches():
        ... accumulator.add_batch(batch), waiting while the buffer is full ...
    sending.delivery
"""

import asyncio
import sys
import threading
from array import array
from collections.abc import Generator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.client.consumer.arrow import arrow_module
from ottla.client.core.arguments import check_topic
from ottla.client.core.cluster_view import ClusterView, missing_partition, topic_failure
from ottla.client.core.settings import ProducerConfig
from ottla.client.producer.accumulator import Accumulator, ProducerBatch
from ottla.client.producer.partitioner import StickyPartitioner
from ottla.client.producer.speedups import BatchOutcome
from ottla.clock import Clock
from ottla.errors import DeliveryTimeoutError, ErrorCode, KafkaError
from ottla.protocol.records.compression import Codec, compress
from ottla.protocol.records.record_batch import HEADER_SIZE, read_records
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.client.producer.hot_path import Row


_EMPTY = bytearray()


def _references_when_alone() -> int:
    """What getrefcount returns for an object held by one variable. It differs between Python versions."""
    buffer = bytearray(1)
    return sys.getrefcount(buffer)


_ALONE = _references_when_alone()


class StoredRows(NamedTuple):
    """Where rows of a table are stored in one partition. Records of other producers may lie in between."""

    first_offset: int
    last_offset: int
    rows: int


class ArrowBatch(ProducerBatch):
    """A batch built from Arrow columns: its records are encoded already."""

    __slots__ = ("_base_timestamp", "_buffer", "_codec", "_count", "_is_sealed", "_max_timestamp")

    def __init__(
        self, partition: TopicPartition, buffer: bytearray, codec: Codec, count: int, base: int, highest: int
    ) -> None:
        """`buffer` has space for the header, followed by the records compressed with `codec`."""
        super().__init__(partition, ())
        self._buffer = buffer
        self._codec = codec
        self._count = count
        self._base_timestamp, self._max_timestamp = base, highest
        self._is_sealed = False
        self.size_bytes = len(buffer)
        self.is_full = True

    @property
    def record_count(self) -> int:
        return self._count

    def encode(self, codec: Codec, level: int | None, transactional: bool = False) -> bytes | bytearray:
        if self.encoded is None:
            if self._is_sealed:  # renumbered: the bytes with the old sequence may still be being sent
                self._buffer = bytearray(self._buffer)
            self._seal(transactional)
            self.encoded = self._buffer
        return self.encoded

    def rows(self) -> "list[Row]":
        """The records as objects: for the rare batch that the broker rejects as too large."""
        if not self._is_sealed:
            self._seal(False)
        return [record[1:] for record in read_records(self._buffer)]

    def give_up_buffer(self) -> bytearray | None:
        """The buffer of a stored batch, to be reused; None if something else may still reference it."""
        buffer = self._buffer
        self._buffer = _EMPTY
        self.encoded = None
        if self.outcome.error is not None or self._codec or sys.getrefcount(buffer) > _ALONE:
            return None
        return buffer

    def _seal(self, transactional: bool) -> None:
        self._is_sealed = True
        arrow_module("arrow_rows").seal(
            self._buffer,
            codec=self._codec,
            count=self._count,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            transactional=transactional,
        )


class _Part(NamedTuple):
    """A batch's outcome and its rows of the table: `order[start:start + rows]`, relative to `first_row`."""

    outcome: BatchOutcome
    rows: int
    order: "array[int] | None"
    start: int
    first_row: int

    def row(self, place: int) -> int:
        place += self.start
        return self.first_row + (place if self.order is None else self.order[place])


class ArrowDelivery:
    """What send_arrow() returns. Await it (async) or call `result()` (blocking) to get the offsets of the rows.

    >>> delivery = producer.send_arrow(table, "orders")
    >>> delivery.count
    100000
    >>> delivery.result()
    {TopicPartition('orders', 0): StoredRows(first_offset=0, last_offset=99999, rows=100000)}
    """

    def __init__(self, count: int) -> None:
        self.count = count
        """The number of rows in the table."""
        self._parts: list[_Part] = []

    def add(self, part: _Part) -> None:
        self._parts.append(part)

    def _inspect(self) -> None:
        for part in self._parts:
            part.outcome.inspect()

    def done(self) -> bool:
        """Whether every row was stored or has failed."""
        return all(part.outcome.is_done for part in self._parts)

    def result(self, timeout: float | timedelta | None = None) -> dict[TopicPartition, StoredRows]:
        """Waits up to `timeout` seconds, or a timedelta (else TimeoutError), and returns where the rows are stored.

        Raises KafkaError with the first row that failed and the number of failed rows. Blocks: do not call it on the
        thread of an event loop.
        """
        self._inspect()
        finished = threading.Event()
        waiting = [part.outcome for part in self._parts if not part.outcome.is_done]
        if waiting:
            for outcome in waiting:
                outcome.check_wait()
            left = _Countdown(len(waiting), finished.set)
            for outcome in waiting:
                outcome.add_callback(left)
            if isinstance(timeout, timedelta):
                timeout = timeout.total_seconds()
            if not finished.wait(timeout):
                raise DeliveryTimeoutError(
                    f"not all of {self.count} rows were acknowledged within {timeout} s",
                    "They are still in flight: call result() again, or check that the broker is running.",
                )
        return self._stored()

    def exception(self) -> KafkaError | None:
        """Why rows failed. None if all were stored, or if none has failed so far."""
        self._inspect()
        failures = list(self._failures())
        if not failures:
            return None
        # If a batch failed because of invalid rows, report one of those.
        row, partition, error = next((f[:3] for f in failures if f[3]), failures[0][:3])
        detail = f"row {row}, for {partition}: {error.detail or error.code.name}"
        return KafkaError(error.code, f"{detail} ({len(failures)} of {self.count} rows failed)")

    def __await__(self) -> Generator[Any, None, dict[TopicPartition, StoredRows]]:
        self._inspect()
        waiting = [part.outcome for part in self._parts if not part.outcome.is_done]
        if waiting:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def finish() -> None:
                if not future.done():
                    future.set_result(None)

            left = _Countdown(len(waiting), lambda: loop.call_soon_threadsafe(finish))
            for outcome in waiting:
                outcome.add_callback(left)
            yield from future
        return self._stored()

    def _stored(self) -> dict[TopicPartition, StoredRows]:
        error = self.exception()
        if error is not None:
            raise error
        stored: dict[TopicPartition, StoredRows] = {}
        for part in self._parts:
            partition = part.outcome.partition
            first, last = _offset(part.outcome, 0), _offset(part.outcome, part.rows - 1)
            before = stored.get(partition)
            if before is not None:
                first, last = min(first, before.first_offset), max(last, before.last_offset)
            stored[partition] = StoredRows(first, last, part.rows + (before.rows if before is not None else 0))
        return stored

    def _failures(self) -> Iterator[tuple[int, TopicPartition, KafkaError, bool]]:
        """(row, partition, error, whether the row itself was invalid) for each failed row."""
        for part in self._parts:
            if part.outcome.error is None and part.outcome.find(0)[0] is part.outcome:
                continue
            for index in range(part.rows):
                outcome, place = part.outcome.find(index)
                error = outcome.error_of(place)
                if error is not None:
                    yield part.row(index), outcome.partition, error, error is not outcome.error

    def __repr__(self) -> str:
        state = "failed" if self.exception() else "stored" if self.done() else "in flight"
        return f"<ArrowDelivery of {self.count} rows: {state}>"


class _Countdown:
    """Calls `when_done` on the last of `count` calls. Calls may come from any thread."""

    def __init__(self, count: int, when_done: Any) -> None:
        self._left = count
        self._when_done = when_done
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._when_done()


def _offset(outcome: BatchOutcome, index: int) -> int:
    outcome, index = outcome.find(index)
    return outcome.base_offset + index if outcome.base_offset >= 0 else -1


class _Plan(NamedTuple):
    """A chunk of the table with its rows grouped by partition: `order` holds one slot after the other."""

    rows: Any
    first_row: int
    order: "array[int] | None"
    ends: list[int]
    partitions: list[TopicPartition]


class ArrowSend:
    """One table that is being sent by a producer."""

    def __init__(
        self,
        source: Any,
        topic: str | None,
        *,
        config: ProducerConfig,
        view: ClusterView,
        accumulator: Accumulator,
        sticky: StickyPartitioner,
        record_bytes_max: int,
        clock: Clock,
    ) -> None:
        self._arrow = arrow_module("arrow_rows")
        if topic is not None:
            check_topic(topic)
        table = self._arrow.as_table(source)
        self._arrow.check_schema(table.schema, needs_topic=topic is None)
        self._config = config
        self._view = view
        self._batch_size = accumulator.batch_size
        self._sticky = sticky
        self._record_bytes_max = record_bytes_max
        self._clock = clock
        self._chunks = self._arrow.chunks(table)
        self._topics: list[tuple[list[str], Any]] = []  # per chunk: topic names, and each row's index into them
        self.topics: set[str] = set()
        """The topics whose metadata `plan` needs."""
        first_row = 0
        for chunk in self._chunks:
            names, codes = ([topic], None) if topic is not None else self._arrow.topics_of(chunk, first_row)
            self._topics.append((names, codes))
            self.topics.update(names)
            first_row += chunk.num_rows
        self.highest_partition: int | None = self._arrow.highest_partition(self._chunks)
        self._plans: list[_Plan] = []
        self._spare: list[bytearray] = []
        """Buffers of stored batches, for reuse: allocating fresh memory costs as much as filling it."""
        self.delivery = ArrowDelivery(table.num_rows)
        self.sent = 0
        """The number of rows queued so far."""

    def plan(self) -> None:
        """Assigns every row to a partition. Raises for a row that cannot be sent, naming it."""
        for _ in self.planning():
            pass

    def planning(self) -> Iterator[None]:
        """Like `plan`, in steps of a few milliseconds, so that an event loop is not blocked."""
        now = self._clock()
        first_row = 0
        for chunk, (names, codes) in zip(self._chunks, self._topics, strict=True):
            rows = self._arrow.open_rows(chunk, first_row, now)
            try:
                rows.measure(self._record_bytes_max)
            except OverflowError as error:
                limit = f"max.request.size ({self._config.max_request_size})"
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{error} is larger than {limit}") from None
            except ValueError as error:
                code = ErrorCode.INVALID_TIMESTAMP if "timestamp" in str(error) else ErrorCode.INVALID_RECORD
                raise KafkaError(code, str(error)) from None
            self._plans.append(self._spread(chunk, rows, first_row, names, codes))
            first_row += chunk.num_rows
            yield
        self._chunks = []

    def _spread(self, chunk: Any, rows: Any, first_row: int, names: list[str], codes: Any) -> _Plan:
        partitions: list[TopicPartition] = []
        bases: list[int] = []
        counts: list[int] = []
        for name in names:
            known = self._view.partitions.get(name)
            if known is None:  # deleted since it was looked up
                raise topic_failure(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
            bases.append(len(partitions))
            counts.append(len(known))
            partitions += known
        if len(partitions) == 1 and "partition" not in chunk.schema.names:
            return _Plan(rows, first_row, None, [rows.count], partitions)
        slots = array("i", bytes(4 * rows.count))
        try:
            code_data = None if codes is None else codes.buffers()[1]
            loose = rows.assign(slots, code_data, self._arrow.partitions_of(chunk, first_row), bases, counts)
        except LookupError as error:
            row, topic, partition = error.args
            raise missing_partition(names[topic], partition, counts[topic], f"row {row}: ") from None
        if loose:
            self._stick(rows, slots, names, bases)
        order = array("i", bytes(4 * rows.count))
        return _Plan(rows, first_row, order, rows.group(slots, len(partitions), order), partitions)

    def _stick(self, rows: Any, slots: "array[int]", names: list[str], bases: list[int]) -> None:
        """Assigns rows without a key: fills a batch of one partition, then of another (KIP-480)."""
        size = self._batch_size
        for topic, name in enumerate(names):
            row = 0
            while row < rows.count:
                partition = self._sticky.partition(name, size)
                row, _ = rows.stick(slots, row, topic, bases[topic] + partition, size - HEADER_SIZE)

    def batches(self) -> Iterator[ArrowBatch]:
        """The batches, one of each partition in turn. Queue each one before taking the next."""
        codec, level = Codec[self._config.compression_type.upper()], self._config.compression_level
        bytes_max = self._batch_size - HEADER_SIZE
        while self._plans:
            rows, first_row, order, ends, partitions = self._plans.pop(0)
            starts = [0, *ends[:-1]]
            pending = [slot for slot, start in enumerate(starts) if start < ends[slot]]
            while pending:
                for slot in pending:
                    start = starts[slot]
                    spare = self._spare.pop() if self._spare else None
                    buffer, count, base, highest = rows.encode(order, start, ends[slot], bytes_max, HEADER_SIZE, spare)
                    if codec:
                        with memoryview(buffer) as records:
                            buffer = bytearray(HEADER_SIZE) + compress(codec, records[HEADER_SIZE:], level)
                    batch = ArrowBatch(partitions[slot], buffer, codec, count, base, highest)
                    del buffer, spare
                    batch.outcome.add_callback(self._reuse, batch)
                    yield batch
                    self.delivery.add(_Part(batch.outcome, count, order, start, first_row))
                    self.sent += count
                    starts[slot] += count
                pending = [slot for slot in pending if starts[slot] < ends[slot]]

    def _reuse(self, batch: ArrowBatch) -> None:
        buffer = batch.give_up_buffer()
        if buffer is not None:
            self._spare.append(buffer)

    def explain(self, error: KafkaError) -> KafkaError:
        """The error for a table that was queued only in part."""
        if not self.sent:
            return error
        return KafkaError(error.code, f"{error.detail}; {self.sent} of {self.delivery.count} rows were queued before")
