"""Lets a thread wait for a coroutine on the event loop, and run callbacks of the user in the meantime."""

import asyncio
import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

from ottla.errors import OttlaError

T = TypeVar("T")

SIGNAL_CHECK_S = 0.5
"""A signal that arrives just before the thread starts to wait is not handled until it wakes, so it wakes regularly."""


class Call(Generic[T]):
    """A coroutine that runs on a loop for a thread that waits for it.

    Like `asyncio.run_coroutine_threadsafe` at half the cost: one task and one queue, and no chained futures.
    """

    __slots__ = ("_coroutine", "_is_cancelled", "_loop", "_task", "_work")

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False

    def do(self, job: Callable[[], None]) -> None:
        """On the loop: lets the waiting thread run a job."""
        self._work.put(job)

    def wait(self) -> T:
        """Runs the coroutine and returns its result. Ctrl-C, or a job that raises, cancels it."""
        try:
            self._loop.call_soon_threadsafe(self._start)
            while (job := self._next_job()) is not None:
                job()
        except BaseException:
            self._is_cancelled = True
            self._loop.call_soon_threadsafe(self._cancel)
            raise
        # An exception refers to this frame. If this frame referred to it, only the garbage collector could free both.
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
        if self._is_cancelled:
            self._coroutine.close()
            return
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: "asyncio.Task[T]") -> None:
        if not task.cancelled():
            task.exception()  # marks it as retrieved, even if the thread is gone
        self._work.put(None)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class CallersThread:
    """Runs callbacks in the thread that waits for a coroutine.

    A callback may make blocking calls itself (a listener that commits, say); they wait in the same way.
    """

    def __init__(self) -> None:
        self._waiting: list[Call[Any]] = []

    def wait(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
        """Waits for a coroutine on the loop, and runs callbacks in this thread."""
        call = Call(coroutine, loop)
        self._waiting.append(call)
        try:
            return call.wait()
        finally:
            self._waiting.remove(call)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """On the loop: runs `function` in the thread of the innermost waiting call, and returns its result."""
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
                    raise OttlaError(
                        "a blocking consumer cannot call a coroutine function",
                        "Pass a plain function, or use AsyncConsumer.",
                    )
            except Exception as error:
                loop.call_soon_threadsafe(settle, error, None)
            except BaseException as error:  # Ctrl-C ends the blocking call, not only the callback
                loop.call_soon_threadsafe(settle, RuntimeError(f"the callback was interrupted by {error!r}"), None)
                raise
            else:
                loop.call_soon_threadsafe(settle, None, result)

        if not self._waiting:
            return function(*args)
        self._waiting[-1].do(job)
        return await outcome

    def wrap(self, target: Any) -> Any:
        """A listener or a callback whose calls run in the caller's thread."""
        if callable(target):

            async def call(*args: Any) -> Any:
                return await self.run(target, *args)

            return call
        return _Listener(self, target)


class _Listener:
    """A rebalance listener that runs another one in the caller's thread."""

    def __init__(self, thread: CallersThread, target: Any) -> None:
        self._thread = thread
        self._target = target

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)

        async def call(*args: Any) -> Any:
            return await self._thread.run(method, *args)

        call.__wrapped__ = method  # type: ignore[attr-defined]
        return call
