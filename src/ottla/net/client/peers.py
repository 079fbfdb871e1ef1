"""Sends requests to nodes by id: connects on first use, reconnects with back-off, keeps requests in order."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.errors import AuthenticationError, ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.net.client.client_security import ClientSecurity
from ottla.net.client.connection import Answer, Connection
from ottla.net.client.tls_errors import DroppedTlsError
from ottla.types import Endpoint

DROPS_MAX = 3
"""After this many dropped TLS handshakes, a client that has never connected gets a final error."""

THROTTLED_LOAD = 1_000_000

log = logging.getLogger("ottla.net")


class Peers:
    """Every node of a cluster, by id. One connection to each node and lane, opened when first needed.

    Responses arrive in order, so a long poll would delay every later request on the same connection. Lanes are
    separate connections: long polls use lane "fetch".

    >>> peers = Peers(client_id="me")
    >>> peers.set_nodes({0: Endpoint("127.0.0.1", 9092)})
    >>> answer = await peers.send(0, ApiKey.METADATA, lambda version: MetadataRequest(topics=None))
    """

    def __init__(
        self,
        *,
        client_id: str,
        connect_timeout_ms: int = 10_000,
        request_timeout_ms: int = 30_000,
        reconnect_backoff: Backoff = Backoff(50, 1_000),
        security: ClientSecurity | None = None,
        rng: random.Random | None = None,
        on_throttled: Callable[[int, int], None] | None = None,
    ) -> None:
        self.client_id = client_id
        self.connect_timeout_ms = connect_timeout_ms
        self.request_timeout_ms = request_timeout_ms
        self.reconnect_backoff = reconnect_backoff
        self.security = security
        self.on_throttled = on_throttled
        """Called with (API key, milliseconds) when a broker throttles the client."""
        self.random = rng if rng is not None else random.Random()
        self._nodes: dict[int, Endpoint] = {}
        self._links: dict[tuple[int, str], _Link] = {}
        self._unreachable: set[Endpoint] = set()
        self._closed = False
        self.has_connected = False

    @property
    def nodes(self) -> Mapping[int, Endpoint]:
        return self._nodes

    def set_nodes(self, nodes: Mapping[int, Endpoint]) -> None:
        """Sets the endpoint of every node. Closes connections to nodes that moved or disappeared."""
        for key, link in list(self._links.items()):
            if nodes.get(key[0]) != link.endpoint:
                del self._links[key]
                link.close()
        self._nodes = dict(nodes)
        self._unreachable.intersection_update(nodes.values())

    def send(
        self,
        node_id: int,
        api_key: int,
        build: Callable[[int], Any],
        *,
        lane: str = "",
        max_version: int | None = None,
        timeout_ms: int | None = None,
        expects_response: bool = True,
    ) -> "asyncio.Future[Answer]":
        """Sends a request, and connects first if necessary. Requests to one node and lane stay in order."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        endpoint = self._nodes.get(node_id)
        if self._closed or endpoint is None:
            detail = "the client is closed" if self._closed else f"node {node_id} is unknown"
            future.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, detail))
            return future
        link = self._links.get((node_id, lane))
        if link is None:
            link = self._links[node_id, lane] = _Link(self, endpoint)
        link.send(_Outgoing(api_key, build, max_version, timeout_ms, expects_response, future))
        return future

    def load(self, node_id: int) -> int | None:
        """The number of pending requests of a node, to choose the least loaded. None while it cannot be reached.

        A node that throttles the client counts as the most loaded.
        """
        links = [link for (node, _), link in self._links.items() if node == node_id]
        if any(link.failures for link in links):
            return None
        return sum(link.waiting_count + THROTTLED_LOAD * link.is_throttled for link in links)

    def reconnect_at(self, node_id: int) -> float:
        """When the back-off of an unreachable node ends, in the loop's time; 0 for other nodes.

        A request sent before that waits until then.
        """
        link = self._links.get((node_id, ""))
        return 0.0 if link is None or not link.failures else link.retry_at

    def is_connected(self, node_id: int) -> bool:
        return any(link.is_connected for (node, _), link in self._links.items() if node == node_id)

    def connections(self) -> list[Connection]:
        """Every established connection."""
        return [link.connection for link in self._links.values() if link.connection is not None and link.is_connected]

    def awaited_nodes(self) -> list[Endpoint]:
        """The nodes with pending requests. Lanes with long polls only count if no other lane has a pending request."""
        waiting = [(lane, link.endpoint) for (_, lane), link in self._links.items() if link.waiting_count]
        quick = [endpoint for lane, endpoint in waiting if not lane]
        return sorted(set(quick or [endpoint for _, endpoint in waiting]))

    def note_outage(self, endpoint: Endpoint, error: KafkaError) -> None:
        """Logs that a broker cannot be reached: once per outage, not per attempt or lane."""
        if endpoint not in self._unreachable:
            self._unreachable.add(endpoint)
            if isinstance(error, AuthenticationError):
                log.error("%s", error)
            else:
                log.warning("%s; retrying", error.detail)

    def note_connected(self, endpoint: Endpoint) -> None:
        self.has_connected = True
        if endpoint in self._unreachable:
            self._unreachable.discard(endpoint)
            log.info("connected to %s again", endpoint)

    async def close(self) -> None:
        """Closes every connection. Pending requests fail with NETWORK_EXCEPTION."""
        self._closed = True
        links, self._links = list(self._links.values()), {}
        for link in links:
            link.close()
        for link in links:
            await link.wait_closed()


