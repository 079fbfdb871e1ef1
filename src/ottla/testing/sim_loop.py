"""An event loop whose time jumps to the next timer, and the simulated machines that live on it."""

import asyncio
import contextvars
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

_current_host: contextvars.ContextVar["SimHost | None"] = contextvars.ContextVar("sim_host", default=None)


class SimHost:
    """One simulated machine. What it starts belongs to it and stops, in mid-step, when it is killed."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self._tasks: list[asyncio.Task[Any]] = []
        self._on_kill: list[Callable[[], None]] = []

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a coroutine as this machine; every task and timer it makes belongs to the machine too."""
        context = contextvars.copy_context()
        context.run(_current_host.set, self)
        return context.run(self.loop.create_task, coroutine)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)

    def on_kill(self, callback: Callable[[], None]) -> None:
        self._on_kill.append(callback)

    def kill(self) -> None:
        """Power off: no callback of this machine ever runs again, not even a `finally`."""
        self.alive = False
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        for callback in self._on_kill:
            callback()


def current_host() -> SimHost | None:
    """The simulated machine whose code is running, or None outside all of them."""
    return _current_host.get()


class SimLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer, so hours pass in milliseconds. Repeatable, and a deadlock is an error.

    >>> loop = SimLoop(seed=1)
    >>> loop.run_until_complete(asyncio.sleep(3600))
    >>> loop.time()
    3600.0
    """

    def __init__(self, seed: int = 0, *, start_ms: int = 1_700_000_000_000) -> None:
        self.now = 0.0
        self.start_ms = start_ms
        self.random = random.Random(seed)
        self.network: Any = None
        self.executor_delay_ms = (0.0, 2.0)
        self._graveyard: list[asyncio.Task[Any]] = []
        selector = selectors.SelectSelector()
        selector.select = self._jump  # type: ignore[method-assign]
        super().__init__(selector)
        self.set_task_factory(_make_task)

    # Nobody outside wakes this loop, so it needs no socket for it: thousands of worlds cost no descriptor.

    def _make_self_pipe(self) -> None:
        self._internal_fds = 0

    def _close_self_pipe(self) -> None:
        """There is none."""

    def _write_to_self(self) -> None:
        """There is nobody to wake."""

    def time(self) -> float:
        return self.now

    def clock(self) -> int:
        """Milliseconds since 1970 in this world: pass it wherever a Clock is wanted."""
        return self.start_ms + int(self.now * 1000)

    def _jump(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing is left that could happen")
        self.now += max(0.0, timeout)
        return []

    # A handle belongs to the machine in whose context it was made, and dies with it.

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(_Guarded.wrap(callback, context), *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, _Guarded.wrap(callback, context), *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Simulated machines get no signals."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Runs `func` here, a little later: threads would make a run impossible to repeat."""
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self.random.uniform(*self.executor_delay_ms) / 1000, run)
        return future

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        return await self.network.create_server(protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        return await self.network.create_connection(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **kwargs: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Runs `main` to its end, then drops whatever is left without running it."""
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(main)
        finally:
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self._graveyard.append(task)
            self._ready.clear()  # type: ignore[attr-defined]
            self._scheduled.clear()  # type: ignore[attr-defined]
            asyncio.set_event_loop(None)
            self.close()


class _Guarded:
    """A callback that does nothing once its machine is dead."""

    __slots__ = ("callback", "host")

    def __init__(self, callback: Any, host: SimHost) -> None:
        self.callback = callback
        self.host = host

    @classmethod
    def wrap(cls, callback: Any, context: contextvars.Context | None) -> Any:
        host = _current_host.get() if context is None else context.get(_current_host)
        return callback if host is None else cls(callback, host)

    def __call__(self, *args: Any) -> None:
        if self.host.alive:
            self.callback(*args)


def _make_task(loop: Any, coroutine: Any, context: Any = None, **kwargs: Any) -> asyncio.Task[Any]:
    host = _current_host.get() if context is None else context.get(_current_host)
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context, **kwargs)
    if host is not None:
        host.adopt(task)
    return task
