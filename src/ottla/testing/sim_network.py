"""A simulated network behind asyncio's own API: connections with delays, resets and partitions."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any

from ottla.testing.sim_loop import SimHost, SimLoop, current_host, host_context

WINDOW_BYTES = 64 * 1024
"""Bytes that the simulated kernel accepts before they count as the writer's buffer."""

OUTSIDE = "outside"
"""The name of the machine for code that runs outside of every SimHost."""


class SimNetwork:
    """Connects the machines on one SimLoop.

    >>> network = SimNetwork(loop, delay_ms=(1, 50))
    >>> network.partition("broker", "client")     # nothing passes until heal()
    >>> network.cut_all()                         # resets every connection
    """

    def __init__(self, loop: SimLoop, *, delay_ms: tuple[float, float] = (0.05, 2.0)) -> None:
        self.loop = loop
        self.delay_ms = delay_ms
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.connections: list[tuple[SimTransport, SimTransport]] = []
        self._partitions: set[frozenset[str]] = set()
        self._next_port = 40_000
        loop.network = self

    # --- faults -------------------------------------------------------------------------------------------

    def partition(self, one: str, other: str) -> None:
        """Holds back bytes between two machines; new connections time out."""
        self._partitions.add(frozenset((one, other)))

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Ends the partition between two machines, all partitions of one, or all. Held back bytes are delivered."""
        ended = {name for name in (one, other) if name is not None}
        self._partitions = {pair for pair in self._partitions if not ended <= pair}
        for pair in self.connections:
            for transport in pair:
                transport.kick()

    def is_partitioned(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._partitions

    def cut(self, name: str) -> None:
        """Resets every connection of one machine. Bytes in flight are lost."""
        for pair in list(self.connections):
            if any(transport.host_name == name for transport in pair):
                for transport in pair:
                    transport.reset(ConnectionResetError("connection cut"))

    def cut_all(self) -> None:
        """Resets every connection. Bytes in flight are lost."""
        for pair in list(self.connections):
            for transport in pair:
                transport.reset(ConnectionResetError("connection cut"))

    # --- called by the loop -------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Callable[[], Any], host: Any, port: Any) -> "SimServer":
        machine = current_host()
        address = host if isinstance(host, str) else "127.0.0.1"
        if not port:
            port = self._next_port
            self._next_port += 1
        if (address, port) in self.listeners:
            raise OSError(98, "Address already in use")
        server = SimServer(self, address, port, protocol_factory, machine)
        self.listeners[(address, port)] = server
        if machine is not None:
            machine.on_kill(server.close)
        return server

    async def create_connection(self, protocol_factory: Callable[[], Any], host: Any, port: Any) -> tuple[Any, Any]:
        await asyncio.sleep(self.delay())
        server = self.listeners.get((host, port))
        here = current_host()
        here_name = here.name if here else OUTSIDE
        if server is None:
            raise ConnectionRefusedError(111, f"Connect call failed ({host!r}, {port})")
        if self.is_partitioned(here_name, server.host_name):
            await asyncio.sleep(10)
            raise TimeoutError(110, f"Connect call failed ({host!r}, {port})")
        near_protocol, far_protocol = protocol_factory(), server.protocol_factory()
        client_port = self._next_port
        self._next_port += 1
        near = SimTransport(self, near_protocol, here, ("127.0.0.1", client_port), (host, port))
        far = SimTransport(self, far_protocol, server.host, (host, port), ("127.0.0.1", client_port))
        near.peer, far.peer = far, near
        self.connections.append((near, far))
        for transport in (near, far):
            if transport.host is not None:
                transport.host.on_kill(transport.died)
        far.in_host(far_protocol.connection_made, far)
        near_protocol.connection_made(near)
        return near, near_protocol

    def delay(self) -> float:
        return self.loop.random.uniform(*self.delay_ms) / 1000

    def abandon(self) -> None:
        """The loop has ended: forgets all connections, so that none is reported as left open."""
        for pair in self.connections:
            for transport in pair:
                transport.closing = True
        self.connections.clear()

    def forget(self, transport: "SimTransport") -> None:
        self.connections = [
            pair for pair in self.connections if not (transport in pair and pair[0].closed and pair[1].closed)
        ]


class SimServer:
    """A listening socket of the simulated network."""

    def __init__(
        self,
        network: SimNetwork,
        address: str,
        port: int,
        protocol_factory: Callable[[], Any],
        host: SimHost | None,
    ) -> None:
        self.network = network
        self.address = (address, port)
        self.protocol_factory = protocol_factory
        self.host = host
        self.host_name = host.name if host else OUTSIDE
        self.sockets = [_SimSocket(self.address)]

    def close(self) -> None:
        self.network.listeners.pop(self.address, None)
        self.sockets = []

    async def wait_closed(self) -> None:
        """Returns immediately: a closed server has nothing left to do."""

    def is_serving(self) -> bool:
        return self.address in self.network.listeners

    async def start_serving(self) -> None:
        """Does nothing: the server accepts connections from the start."""

    async def serve_forever(self) -> None:
        """Serves until it is cancelled."""
        try:
            await self.network.loop.create_future()
        finally:
            self.close()

    def get_loop(self) -> SimLoop:
        return self.network.loop

    def close_clients(self) -> None:
        """Does nothing. asyncio.Server has this method since Python 3.13."""

    async def __aenter__(self) -> "SimServer":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.wait_closed()


class _SimSocket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setsockopt(self, *args: Any) -> None:
        """Does nothing: there is no real socket."""


class SimTransport(asyncio.Transport):
    """One end of a simulated connection. Bytes arrive in order, with a delay, and in pieces of any size."""

    def __init__(
        self,
        network: SimNetwork,
        protocol: Any,
        host: SimHost | None,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__()
        self.network = network
        self._loop = network.loop
        self._protocol = protocol
        self.host = host
        self.host_name = host.name if host else OUTSIDE
        self.peer: SimTransport = self
        self._extra_info = {"peername": remote, "sockname": local, "socket": _SimSocket(local)}
        self.inbox: deque[bytes] = deque()
        self.undelivered_bytes = 0
        self._next_arrival = 0.0
        self._reading = True
        self.closing = False
        self.closed = False
        self.eof_sent = self._eof_received = False
        self._writer_paused = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._delivery_scheduled = False

    # --- asyncio.Transport --------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra_info.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self.closing or self.closed

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.kick()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else 64 * 1024
        self._low = low if low is not None else self._high // 4

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return max(0, self.peer.undelivered_bytes - WINDOW_BYTES)

    def write(self, data: Any) -> None:
        if self.eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.closing or self.closed or (self.host is not None and not self.host.alive):
            return
        data = bytes(data)
        if not data:
            return
        self.peer.inbox.append(data)
        self.peer.undelivered_bytes += len(data)
        self.peer.schedule_delivery()
        if not self._writer_paused and self.get_write_buffer_size() > self._high:
            self._writer_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(part) for part in list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self.eof_sent and not self.is_closing():
            self.eof_sent = True
            self.peer.schedule_delivery()

    def close(self) -> None:
        if self.closing or self.closed:
            return
        self.closing = True
        # Bytes written before still arrive; then the other end sees end-of-file.
        self.peer.schedule_delivery()
        self._loop.call_soon(self._lost, None)

    def abort(self) -> None:
        self.reset(None)

    # --- delivery -----------------------------------------------------------------------------------------

    def _own_context(self) -> contextvars.Context:
        """A context in which code runs on the machine of this end."""
        return host_context(self.host)

    def in_host(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._own_context())

    def schedule_delivery(self) -> None:
        if self._delivery_scheduled or self.closed:
            return
        self._delivery_scheduled = True
        self._next_arrival = max(self._next_arrival, self._loop.time() + self.network.delay())
        self._loop.call_at(self._next_arrival, self._deliver, context=self._own_context())

    def kick(self) -> None:
        if self.inbox or self.peer.closing or self.peer.closed or self.peer.eof_sent:
            self.schedule_delivery()

    def _deliver(self) -> None:
        self._delivery_scheduled = False
        if self.closed or self.closing or not self._reading:
            return
        if self.network.is_partitioned(self.host_name, self.peer.host_name):
            return
        if self.inbox:
            data = b"".join(self.inbox)
            self.inbox.clear()
            cut = len(data)
            if len(data) > 1 and self._loop.random.random() < 0.3:
                cut = self._loop.random.randrange(1, len(data))
            if cut < len(data):
                self.inbox.append(data[cut:])
            self.undelivered_bytes -= cut
            self._pass_on(data[:cut])
            self.peer.drained()
            if self.inbox:
                self.schedule_delivery()
        if self.inbox or self.is_closing() or not self._reading:
            return  # the protocol may have paused reading: then it does not see the end either
        if self.peer.closing or self.peer.closed:
            if not self._eof_received:
                self._protocol.eof_received()
            self.closing = True
            self._lost(None)
        elif self.peer.eof_sent and not self._eof_received:
            self._eof_received = True
            if not self._protocol.eof_received():
                self.close()

    def _pass_on(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view and not self.closed:
                buffer = memoryview(self._protocol.get_buffer(len(view)))
                size = min(len(buffer), len(view))
                buffer[:size] = view[:size]
                self._protocol.buffer_updated(size)
                view = view[size:]
        else:
            self._protocol.data_received(data)

    def drained(self) -> None:
        if self._writer_paused and self.get_write_buffer_size() <= self._low:
            self._writer_paused = False
            if not self.closed and (self.host is None or self.host.alive):
                self.in_host(self._protocol.resume_writing)

    def died(self) -> None:
        """The machine of this end was killed."""
        self.closing = self.closed = True
        self.network.forget(self)
        self.peer.lost_later(ConnectionResetError("peer died"))

    def reset(self, error: Exception | None) -> None:
        """Closes this end immediately. Unread bytes are lost, and the other end gets an error."""
        if self.closed:
            return
        self.inbox.clear()
        self.undelivered_bytes = 0
        self.lost_later(error)
        self.peer.lost_later(error if error is not None else ConnectionResetError("connection reset"))

    def lost_later(self, error: Exception | None) -> None:
        if not self.closed:
            self.closing = True
            self.in_host(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.network.forget(self)
        if self.host is None or self.host.alive:
            self._protocol.connection_lost(error)
        if error is None:
            self.peer.kick()
