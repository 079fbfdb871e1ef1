"""The server side of one connection: the socket protocol that joins parser, responses and flow control.

- `connection_state.py` has the states and their transitions, `frame_parser.py` cuts bytes into frames,
  `ordered_responses.py` keeps responses in request order, `flow_control.py` tracks whether the peer reads them.
- `handle(frame, connection)` runs at once, in the order of the frames. It returns the response, None for "no
  response", or an awaitable of either.
- All responses that are ready after one read leave in one write.
- A large response is written in pieces, each read from its file when the socket has room for it. The next request is
  handled when the last piece is written.
- A peer that sends or receives more than fits into one turn takes turns with the other connections (`turns.py`).

A connection stops handling requests while its peer does not read its responses or too much is pending. It is cut
when the peer reads nothing for `max_stall_ms`, or when memory runs short and it is among the slowest
(`byte_budget.py`).
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from ottla.errors import KafkaError
from ottla.net.server.connection_state import CLOSED, CLOSING, ENDING, HELD, READING, State, move
from ottla.net.server.flow_control import FlowControl
from ottla.net.server.frame_parser import Frame, FrameParser
from ottla.net.server.ordered_responses import FLUSH_BYTES, OrderedResponses, Response
from ottla.protocol.primitives import Buffer
from ottla.protocol.response_parts import ResponseParts
from ottla.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    import ssl

    from ottla.net.server.server import Server

log = logging.getLogger("ottla.net")

JOIN_BYTES = 64 * 1024
SMALL_BYTES = 64 * 1024
"""A connection may always hold this much; only more counts towards the budgets."""
SEND_AT_ONCE_BYTES = 1024 * 1024
"""A response of up to this size is written in the turn of its request, a larger one in separate turns."""
PIECE_BYTES_MIN = 16 * 1024
PIECE_BYTES_MAX = 512 * 1024
"""Pieces of large responses. Larger ones are no faster; when memory is short they shrink."""

Handle = Callable[[Frame, "Connection"], Response | Awaitable[Response]]


class ListenerSecurity(NamedTuple):
    """How the connections of a listener become secure. Without it they are plain and anonymous."""

    tls_context: Callable[[], "ssl.SSLContext"] | None = None
    """The context for the next connection; None without TLS."""
    principal_of: Callable[[bytes | None], Principal] | None = None
    """The owner of a client's certificate (DER; None if it sent none). Raises Disconnect."""
    authenticator: Callable[["Connection"], "Authenticator"] | None = None
    """Authenticates one connection with SASL."""


class Authenticator(Protocol):
    """Handles the frames of a connection instead of the server's `handle`, until it calls `authenticated`."""

    max_frame_bytes: int

    def __call__(self, frame: Frame, connection: "Connection", /) -> Response | Awaitable[Response]: ...


