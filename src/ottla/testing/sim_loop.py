"""An asyncio event loop in simulated time, and the simulated machines that run on it.

>>> async def main():
...     async with asyncio.timeout(30):
...         await asyncio.sleep(20)
...     return asyncio.get_running_loop().time()
>>> SimLoop(seed=1).run(main())
20.0
"""

import asyncio
import contextvars
import inspect
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.clock import MonotonicMs

if TYPE_CHECKING:
    from ottla.testing.sim_network import SimNetwork

Result = TypeVar("Result")

CLOSE_ATTEMPTS = 100

_current_host: contextvars.ContextVar["SimHost | None"] = contextvars.ContextVar("sim_host", default=None)


class SimHost:
    """One simulated machine. Its tasks, timers and connections stop immediately when it is killed."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.is_paused = False
        self._held: list[_Guarded] = []
        """What was due while the machine was paused, in order."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._on_kill: list[Callable[[], None]] = []

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a coroutine on this machine. Every task and timer that it creates belongs to the machine too."""
        context = contextvars.copy_context()
        context.run(_current_host.set, self)
        return context.run(self.loop.create_task, coroutine)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Counts a task as one of this machine."""
        self._tasks.append(task)

    def on_kill(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the machine is killed."""
        self._on_kill.append(callback)

    def kill(self) -> None:
        """Power off: no code of this machine runs again, not even a `finally` block."""
        self.alive = False
        self._held.clear()
        for task in self._tasks:
            if not task.done():
                self.loop.keep_abandoned(task)
        for callback in self._on_kill:
            callback()

    def pause(self) -> None:
        """Like SIGSTOP: no code of this machine runs until `resume`, while time continues for all others. Its
        connections stay open, and accept bytes and new connections."""
        self.is_paused = True

    def resume(self) -> None:
        """Like SIGCONT: everything that was due in the meantime runs now, in its order."""
        self.is_paused = False
        held, self._held = self._held, []
        for guarded in held:
            guarded.run_late(self.loop)

    def hold(self, guarded: "_Guarded") -> None:
        """Queues a callback until the end of the pause."""
        self._held.append(guarded)


def current_host() -> SimHost | None:
    """The simulated machine whose code is running, or None outside of every machine."""
    return _current_host.get()


def host_context(host: SimHost | None) -> contextvars.Context:
    """A context in which code runs on this machine."""
    context = contextvars.Context()
    context.run(_current_host.set, host)
    return context


def _abandon(task: asyncio.Task[Any]) -> None:
    """Keeps asyncio and Python from warning about a task that never completes."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 (asyncio has no public switch)
    coroutine = task.get_coro()
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()


def _close(task: asyncio.Task[Any]) -> None:
    """Closes the coroutine of an abandoned task, and ignores its errors: otherwise Python would report them later."""
    coroutine = task.get_coro()
    for _ in range(CLOSE_ATTEMPTS):
        try:
            if coroutine is not None:
                coroutine.close()
            return
        except Exception:
            # It awaits something in a `finally` block, or uses a loop that has ended.
            continue


def _not_simulated(what: str, instead: str) -> NotImplementedError:
    return NotImplementedError(f"SimLoop does not simulate {what}. {instead}")


def _refuses(what: str, instead: str) -> Any:
    """A method that raises. The base class would use real sockets and processes, which no seed can repeat."""

    def refuse(self: "SimLoop", *args: Any, **kwargs: Any) -> Any:
        raise _not_simulated(what, instead)

    return refuse


_USE_STREAMS = "Use TCP in the test: create_server() and create_connection() are simulated."
_PASS_IN = "Pass it to the code under test as an argument, and replace it in the simulation."
_WITHOUT_TLS = "Connect without TLS in the simulation, and test TLS on a real event loop."


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer: hours pass in milliseconds.

    Plain asyncio code runs on it unchanged: tasks, timeouts, queues, streams. Runs with the same seed are identical,
    because there are no threads and no real sockets. What is not simulated (TLS, UDP, Unix sockets, subprocesses)
    raises NotImplementedError. A deadlock, when no timer and no task is left, is an error.

    Connections go through a SimNetwork. One is created when the first server or connection needs it; create your own
    to set delays or to inject faults.
    """

    def __init__(self, seed: int = 0, *, start_ms: int = 1_700_000_000_000) -> None:
        self.now = 0.0
        self.start_ms = start_ms
        self.random = random.Random(seed)
        self.network: SimNetwork | None = None
        self.executor_delay_ms = (0.0, 2.0)
        self._graveyard: list[asyncio.Task[Any]] = []
        self.is_over = False
        selector = selectors.SelectSelector()
        selector.select = self._jump  # type: ignore[method-assign]
        super().__init__(selector)
        self.set_task_factory(_make_task)

    # No other thread wakes this loop, so it has no self-pipe: thousands of loops use no file descriptors.

    def _make_self_pipe(self) -> None:
        self._internal_fds = 0

    def _close_self_pipe(self) -> None:
        """There is no self-pipe."""

    def _write_to_self(self) -> None:
        """Nothing waits for a wake-up."""

    def __del__(self) -> None:
        """No ResourceWarning if the loop is never closed: it holds no file descriptors."""

    def time(self) -> float:
        return self.now

    def clock(self) -> int:
        """Simulated milliseconds since 1970. Pass it, or a SimClock, wherever Ottla takes a clock."""
        return self.start_ms + int(self.now * 1000)

    def monotonic(self) -> MonotonicMs:
        """Simulated milliseconds since the start. Pass it wherever Ottla takes a monotonic clock."""
        return MonotonicMs(int(self.now * 1000))

    def _jump(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: every task waits, and no timer is set")
        self.now += max(0.0, timeout)
        return []

    # A callback belongs to the machine in whose context it was scheduled.

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        if self.is_over:
            # Python closes the coroutines of abandoned tasks some time later; callbacks that they schedule are dropped.
            return asyncio.Handle(callback, args, self, context)
        host = _current_host.get() if context is None else context.get(_current_host)
        if host is None:
            return super().call_soon(callback, *args, context=context)
        guarded = _Guarded(callback, host, contextvars.copy_context() if context is None else context)
        guarded.handle = super().call_soon(guarded, *args, context=guarded.context)
        return guarded.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        host = _current_host.get() if context is None else context.get(_current_host)
        if host is None:
            return super().call_at(when, callback, *args, context=context)
        guarded = _Guarded(callback, host, contextvars.copy_context() if context is None else context)
        guarded.handle = timer = super().call_at(when, guarded, *args, context=guarded.context)
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Does nothing: simulated machines receive no signals."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Runs `func` on the loop after a short delay. With threads, runs would not be repeatable."""
        future: asyncio.Future[Any] = self.create_future()
        host = current_host()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                # `func` may have killed its own machine: then nothing waits for the result.
                if host is None or host.alive:
                    future.set_exception(error)

        self.call_later(self.random.uniform(*self.executor_delay_ms) / 1000, run)
        return future

    async def create_server(
        self,
        protocol_factory: Any,
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        ssl: Any = None,
        # These have no effect in simulation. A server accepts connections from the start.
        family: Any = 0,
        flags: Any = 0,
        backlog: Any = 100,
        reuse_address: Any = None,
        reuse_port: Any = None,
        keep_alive: Any = None,
        ssl_handshake_timeout: Any = None,
        ssl_shutdown_timeout: Any = None,
        start_serving: Any = True,
    ) -> Any:
        _refuse_tls_and_sockets(ssl, sock)
        return await self._connected_network().create_server(protocol_factory, host, port)

    async def create_connection(
        self,
        protocol_factory: Any,
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        ssl: Any = None,
        local_addr: Any = None,
        # These have no effect in simulation.
        family: Any = 0,
        proto: Any = 0,
        flags: Any = 0,
        server_hostname: Any = None,
        ssl_handshake_timeout: Any = None,
        ssl_shutdown_timeout: Any = None,
        happy_eyeballs_delay: Any = None,
        interleave: Any = None,
        all_errors: Any = False,
    ) -> Any:
        _refuse_tls_and_sockets(ssl, sock)
        if local_addr is not None:
            raise _not_simulated("local addresses of clients", "Omit local_addr in the simulation.")
        return await self._connected_network().create_connection(protocol_factory, host, port)

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: Any = 0, type: Any = 0, proto: Any = 0, flags: Any = 0
    ) -> Any:
        return [(2, 1, 6, "", (host, port))]

    # Everything else that would leave the simulation.

    getnameinfo = _refuses("name servers", _PASS_IN)
    start_tls = _refuses("TLS", _WITHOUT_TLS)
    create_datagram_endpoint = _refuses("UDP sockets", _USE_STREAMS)
    create_unix_server = create_unix_connection = _refuses("Unix sockets", _USE_STREAMS)
    subprocess_exec = subprocess_shell = _refuses("subprocesses", _PASS_IN)
    connect_read_pipe = connect_write_pipe = _refuses("pipes", _PASS_IN)
    connect_accepted_socket = add_reader = add_writer = _refuses("real sockets and files", _USE_STREAMS)
    sock_accept = sock_connect = sock_sendfile = _refuses("real sockets", _USE_STREAMS)
    sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = sock_sendall = sock_sendto = sock_accept

    def _connected_network(self) -> "SimNetwork":
        if self.network is None:
            from ottla.testing.sim_network import SimNetwork

            self.network = SimNetwork(self)
        return self.network

    def keep_abandoned(self, task: asyncio.Task[Any]) -> None:
        """Keeps a task that never completes: Python would close its coroutine, which runs its `finally` blocks."""
        _abandon(task)
        self._graveyard.append(task)

    def run(self, main: Coroutine[Any, Any, Result]) -> Result:
        """Runs `main` and returns its result. Remaining tasks are dropped without running them further."""
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(main)
        finally:
            self.is_over = True
            left = list(asyncio.all_tasks(self) - set(self._graveyard))
            for task in left:
                self.keep_abandoned(task)
            if self.network is not None:
                self.network.abandon()
            self._ready.clear()  # type: ignore[attr-defined]
            self._scheduled.clear()  # type: ignore[attr-defined]
            for task in left:
                _close(task)
            asyncio.set_event_loop(None)
            self.close()


