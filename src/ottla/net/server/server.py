"""OWNER of listening sockets: accepts connections, limits their number, closes idle ones, shuts all of them down.

`connection.py` handles one connection. Neither interprets frames: `handle` does.
"""

import asyncio
import functools
import logging
import socket
from math import inf
from typing import TYPE_CHECKING, Any

from ottla.net.log_limit import LogLimit, safe_to_log
from ottla.net.server.byte_budget import ByteBudget
from ottla.net.server.connection import Authenticator, Connection, Disconnect, Handle, Limits, ListenerSecurity
from ottla.net.server.connection_state import READING
from ottla.net.server.frame_parser import RECEIVE_BUFFER_BYTES
from ottla.net.server.newcomers import Newcomers
from ottla.net.server.turns import Turns
from ottla.net.spare_buffers import SpareBuffers

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.net.server.connection_rates import ConnectionRates
    from ottla.net.server.tls_transport import TlsTransport

__all__ = ["Authenticator", "Connection", "Disconnect", "Handle", "Limits", "ListenerSecurity", "Server"]

log = logging.getLogger("ottla.net")

ENCRYPTED_BUFFER_BYTES = 128 * 1024


class Server:
    """Listens, and owns every connection it accepts."""

    def __init__(self, handle: Handle, limits: Limits | None = None) -> None:
        self.handle = handle
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.receive_view = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.spares = SpareBuffers()
        self.turns = Turns(self.loop, self.limits.max_turn_ms)
        self.unread_responses: ByteBudget[Connection] = ByteBudget(self.limits.max_unread_bytes, self._cut_slowest_soon)
        self.incomplete_requests: ByteBudget[Connection] = ByteBudget(
            self.limits.max_incomplete_bytes, self._cut_slowest_soon
        )
        self.cut = 0
        """Connections that were cut because memory ran short."""
        self._is_cutting = False
        self.newcomers: Newcomers[Connection | TlsTransport] = Newcomers(self.limits.max_newcomers)
        """Connections whose peers have not authenticated yet."""
        self.failed_handshakes = 0
        """TLS handshakes that failed."""
        self.connections: set[Connection] = set()
        self._connections_by_host: dict[str, int] = {}
        self.rates: ConnectionRates | None = None
        """Set if the rate of new connections is limited."""
        self.accepted = 0
        self.refused = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._closings = LogLimit()
        self.failures = LogLimit()
        """Limits the tracebacks of requests that failed with an unexpected error."""
        self._listeners: list[asyncio.AbstractServer] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None

    @functools.cached_property
    def encrypted_view(self) -> memoryview:
        """Where all TLS connections receive: a loop requests room and fills it in the same step."""
        return memoryview(bytearray(ENCRYPTED_BUFFER_BYTES))

    async def listen(
        self,
        host: str,
        port: int,
        listener: str = "PLAINTEXT",
        *,
        security: ListenerSecurity | None = None,
        backlog: int = 1024,
        start_serving: bool = True,
    ) -> int:
        """Listens at host:port and returns the port. Port 0 lets the system choose one.

        An empty host means every interface. With `start_serving=False` the port is bound, but connections are
        only accepted after `start_serving()`. Raises OSError.
        """

        def make_connection() -> Connection:
            return Connection(self, listener, security)

        make_protocol: Callable[[], asyncio.BaseProtocol] = make_connection
        if security is not None and security.tls_context is not None:
            from ottla.net.server.tls_transport import TlsTransport

            tls_context = security.tls_context

            def make_protocol() -> TlsTransport:
                return TlsTransport(self, tls_context(), make_connection())

        options: Any = {"backlog": backlog, "start_serving": start_serving}
        if not host:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if dual:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind(("", port))
            except OSError:
                sock.close()
                raise
            server = await self.loop.create_server(make_protocol, sock=sock, **options)
        else:
            server = await self.loop.create_server(make_protocol, host, port, **options)
            ports = {sock.getsockname()[1] for sock in server.sockets}
            if len(ports) > 1:
                # A host name with several addresses: all of them use the port that the system chose for the first.
                port = server.sockets[0].getsockname()[1]
                server.close()
                server = await self.loop.create_server(make_protocol, host, port, **options)
        self._listeners.append(server)
        if self._sweep_timer is None:
            self._schedule_sweep()
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def start_serving(self) -> None:
        for listener in self._listeners:
            await listener.start_serving()

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def close(self, grace_ms: int = 0) -> None:
        """Accepts no more requests, waits up to `grace_ms` for pending ones, then closes every connection."""
        self.stop_accepting()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in list(self.connections):
            connection.end()
        if self.connections and grace_ms > 0:
            self._all_gone = self.loop.create_future()
            try:
                async with asyncio.timeout(grace_ms / 1000):
                    await self._all_gone
            except TimeoutError:
                log.info("aborting %d connections that did not finish within %d ms", len(self.connections), grace_ms)
        unfinished = [c.drainer for c in self.connections if c.drainer is not None]
        for newcomer in self.newcomers.older_than(inf):
            newcomer.abort()
        for connection in list(self.connections):
            connection.abort()
        # Lets the cancellation of pending requests run before the loop ends.
        await asyncio.sleep(0)
        if unfinished:
            await asyncio.wait(unfinished, timeout=1)

    # --- called by connections ----------------------------------------------------------------------------

    def begin_tls(self, who: "TlsTransport", listener: str) -> None:
        """A socket was accepted. All limits apply before the handshake, which costs us far more than the client."""
        self.newcomer(who)
        reason = self._crowded(who.client_host, 1)
        if reason:
            self.refused += 1
            who.cut(reason)
        elif self.rates is not None:
            self._limit_rate(who, listener, self.rates)

    def newcomer(self, who: "Connection | TlsTransport") -> None:
        """Registers a connection that has to authenticate first."""
        crowded_out = self.newcomers.add(who, who.client_host, self.loop.time())
        if crowded_out is not None:
            self.refused += 1
            self.newcomers.remove(crowded_out)
            crowded_out.cut(f"too many connections have not authenticated yet ({self.newcomers.limit})")

    def handshake_failed(self, who: "TlsTransport", reason: str) -> None:
        self.failed_handshakes += 1
        self.log_closing(who, f"TLS handshake failed: {reason}")

    def log_closing(self, connection: "Connection | TlsTransport", reason: str) -> None:
        """Logs one line, unless there were many recently: any peer can cause one with each connection."""
        limit = self._closings
        if limit.allows(self.loop.time()):
            host, port = connection.client_host[1:], connection.client_port
            log.info("connection from %s:%d is closed: %s%s", host, port, safe_to_log(reason), limit.suffix)

    def connection_opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.accepted += 1
        host = connection.client_host
        self._connections_by_host[host] = self._connections_by_host.get(host, 0) + 1
        reason = self._crowded(host, 0)
        if reason:
            self.refused += 1
            connection.disconnect(reason)
        elif self.rates is not None and not connection.uses_tls:
            self._limit_rate(connection, connection.listener, self.rates)

    def _crowded(self, host: str, more: int) -> str:
        """Why `more` connections from this host would be too many; empty if they are not."""
        limits = self.limits
        if len(self.connections) + more > limits.max_connections:
            return f"too many connections ({limits.max_connections_reason}={limits.max_connections})"
        if self._connections_by_host.get(host, 0) + more > limits.max_connections_per_host:
            limit = limits.max_connections_per_host
            return f"too many connections from this address (max.connections.per.ip={limit})"
        return ""

    def _limit_rate(self, who: "Connection | TlsTransport", listener: str, rates: "ConnectionRates") -> None:
        """Delays a connection above the rate limit: until it is served, or until it is closed."""
        admission = rates.admit(who.client_host[1:], listener, int(self.loop.time() * 1000))
        if admission.refusal:
            self.refused += 1
        if admission.delay_ms or admission.refusal:
            who.delay(admission.delay_ms, admission.refusal)

    def connection_closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.newcomers.remove(connection)
        self.unread_responses.hold(connection, 0)
        self.incomplete_requests.hold(connection, 0)
        host = connection.client_host
        self._connections_by_host[host] -= 1
        if not self._connections_by_host[host]:
            del self._connections_by_host[host]
        if not self.connections and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    # Cut in the loop's next turn: the budget is overdrawn in the middle of somebody's write or read.

    def _cut_slowest_soon(self) -> None:
        if not self._is_cutting:
            self._is_cutting = True
            self.loop.call_soon(self._cut_slowest)

    def _cut_slowest(self) -> None:
        """Cuts the slowest connections to free memory for the others."""
        self._is_cutting = False
        now = self.loop.time()
        for connection in self.unread_responses.excess(lambda connection: connection.flow.speed(now)):
            self.cut += 1
            connection.cut(
                f"all connections together have more than {self.unread_responses.limit} bytes of unread responses, "
                "and it is among the slowest readers"
            )
        for connection in self.incomplete_requests.excess(lambda connection: connection.request_speed(now)):
            self.cut += 1
            connection.cut(
                f"incomplete requests of all connections take more than {self.incomplete_requests.limit} bytes, "
                "and it is among the slowest senders"
            )

    # One timer for all connections: a request only updates `last_active`, it does not start a timer.

    def _schedule_sweep(self) -> None:
        limits = self.limits
        interval = min(60.0, limits.max_stall_ms / 4000, limits.newcomer_timeout_ms / 4000)
        if limits.max_idle_ms > 0:
            interval = max(0.01, min(limits.max_idle_ms / 4000, interval))
        self._sweep_timer = self.loop.call_later(interval, self._sweep)

    def _sweep(self) -> None:
        self._schedule_sweep()
        self.spares.clear()
        now, limits = self.loop.time(), self.limits
        oldest = now - limits.max_stall_ms / 1000
        for connection in list(self.incomplete_requests.held):
            if connection.last_active < oldest and connection.state is READING:
                connection.cut(f"it sent no byte of an incomplete request for {limits.max_stall_ms} ms")
        for newcomer in self.newcomers.older_than(now - limits.newcomer_timeout_ms / 1000):
            self.newcomers.remove(newcomer)
            newcomer.cut(f"it has not authenticated within {limits.newcomer_timeout_ms} ms")
        if limits.max_idle_ms <= 0:
            return
        oldest = now - limits.max_idle_ms / 1000
        for connection in list(self.connections):
            if connection.last_active < oldest and not connection.is_busy:
                connection.disconnect(f"idle for more than {self.limits.max_idle_ms} ms")