@dataclass(slots=True)
class _Outgoing:
    api_key: int
    build: Callable[[int], Any]
    max_version: int | None
    timeout_ms: int | None
    expects_response: bool
    future: "asyncio.Future[Answer]"


class _Link:
    """The connection to one node on one lane, established or not."""

    def __init__(self, peers: Peers, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.connection: Connection | None = None
        self.failures = 0
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Outgoing] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self.retry_at = 0.0
        self._may_need_sasl = False

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and not self.connection.is_closed

    @property
    def is_throttled(self) -> bool:
        return self.connection is not None and self.connection.is_throttled

    @property
    def waiting_count(self) -> int:
        return len(self._queue) + (self.connection.in_flight if self.connection is not None else 0)

    def send(self, outgoing: _Outgoing) -> None:
        if self.is_connected:
            self._write(outgoing)
            return
        self._queue.append(outgoing)
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self.connection is not None:
            self.connection.close()
        self._fail_queue(KafkaError(ErrorCode.NETWORK_EXCEPTION, f"the connection to {self.endpoint} was closed"))

    async def wait_closed(self) -> None:
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self.connection is not None:
            await self.connection.wait_closed()

    async def _connect(self) -> None:
        try:
            await asyncio.sleep(max(0.0, self.retry_at - self._loop.time()))
            self.connection = await Connection.open(
                self.endpoint,
                client_id=self._peers.client_id,
                connect_timeout_ms=self._peers.connect_timeout_ms,
                request_timeout_ms=self._peers.request_timeout_ms,
                on_closed=self._on_lost,
                security=self._peers.security,
                may_need_sasl=self._may_need_sasl,
                on_throttled=self._peers.on_throttled,
            )
        except KafkaError as error:
            self._back_off()
            if isinstance(error, DroppedTlsError) and self.failures >= DROPS_MAX and not self._peers.has_connected:
                error = error.as_final()
            self._peers.note_outage(self.endpoint, error)
            self._fail_queue(error)
            return
        except Exception as error:  # a bug, but the queued requests must not wait forever
            self._fail_queue(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"connecting to {self.endpoint}: {error!r}"))
            raise
        finally:
            self._connecting = None
        self._peers.note_connected(self.endpoint)
        self.failures = 0
        while self._queue:
            self._write(self._queue.popleft())

    def _on_lost(self, connection: Connection) -> None:
        # Back off even after a connection that worked: a broker that accepts and disconnects at once must not
        # cause a tight loop of reconnects.
        if connection is self.connection:
            self.retry_at = self._loop.time() + self._peers.reconnect_backoff.delay_ms(1, self._jitter()) / 1000
            self._may_need_sasl = connection.was_dropped_at_first

    def _back_off(self) -> None:
        self.failures += 1
        delay_ms = self._peers.reconnect_backoff.delay_ms(self.failures, self._jitter())
        self.retry_at = self._loop.time() + delay_ms / 1000

    def _jitter(self) -> float:
        return self._peers.random.uniform(-1, 1)

    def _write(self, outgoing: _Outgoing) -> None:
        if outgoing.future.done():  # cancelled by the caller while it waited for the connection
            return
        assert self.connection is not None
        try:
            self.connection.send(
                outgoing.api_key,
                outgoing.build,
                max_version=outgoing.max_version,
                timeout_ms=outgoing.timeout_ms,
                expects_response=outgoing.expects_response,
                future=outgoing.future,
            )
        except Exception as error:  # the caller of the builder awaits the future
            outgoing.future.set_exception(error)

    def _fail_queue(self, error: KafkaError) -> None:
        while self._queue:
            outgoing = self._queue.popleft()
            if not outgoing.future.done():
                outgoing.future.set_exception(error)