def _refuse_tls_and_sockets(ssl: Any, sock: Any) -> None:
    if ssl:
        raise _not_simulated("TLS", _WITHOUT_TLS)
    if sock is not None:
        raise _not_simulated("real sockets", "Pass host and port instead of sock.")


class SimClock:
    """The wall clock of one simulated machine, which can be wrong, and can be set. The loop's time is not affected.

    >>> loop = SimLoop()
    >>> clock = SimClock(loop)
    >>> clock.jump(-60_000)  # set it back by a minute
    >>> clock() - loop.clock()
    -60000
    """

    def __init__(self, loop: SimLoop, ahead_ms: int = 0) -> None:
        self._loop = loop
        self.ahead_ms = ahead_ms
        """How far it is ahead of the loop's own clock; negative if it is behind."""

    def __call__(self) -> int:
        return self._loop.clock() + self.ahead_ms

    def jump(self, milliseconds: int) -> None:
        """Sets the clock forward, or back if negative."""
        self.ahead_ms += milliseconds


class _Guarded:
    """A callback that does nothing after its machine was killed, and waits while its machine is paused."""

    __slots__ = ("args", "callback", "context", "handle", "host")

    def __init__(self, callback: Any, host: SimHost, context: contextvars.Context) -> None:
        self.callback = callback
        self.host = host
        self.context = context
        self.handle: asyncio.Handle | None = None
        self.args: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> None:
        if self.host.is_paused and self.host.alive:
            self.args = args
            self.host.hold(self)
            return
        self.handle = None  # no reference cycle is left to collect
        if self.host.alive:
            self.callback(*args)

    def run_late(self, loop: "SimLoop") -> None:
        loop.call_soon(self._unless_cancelled, context=self.context)

    def _unless_cancelled(self) -> None:
        # The first callbacks after a pause may cancel those that were due later.
        handle, self.handle = self.handle, None
        if handle is None or not handle.cancelled():
            self.callback(*self.args)


def _make_task(loop: Any, coroutine: Any, context: Any = None, **kwargs: Any) -> asyncio.Task[Any]:
    host = _current_host.get() if context is None else context.get(_current_host)
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context, **kwargs)
    if loop.is_over:
        loop.keep_abandoned(task)
    elif host is not None:
        host.adopt(task)
    return task
