"""A record's way from send() into the batch of its partition, and the promise it leaves: what every record passes.

Plain Python. Where there is a compiler, `setup.py` builds this same file once more as `_intake`, with the C types
that `_intake.pxd` gives to its classes; `delivery.py` takes whichever is there. Compiled steps hold the interpreter
from their first line to their last, so that any thread may take them without a lock.
INTERFACE goes up when names or meanings change: an older build is then passed over.
"""

import asyncio
import contextlib
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from ottla.client.core.model import Bytes, Headers, HeadersLike, RecordMetadata
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition

INTERFACE = 2
IS_COMPILED = __name__.endswith("._intake")

RECORD_OVERHEAD_BYTES = 21
"""The most that a record takes beside its key, value and headers: lengths, attributes, deltas."""
HEADER_SIZE = 61
"""What a batch takes before its first record."""

Row = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp, key, value, headers."""

log = logging.getLogger("ottla.client")


# The promise of a record


class BatchOutcome:
    """What became of a batch; every Delivery of its records looks here. Completed once, on any thread."""

    __slots__ = (
        "_callbacks", "_parts", "_record_errors", "base_offset", "error", "is_done", "log_append_time_ms", "loop",
        "partition",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the batch is sent from: on that loop's thread nobody may wait for it."""
        self.is_done = False
        self.error: KafkaError | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self._record_errors: dict[int, KafkaError] | None = None
        self._parts: tuple[int, BatchOutcome, BatchOutcome] | None = None
        self._callbacks: deque[tuple[Callable[..., Any], Any]] = deque()
        """Each with its arguments, or with the one Delivery that it is called with."""

    def succeed(self, base_offset: int, log_append_time_ms: int = -1) -> None:
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._complete()

    def fail(self, error: KafkaError, record_errors: dict[int, KafkaError] | None = None) -> None:
        """`record_errors` names the records that are to blame; the others failed because of them."""
        self.error = error
        self._record_errors = record_errors
        self._complete()

    def split(self, middle: int) -> "tuple[BatchOutcome, BatchOutcome]":
        """Two outcomes for the records before and from `middle` on; this one is done when both are."""
        parts = BatchOutcome(self.partition), BatchOutcome(self.partition)
        self._parts = (middle, *parts)
        for part in parts:
            part.loop = self.loop
            part.add_callback(self._check_parts)
        return parts

    def _check_parts(self) -> None:
        assert self._parts is not None
        _, first, second = self._parts
        if first.is_done and second.is_done and not self.is_done:
            self._complete()

    def check_wait(self) -> None:
        """Raises where who waits for the batch would keep it from being sent: a callback on the client's own thread."""
        if not self.is_done and self.loop is not None and asyncio._get_running_loop() is self.loop:
            hint = "Await the delivery there, or add a callback to it."
            raise OttlaError("a blocking call inside a callback would wait for itself", hint)

    def find(self, index: int) -> "tuple[BatchOutcome, int]":
        """The outcome that speaks for a record, and the record's place in it."""
        if self._parts is None:
            return self, index
        middle, first, second = self._parts
        return first.find(index) if index < middle else second.find(index - middle)

    def error_of(self, index: int) -> KafkaError | None:
        """Why the record in this place failed; None if it was stored or is still under way."""
        return self._error_of(index)

    def _error_of(self, index: int) -> KafkaError | None:
        if self._parts is not None:
            outcome, place = self.find(index)
            return outcome.error_of(place)
        if self._record_errors is not None:
            return self._record_errors.get(index, self.error)
        return self.error

    def add_callback(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Calls back once when the batch is done, at once if it is."""
        self._add_callback(callback, arguments)

    def _add_callback(self, callback: Callable[..., Any], arguments: Any) -> None:
        self._callbacks.append((callback, arguments))
        # The other thread may have completed between our look and our append: then whoever takes the
        # callback off the list calls it, and nobody else does.
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
            except IndexError:  # the other thread took it
                return
            try:
                if type(arguments) is tuple:
                    callback(*arguments)
                else:
                    callback(arguments)
            except Exception:
                # A user's mistake must neither reach the network nor keep the callbacks behind it from being called.
                log.exception("a callback for a record to %s raised", self.partition)


class Delivery:
    """Comes back from send(). Await it (async) or call `result()` (blocking) to learn where the record is stored.

    >>> delivery = await producer.send("orders", b"value")
    >>> metadata = await delivery           # RecordMetadata(topic, partition, offset, timestamp), or KafkaError
    """

    __slots__ = ("_index", "_outcome", "_timestamp")

    def __init__(self, outcome: BatchOutcome, index: int, timestamp: int) -> None:
        self._outcome = outcome
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Whether the record has been stored or has failed."""
        return self._outcome.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is stored; waits up to `timeout` seconds (TimeoutError). Not for an event loop's thread."""
        if not self._outcome.is_done:
            self._outcome.check_wait()
            finished = threading.Event()
            self._outcome.add_callback(finished.set)
            if not finished.wait(timeout):
                raise TimeoutError(f"no answer for a record to {self._outcome.partition} within {timeout} s")
        return self._metadata()

    def exception(self) -> KafkaError | None:
        """Why the record failed; None if it was stored or is still under way."""
        return self._outcome._error_of(self._index)

    def add_done_callback(self, callback: Callable[["Delivery"], Any]) -> None:
        """Calls `callback(delivery)` when the record is stored or failed, on the client's own thread."""
        self._outcome._add_callback(callback, self)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
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
        state = "failed" if self.exception() else "stored" if self.done() else "under way"
        return f"<Delivery to {self._outcome.partition}: {state}>"


def _finish(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
    """Wakes an awaiting task, from its own loop's thread or from another."""
    if asyncio._get_running_loop() is loop:
        _set_result(future)
    else:
        loop.call_soon_threadsafe(_set_result, future)


def _set_result(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


# The way in

_process = object()
"""Stands for this process: a producer that was made in another one, before a fork, takes nothing in."""


def _after_fork() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_after_fork)


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 with Kafka's seed, unsigned.

    >>> hex(murmur2(b"21"))
    '0xc5f2f8ec'
    """
    octets = data  # a pointer, when compiled
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
"""Keys come again and again, and in Python the hash itself costs microseconds."""


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition that every Kafka client written in Java picks for this key."""
    return ((murmur2(key) if IS_COMPILED else _remembered_murmur2(key)) & 0x7FFFFFFF) % partition_count


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """An upper bound for the bytes that a record takes in a batch."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    if headers:
        for name, content in headers:
            size += 10 + 3 * len(name) + (len(content) if content else 0)
    return size


class OpenBatch:
    """Records for one partition, as far as those who add to it see them."""

    __slots__ = ("is_full", "outcome", "records", "size_bytes")

    def __init__(self, outcome: BatchOutcome) -> None:
        self.outcome = outcome
        self.records: list[Row] = []
        self.size_bytes = HEADER_SIZE
        self.is_full = False
        """No record joins any more."""


class Lane:
    """One partition: the batch that still takes records, and the batches that wait."""

    __slots__ = ("next_order", "open_batch", "partition", "queue")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.queue: deque[Any] = deque()
        self.open_batch: OpenBatch | None = None
        """The last of the queue, as long as it may take records."""
        self.next_order = 0


class Sticky:
    """Where records without a key go, and how many bytes that partition still gets before another has its turn."""

    __slots__ = ("bytes_left", "partition")

    def __init__(self, partition: int, bytes_left: int) -> None:
        self.partition = partition
        self.bytes_left = bytes_left


class TopicLanes:
    """The lanes of a topic, as it was when the cluster was last asked."""

    __slots__ = ("lanes", "partitions", "sticky")

    def __init__(self, partitions: tuple[TopicPartition, ...], lanes: list[Lane]) -> None:
        self.partitions = partitions
        self.lanes = lanes
        self.sticky: Sticky | None = None


class Intake:
    """Takes records in, within `buffer.memory`. The accumulator is built on it."""

    __slots__ = (
        "batch_size", "buffer_memory", "buffered_bytes", "clock", "clock_ns", "guard", "known_partitions", "refusal",
        "stamp", "stamp_ms", "topics",
    )  # fmt: skip

    def __init__(self, batch_size: int, buffer_memory: int, clock: Any, clock_ns: Any) -> None:
        """`clock_ns`, where it is given, is read instead of `clock`: it is a function of the interpreter's own."""
        self.batch_size = batch_size
        self.buffer_memory = buffer_memory
        self.buffered_bytes = 0
        self.clock = clock
        self.clock_ns = clock_ns
        self.stamp: Any = -1
        self.stamp_ms = -1
        self.refusal: Exception | None = None
        """While set, every record is refused with it."""
        self.known_partitions: dict[str, tuple[TopicPartition, ...]] = {}
        """The cluster view's own: a topic's tuple is another one as soon as the topic is seen anew."""
        self.topics: dict[str, TopicLanes] = {}
        self.guard: Any = contextlib.nullcontext() if IS_COMPILED else threading.Lock()
        """Held for each step, where steps are many instructions of the interpreter."""

    def take_in(self, topic: str, value: Any, key: Any, partition: Any) -> Delivery | None:
        """The usual record into a batch that is there and has room. None for any other: it goes the long way.

        A usual record is bytes for a known topic, without headers and with the time of now. Any thread.
        """
        if IS_COMPILED:
            return self._take_in(topic, value, key, partition)
        with self.guard:
            return self._take_in(topic, value, key, partition)

    def _take_in(self, topic: str, value: Any, key: Any, partition: Any) -> Delivery | None:
        # What may let another thread in (a clock in Python, an allocation that collects garbage) comes first;
        # from the checks on nothing does, so that they still hold when the record is added.
        if self.clock_ns is not None:
            timestamp = self.clock_ns()
            timestamp //= 1_000_000
        else:
            timestamp = self.clock()
        stamp = self.stamp
        if timestamp != self.stamp_ms:  # many records share a millisecond, and then the number's object
            stamp = timestamp
            self.stamp, self.stamp_ms = stamp, timestamp
        delivery = Delivery.__new__(Delivery)
        row = (stamp, key, value, ())
        found = self.topics.get(topic) if isinstance(topic, str) else None
        if found is None or self.refusal is not None or type(value) is not bytes:
            return None
        lanes = found
        if lanes.partitions is not self.known_partitions.get(topic):
            return None
        size_bytes = RECORD_OVERHEAD_BYTES + len(value)
        if key is not None:
            if type(key) is not bytes:
                return None
            size_bytes += len(key)
        count = len(lanes.lanes)
        sticky = None
        if partition is not None:
            if type(partition) is not int or not 0 <= partition < count:
                return None
            index = partition
        elif key is not None:
            index = partition_for_key(key, count)
        else:
            sticky = lanes.sticky
            if sticky is None or sticky.bytes_left <= 0:
                return None
            index = sticky.partition
        lane = lanes.lanes[index]
        batch = lane.open_batch
        # The record that fills a batch goes the long way too: it wakes the network.
        if batch is None or batch.is_full or batch.size_bytes + size_bytes >= self.batch_size:
            return None
        if self.buffered_bytes + size_bytes > self.buffer_memory:
            return None
        if IS_COMPILED:  # bytes and a number: the garbage collector has nothing to find in them
            PyObject_GC_UnTrack(row)  # type: ignore[name-defined]  # noqa: F821
        self.buffered_bytes += size_bytes
        if sticky is not None:
            sticky.bytes_left -= size_bytes
        return self._add(batch, row, delivery, timestamp, size_bytes)

    def put(self, batch: OpenBatch, row: Row, size_bytes: int) -> Delivery | None:
        """Adds a record for which room was reserved; None when the batch is full. An empty batch takes any record."""
        delivery = Delivery.__new__(Delivery)
        with self.guard:
            if batch.is_full or (batch.records and batch.size_bytes + size_bytes > self.batch_size):
                return None
            return self._add(batch, row, delivery, row[0], size_bytes)

    def _add(self, batch: OpenBatch, row: Row, delivery: Delivery, timestamp: int, size_bytes: int) -> Delivery:
        delivery._outcome = batch.outcome
        delivery._index = len(batch.records)
        delivery._timestamp = timestamp
        batch.records.append(row)
        batch.size_bytes += size_bytes
        return delivery

    def close_batch(self, lane: Lane, batch: OpenBatch) -> None:
        """No record joins the batch any more, and nothing of it is held here."""
        with self.guard:
            batch.is_full = True
            if lane.open_batch is batch:
                lane.open_batch = None

    def reserve(self, size_bytes: int) -> bool:
        """Takes room from the buffer. A record that alone exceeds it has room once the buffer is empty."""
        with self.guard:
            if self.buffered_bytes + size_bytes > self.buffer_memory and self.buffered_bytes:
                return False
            self.buffered_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """Room for others: a batch is stored or has failed."""
        with self.guard:
            self.buffered_bytes -= size_bytes

    def refuse(self, refusal: Exception | None) -> None:
        """Takes no more records from now on; None takes them again."""
        with self.guard:
            self.refusal = refusal


class Sending:
    """The blocking producer's send(). It is here because its own lines count, too, when a record takes half a µs."""

    __slots__ = ("_intake", "_made_in")

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
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
        """Hands a record over and returns the promise of its delivery; waits only for room and for the topic.

        Text is sent as UTF-8. Records with equal keys go to the same partition; records without a key fill
        one partition's batch after the other's.
        """
        if timestamp is None and headers is None and self._made_in is _process:
            intake = self._intake
            if IS_COMPILED:
                delivery = intake._take_in(topic, value, key, partition)
            else:
                delivery = intake.take_in(topic, value, key, partition)
            if delivery is not None:
                return delivery
        return self._send_slowly(topic, value, key, partition, timestamp, headers)

    def _send_slowly(
        self, topic: str, value: Bytes, key: Bytes, partition: int | None, timestamp: int | None, headers: HeadersLike
    ) -> Delivery:
        raise NotImplementedError
