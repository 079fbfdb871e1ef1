"""A metadata store on a separate machine: requests take time, sessions time out, connections to it fail.

>>> hub = SimStoreHub(network)
>>> store = hub.session("broker-1", session_timeout_ms=3_000)     # a MetadataStore, used on that machine
>>> network.partition("broker-1", hub.name)                       # its requests fail, then its session expires
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ottla.metadata.store import Change, Entry, MetadataStore, Operation, SessionExpired, StoreUnavailable
from ottla.testing.memory_store import MemoryTree
from ottla.testing.sim_loop import SimLoop, host_context
from ottla.testing.sim_network import SimNetwork

Result = TypeVar("Result")

STORE = "store"
PROCESS_DEATH_S = 0.011
"""How long it takes until a store on the same machine notices that a process has died."""
RETRY_S = 0.1
ORDER_S = 1e-9
"""The minimum time between two messages that arrive in order."""


class SimStoreHub:
    """The store itself: entries, sessions and their timeouts. It never fails; connections to it do."""

    def __init__(
        self,
        network: SimNetwork,
        *,
        name: str = STORE,
        delay_ms: tuple[float, float] = (0.2, 5.0),
        request_timeout_ms: int = 1_000,
        notices_death: bool = True,
    ) -> None:
        self.network = network
        self.loop: SimLoop = network.loop
        self.name = name
        self.delay_ms = delay_ms
        self.request_timeout_ms = request_timeout_ms
        self.notices_death = notices_death
        """Whether a killed process loses its session immediately, as on one machine, or after its timeout."""
        self.tree = MemoryTree()
        self.is_away = False
        """While it is set, the store is unreachable."""

    def session(self, host_name: str, *, session_timeout_ms: int) -> "SimStore":
        """A store object for a broker on this machine."""
        return SimStore(self, host_name, session_timeout_ms=session_timeout_ms)

    def is_reachable(self, host_name: str) -> bool:
        return not self.is_away and not self.network.is_partitioned(host_name, self.name)

    def delay(self) -> float:
        return self.loop.random.uniform(*self.delay_ms) / 1000

    def later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        """Runs a callback on the store's own machine, whatever happens to the machine that requested it."""
        self.loop.call_later(delay_s, callback, *args, context=host_context(None))

    def open_session(self, store: "SimStore") -> "_Feed":
        feed = _Feed(self, store)
        feed.session_id = self.tree.open_session(feed)
        self.later(feed.timeout_s, feed.expire_if_silent)
        return feed

    def died(self, store: "SimStore") -> None:
        """The process of a session was killed."""
        if self.notices_death and store.session_id:
            self.later(PROCESS_DEATH_S, self.tree.end_session, store.session_id)


class _Feed:
    """One session, as the store knows it, with the changes that its broker has not seen yet."""

    def __init__(self, hub: SimStoreHub, store: "SimStore") -> None:
        self.hub = hub
        self.store = store
        self.session_id = 0
        self.timeout_s = store.session_timeout_ms / 1000
        self.last_seen = hub.loop.time()
        self.undelivered: deque[list[Change]] = deque()

    def enqueue(self, changes: list[Change]) -> None:
        if changes:
            self.undelivered.append(changes)
            self.store.notify_later(self, self.hub.delay())

    @property
    def is_open(self) -> bool:
        return self.session_id in self.hub.tree.stores

    def expire_if_silent(self) -> None:
        if self.is_open:
            left_s = self.last_seen + self.timeout_s - self.hub.loop.time()
            if left_s > 1e-6:
                self.hub.later(left_s, self.expire_if_silent)
            else:
                self.hub.tree.end_session(self.session_id)


