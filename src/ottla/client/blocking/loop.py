"""Runs coroutines of the async API for blocking callers, on one private event loop per process. OWNER."""

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.client.core.callers_thread import Call, CallersThread
from ottla.errors import OttlaError
from ottla.net.event_loop import new_event_loop

T = TypeVar("T")


class LoopThread:
    """A thread with an event loop, started on first use in each process: clients may be created after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.process = object()
        """Identifies this process; after a fork the child has another one."""

    def call(self, coroutine: Coroutine[Any, Any, T], callers_thread: CallersThread | None = None) -> T:
        """Runs a coroutine on the loop and waits for it. Ctrl-C cancels it. Callbacks run in `callers_thread`."""
        try:
            loop = self.running_loop()
            if asyncio._get_running_loop() is loop:  # noqa: SLF001 - unlike get_running_loop() it does not raise
                raise OttlaError(
                    "a blocking call inside a callback of the client would deadlock", "Use the async client there."
                )
            if callers_thread is not None:
                return callers_thread.wait(coroutine, loop)
            return Call(coroutine, loop).wait()
        except BaseException:
            _close_unstarted(coroutine)
            raise

    def running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="ottla-client", daemon=True).start()
            return self._loop


def _close_unstarted(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Closes a coroutine that the loop has not started: without it, Ctrl-C at that moment prints a RuntimeWarning."""
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        with contextlib.suppress(ValueError):  # the loop starts it just now, and cancels it next
            coroutine.close()


loop_thread = LoopThread()
# Threads do not survive a fork, nor are the locks they held released: a child process starts from scratch.
os.register_at_fork(after_in_child=loop_thread.__init__)  # type: ignore[misc]


class Calls:
    """The calls of one client. They are only possible in the process that created it."""

    def __init__(self) -> None:
        self._process = loop_thread.process

    @property
    def is_same_process(self) -> bool:
        return self._process is loop_thread.process

    def check_process(self) -> None:
        if not self.is_same_process:
            raise OttlaError(
                "this client was created in another process",
                "Connections do not survive a fork. Create the client after forking.",
            )

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop thread and waits for it."""
        return self._run(coroutine, None)

    def _run(self, coroutine: Coroutine[Any, Any, T], callers_thread: CallersThread | None) -> T:
        if not self.is_same_process:
            coroutine.close()
            self.check_process()
        return loop_thread.call(coroutine, callers_thread)


class OneThreadCalls(Calls):
    """The calls of a client that only one thread at a time may use. Its callbacks run in that thread."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: int | None = None
        """The thread that is in a call."""
        self.callers_thread = CallersThread()
        self._lock = threading.Lock()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop thread, and its callbacks in this thread."""
        if self.owner == threading.get_ident():  # a listener, called while its own thread is in poll()
            return self._run(coroutine, self.callers_thread)
        if not self._lock.acquire(blocking=False):
            coroutine.close()
            raise OttlaError(
                "a consumer is not safe for use by several threads at once",
                "Use one consumer per thread; only wakeup() may be called from another thread.",
            )
        try:
            self.owner = threading.get_ident()
            return self._run(coroutine, self.callers_thread)
        finally:
            self.owner = None
            self._lock.release()

    def run_from_any_thread(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine while another thread may be in a call."""
        return self._run(coroutine, None)

    def try_here(self, function: Callable[[], T]) -> T | None:
        """`function()` in this thread, without the loop; None if another thread is in a call."""
        if self._process is not loop_thread.process or not self._lock.acquire(blocking=False):
            return None
        try:
            return function()
        finally:
            self._lock.release()
