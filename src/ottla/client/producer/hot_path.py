"""The hot path of a producer: from send() into the open batch of a partition, and the Delivery that send() returns.

This file is plain Python. Where a compiler is available, `setup.py` also builds it as the extension `_hot_path`, with
the C types declared in `_hot_path.pxd`; `speedups.py` picks the extension if it can be imported. A compiled method
holds the GIL from its first line to its last, so any thread may call it without a lock.
Increment INTERFACE whenever names or semantics change: `speedups.py` then ignores an outdated build.
"""

# ruff: noqa: SLF001  (cdef methods and fields are shared by the classes of this module)

import asyncio
import contextlib
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

from ottla.client.core.model import Bytes, Headers, HeadersLike, RecordMetadata
from ottla.errors import DeliveryTimeoutError, KafkaError, OttlaError
from ottla.protocol.records.record_batch import HEADER_SIZE
from ottla.types import TopicPartition

INTERFACE = 4
IS_COMPILED = __name__.endswith("._hot_path")

RECORD_OVERHEAD_BYTES = 21
"""Upper bound of a record's size without key, value and headers: varint lengths, attributes, deltas.

RECORD_OVERHEAD of `batch_layout.py`, written out: it is a C constant in the compiled module."""

Row = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp, key, value, headers."""

log = logging.getLogger("ottla.client")


# Outcomes and deliveries


class BatchOutcome:
    """The result of one batch, shared by the Deliveries of its records. Completed once, on any thread."""

    __slots__ = (
        "_callbacks", "_is_inspected", "_parts", "_record_count", "_record_errors", "base_offset", "error", "is_done",
        "log_append_time_ms", "loop", "partition",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that sends the batch. Its thread must not block on this outcome."""
        self.is_done = False
        self.error: KafkaError | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self._record_errors: dict[int, KafkaError] | None = None
        self._parts: tuple[int, BatchOutcome, BatchOutcome] | None = None
        self._callbacks: deque[tuple[Callable[..., Any], Any]] = deque()
        """(callback, argument tuple), or (callback, delivery) for a callback that takes the Delivery."""
        self._record_count = 0
        self._is_inspected = False
        """Whether the program has inspected the result of a record, or will: then a failure is not logged."""

    def __del__(self) -> None:
        # Like asyncio's "exception was never retrieved": otherwise the records would be lost without a trace.
        if self.error is not None and not self._is_inspected and log is not None:
            log.error(
                "producer: %d records to %s were not stored, and the program never checked their Delivery: %s",
                self._record_count,
                self.partition,
                self.error,
            )

    def inspect(self) -> None:
        """Marks the result as inspected by the program, or reported to it in another way."""
        self._is_inspected = True
        if self._parts is not None:
            _, first, second = self._parts
            first.inspect()
            second.inspect()

    def succeed(self, base_offset: int, log_append_time_ms: int = -1) -> None:
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._complete()

    def fail(
        self, error: KafkaError, record_errors: dict[int, KafkaError] | None = None, record_count: int = 0
    ) -> None:
        """`record_errors` maps the index of each invalid record to its error; the others failed with them (KIP-467)."""
        self.error = error
        self._record_errors = record_errors
        self._record_count = record_count
        self._complete()

    def split(self, middle: int) -> "tuple[BatchOutcome, BatchOutcome]":
        """Two outcomes, for the records before `middle` and from `middle` on. This one is done when both are."""
        parts = BatchOutcome(self.partition), BatchOutcome(self.partition)
        self._parts = (middle, *parts)
        for part in parts:
            part.loop = self.loop
            part.add_callback(self._check_parts)
            if self._is_inspected:
                part.inspect()
        return parts

    def _check_parts(self) -> None:
        assert self._parts is not None
        _, first, second = self._parts
        if first.is_done and second.is_done and not self.is_done:
            self._complete()

    def check_wait(self) -> None:
        """Raises OttlaError on the thread that sends the batch: blocking there would deadlock."""
        if not self.is_done and self.loop is not None and asyncio._get_running_loop() is self.loop:
            hint = "Await the delivery, or use add_done_callback()."
            raise OttlaError("a blocking call inside a callback of the client would deadlock", hint)

    def find(self, index: int) -> "tuple[BatchOutcome, int]":
        """The outcome (of a half, after a split) that holds a record's result, and the record's index in it."""
        if self._parts is None:
            return self, index
        middle, first, second = self._parts
        return first.find(index) if index < middle else second.find(index - middle)

    def error_of(self, index: int) -> KafkaError | None:
        """Why the record at this index failed. None if it was stored or is still in flight."""
        return self._error_of(index)

    def _error_of(self, index: int) -> KafkaError | None:
        if self._parts is not None:
            outcome, place = self.find(index)
            return outcome.error_of(place)
        if self._record_errors is not None:
            return self._record_errors.get(index, self.error)
        return self.error

    def add_callback(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Calls `callback(*arguments)` once the batch is done; immediately if it is done already."""
        self._add_callback(callback, arguments)

    def _add_callback(self, callback: Callable[..., Any], arguments: Any) -> None:
        self._callbacks.append((callback, arguments))
        # The other thread may complete the batch between our check and our append. popleft() is atomic, so only
        # the thread that takes a callback off the deque calls it.
        if self.is_done:
            self._call_back()

    def _complete(self) -> None:
        assert not self.is_done
        self.is_done = True
        self._call_back()

    def _call_back(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                callback, arguments = callbacks.popleft()
            except IndexError:  # the other thread took the last one
                return
            try:
                if type(arguments) is tuple:
                    callback(*arguments)
                else:
                    callback(arguments)
            except Exception:
                # An error in user code must not reach the network task, nor skip the remaining callbacks.
                log.exception("delivery callback for a record to %s failed", self.partition)


class Delivery:
    """What send() returns. Await it (async) or call `result()` (blocking) to get the record's offset.

    >>> delivery = await producer.send("orders", b"value")
    >>> metadata = await delivery           # RecordMetadata(topic, partition, offset, timestamp), or KafkaError
    """

    __slots__ = ("_index", "_outcome", "_timestamp")

    def __init__(self, outcome: BatchOutcome, index: int, timestamp: int) -> None:
        self._outcome = outcome
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Whether the record was stored or has failed."""
        return self._outcome.is_done

    def result(self, timeout: float | timedelta | None = None) -> RecordMetadata:
        """Waits up to `timeout` seconds (else TimeoutError) and returns where the record is stored.

        In seconds, as in concurrent.futures, or a timedelta. Blocks: do not call it on the thread of an event loop.
        """
        self._outcome.inspect()
        if not self._outcome.is_done:
            self._outcome.check_wait()
            finished = threading.Event()
            self._outcome.add_callback(finished.set)
            if isinstance(timeout, timedelta):
                timeout = timeout.total_seconds()
            if not finished.wait(timeout):
                raise DeliveryTimeoutError(
                    f"a record to {self._outcome.partition} was not acknowledged within {timeout} s",
                    "It is still in flight: call result() again, or check that the broker is running.",
                )
        return self._metadata()

    def exception(self) -> KafkaError | None:
        """Why the record failed. None if it was stored or is still in flight."""
        self._outcome.inspect()
        return self._outcome._error_of(self._index)

    def add_done_callback(self, callback: Callable[["Delivery"], Any]) -> None:
        """Calls `callback(delivery)` on the client's own thread once the record is stored or has failed."""
        self._outcome.inspect()
        self._outcome._add_callback(callback, self)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        self._outcome.inspect()
        if not self._outcome.is_done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._outcome.add_callback(_finish, loop, future)
            yield from future
        return self._metadata()

    def _metadata(self) -> RecordMetadata:
        outcome, index = self._outcome.find(self._index)
        error = outcome.error_of(index)
        if error is not None:
            raise error
        offset = outcome.base_offset + index if outcome.base_offset >= 0 else -1
        timestamp = outcome.log_append_time_ms if outcome.log_append_time_ms >= 0 else self._timestamp
        return RecordMetadata(outcome.partition.topic, outcome.partition.partition, offset, timestamp)

    def __repr__(self) -> str:
        failure = self._outcome._error_of(self._index)
        state = "failed" if failure else "stored" if self.done() else "in flight"
        return f"<Delivery to {self._outcome.partition}: {state}>"


def _finish(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
    """Wakes an awaiting task, from the thread of its loop or from another one."""
    if asyncio._get_running_loop() is loop:
        _set_result(future)
    else:
        loop.call_soon_threadsafe(_set_result, future)


def _set_result(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


# Appending

_process = object()
"""Identifies this process. After a fork, the child's copy of a producer does not match and cannot use the fast path."""


def _after_fork() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_after_fork)


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 with Kafka's seed, unsigned.

    >>> hex(murmur2(b"21"))
    '0xc5f2f8ec'
    """
    octets = data  # a C pointer when compiled
    length = len(data)
    mask = 0xFFFFFFFF
    h = 0x9747B28C
    h ^= length
    i = 0
    while i + 4 <= length:
        k = octets[i + 3]
        k = k << 8 | octets[i + 2]
        k = k << 8 | octets[i + 1]
        k = k << 8 | octets[i]
        k = k * 0x5BD1E995 & mask
        k = (k ^ k >> 24) * 0x5BD1E995 & mask
        h = (h * 0x5BD1E995 & mask) ^ k
        i += 4
    if i < length:
        k = 0
        while length > i:
            length -= 1
            k = k << 8 | octets[length]
        h = (h ^ k) * 0x5BD1E995 & mask
    h = (h ^ h >> 13) * 0x5BD1E995 & mask
    return h ^ h >> 15


_remembered_murmur2 = functools.lru_cache(maxsize=16_384)(murmur2)
"""Keys repeat, and computing the hash in pure Python takes microseconds."""


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition that Kafka's Java client picks for this key."""
    return ((murmur2(key) if IS_COMPILED else _remembered_murmur2(key)) & 0x7FFFFFFF) % partition_count


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Upper bound of a record's size in a batch, in bytes."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    if headers:
        for name, content in headers:
            size += 10 + 3 * len(name) + (len(content) if content else 0)
    return size


class AppendableBatch:
    """The part of a ProducerBatch that appending needs."""

    __slots__ = ("is_full", "outcome", "records", "size_bytes")

    def __init__(self, outcome: BatchOutcome) -> None:
        self.outcome = outcome
        self.records: list[Row] = []
        self.size_bytes = HEADER_SIZE
        self.is_full = False
        """Closed for further records."""


class PartitionQueue:
    """The batches of one partition that wait to be sent. The last one may be open for more records."""

    __slots__ = ("batches", "next_order", "open_batch", "partition")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[Any] = deque()
        self.open_batch: AppendableBatch | None = None
        """The last of `batches` while it accepts records, else None."""
        self.next_order = 0


class StickyPartition:
    """Where records without a key go (KIP-480), and how many bytes more before another one is picked (KIP-794)."""

    __slots__ = ("bytes_left", "partition")

    def __init__(self, partition: int, bytes_left: int) -> None:
        self.partition = partition
        self.bytes_left = bytes_left


class TopicQueues:
    """The queues of a topic's partitions, as of one version of the topic's metadata."""

    __slots__ = ("partitions", "queues", "sticky")

    def __init__(self, partitions: tuple[TopicPartition, ...], queues: list[PartitionQueue]) -> None:
        self.partitions = partitions
        self.queues = queues
        self.sticky: StickyPartition | None = None


class RecordAppender:
    """Appends records to open batches, within `buffer.memory`. Base class of the Accumulator."""

    __slots__ = (
        "batch_size", "buffer_memory", "buffered_bytes", "clock", "clock_ns", "guard", "known_partitions", "refusal",
        "stamp", "stamp_ms", "topics",
    )  # fmt: skip

    def __init__(self, batch_size: int, buffer_memory: int, clock: Any, clock_ns: Any) -> None:
        """`clock_ns`, if not None, is used instead of `clock`: a C function, so that calling it runs no Python code."""
        self.batch_size = batch_size
        self.buffer_memory = buffer_memory
        self.buffered_bytes = 0
        self.clock = clock
        self.clock_ns = clock_ns
        self.stamp: Any = -1
        self.stamp_ms = -1
        self.refusal: Exception | None = None
        """While set, every record is rejected with this error."""
        self.known_partitions: dict[str, tuple[TopicPartition, ...]] = {}
        """The cluster view's dict. A topic gets a new tuple with every metadata update that changes it."""
        self.topics: dict[str, TopicQueues] = {}
        self.guard: Any = contextlib.nullcontext() if IS_COMPILED else threading.Lock()
        """Held by every method below. Not needed when compiled, see the module docstring."""

    def try_append(self, topic: str, value: Any, key: Any, partition: Any) -> Delivery | None:
        """The fast path: appends to an open batch with room. None if the record needs the slow path. Any thread.

        It takes records of bytes for a known topic, without headers and with the current time.
        """
        if IS_COMPILED:
            return self._try_append(topic, value, key, partition)
        with self.guard:
            return self._try_append(topic, value, key, partition)

    def _try_append(self, topic: str, value: Any, key: Any, partition: Any) -> Delivery | None:
        # Whatever may release the GIL (a clock written in Python, an allocation that triggers the garbage
        # collector) comes first. Nothing below does, so the checks still hold when the record is added.
        if self.clock_ns is not None:
            timestamp = self.clock_ns()
            timestamp //= 1_000_000
        else:
            timestamp = self.clock()
        stamp = self.stamp
        if timestamp != self.stamp_ms:  # many records share a millisecond: reuse the int object
            stamp = timestamp
            self.stamp, self.stamp_ms = stamp, timestamp
        delivery = Delivery.__new__(Delivery)
        row = (stamp, key, value, ())
        found = self.topics.get(topic) if isinstance(topic, str) else None
        if found is None or self.refusal is not None or type(value) is not bytes:
            return None
        topic_queues = found
        if topic_queues.partitions is not self.known_partitions.get(topic):
            return None
        size_bytes = RECORD_OVERHEAD_BYTES + len(value)
        if key is not None:
            if type(key) is not bytes:
                return None
            size_bytes += len(key)
        count = len(topic_queues.queues)
        sticky = None
        if partition is not None:
            if type(partition) is not int or not 0 <= partition < count:
                return None
            index = partition
        elif key is not None:
            index = partition_for_key(key, count)
        else:
            sticky = topic_queues.sticky
            if sticky is None or sticky.bytes_left <= 0:
                return None
            index = sticky.partition
        queue = topic_queues.queues[index]
        batch = queue.open_batch
        # The record that fills a batch takes the slow path, which wakes the network.
        if batch is None or batch.is_full or batch.size_bytes + size_bytes >= self.batch_size:
            return None
        if self.buffered_bytes + size_bytes > self.buffer_memory:
            return None
        if IS_COMPILED:  # only bytes and an int in it: nothing for the garbage collector to follow
            PyObject_GC_UnTrack(row)  # type: ignore[name-defined]  # noqa: F821
        self.buffered_bytes += size_bytes
        if sticky is not None:
            sticky.bytes_left -= size_bytes
        return self._add(batch, row, delivery, timestamp, size_bytes)

    def append_to(self, batch: AppendableBatch, row: Row, size_bytes: int) -> Delivery | None:
        """Appends a record for which memory is reserved. None if the batch is full; an empty batch takes any record."""
        delivery = Delivery.__new__(Delivery)
        with self.guard:
            if batch.is_full or (batch.records and batch.size_bytes + size_bytes > self.batch_size):
                return None
            return self._add(batch, row, delivery, row[0], size_bytes)

    def _add(self, batch: AppendableBatch, row: Row, delivery: Delivery, timestamp: int, size_bytes: int) -> Delivery:
        delivery._outcome = batch.outcome
        delivery._index = len(batch.records)
        delivery._timestamp = timestamp
        batch.records.append(row)
        batch.size_bytes += size_bytes
        return delivery

    def close_batch(self, queue: PartitionQueue, batch: AppendableBatch) -> None:
        """Closes a batch for further records."""
        with self.guard:
            batch.is_full = True
            if queue.open_batch is batch:
                queue.open_batch = None

    def reserve(self, size_bytes: int) -> bool:
        """Reserves buffer memory; False if there is not enough. A record larger than the buffer fits an empty one."""
        with self.guard:
            if self.buffered_bytes + size_bytes > self.buffer_memory and self.buffered_bytes:
                return False
            self.buffered_bytes += size_bytes
            return True

    def release(self, size_bytes: int) -> None:
        """Releases the memory of a batch that was stored or has failed."""
        with self.guard:
            self.buffered_bytes -= size_bytes

    def refuse(self, refusal: Exception | None) -> None:
        """Refuses every further record with this error; None accepts records again."""
        with self.guard:
            self.refusal = refusal


class BlockingSender:
    """send() of the blocking producer. It is compiled too: at half a microsecond per record its own lines count."""

    __slots__ = ("_appender", "_made_in")

    def __init__(self, appender: RecordAppender) -> None:
        self._appender = appender
        self._made_in = _process

    def send(
        self,
        topic: str,
        value: Bytes = None,
        *,
        key: Bytes = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = None,
    ) -> Delivery:
        """Queues a record and returns its Delivery. Blocks only while the buffer is full or the topic is not known yet.

        Text is encoded as UTF-8. Records with equal keys go to the same partition. Records without a key fill a batch
        of one partition, then of another one.
        """
        if timestamp is None and headers is None and self._made_in is _process:
            appender = self._appender
            if IS_COMPILED:
                delivery = appender._try_append(topic, value, key, partition)
            else:
                delivery = appender.try_append(topic, value, key, partition)
            if delivery is not None:
                return delivery
        return self._send_slowly(topic, value, key, partition, timestamp, headers)

    def _send_slowly(
        self, topic: str, value: Bytes, key: Bytes, partition: int | None, timestamp: int | None, headers: HeadersLike
    ) -> Delivery:
        raise NotImplementedError
