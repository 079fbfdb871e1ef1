"""OWNER of appends that cannot happen at once, and of the thread that checks large compressed batches for them.

The event loop decompresses and checks a limited number of bytes in each of its turns, for all connections together.
What is larger goes to one thread, so a decompression bomb delays nobody else. The appends of one connection stay in
order: while one is late, the connection's next ones are queued behind it.

A late append is finished even if its connection closes, as in Apache Kafka: with acks=0 a producer may disconnect right
after its last batch. The appends of closed connections are dropped only if too much is waiting.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ottla.errors import ErrorCode, KafkaError
from ottla.log.partition_log import PartitionLog
from ottla.log.validation import Prepared, TooMuchWork
from ottla.net.server.connection_state import CLOSING

T = TypeVar("T")

WORK_BYTES_PER_TURN = 1024 * 1024
"""Decompressed on the event loop in one turn: ten milliseconds with the slowest codec."""
COMPRESSION_COST = 16
"""A byte that the broker compresses counts as this many decompressed ones."""
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""While more than this waits, late appends of closed connections are dropped."""


class LateAppends:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work_left = WORK_BYTES_PER_TURN
        self._thread: ThreadPoolExecutor | None = None
        self.last: dict[Any, asyncio.Task[Any]] = {}
        """By connection, the append that its next one has to wait for."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.waiting_bytes = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def stop(self) -> None:
        """Drops what is still waiting; its producers got no response."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    # -- the order of a connection --

    def before(self, connection: Any) -> "asyncio.Task[Any] | None":
        """The late append that the connection's next one must not overtake."""
        task = self.last.get(connection)
        return None if task is None or task.done() else task

    def add(self, connection: Any, append: Coroutine[Any, Any, Any], size_bytes: int) -> "asyncio.Task[Any]":
        """Runs a late append. The connection's next ones wait for it."""
        assert self._loop is not None
        task = self._loop.create_task(append)
        self._tasks.add(task)
        self.last[connection] = task
        self.waiting_bytes += size_bytes

        def done(task: "asyncio.Task[Any]") -> None:
            self._tasks.discard(task)
            self.waiting_bytes -= size_bytes
            if self.last.get(connection) is task:
                del self.last[connection]
            if not task.cancelled():
                task.exception()  # reported to the client if it is still there

        task.add_done_callback(done)
        return task

    # -- checking batches --

    def check_now(self, partition_log: PartitionLog, batch: Any, produce_version: int) -> Prepared | None:
        """Prepares a batch on the event loop. None if that is too much work: use `check`."""
        cost = COMPRESSION_COST if partition_log.rules.recompresses else 1
        limit = self._work_left // cost
        if limit <= 0:
            return None
        if self._work_left == WORK_BYTES_PER_TURN:
            assert self._loop is not None
            self._loop.call_soon(self._next_turn)
        try:
            prepared = partition_log.prepare(batch, produce_version, limit)
        except TooMuchWork:
            self._work_left -= min(len(batch), limit) * cost
            return None
        self._work_left -= max(1, prepared[3] * cost)
        return prepared

    def _next_turn(self) -> None:
        self._work_left = WORK_BYTES_PER_TURN

    async def check(
        self, partition_log: PartitionLog, batch: Any, produce_version: int, connection: Any = None
    ) -> Prepared:
        """Prepares a batch in the thread."""
        if connection is not None and connection.state >= CLOSING and self.waiting_bytes > WAITING_BYTES_MAX:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer disconnected")
        return await self.in_thread(partition_log.prepare, batch, produce_version)

    def in_thread(self, function: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """Runs a pure function that decompresses a lot."""
        assert self._loop is not None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "ottla-check")
        return self._loop.run_in_executor(self._thread, function, *args)
