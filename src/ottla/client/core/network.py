"""Drives the deciders of a client: sends their requests over net/peers and passes them the responses. OWNER."""

import asyncio
import contextvars
import logging
import math
import os
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ottla.client.core.cluster_view import REFRESHING, ClusterView
from ottla.client.core.metrics import Metrics, RequestMetrics, Statistics, check_statistics
from ottla.client.core.polling import ANY_NODE, CONTROLLER, Decider, Poll, Request
from ottla.client.core.security import client_security
from ottla.client.core.settings import ClientConfig
from ottla.clock import Clock, monotonic, system_clock
from ottla.errors import AuthenticationError, ErrorCode, KafkaError, OttlaError
from ottla.net.backoff import Backoff
from ottla.net.client.connection import Answer
from ottla.net.client.peers import Peers

T = TypeVar("T")

log = logging.getLogger("ottla.client")


class Network:
    """One client's connection to the cluster. Bound to the event loop where it is first used.

    Nothing runs between events: a response, a timer or `wake()` polls the deciders again.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        max_idle_ms: int | None = None,
        allow_auto_topic_creation: bool = False,
        clock: Clock = system_clock,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.random = rng if rng is not None else random.Random()
        self.backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.view = ClusterView(
            max_age_ms=config.metadata_max_age_ms,
            backoff=self.backoff,
            max_idle_ms=max_idle_ms,
            allow_auto_topic_creation=allow_auto_topic_creation,
            jitter=self.jitter,
        )
        # Bootstrap servers are nodes with negative ids: their real ids are not known yet.
        self._bootstrap = {-1 - i: endpoint for i, endpoint in enumerate(config.endpoints())}
        self.requests = RequestMetrics()
        self._peers = Peers(
            client_id=config.client_id,
            connect_timeout_ms=config.socket_connection_setup_timeout_ms,
            request_timeout_ms=config.request_timeout_ms,
            reconnect_backoff=Backoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms),
            security=client_security(config),
            rng=self.random,
            on_throttled=self.requests.add_throttle,
        )
        self._peers.set_nodes(self._bootstrap)
        self.lock = threading.Lock()
        """Held while deciders poll or get responses: a thread that holds it may read their state."""
        self._deciders: list[Decider] = []
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.Handle | None = None
        self._lead_s = 0.0
        """The difference between the loop's clock and the one that other threads read."""
        self._is_called = False
        """Another thread has called wake(), and the loop has not run it yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._seen_version = 0
        self._closed = False
        self._context: contextvars.Context | None = None
        """The context of the first call. Cleanup after the client was dropped runs in it too."""
        self._process = os.getpid()

    # --- lifecycle ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Binds to the running event loop. Every public call starts with it; only the first one has an effect."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._context = contextvars.copy_context()
            self._lead_s = loop.time() - monotonic()
            self.wake()
        elif self._loop is not loop:
            raise OttlaError("this client belongs to another event loop", "Create one client per event loop.")
        if self._closed:
            raise OttlaError("this client is closed", "Create a new one.")

    def add_statistics(self, on_statistics: Any, snapshot: Callable[[], Metrics]) -> None:
        """Calls `on_statistics(metrics)` every statistics.interval.ms, on the loop."""
        if check_statistics(on_statistics, self.config.statistics_interval_ms):

            def later(function: Callable[[Metrics], None], metrics: Metrics) -> None:
                assert self._loop is not None
                self._loop.call_soon(function, metrics)

            self.add(Statistics(on_statistics, self.config.statistics_interval_ms, snapshot, later))

    def add(self, decider: Decider) -> None:
        self._deciders.append(decider)

    def remove(self, decider: Decider) -> None:
        self._deciders.remove(decider)

    async def close(self) -> None:
        """Closes all connections. Calls that are still waiting fail."""
        if self._closed:
            return
        self._closed = True
        for handle in (self._handle, self._timer):
            if handle is not None:
                handle.cancel()
        await self._peers.close()
        for _predicate, future in self._waiters:
            if not future.done():
                future.set_exception(
                    OttlaError("the client was closed while this call waited", "Close it after its last call.")
                )
        self._waiters.clear()

    def running_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of this client, if it still runs."""
        loop = self._loop
        return loop if loop is not None and loop.is_running() and not loop.is_closed() else None

    def close_later(self, close: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Runs `close()` on the loop of this client. False if the loop has ended. Any thread."""
        loop = self.running_loop()
        if loop is None:
            return False

        def start() -> None:
            _closing.add(task := loop.create_task(close(), context=self._context))
            task.add_done_callback(_closed_late)

        loop.call_soon_threadsafe(start, context=self._context)
        return True

    @property
    def is_abandoned(self) -> bool:
        """Whether it was used and not closed, in this process."""
        return self._loop is not None and not self._closed and self._process == os.getpid()

    @property
    def is_started(self) -> bool:
        """Whether it has been used, and so belongs to an event loop."""
        return self._loop is not None

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_at_rest(self) -> bool:
        """Whether the client is in use, and no wake() of another thread is pending."""
        return self._loop is not None and not self._closed and not self._is_called

    @property
    def is_about_to_run(self) -> bool:
        """Whether the deciders will be polled in the next iteration of the loop."""
        return self._handle is not None

    def now(self) -> int:
        """Monotonic milliseconds: the time of the deciders."""
        loop = self._loop if self._loop is not None else asyncio.get_running_loop()
        return int(loop.time() * 1000)

    def now_elsewhere(self) -> int:
        """The same time, for other threads than the loop's."""
        return int((monotonic() + self._lead_s) * 1000)

    def jitter(self) -> float:
        return self.random.uniform(-1, 1)

    # --- driving the deciders -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Polls all deciders in the next iteration of the loop. Thread-safe."""
        if self._loop is None or self._closed:
            return
        if asyncio._get_running_loop() is not self._loop:  # noqa: SLF001 - does not raise
            if not self._is_called:  # else a call is pending already
                self._is_called = True
                self._loop.call_soon_threadsafe(self._wake_from_thread)
        elif self._handle is None:
            self._handle = self._loop.call_soon(self._run)

    def on_loop(self, function: Callable[[], object]) -> None:
        """Calls a function on the loop: now in its own thread, else before any call that this thread makes next."""
        if self._loop is None or self._closed:
            return
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 - does not raise
            function()
        else:
            self._loop.call_soon_threadsafe(function)

    def _wake_from_thread(self) -> None:
        self._is_called = False
        self.wake()

    def _run(self) -> None:
        self._handle = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closed:
            with self.lock:
                self._poll_deciders()

    def _poll_deciders(self) -> None:
        assert self._loop is not None
        if self.view.version != self._seen_version:
            self._seen_version = self.view.version
            known = {node_id: node.endpoint for node_id, node in self.view.brokers.items()}
            self._peers.set_nodes(self._bootstrap | known)
        now = self.now()
        wake_at: int | None = None
        # The view comes last: the others may have just requested an update.
        for decider in (*self._deciders, self.view):
            try:
                poll = decider.poll(now)
            except Exception:
                # A bug, but it must not stop the other deciders or the waiting calls.
                log.exception("%s failed in poll(); it is polled again", type(decider).__name__)
                poll = Poll(wake_at=now + self.backoff.max_ms)
            for request in poll.requests:
                self._send(request)
            if poll.wake_at is not None and (wake_at is None or poll.wake_at < wake_at):
                wake_at = poll.wake_at
        self._release_waiters()
        if wake_at is not None and self._handle is None:
            self._timer = self._loop.call_later(max(0, wake_at - now) / 1000 + 0.0005, self.wake)

    def _send(self, request: Request) -> None:
        assert self._loop is not None
        sent_at = self._loop.time()
        future = self._dispatch(request)
        future.add_done_callback(lambda done: self._answered(request, done, sent_at))

    def _dispatch(self, request: Request) -> "asyncio.Future[Answer]":
        return self._peers.send(
            self._resolve(request.destination),
            request.api_key,
            request.build,
            lane=request.lane,
            max_version=request.max_version,
            timeout_ms=request.timeout_ms,
            expects_response=request.expects_response,
        )

    def _answered(self, request: Request, done: "asyncio.Future[Answer]", sent_at: float) -> None:
        if done.cancelled():
            return
        assert self._loop is not None
        latency_ms = (self._loop.time() - sent_at) * 1000
        self.requests.add(request.api_key, latency_ms, has_failed=done.exception() is not None)
        try:
            with self.lock:
                self._dispatch_answer(request, done)
        finally:
            self.wake()  # even if the callback failed: others may have something to do

    def _dispatch_answer(self, request: Request, done: "asyncio.Future[Answer]") -> None:
        error = done.exception()
        if error is None:
            answer = done.result()
            request.on_response(answer.message, answer.version, self.now())
        elif isinstance(error, KafkaError):
            if error.code in REFRESHING:
                self.view.request_update()
            request.on_failure(error, self.now())
            if isinstance(error, AuthenticationError) and request.on_failure == self.view.on_failure:
                self._fail_waiters(error)
        else:  # a message that could not be encoded: a bug, but no call may wait forever because of it
            request.on_failure(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)), self.now())

    def _resolve(self, destination: int) -> int:
        if destination == CONTROLLER:
            destination = self.view.controller_id if self.view.controller_id in self.view.brokers else ANY_NODE
        return self._least_loaded() if destination == ANY_NODE else destination

    def _least_loaded(self) -> int:
        """A reachable broker with few requests in flight; a bootstrap server if no broker is reachable."""
        loads = [(load, node) for node in self.view.brokers if (load := self._peers.load(node)) is not None]
        if loads:
            fewest = min(load for load, _ in loads)
            candidates = [node for load, node in loads if load == fewest]
            connected = [node for node in candidates if self._peers.is_connected(node)]
            return self.random.choice(connected or candidates)
        everyone = list(self._bootstrap) + list(self.view.brokers)
        reachable = [node for node in everyone if self._peers.load(node) is not None]
        return self.random.choice(reachable or everyone)

    # --- calls --------------------------------------------------------------------------------------------

    async def request(
        self,
        api_key: int,
        build: Callable[[int], Any],
        *,
        destination: int = ANY_NODE,
        timeout_ms: int | None = None,
        max_version: int | None = None,
    ) -> Answer:
        """Sends one request, without retries. Raises KafkaError if there is no response."""
        self.start()
        node_id = self._resolve(destination)
        return await self._peers.send(node_id, api_key, build, timeout_ms=timeout_ms, max_version=max_version)

    def feature(self, name: str) -> int:
        """The finalized level of a feature, according to the connected brokers."""
        return max((connection.features.get(name, 0) for connection in self._peers.connections()), default=0)

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], *, timeout_ms: int | None = None, final: frozenset[int] = frozenset()
    ) -> T:
        """Repeats `attempt` until it succeeds, fails with a permanent error (or one in `final`), or times out."""
        self.start()
        timeout_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self.now() + timeout_ms
        failures = 0
        while True:
            scope = asyncio.timeout(max(0, deadline - self.now()) / 1000)
            try:
                async with scope:
                    return await attempt()
            except TimeoutError:
                if not scope.expired():
                    raise
                raise self.out_of_time(timeout_ms) from None
            except KafkaError as error:
                failures += 1
                delay_ms = self.backoff.delay_ms(failures, self.jitter())
                if not error.retriable or error.code in final or self.now() + delay_ms >= deadline:
                    raise
                if error.code in REFRESHING:
                    self.view.request_update()
                    self.wake()
            await asyncio.sleep(delay_ms / 1000)

    async def until(self, predicate: Callable[[], bool], timeout_ms: int) -> bool:
        """Waits until `predicate()` is true; it is checked after every event. False on timeout."""
        self.start()
        if predicate():
            return True
        assert self._loop is not None
        future: asyncio.Future[None] = self._loop.create_future()
        waiter = (predicate, future)
        self._waiters.append(waiter)
        self.wake()
        timer = self._loop.call_later(timeout_ms / 1000, _give_up, future)
        try:
            await future
            return True
        except TimeoutError:
            return predicate()
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _release_waiters(self) -> None:
        for waiter in list(self._waiters):
            predicate, future = waiter
            if not future.done() and predicate():
                future.set_result(None)

    def _fail_waiters(self, error: KafkaError) -> None:
        """Fails the waiting calls: without metadata none of them can complete. A later call tries again."""
        for _predicate, future in self._waiters:
            if not future.done():
                future.set_exception(error)

    async def until_connected(self, timeout_ms: int | None = None) -> None:
        """Waits for the first metadata. Raises an error with the unreachable addresses and the reason."""
        timeout_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        if not await self.until(lambda: bool(self.view.brokers), timeout_ms):
            raise self.out_of_time(timeout_ms)

    async def refresh(self) -> None:
        """Requests new metadata and waits for it, for at most `default.api.timeout.ms`."""
        before = self.view.version
        self.view.request_update()
        self.wake()
        await self.until(lambda: self.view.version > before, self.config.default_api_timeout_ms)

    def reconnect_at(self, node_id: int) -> int:
        """When an unreachable broker may be reconnected to; 0 for other brokers."""
        return math.ceil(self._peers.reconnect_at(node_id) * 1000)

    def check_node(self, node_id: int) -> None:
        """Raises if the metadata has no such broker."""
        if node_id >= 0 and node_id not in self.view.brokers:
            there = ", ".join(map(str, sorted(self.view.brokers)))
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {node_id} (the brokers are {there})")

    def out_of_time(self, timeout_ms: int, doing: str = "the call") -> KafkaError:
        """The error for a timeout: no broker could be reached, or the call just took too long."""
        if not self.view.brokers:
            if self.view.last_error is not None:
                return self.view.last_error
            servers = ", ".join(self.config.bootstrap_servers)
            return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"no broker answered at {servers} within {timeout_ms} ms")
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, f"{doing} took longer than {timeout_ms} ms{self.timeout_reason()}"
        )

    def timeout_reason(self) -> str:
        """A suffix for timeout errors: the brokers that have not responded, or the last error."""
        awaited = self._peers.awaited_nodes()
        if awaited:
            return f": no response yet from {', '.join(map(str, awaited))}"
        return f": {self.view.last_error}" if self.view.last_error is not None else ""


_closing: set[asyncio.Task[None]] = set()
"""Keeps the tasks of `close_later` alive until they are done."""


def _closed_late(task: "asyncio.Task[None]") -> None:
    _closing.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.warning("closing a client that was dropped failed: %s", task.exception())


def _give_up(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())
