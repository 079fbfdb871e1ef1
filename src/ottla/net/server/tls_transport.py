"""TLS between a socket and a server connection. OWNER of one TLS session.

Not asyncio's own TLS, for three reasons: handshakes of newcomers are bounded and take turns like other long work;
decrypted bytes go straight into the buffer of the frame they belong to; and each connection can use the newest
certificate.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ottla.net.server.connection import Disconnect, address_of
from ottla.net.server.tls_phase import BROKEN, ENDED, FAILED, HANDSHAKING, NEW, SECURED, Phase, move
from ottla.protocol.primitives import Buffer

if TYPE_CHECKING:
    from ottla.net.server.connection import Connection
    from ottla.net.server.server import Server

PIECE_BYTES = 64 * 1024
"""OpenSSL gets at most this much at once, in both directions. Its buffers never shrink, and there
may be thousands of connections; larger pieces are no faster."""


class TlsTransport(asyncio.BufferedProtocol):
    """The protocol of a socket and, after the handshake, the transport of its Connection."""

    __slots__ = (
        "__weakref__",
        "_connection",
        "_failure",
        "_has_turn",
        "_incoming",
        "_is_delivering",
        "_is_paused",
        "_outgoing",
        "_phase",
        "_raw",
        "_server",
        "_session",
        "client_host",
        "client_port",
    )

    def __init__(self, server: "Server", context: ssl.SSLContext, connection: "Connection") -> None:
        self._server = server
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport
        self._phase: Phase = NEW
        self._failure = ""  # why the phase is BROKEN
        # Not phases: each of these may be true or false within a phase.
        self._has_turn = False  # the handshake will continue in a turn of its own
        self._is_paused = False  # the connection reads nothing
        self._is_delivering = False  # `_deliver` is active, further up the stack
        self.client_host, self.client_port = "", 0

    # --- the protocol of the socket -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self.client_host, self.client_port = address_of(transport)
        self._server.begin_tls(self, self._connection.listener)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.newcomers.remove(self)
        if self._phase >= SECURED:
            self._connection.connection_lost(error)
        elif error is not None:
            self._lost_during_handshake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.encrypted_view

    def buffer_updated(self, nbytes: int) -> None:
        view, incoming = self._server.encrypted_view, self._incoming
        if self._phase < SECURED:
            incoming.write(view[:nbytes])
            self._raw.pause_reading()
            if not self._has_turn:
                # A handshake is a millisecond of work: thousands of newcomers must not delay everybody else.
                self._has_turn = True
                self._server.turns.queue(self._handshake)
            return
        if nbytes > PIECE_BYTES:
            incoming.write(view[:PIECE_BYTES])
            if not self._is_paused:
                self._deliver()
            incoming.write(view[PIECE_BYTES:nbytes])
        else:
            incoming.write(view[:nbytes])
        if not self._is_paused:
            self._deliver()
            if nbytes == len(view) and not self._is_paused:
                # The loop would keep reading from this peer: let the other connections have their turn.
                self._raw.pause_reading()
                self._server.turns.queue(self._take_turn)

    def eof_received(self) -> bool:
        if self._phase >= SECURED:
            self._connection.eof_received()
        else:
            self._lost_during_handshake()
        return False

    def _lost_during_handshake(self) -> None:
        """Clients written with asyncio hang up on a certificate that they do not accept, without an alert."""
        if self._phase is HANDSHAKING:
            self._fail("the client disconnected; it may not accept this broker's certificate")

    def _fail(self, reason: str) -> None:
        self._phase = move(self._phase, FAILED)
        self._server.handshake_failed(self, reason)

    def pause_writing(self) -> None:
        if self._phase >= SECURED:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._phase >= SECURED:
            self._connection.resume_writing()

    def _take_turn(self) -> None:
        if not self._is_paused and not self._raw.is_closing():
            self._raw.resume_reading()

    def _handshake(self) -> None:
        self._has_turn = False
        if self._raw.is_closing():
            return
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            if self._phase is NEW:
                self._phase = move(self._phase, HANDSHAKING)
            self._flush()
            self._raw.resume_reading()
            return
        except (ssl.SSLError, ValueError) as error:
            self._flush()  # the alert that tells the peer why
            self._fail(_reason(error))
            self._raw.close()
            return
        self._flush()
        try:
            self._connection.secured(self._session.getpeercert(binary_form=True))
        except Disconnect as error:
            self._fail(str(error))
            self._raw.close()
            return
        self._phase = move(self._phase, SECURED)
        self._raw.resume_reading()
        self._server.newcomers.replace(self, self._connection)
        self._connection.connection_made(cast("asyncio.BaseTransport", self))
        self._deliver()

    def _deliver(self) -> None:
        """Passes on what can be decrypted, as long as the connection reads."""
        connection = self._connection
        self._is_delivering = True
        try:
            while self._has_input() and not self._is_paused and not self._raw.is_closing():
                nbytes = self._decrypt(connection.get_buffer(-1))
                if not nbytes:
                    break
                connection.buffer_updated(nbytes)
        finally:
            self._is_delivering = False
        if self._phase is not SECURED and not self._is_paused and not self._raw.is_closing():
            if self._phase is ENDED:
                connection.eof_received()
            else:
                connection.cut(f"TLS: {self._failure}")
        elif self._outgoing.pending and not self._raw.is_closing():
            self._flush()  # an answer of TLS itself, such as a new key

    def _has_input(self) -> bool:
        """Whether there is something to pass on: bytes to decrypt, or their end.

        The check costs less than the error that reading nothing raises.
        """
        return bool(self._incoming.pending or self._session.pending() or self._phase is not SECURED)

    def _decrypt(self, buffer: memoryview) -> int:
        """Fills the buffer as far as possible and returns how far. What precedes the end is delivered before it.

        OpenSSL decrypts one record of TLS at a time, and those of librdkafka are often no larger than one of Kafka.
        """
        if self._phase is not SECURED:
            return 0
        read, pending = self._session.read, self._session.pending
        room, filled = len(buffer), 0
        try:
            while filled < room:
                nbytes = cast("int", read(room - filled, buffer[filled:]))
                if not nbytes:
                    self._phase = move(self._phase, ENDED)
                    break
                filled += nbytes
                if not (self._incoming.pending or pending()):
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._phase = move(self._phase, ENDED)
        except ssl.SSLError as error:
            # Not the error itself: the frames of its traceback would keep the buffer in memory.
            self._phase, self._failure = move(self._phase, BROKEN), _reason(error)
        return filled

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def delay(self, duration_ms: int, refusal: str) -> None:
        """Delays the handshake: the connection is above the rate limit. With a `refusal` it is closed instead."""
        self._has_turn = True
        self._raw.pause_reading()
        if refusal:
            self._server.loop.call_later(duration_ms / 1000, self._refuse, refusal)
        else:
            self._server.loop.call_later(duration_ms / 1000, self._server.turns.queue, self._handshake)

    def _refuse(self, reason: str) -> None:
        if not self._raw.is_closing():
            self.cut(reason)

    def cut(self, reason: str) -> None:
        """Closes the connection of a newcomer at once."""
        self._server.log_closing(self, reason)
        self._raw.abort()

    # --- the transport of the connection ------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if len(data) > PIECE_BYTES:
            self.writelines((data,))
        elif data and not self._is_mute():
            self._session.write(data)
            self._raw.write(self._outgoing.read())

    def writelines(self, parts: Sequence[Buffer]) -> None:
        if self._is_mute():
            return
        write, outgoing, encrypted = self._session.write, self._outgoing, []
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), PIECE_BYTES):
                write(view[at : at + PIECE_BYTES])
                if outgoing.pending >= PIECE_BYTES // 4:
                    encrypted.append(outgoing.read())
        encrypted.append(outgoing.read())
        self._raw.writelines(encrypted)

    def _is_mute(self) -> bool:
        """Whether nothing can be sent any more. After an error OpenSSL encrypts nothing."""
        return self._raw.is_closing() or self._phase is BROKEN

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._raw.resume_reading()
            if self._has_input() and not self._is_delivering:
                # Later, not now: the connection is in the middle of something.
                self._server.turns.queue(self._deliver_rest)

    def _deliver_rest(self) -> None:
        if not self._is_paused and not self._raw.is_closing():
            self._deliver()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def close(self) -> None:
        if not self._raw.is_closing():
            try:
                self._session.unwrap()  # tells the peer that nothing was cut off
            except ssl.SSLError:
                pass  # the peer has not answered yet; no need to wait for it
            self._flush()
            self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._session if name == "ssl_object" else self._raw.get_extra_info(name, default)


_REASONS = {
    "HTTP_REQUEST": "the client does not use TLS (it speaks HTTP)",
    "WRONG_VERSION_NUMBER": "the client does not use TLS; set its security.protocol to that of this listener",
    "UNSUPPORTED_PROTOCOL": "the client's TLS version is too old (see ssl.enabled.protocols)",
    "NO_SHARED_CIPHER": "client and broker have no cipher suite in common (see ssl.cipher.suites)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate, which ssl.client.auth=required demands",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that this broker's certificate has expired",
}


def _reason(error: Exception) -> str:
    """The cause, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate was rejected: {error.verify_message}"
    reason = getattr(error, "reason", None)
    return _REASONS.get(reason or "", reason or str(error))
