"""The promise that send() gives: one small object a record, one outcome a batch."""

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

from ottla.client.model import RecordMetadata
from ottla.errors import KafkaError
from ottla.types import TopicPartition


class BatchOutcome:
    """What became of a batch; every Delivery of its records looks here. Completed once, on any thread."""

    __slots__ = (
        "_callbacks",
        "_parts",
        "_record_errors",
        "base_offset",
        "error",
        "is_done",
        "log_append_time_ms",
        "partition",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.is_done = False
        self.error: KafkaError | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self._record_errors: dict[int, KafkaError] = {}
        self._parts: tuple[int, BatchOutcome, BatchOutcome] | None = None
        self._callbacks: list[Callable[[], None]] = []

    def succeed(self, base_offset: int, log_append_time_ms: int = -1) -> None:
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._complete()

    def fail(self, error: KafkaError, record_errors: dict[int, KafkaError] | None = None) -> None:
        """`record_errors` names the records that are to blame; the others failed because of them."""
        self.error = error
        self._record_errors = record_errors or {}
        self._complete()

    def split(self, middle: int) -> "tuple[BatchOutcome, BatchOutcome]":
        """Two outcomes for the records before and from `middle` on; this one is done when both are."""
        parts = BatchOutcome(self.partition), BatchOutcome(self.partition)
        self._parts = (middle, *parts)

        def check() -> None:
            if parts[0].is_done and parts[1].is_done and not self.is_done:
                self._complete()

        for part in parts:
            part.add_callback(check)
        return parts

    def find(self, index: int) -> "tuple[BatchOutcome, int]":
        """The outcome that speaks for a record, and the record's place in it."""
        if self._parts is None:
            return self, index
        middle, first, second = self._parts
        return first.find(index) if index < middle else second.find(index - middle)

    def error_of(self, index: int) -> KafkaError | None:
        return self._record_errors.get(index, self.error)

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Calls back once when the batch is done, at once if it is."""
        self._callbacks.append(callback)
        # The other thread may have completed between our look and our append: then whoever takes the
        # callback off the list calls it, and nobody else does.
        if self.is_done:
            self._call_back()

    def _complete(self) -> None:
        assert not self.is_done
        self.is_done = True
        self._call_back()

    def _call_back(self) -> None:
        while True:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            callback()


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
            finished = threading.Event()
            self._outcome.add_callback(finished.set)
            if not finished.wait(timeout):
                raise TimeoutError(f"no answer for a record to {self._outcome.partition} within {timeout} s")
        return self._metadata()

    def exception(self) -> KafkaError | None:
        """Why the record failed; None if it was stored or is still under way."""
        outcome, index = self._outcome.find(self._index)
        return outcome.error_of(index)

    def add_done_callback(self, callback: Callable[["Delivery"], Any]) -> None:
        """Calls `callback(delivery)` when the record is stored or failed, on the client's own thread."""
        self._outcome.add_callback(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._outcome.is_done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._outcome.add_callback(lambda: _finish(loop, future))
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

    def set_result() -> None:
        if not future.done():
            future.set_result(None)

    if asyncio._get_running_loop() is loop:
        set_result()
    else:
        loop.call_soon_threadsafe(set_result)