class SimStore(MetadataStore):
    """One session with a SimStoreHub. Its methods run on the machine of the session."""

    def __init__(self, hub: SimStoreHub, host_name: str, *, session_timeout_ms: int) -> None:
        super().__init__()
        self.hub = hub
        self.host_name = host_name
        self.session_id = 0
        self.session_timeout_ms = session_timeout_ms
        self.dead_sessions_linger = not hub.notices_death
        self._feed: _Feed | None = None
        self._beating: asyncio.Task[None] | None = None
        self._confirmed_at = 0.0
        self._context = contextvars.copy_context()
        self._last_arrival = 0.0
        self._is_retrying = False

    @property
    def is_confirmed(self) -> bool:
        # From the time at which the confirmed request was sent: the store counts from its arrival, which is later.
        age_s = self.hub.loop.time() - self._confirmed_at
        return bool(self.session_id) and age_s < self.session_timeout_ms / 1000

    async def start(self) -> None:
        # Notices from the store run on this machine: they stop when it is killed or paused.
        self._context = contextvars.copy_context()
        self._feed = None
        self.session_id = 0
        self._feed = await self._ask(lambda: self.hub.open_session(self))
        self.session_id = self._feed.session_id
        self.notify_later(self._feed, 0)
        self._beating = asyncio.get_running_loop().create_task(self._beat(self._feed))

    async def close(self) -> None:
        session_id, self.session_id = self.session_id, 0
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        if session_id:
            try:
                await self._ask(lambda: self.hub.tree.end_session(session_id))
            except StoreUnavailable:
                pass  # the session times out

    async def get(self, key: str) -> Entry | None:
        return await self._ask_in_session(lambda: self.hub.tree.entries.get(key))

    async def scan(self, prefix: str) -> list[Entry]:
        return await self._ask_in_session(
            lambda: sorted(entry for entry in self.hub.tree.entries.values() if entry.key.startswith(prefix))
        )

    async def commit(self, operations: Sequence[Operation]) -> None:
        session_id, operations = self.session_id, list(operations)
        await self._ask_in_session(lambda: self.hub.tree.apply(operations, session_id))

    async def sync(self) -> None:
        await self._ask_in_session(lambda: None)

    # --- requests -----------------------------------------------------------------------------------------

    async def _ask_in_session(self, action: Callable[[], Result]) -> Result:
        feed = self._feed
        if not self.session_id or feed is None:
            raise SessionExpired()

        def checked() -> Result:
            if not feed.is_open:
                raise SessionExpired()
            feed.last_seen = self.hub.loop.time()
            return action()

        try:
            return await self._ask(checked)
        except SessionExpired:
            if self._feed is feed and self.session_id:
                self.session_id = 0
                if self.on_expired is not None:
                    self.on_expired()
            raise

    async def _ask(self, action: Callable[[], Result]) -> Result:
        """Runs `action` on the store. Raises StoreUnavailable on a timeout: it may have run, or may still run."""
        loop, hub = asyncio.get_running_loop(), self.hub
        answer: asyncio.Future[Result] = loop.create_future()
        here = contextvars.copy_context()
        sent_at = loop.time()

        def arrive(*, is_late: bool = False) -> None:
            if not hub.is_reachable(self.host_name):
                # Some requests are lost with their connection. Others are retransmitted, and arrive late.
                if not is_late and hub.loop.random.random() < 0.5:
                    late_s = hub.loop.random.uniform(0, 2) * hub.request_timeout_ms / 1000
                    hub.later(late_s, lambda: arrive(is_late=True))
                return
            result: Any = None
            error: Exception | None = None
            try:
                result = action()
            except Exception as raised:
                error = raised
            loop.call_at(self._next_arrival(hub.delay()), reply, result, error, hub.tree.revision, context=here)

        def reply(result: Any, error: Exception | None, revision: int) -> None:
            if answer.done() or not hub.is_reachable(self.host_name):
                return
            self._deliver(until_revision=revision)
            if not isinstance(error, SessionExpired):
                self._confirmed_at = max(self._confirmed_at, sent_at)
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        hub.later(hub.delay(), arrive)
        try:
            async with asyncio.timeout(hub.request_timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise StoreUnavailable(f"the metadata store did not answer within {hub.request_timeout_ms} ms") from None

    async def _beat(self, feed: _Feed) -> None:
        """Confirms the session for as long as the machine runs."""
        while self._feed is feed and self.session_id:
            await asyncio.sleep(feed.timeout_s / 4)
            try:
                await self._ask_in_session(lambda: None)
            except (SessionExpired, StoreUnavailable):
                pass

    # --- notices of changes -------------------------------------------------------------------------------

    def notify_later(self, feed: _Feed, delay_s: float) -> None:
        """Notifies the broker of changes after a delay."""
        loop = self.hub.loop
        if feed is self._feed and not loop.is_closed():
            loop.call_at(self._next_arrival(delay_s), self._notify, feed, context=self._context)

    def _next_arrival(self, delay_s: float) -> float:
        """Notices and answers take the same connection: none overtakes another."""
        self._last_arrival = max(self._last_arrival + ORDER_S, self.hub.loop.time() + delay_s)
        return self._last_arrival

    def _notify(self, feed: _Feed) -> None:
        if feed is not self._feed or not self.session_id or not feed.undelivered:
            return
        if self.hub.is_reachable(self.host_name):
            self._call_watchers(feed.undelivered.popleft())
        elif not self._is_retrying:
            self._is_retrying = True
            self.hub.loop.call_later(RETRY_S, self._retry, context=self._context)

    def _retry(self) -> None:
        """One timer for all notices that wait for the connection."""
        self._is_retrying = False
        if self._feed is not None and self.hub.is_reachable(self.host_name):
            while self._feed.undelivered and self.session_id:
                self._call_watchers(self._feed.undelivered.popleft())
        elif self._feed is not None:
            self._notify(self._feed)

    def _deliver(self, *, until_revision: int) -> None:
        feed = self._feed
        while feed is not None and feed.undelivered and feed.undelivered[0][0].revision <= until_revision:
            self._call_watchers(feed.undelivered.popleft())
