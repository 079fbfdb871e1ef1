"""A simulated network: connections with delays, cuts and partitions, under asyncio's own transport API."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any

from ottla.testing.sim_loop import SimHost, SimLoop, _current_host, current_host

WINDOW_BYTES = 64 * 1024
"""What the simulated kernel takes off a writer's hands before its own buffer fills."""


class SimNetwork:
    """Joins the machines of one world.

    >>> network.partition("broker", "client")     # nothing passes until heal()
    >>> network.cut_all()                         # every connection is reset
    """

    def __init__(self, loop: SimLoop, *, delay_ms: tuple[float, float] = (0.05, 2.0)) -> None:
        self.loop = loop
        self.delay_ms = delay_ms
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._connections: list[tuple[SimTransport, SimTransport]] = []
        self._partitions: set[frozenset[str]] = set()
        self._next_port = 40_000
        loop.network = self

    # --- faults -------------------------------------------------------------------------------------------

    def partition(self, one: str, other: str) -> None:
        """Bytes between the two machines wait; new connections fail."""
        self._partitions.add(frozenset((one, other)))

    def heal(self) -> None:
        self._partitions.clear()
        for pair in self._connections:
            for transport in pair:
                transport._kick()

    def is_parted(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._partitions

    def cut(self, name: str) -> None:
        """Resets every connection of one machine; what was under way is lost."""
        for pair in list(self._connections):
            if any(transport.host_name == name for transport in pair):
                for transport in pair:
                    transport._reset(ConnectionResetError("connection cut"))

    def cut_all(self) -> None:
        for pair in list(self._connections):
            for transport in pair:
                transport._reset(ConnectionResetError("connection cut"))

    # --- what the loop calls ------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Callable[[], Any], host: Any, port: Any) -> "SimServer":
        machine = current_host()
        address = host if isinstance(host, str) else "127.0.0.1"
        if not port:
            port = self._next_port
            self._next_port += 1
        if (address, port) in self._listeners:
            raise OSError(98, "Address already in use")
        server = SimServer(self, address, port, protocol_factory, machine)
        self._listeners[(address, port)] = server
        if machine is not None:
            machine.on_kill(server.close)
        return server

    async def create_connection(self, protocol_factory: Callable[[], Any], host: Any, port: Any) -> tuple[Any, Any]:
        await asyncio.sleep(self.delay())
        server = self._listeners.get((host, port))
        here = current_host()
        here_name = here.name if here else "outside"
        if server is None:
            raise ConnectionRefusedError(111, f"Connect call failed ({host!r}, {port})")
        if self.is_parted(here_name, server.host_name):
            await asyncio.sleep(10)
            raise TimeoutError(110, f"Connect call failed ({host!r}, {port})")
        near_protocol, far_protocol = protocol_factory(), server.protocol_factory()
        client_port = self._next_port
        self._next_port += 1
        near = SimTransport(self, near_protocol, here, ("127.0.0.1", client_port), (host, port))
        far = SimTransport(self, far_protocol, server.host, (host, port), ("127.0.0.1", client_port))
        near._peer, far._peer = far, near
        self._connections.append((near, far))
        for transport in (near, far):
            if transport._host is not None:
                transport._host.on_kill(transport._died)
        far._in_host(far_protocol.connection_made, far)
        near_protocol.connection_made(near)
        return near, near_protocol

    def delay(self) -> float:
        return self.loop.random.uniform(*self.delay_ms) / 1000

    def forget(self, transport: "SimTransport") -> None:
        self._connections = [
            pair for pair in self._connections if not (transport in pair and pair[0]._closed and pair[1]._closed)
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
        self.host_name = host.name if host else "outside"
        self.sockets = [_SimSocket(self.address)]

    def close(self) -> None:
        self.network._listeners.pop(self.address, None)
        self.sockets = []

    async def wait_closed(self) -> None:
        return

    def is_serving(self) -> bool:
        return self.address in self.network._listeners

    async def start_serving(self) -> None:
        return

    def close_clients(self) -> None:
        """As asyncio.Server in newer Pythons."""


class _SimSocket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setsockopt(self, *args: Any) -> None:
        """Nothing to tune."""


class SimTransport(asyncio.Transport):
    """One end of a simulated connection. Bytes arrive in order, late, and in pieces of any size."""

    def __init__(
        self,
        network: SimNetwork,
        protocol: Any,
        host: SimHost | None,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__()
        self._network = network
        self._loop = network.loop
        self._protocol = protocol
        self._host = host
        self.host_name = host.name if host else "outside"
        self._peer: SimTransport = self
        self._extra_info = {"peername": remote, "sockname": local, "socket": _SimSocket(local)}
        self._inbox: deque[bytes] = deque()
        self._undelivered_bytes = 0
        self._next_arrival = 0.0
        self._reading = True
        self._closing = False
        self._closed = False
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
        return self._closing or self._closed

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._kick()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else 64 * 1024
        self._low = low if low is not None else self._high // 4

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return max(0, self._peer._undelivered_bytes - WINDOW_BYTES)

    def write(self, data: Any) -> None:
        if self._closing or self._closed or (self._host is not None and not self._host.alive):
            return
        data = bytes(data)
        if not data:
            return
        self._peer._inbox.append(data)
        self._peer._undelivered_bytes += len(data)
        self._peer._schedule_delivery()
        if not self._writer_paused and self.get_write_buffer_size() > self._high:
            self._writer_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(part) for part in list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if self._closing or self._closed:
            return
        self._closing = True
        # What was written still arrives; then the other side sees the end.
        self._peer._schedule_delivery()
        self._loop.call_soon(self._lost, None)

    def abort(self) -> None:
        self._reset(None)

    # --- delivery -----------------------------------------------------------------------------------------

    def _own_context(self) -> contextvars.Context:
        """A context in which code runs as the machine this end belongs to."""
        context = contextvars.Context()
        context.run(_current_host.set, self._host)
        return context

    def _in_host(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._own_context())

    def _schedule_delivery(self) -> None:
        if self._delivery_scheduled or self._closed:
            return
        self._delivery_scheduled = True
        self._next_arrival = max(self._next_arrival, self._loop.time() + self._network.delay())
        self._loop.call_at(self._next_arrival, self._deliver, context=self._own_context())

    def _kick(self) -> None:
        if self._inbox or self._peer._closing or self._peer._closed:
            self._schedule_delivery()

    def _deliver(self) -> None:
        self._delivery_scheduled = False
        if self._closed or self._closing or not self._reading:
            return
        if self._network.is_parted(self.host_name, self._peer.host_name):
            return
        if self._inbox:
            data = b"".join(self._inbox)
            self._inbox.clear()
            cut = len(data)
            if len(data) > 1 and self._loop.random.random() < 0.3:
                cut = self._loop.random.randrange(1, len(data))
            if cut < len(data):
                self._inbox.append(data[cut:])
            self._undelivered_bytes -= cut
            self._hand_over(data[:cut])
            self._peer._drained()
            if self._inbox:
                self._schedule_delivery()
        if not self._inbox and not self._closed and (self._peer._closing or self._peer._closed):
            self._protocol.eof_received()
            self._closing = True
            self._lost(None)

    def _hand_over(self, data: bytes) -> None:
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view and not self._closed:
                buffer = memoryview(self._protocol.get_buffer(len(view)))
                size = min(len(buffer), len(view))
                buffer[:size] = view[:size]
                self._protocol.buffer_updated(size)
                view = view[size:]
        else:
            self._protocol.data_received(data)

    def _drained(self) -> None:
        if self._writer_paused and self.get_write_buffer_size() <= self._low:
            self._writer_paused = False
            if not self._closed and (self._host is None or self._host.alive):
                self._in_host(self._protocol.resume_writing)

    def _died(self) -> None:
        """The machine of this end was killed."""
        self._peer._lost_later(ConnectionResetError("peer died"))

    def _reset(self, error: Exception | None) -> None:
        """This end is gone at once; unread bytes are lost, and the other end hears of it."""
        if self._closed:
            return
        self._inbox.clear()
        self._undelivered_bytes = 0
        self._lost_later(error)
        self._peer._lost_later(error if error is not None else ConnectionResetError("connection reset"))

    def _lost_later(self, error: Exception | None) -> None:
        if not self._closed:
            self._closing = True
            self._in_host(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._network.forget(self)
        if self._host is None or self._host.alive:
            self._protocol.connection_lost(error)
        if error is None:
            self._peer._kick()