def address_of(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Where a peer is, as Kafka shows it: `/127.0.0.1` and the port.

    An IPv4 client of a socket for all addresses has its IPv4 address, not `::ffff:127.0.0.1`: quotas, ACLs and limits
    of an address must find it.
    """
    host, port = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
    return f"/{host.removeprefix('::ffff:') if '.' in host else host}", port


class Disconnect(Exception):
    """Raised by `handle`, or by the awaitable it returned, to end the connection. Logged in one line."""


class Limits(NamedTuple):
    """Limits of one connection, and of all connections together."""

    max_request_bytes: int = 104_857_600
    max_idle_ms: int = 600_000
    max_connections: int = 2**31 - 1
    max_connections_reason: str = "max.connections"
    """What limits their number: the setting, or something else."""
    max_connections_per_host: int = 2**31 - 1
    max_waiting_requests: int = 512
    """Requests of one connection that may wait for their response before reading pauses."""
    max_waiting_bytes: int = 16 * 1024 * 1024
    """Finished responses that may wait behind an unfinished one before reading pauses."""
    max_stall_ms: int = 30_000
    """A peer that reads no byte of its responses for this long is cut, and one that sends none of a large request."""
    max_unread_bytes: int = 64 * 1024 * 1024
    """Responses of all connections that are in memory because their peers have not read them."""
    max_incomplete_bytes: int = 128 * 1024 * 1024
    """Memory of all connections for requests that have not arrived completely."""
    max_newcomers: int = 1000
    """The most connections that have not authenticated yet."""
    newcomer_timeout_ms: int = 30_000
    """A connection that has not authenticated for this long is cut."""
    max_turn_ms: float = 1.0
    """How long a connection may keep the event loop busy before it waits for its next turn."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection. Handlers identify a client by this object."""

    __slots__ = (
        "__weakref__",
        "_held_frames",
        "_loop",
        "_mute_timer",
        "_security",
        "_sent",
        "_server",
        "_unread_bytes",
        "authenticator",
        "client_host",
        "client_port",
        "drainer",
        "flow",
        "gate",
        "last_active",
        "listener",
        "parser",
        "principal",
        "request_begun",
        "responses",
        "sending",
        "state",
        "transport",
    )

    flow: FlowControl
    transport: asyncio.Transport

    def __init__(self, server: "Server", listener: str, security: ListenerSecurity | None = None) -> None:
        limits = server.limits
        self.listener = listener
        self.authenticator: Authenticator | None = None
        """Authenticates and reauthenticates the client with SASL; None on listeners without SASL."""
        self.gate: Handle | None = None
        """Handles frames instead of the server's `handle`, for example until the client has authenticated."""
        self._security = security
        self.client_host = ""
        """As Kafka shows it: `/127.0.0.1`."""
        self.client_port = 0
        self.principal = ANONYMOUS
        """Who the client is; set by authentication."""
        self.last_active = 0.0
        self.state = READING
        self.parser = FrameParser(
            server.receive_view, server.spares, limits.max_request_bytes, server.incomplete_requests
        )
        self.responses = OrderedResponses(limits.max_waiting_requests, limits.max_waiting_bytes)
        self.sending: ResponseParts | None = None
        """The large response that is being written."""
        self.request_begun = 0.0
        """When the first bytes of an incomplete large request arrived."""
        self.drainer: asyncio.Task[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._unread_bytes = 0
        self._server = server
        self._loop = server.loop
        self._held_frames: list[Frame] = []
        self._mute_timer: asyncio.TimerHandle | None = None

    # --- the life of a connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.last_active = self._loop.time()
        self.client_host, self.client_port = address_of(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.flow = FlowControl(self._loop, self.transport, self._server.limits.max_stall_ms, self._stalled)
        security, server = self._security, self._server
        if security is not None and security.authenticator is not None:
            self.authenticator = self.gate = authenticator = security.authenticator(self)
            self.parser.max_frame_bytes = min(authenticator.max_frame_bytes, server.limits.max_request_bytes)
            if self not in server.newcomers:
                server.newcomer(self)
        else:
            server.newcomers.remove(self)
        server.connection_opened(self)

    def secured(self, certificate: bytes | None) -> None:
        """The TLS handshake is complete. Raises Disconnect if the owner of the client's certificate is unknown."""
        if self._security is not None and self._security.principal_of is not None:
            self.principal = self._security.principal_of(certificate)

    def authenticated(self, principal: Principal, gate: Handle | None = None) -> None:
        """The client has authenticated. `gate` replaces the authenticator, which handled its frames until now."""
        self.principal = principal
        self.gate = gate
        self.parser.max_frame_bytes = self._server.limits.max_request_bytes
        self._server.newcomers.remove(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._move(CLOSED)
        self._drop_input()
        self.sending = None
        self.flow.close()
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        if self.drainer is not None:
            self.drainer.cancel()
        self._server.connection_closed(self)

    def eof_received(self) -> bool:
        # A client that closed its side reads no more responses: pending requests are cancelled.
        self.close()
        return False

    @property
    def uses_tls(self) -> bool:
        return self._security is not None and self._security.tls_context is not None

    @property
    def is_busy(self) -> bool:
        """Whether a response is pending, or written but not yet read by the peer."""
        return bool(self.responses.items or self.sending) or (
            self.state < CLOSING and self.transport.get_write_buffer_size() > 0
        )

    def end(self) -> None:
        """Accepts no further request; pending ones are still answered, then the connection closes."""
        if self.state >= ENDING:
            return
        self._drop_input()
        if self.responses.items or self.sending is not None:
            self._move(ENDING)
            self.transport.pause_reading()
        else:
            self.close()

    def close(self) -> None:
        """Closes the connection once the responses already written have left."""
        if self.state < CLOSING:
            self._move(CLOSING)
            self.transport.close()
            # Closing waits for the peer to read what was written; a stalled peer is cut.
            self.flow.watch()

    def abort(self) -> None:
        """Closes the connection at once; what is in the write buffer is lost."""
        if self.state < CLOSING:
            self._move(CLOSING)
        self.transport.abort()

    def cut(self, reason: str) -> None:
        """Logs the reason, then closes the connection at once and releases its memory."""
        if self.state < CLOSING:
            self._server.log_closing(self, reason)
        self.abort()
        self._drop_input()
        self.sending = None
        self._server.unread_responses.hold(self, 0)

    def disconnect(self, reason: str) -> None:
        """Logs the reason, then ends the connection."""
        self._server.log_closing(self, reason)
        self.end()

    def _refuse(self, reason: str) -> None:
        if self.state < ENDING:
            self.disconnect(reason)

    def _move(self, new: State) -> None:
        self.state = move(self.state, new)

    def _is_gone(self) -> bool:
        """Whether the peer is gone. A transport detects a reset some time before `connection_lost`."""
        return self.state >= CLOSING or self.transport.is_closing()

    def _drop_input(self) -> None:
        self.parser.clear()
        self._server.incomplete_requests.hold(self, 0)
        self._held_frames.clear()

    # --- requests -----------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._server.bytes_in += nbytes
        self.last_active = self._loop.time()
        state = self.state
        if state is READING:
            parser = self.parser
            self._handle_frames(self._feed(nbytes))
            if parser.buffer_was_full and self.state is READING:
                # The loop would keep reading from this peer: let the other connections have their turn.
                self.transport.pause_reading()
                self._server.turns.queue(self._take_turn)
        elif state is HELD:
            # Bytes that the loop had read before reading was paused, or the first ones of a muted connection.
            self.transport.pause_reading()
            self._held_frames += self._feed(nbytes)

    def _feed(self, nbytes: int) -> Sequence[Frame]:
        """The frames that are complete now. Counts the memory for an incomplete large one."""
        parser = self.parser
        before = parser.allocated_bytes
        frames = parser.feed(nbytes)
        if parser.allocated_bytes != before:
            if not before:
                self.request_begun = self.last_active
            self._server.incomplete_requests.hold(self, parser.allocated_bytes)
        return frames

    def request_speed(self, now: float) -> float:
        """Bytes per second of the incomplete request. One that has just begun counts as fast."""
        return (SMALL_BYTES + self.parser.filled) / (now - self.request_begun + 0.001)

    def _take_turn(self) -> None:
        if self.state is READING:
            self.transport.resume_reading()

    def _handle_frames(self, frames: Sequence[Frame]) -> None:
        """Handles the frames in order. If the connection becomes HELD on the way, keeps the rest for later."""
        # A gate may open with one of these frames: the next one must see that.
        handle = self._server.handle if self.gate is None else self._handle
        pending = self.responses.items
        if len(frames) == 1 and not pending:
            # The common case: nothing to gather, and a single frame needs no clock.
            try:
                response = handle(frames[0], self)
            except Exception as error:
                self._failed(error)
                return
            if isinstance(response, (bytes, bytearray)):
                self._write((response,))
            elif response is not None:
                self._send_or_queue(response, len(frames[0]))
            if self.parser.error is not None and self.state is READING:
                self.disconnect(self.parser.error)
            return
        answers: list[Buffer] = []
        answers_size = 0
        turns = self._server.turns
        deadline = turns.deadline()
        remaining = iter(frames)
        for frame in remaining:
            try:
                response = handle(frame, self)
            except Exception as error:
                self._write(answers)
                self._failed(error)
                return
            if pending:
                self._queue(response, len(frame))
            elif isinstance(response, (bytes, bytearray)):
                answers.append(response)
                answers_size += len(response)
                if answers_size >= FLUSH_BYTES:
                    self._write(answers)
                    answers = []
                    answers_size = 0
            elif response is not None:
                self._write(answers)
                answers = []
                answers_size = 0
                self._send_or_queue(response, len(frame))
            if self.state is not READING:
                break
            if turns.clock() >= deadline:
                self._hold()
                turns.queue(self._resume)
                break
        if answers:
            self._write(answers)
        if self.state is HELD:
            self._held_frames += remaining
        elif self.parser.error is not None and self.state is READING:
            self.disconnect(self.parser.error)

    def _handle(self, frame: Frame, connection: "Connection") -> Response | Awaitable[Response]:
        return (self.gate or self._server.handle)(frame, self)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, Disconnect):
            self.disconnect(str(error))
        else:
            limit = self._server.failures
            if limit.allows(self._loop.time()):
                host, port = self.client_host[1:], self.client_port
                log.error("request from %s:%d failed%s", host, port, limit.suffix, exc_info=error)
            self.end()

    # --- responses ----------------------------------------------------------------------------------------

    def _write(self, answers: Sequence[Buffer]) -> None:
        """Passes responses to the transport in one call. The transport may call pause_writing() within it."""
        if not answers or self.state >= CLOSING:
            return
        if len(answers) == 1:
            size = len(answers[0])
            self.transport.write(answers[0])
        else:
            size = sum(map(len, answers))
            if size <= JOIN_BYTES:
                self.transport.write(b"".join(answers))
            else:
                self.transport.writelines(answers)
        self._server.bytes_out += size
        if self.flow.write_paused:
            self._unread_bytes = max(size, self.transport.get_write_buffer_size())
            self._count_responses()

    def _send_or_queue(self, response: Response | Awaitable[Response], request_bytes: int) -> None:
        """For a response that is written in pieces, or is not finished."""
        if isinstance(response, ResponseParts):
            self._send(response)
        else:
            self._queue(response, request_bytes)

    def _send(self, parts: ResponseParts) -> None:
        """Begins to write a large response, as far as the peer reads it. No other request is handled meanwhile."""
        self.sending = parts
        if parts.remaining <= SEND_AT_ONCE_BYTES:
            self._send_more()
        else:
            self._server.turns.queue(self._send_more)
        if self.sending is not None:
            self._hold()

    def _send_more(self) -> None:
        """Writes the next pieces, until the peer does not keep up or the turn is over."""
        parts = self.sending
        if parts is None or self._is_gone():
            return
        turns, budget = self._server.turns, self._server.unread_responses
        deadline = turns.deadline()
        while parts.remaining:
            if self.flow.write_paused:
                return  # `resume_writing` continues
            try:
                piece = parts.take(budget.share(64, PIECE_BYTES_MIN, PIECE_BYTES_MAX))
            except (KafkaError, OSError) as error:
                # The peer already has the response's size: only closing the connection can signal the error.
                self.cut(f"cannot read the rest of a response: {error}")
                return
            self._write(piece)
            if turns.clock() >= deadline and parts.remaining:
                turns.queue(self._send_more)
                return
        self.sending = None
        if self._sent is not None:
            self._sent.set_result(None)
        elif self.state is HELD:
            turns.queue(self._resume)
        elif self.state is ENDING:
            self.close()

    def _queue(self, response: Response | Awaitable[Response], request_bytes: int) -> None:
        """Queues a response that is not finished, or must wait for one that is not."""
        responses = self.responses
        responses.put(response, request_bytes)
        if responses.size_bytes > SMALL_BYTES:
            self._count_responses()
        if self._is_full():
            self._hold()
        if self.drainer is None:
            self._start_drainer()

    def _is_full(self) -> bool:
        """Whether so much is pending that the next request has to wait."""
        responses = self.responses
        if responses.size_bytes <= SMALL_BYTES:
            return responses.is_full
        affordable = self._server.unread_responses.share(4, SMALL_BYTES, self._server.limits.max_waiting_bytes)
        return responses.is_full or responses.size_bytes > affordable

    def _count_responses(self) -> None:
        """Updates the budget with the memory held for responses."""
        size = self.responses.size_bytes + self._unread_bytes
        self._server.unread_responses.hold(self, size if size > SMALL_BYTES and self.state < CLOSED else 0)

    def _start_drainer(self) -> None:
        self.drainer = self._loop.create_task(self._drain())
        self.drainer.add_done_callback(self._drained)

    async def _drain(self) -> None:
        """Writes the queued responses as they become ready."""
        responses = self.responses
        while responses.items:
            if self.flow.write_paused:
                # The work for the next response does not even start before the peer has read the last ones.
                await self.flow.wait_for_room()
                continue
            ready = await responses.next_ready()
            self.last_active = self._loop.time()
            if isinstance(ready, ResponseParts):
                self._sent = self._loop.create_future()
                self._send(ready)
                await self._sent
                self._sent = None
                responses.sent()
            else:
                self._write(ready)
            if self in self._server.unread_responses.held:
                self._count_responses()
            if self.state is ENDING:
                if not responses.items:
                    self.close()
            elif self.state is HELD and responses.is_half_empty:
                self._resume()

    def _drained(self, drainer: "asyncio.Task[None]") -> None:
        self.drainer = None
        cancelled = drainer.cancelled()
        error = None if cancelled else drainer.exception()
        if error is None and not cancelled and self.state < CLOSING:
            if self.responses.items:
                self._start_drainer()
            return
        self.responses.discard()
        if error is not None and not (self.state >= CLOSING and isinstance(error, Disconnect)):
            self._failed(error)
        self.close()

    # --- back-pressure ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self._hold()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        self._unread_bytes = 0
        if self in self._server.unread_responses.held:
            self._count_responses()
        # Later, not now: a transport may call this in the middle of one of our own writes.
        if self.sending is not None:
            self._server.turns.queue(self._send_more)
        elif self.state is HELD:
            self._server.turns.queue(self._resume)

    def _hold(self) -> None:
        if self.state is READING:
            self._move(HELD)
            self.transport.pause_reading()

    def delay(self, duration_ms: int, refusal: str) -> None:
        """Reads nothing for a while: the connection is above the rate limit. With a `refusal` it is closed then."""
        self._hold()
        if refusal:
            self._loop.call_later(duration_ms / 1000, self._refuse, refusal)
        else:
            self.mute(duration_ms)

    def mute(self, duration_ms: int) -> None:
        """Handles no further request for a while: its client is above a quota (KIP-219). Responses are still written.

        Reading continues until the first bytes arrive. A well-behaved client sends none, so the end of its connection
        is detected at once.
        """
        if self.state >= ENDING:
            return
        until = self._loop.time() + duration_ms / 1000
        if self._mute_timer is not None:
            if self._mute_timer.when() >= until:
                return
            self._mute_timer.cancel()
        if self.state is READING:
            self._move(HELD)
        self._mute_timer = self._loop.call_at(until, self._unmute)

    def _unmute(self) -> None:
        self._mute_timer = None
        self._resume()

    def _resume(self) -> None:
        """Handles the frames that were held back, then resumes reading."""
        if self.state is not HELD or self.flow.write_paused or self.sending is not None or self._is_full():
            return
        if self._mute_timer is not None:
            return
        if self._is_gone():
            return
        self._move(READING)
        frames, self._held_frames = self._held_frames, []
        self._handle_frames(frames)
        if self.state is READING:
            self.transport.resume_reading()

    def _stalled(self) -> None:
        self.cut(f"it read no byte of its responses for {self._server.limits.max_stall_ms} ms")
