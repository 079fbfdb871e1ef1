"""Runs a user's callbacks in the thread that waits in a blocking call, not on the loop: there they may call back."""

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ottla.errors import OttlaError

T = TypeVar("T")

_DONE = None


class CallersThread:
    """While a blocking call waits for its coroutine, it does the work that the coroutine hands to it.

    The callback may make blocking calls of its own (a listener that commits); they wait in the same way.
    """

    def __init__(self) -> None:
        self._waiting: list[queue.SimpleQueue[Callable[[], None] | None]] = []

    def wait(self, future: "Future[T]") -> T:
        """Waits for a coroutine on the loop, running callbacks here meanwhile."""
        work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting.append(work)
        future.add_done_callback(lambda _: work.put(_DONE))
        try:
            while (job := work.get()) is not _DONE:
                job()
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._waiting.remove(work)

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
        self._waiting[-1].put(job)
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

        return call
