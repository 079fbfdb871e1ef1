"""The server's side of one connection: bytes to frames, responses back in request order.

How bytes travel:

- All connections read into one receive buffer that belongs to the server. A loop hands bytes over in the
  same step in which it asked for room, so the buffer never holds two connections' bytes.
- A small frame is copied out of it; a large one is read straight into a buffer of its own. Either way **the
  frame handed to `handle` is its own memory**, so a request may keep views into it as long as it likes.
- `handle(frame, connection)` runs at once, in the order of the frames. It returns the response, None for
  "no response", or an awaitable of either. Awaitables are awaited one by one, in order: a response never
  overtakes an earlier one, and at most one late response of a connection is in memory at a time.
- Everything answered during one read leaves in one write.
- A peer that sends faster than it is served takes turns with the others.

A connection stops taking requests while its peer does not read its responses or too much is waiting, and is
cut when the peer stays stuck.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ottla.net.server import Server

log = logging.getLogger("ottla.net")

RECEIVE_BUFFER_BYTES = 64 * 1024
LARGE_FRAME_BYTES = 32 * 1024
"""From this size on a frame is read straight into its own memory instead of being copied."""
FIRST_ALLOCATION_BYTES = 256 * 1024
"""Memory a size prefix alone can claim. More is given as bytes really arrive."""
FLUSH_BYTES = 512 * 1024
"""Responses gathered in one read are written out early beyond this, to see whether the peer keeps up."""
WRITE_HIGH_BYTES = 1024 * 1024
WRITE_LOW_BYTES = 256 * 1024
JOIN_BYTES = 64 * 1024

_read_size = Struct(">i").unpack_from

Response = bytes | bytearray | None
Handle = Callable[[bytes | memoryview, "Connection"], Response | Awaitable[Response]]


class Disconnect(Exception):
    """Raised by `handle`, or by what it returned, to end the connection. The reason is logged once, quietly."""


class Limits(NamedTuple):
    """What one connection, and all of them together, may use."""

    max_request_bytes: int = 104_857_600
    max_idle_ms: int = 600_000
    max_connections: int = 2**31 - 1
    max_connections_per_host: int = 2**31 - 1
    max_waiting_requests: int = 512
    """Requests of one connection that may wait for their response before it stops being read."""
    max_waiting_bytes: int = 16 * 1024 * 1024
    """Finished responses that may wait behind an unfinished one before the connection stops being read."""
    max_stall_ms: int = 30_000
    """A peer that takes no byte of its responses for this long is cut."""


_READY = (bytes, bytearray)
_END = object()
"""Waits in line behind the last response: once it is reached, the connection is closed."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection. Its identity is what handlers know a client by."""

    __slots__ = (
        "__weakref__",
        "_blocked",
        "_closing",
        "_drainer",
        "_ending",
        "_filled",
        "_frame",
        "_frame_size",
        "_largest_frame",
        "_limits",
        "_loop",
        "_room",
        "_server",
        "_stall_size",
        "_stall_timer",
        "_stash",
        "_transport",
        "_waiting",
        "_waiting_bytes",
        "_write_paused",
        "client_host",
        "client_port",
        "last_active",
        "listener",
    )

    def __init__(self, server: "Server", listener: str) -> None:
        self.listener = listener
        self.client_host = ""
        """As Kafka shows it: `/127.0.0.1`."""
        self.client_port = 0
        self.last_active = 0.0
        self._server = server
        self._limits = server.limits
        self._loop = server.loop
        self._transport: Any = None
        # Input: bytes of an unfinished small frame, or a large frame being filled.
        self._stash: bytes = b""
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._filled = 0
        self._largest_frame = FIRST_ALLOCATION_BYTES
        # Output: responses in request order, behind the first one that is not ready.
        self._waiting: deque[Any] = deque()
        self._waiting_bytes = 0
        self._drainer: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._write_paused = False
        # Blocked: no further request is begun. Ending: no further byte counts. Closing: no byte may be written.
        self._blocked = False
        self._ending = False
        self._closing = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stall_size = 0

    # --- the life of a connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.last_active = self._loop.time()
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self.client_host, self.client_port = f"/{peer[0]}", peer[1]
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        self._server._opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = self._ending = self._blocked = True
        self._stash = b""
        self._frame = None
        self._stop_stall_timer()
        if self._drainer is not None:
            self._drainer.cancel()
        self._server._closed(self)

    def eof_received(self) -> bool:
        # A client that closed wants no more answers: returning False closes our side and frees what it waits for.
        return False

    @property
    def is_busy(self) -> bool:
        """Whether a response is still owed or not yet taken by the peer."""
        return bool(self._waiting) or (not self._closing and self._transport.get_write_buffer_size() > 0)

    def close(self) -> None:
        """Ends the connection once the responses already written have left."""
        if not self._closing:
            self._closing = self._ending = self._blocked = True
            self._transport.close()
            # Closing waits for the peer to take what was written; a stuck peer is not waited for.
            self._start_stall_timer()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._closing = self._ending = self._blocked = True
        self._transport.abort()

    def _disconnect(self, reason: str) -> None:
        """Ends the connection after the responses that come before the fault."""
        log.info("closing the connection from %s:%d: %s", self.client_host[1:], self.client_port, reason)
        self.end()

    def end(self) -> None:
        """Takes no further request; those under way are still answered, then the connection ends."""
        if self._ending:
            return
        self._ending = self._blocked = True
        self._stash = b""
        self._frame = None
        if self._waiting:
            self._transport.pause_reading()
            self._waiting.append(_END)
        else:
            self.close()

    # --- bytes in -----------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._filled : self._frame_size]
        view = self._server.receive_view
        stash = self._stash
        if stash and not self._blocked:
            # An unfinished frame continues in the receive buffer, so that frames always lie in one piece.
            view[: len(stash)] = stash
            return view[len(stash) :]
        return view

    def buffer_updated(self, nbytes: int) -> None:
        server = self._server
        server.bytes_in += nbytes
        self.last_active = self._loop.time()
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == self._frame_size:
                self._take_large_frame()
            elif self._filled >= len(self._frame):
                self._grow_frame()
        elif self._blocked:
            # Only a loop that had read ahead before it was paused brings us here.
            if not self._ending:
                self._stash += bytes(server.receive_view[:nbytes])
        else:
            end = len(self._stash) + nbytes
            self._stash = b""
            self._take_frames(server.receive_view, end)
            if end == RECEIVE_BUFFER_BYTES and self._frame is None and not self._blocked:
                # There is more, and the loop would go on reading it: let the other connections have their turn.
                self._transport.pause_reading()
                self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        if not self._blocked:
            self._transport.resume_reading()

    def _take_frames(self, view: memoryview, end: int) -> None:
        """Handles every whole frame in view[:end] and keeps the rest."""
        handle = self._server.handle
        max_request_bytes = self._limits.max_request_bytes
        answers: list[Any] = []
        answers_size = position = size = 0
        while not self._blocked:
            start = position + 4
            if start > end:
                size = 0
                break
            size = _read_size(view, position)[0]
            if not 0 <= size <= max_request_bytes:
                self._write(answers)
                answers = []
                self._disconnect(f"a frame claims {size} bytes (limit {max_request_bytes})")
                return
            if start + size > end:
                break
            position = start + size
            try:
                response = handle(bytes(view[start:position]), self)
            except Exception as error:
                self._write(answers)
                self._failed(error)
                return
            kind = type(response)
            if self._waiting:
                self._wait(response, kind, size)
            elif kind is bytes or kind is bytearray:
                answers.append(response)
                answers_size += len(response)  # type: ignore[arg-type]
                if answers_size >= FLUSH_BYTES:
                    self._write(answers)
                    answers = []
                    answers_size = 0
            elif response is not None:
                self._write(answers)
                answers = []
                answers_size = 0
                self._wait(response, kind, size)
        if answers:
            self._write(answers)
        if self._blocked:
            if not self._ending:
                self._stash = bytes(view[position:end])
                self._transport.pause_reading()
        elif size + 4 >= LARGE_FRAME_BYTES:
            self._start_large_frame(size, view[position + 4 : end])
        elif position < end:
            self._stash = bytes(view[position:end])

    def _start_large_frame(self, size: int, head: memoryview) -> None:
        # A peer gets as much memory as its earlier frames have shown it to need, or as it has sent.
        self._frame = frame = self._server.spares.take(min(size, max(self._largest_frame, 2 * len(head))))
        self._frame_size = size
        self._filled = len(head)
        frame[: len(head)] = head

    def _grow_frame(self) -> None:
        assert self._frame is not None
        grown = bytearray(min(self._frame_size, 2 * len(self._frame)))
        grown[: self._filled] = self._frame
        self._frame = grown

    def _take_large_frame(self) -> None:
        frame = self._frame
        assert frame is not None
        self._frame = None
        self._largest_frame = max(self._largest_frame, self._frame_size)
        try:
            response = self._server.handle(memoryview(frame)[: self._frame_size], self)
        except Exception as error:
            self._failed(error)
            return
        self._server.spares.give(frame)
        kind = type(response)
        if self._waiting:
            self._wait(response, kind, self._frame_size)
        elif kind is bytes or kind is bytearray:
            self._write([response])
        elif response is not None:
            self._wait(response, kind, self._frame_size)
        if self._blocked and not self._ending:
            self._transport.pause_reading()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, Disconnect):
            self._disconnect(str(error))
        else:
            log.error("a request from %s:%d failed", self.client_host[1:], self.client_port, exc_info=error)
            self.end()

    # --- responses out ------------------------------------------------------------------------------------

    def _write(self, answers: list[Any]) -> None:
        """Hands responses to the transport in one piece. It may answer with pause_writing() at once."""
        if not answers or self._closing:
            return
        if len(answers) == 1:
            size = len(answers[0])
            self._transport.write(answers[0])
        else:
            size = sum(map(len, answers))
            if size <= JOIN_BYTES:
                self._transport.write(b"".join(answers))
            else:
                self._transport.writelines(answers)
        self._server.bytes_out += size

    def _wait(self, response: Any, kind: type, frame_size: int) -> None:
        """Puts a response in line, either for itself to get ready or for an earlier one."""
        if response is None:
            return
        waiting = self._waiting
        if kind is bytes or kind is bytearray:
            self._waiting_bytes += len(response)
            waiting.append(response)
        else:
            # What is not finished may still hold its request.
            self._waiting_bytes += frame_size
            waiting.append((response, frame_size))
        if len(waiting) >= self._limits.max_waiting_requests or self._waiting_bytes > self._limits.max_waiting_bytes:
            self._blocked = True
        if self._drainer is None:
            self._start_drainer()

    def _start_drainer(self) -> None:
        self._drainer = self._loop.create_task(self._drain())
        self._drainer.add_done_callback(self._drained)

    async def _drain(self) -> None:
        """Brings the line forward: waits for the first response, writes it and those that were ready behind it."""
        waiting = self._waiting
        while waiting:
            if self._write_paused:
                # The next response is not even begun while the peer has not taken the last ones.
                self._room = self._loop.create_future()
                await self._room
                continue
            ready: list[Any] = []
            size = 0
            if type(waiting[0]) is tuple:
                response = await waiting[0][0]
                size = waiting.popleft()[1]
                if response is not None:
                    ready.append(response)
            while waiting and type(waiting[0]) in _READY and size < FLUSH_BYTES:
                response = waiting.popleft()
                size += len(response)
                ready.append(response)
            self._waiting_bytes -= size
            self.last_active = self._loop.time()
            self._write(ready)
            if waiting and waiting[0] is _END:
                waiting.clear()
                self.close()
            elif self._blocked and len(waiting) <= self._limits.max_waiting_requests // 2:
                self._unblock()

    def _drained(self, drainer: "asyncio.Task[None]") -> None:
        self._drainer = None
        cancelled = drainer.cancelled()
        error = None if cancelled else drainer.exception()
        if error is None and not cancelled and not self._closing:
            if self._waiting:
                self._start_drainer()
            return
        for item in self._waiting:
            # Never begun, and nobody is left to hear of it.
            if type(item) is tuple:
                response = item[0]
                if isinstance(response, asyncio.Future):
                    response.cancel()
                elif hasattr(response, "close"):
                    response.close()
        self._waiting.clear()
        self._waiting_bytes = 0
        if error is not None and not (self._closing and isinstance(error, Disconnect)):
            self._failed(error)
        self.close()

    # --- holding back -------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._write_paused = self._blocked = True
        self._start_stall_timer()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._stop_stall_timer()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if not self._ending:
            # Later, not now: a transport may call this in the middle of one of our own writes.
            self._loop.call_soon(self._unblock)

    def _unblock(self) -> None:
        """Goes on with the requests that were held back, then with reading."""
        if (
            self._ending
            or not self._blocked
            or self._write_paused
            or len(self._waiting) >= self._limits.max_waiting_requests
            or self._waiting_bytes > self._limits.max_waiting_bytes
        ):
            return
        self._blocked = False
        stash, self._stash = self._stash, b""
        if stash:
            self._take_frames(memoryview(stash), len(stash))
        if not self._blocked:
            self._transport.resume_reading()

    def _start_stall_timer(self) -> None:
        if self._stall_timer is None:
            self._stall_size = self._transport.get_write_buffer_size()
            self._stall_timer = self._loop.call_later(self._limits.max_stall_ms / 1000, self._check_stall)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _check_stall(self) -> None:
        self._stall_timer = None
        if 0 < self._transport.get_write_buffer_size() < self._stall_size:
            self._start_stall_timer()
            return
        if not self._closing:
            log.info(
                "closing the connection from %s:%d: it took no byte of its responses for %d ms",
                self.client_host[1:],
                self.client_port,
                self._limits.max_stall_ms,
            )
        self.abort()
