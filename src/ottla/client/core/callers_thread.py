"""A thread that waits for a coroutine on the loop, and meanwhile runs a user's callbacks: here they may call back."""

import asyncio
import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

from ottla.errors import OttlaError

T = TypeVar("T")

SIGNAL_CHECK_S = 0.5
"""A signal that comes just before a thread begins to wait is not seen until it wakes: so it wakes now and then."""


class Call(Generic[T]):
    """A coroutine that runs on a loop for a thread that waits for it.

    What `asyncio.run_coroutine_threadsafe` does, for half the price: there is one task and one queue, and no future
    is chained to another.
    """

    __slots__ = ("_coroutine", "_is_broken_off", "_loop", "_task", "_work")

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[T] | None = None
        self._is_broken_off = False

    def do(self, job: Callable[[], None]) -> None:
        """On the loop: has the waiting thread run a job."""
        self._work.put(job)

    def wait(self) -> T:
        """Runs the coroutine: its result or exception. Ctrl-C, or a job that raises, breaks it off."""
        self._loop.call_soon_threadsafe(self._start)
        try:
            while (job := self._next_job()) is not None:
                job()
        except BaseException:
            self._is_broken_off = True
            self._loop.call_soon_threadsafe(self._break_off)
            raise
        # An exception knows this frame: it must not find itself here, or it would stay until the next collection.
        task, self._task = self._task, None
        assert task is not None
        try:
            return task.result()
        except asyncio.CancelledError:
            raise CancelledError from None  # it was not this thread that was cancelled
        finally:
            del task

    def _next_job(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._work.get(timeout=SIGNAL_CHECK_S)
            except queue.Empty:
                pass

    def _start(self) -> None:
        if self._is_broken_off:
            self._coroutine.close()
            return
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: "asyncio.Task[T]") -> None:
        if not task.cancelled():
            task.exception()  # somebody has seen it, even if the thread is gone by now
        self._work.put(None)

    def _break_off(self) -> None:
        if self._task is not None:
            self._task.cancel()


class CallersThread:
    """While a blocking call waits for its coroutine, it does the work that the coroutine hands to it.

    The callback may make blocking calls of its own (a listener that commits); they wait in the same way.
    """

    def __init__(self) -> None:
        self._waiting: list[Call[Any]] = []

    def wait(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
        """Waits for a coroutine on the loop, running callbacks here meanwhile."""
        call = Call(coroutine, loop)
        self._waiting.append(call)
        try:
            return call.wait()
        finally:
            self._waiting.remove(call)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """On the loop: has the innermost waiting call run `function`, and gives its result."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()

        def settle(error: BaseException | None, result: Any) -> None:
            if outcome.done():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        def job() -> None:
            try:
                result = function(*args)
                if asyncio.iscoroutine(result):
                    result.close()
                    raise OttlaError("a blocking consumer calls plain functions only", "Use AsyncConsumer.")
            except Exception as error:
                loop.call_soon_threadsafe(settle, error, None)
            except BaseException as error:  # Ctrl-C ends the blocking call, not only the callback
                loop.call_soon_threadsafe(settle, RuntimeError(f"the callback was broken off by {error!r}"), None)
                raise
            else:
                loop.call_soon_threadsafe(settle, None, result)

        if not self._waiting:
            return function(*args)
        self._waiting[-1].do(job)
        return await outcome

    def wrap(self, target: Any) -> Any:
        """A listener, or a plain callback, whose calls run in the caller's thread."""
        if callable(target):

            async def call(*args: Any) -> Any:
                return await self.run(target, *args)

            return call
        return _Listener(self, target)


class _Listener:
    """Passes a rebalance listener's calls on."""

    def __init__(self, thread: CallersThread, target: Any) -> None:
        self._thread = thread
        self._target = target

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*args: Any) -> Any:
            return await self._thread.run(method, *args)

        call.__wrapped__ = method  # type: ignore[attr-defined]
        return call
