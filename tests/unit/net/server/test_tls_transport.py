"""TLS on real sockets: how its records become requests, how a connection ends, and how much memory it keeps."""

# ruff: noqa: SLF001  (checks internal state)

import asyncio
import gc
import logging
import re
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.net.server.connection import Disconnect
from ottla.net.server.server import Connection, ListenerSecurity, Server
from ottla.net.server.tls_phase import BROKEN, ENDED, FAILED, HANDSHAKING, NEW, SECURED, TRANSITIONS, Phase, move
from ottla.net.server.tls_transport import PIECE_BYTES, TlsTransport
from ottla.security.principal import Principal
from tests.support.secure_brokers import Security
from tests.support.waiting import eventually_async
from tests.support.wire.frame_server import connected, frame

Run = Callable[[Coroutine[Any, Any, None]], None]

FORGED = b"\x17\x03\x03\x00\x20" + bytes(32)
"""A record of TLS whose checksum is wrong."""


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    return Security(tmp_path_factory.mktemp("tls"))


class Peer:
    """A client that decides which records of TLS are sent together."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, security: Security) -> None:
        self.reader, self.writer = reader, writer
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = security.client_context().wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def shake_hands(self) -> None:
        while True:
            try:
                self.session.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.send()
                self.incoming.write(await self.reader.read(1 << 16))
        self.send()

    def encrypt(self, data: bytes) -> None:
        """Adds one record of TLS, for data of up to 16 KiB."""
        self.session.write(data)

    def send(self, more: bytes = b"") -> None:
        """Everything that was encrypted, and `more` bytes as they are."""
        self.writer.write(self.outgoing.read() + more)

    async def receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                found += self.session.read(size - len(found))
            except ssl.SSLWantReadError:
                self.incoming.write(await self.reader.read(1 << 18))
        return bytes(found)


class World:
    """A server that echoes, and one peer of it."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.answer: Callable[[bytes], bytes] = bytes
        self.server: Server
        self.peer: Peer

    def handle(self, request: bytes | memoryview, connection: Connection) -> bytes:
        self.requests.append(bytes(request))
        return frame(self.answer(bytes(request)))

    @property
    def connection(self) -> Connection:
        (found,) = self.server.connections
        return found


@asynccontextmanager
async def world(security: Security) -> AsyncIterator[World]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(security.broker_file)
    made = World()
    made.server = server = Server(made.handle)
    port = await server.listen("127.0.0.1", 0, "SSL", security=ListenerSecurity(tls_context=lambda: context))
    try:
        async with connected(port) as (reader, writer):
            made.peer = Peer(reader, writer, security)
            await made.peer.shake_hands()
            await eventually_async(lambda: len(server.connections) == 1)
            yield made
    finally:
        await server.close()


# --- the table of phases ----------------------------------------------------------------------------------


def test_the_table_of_phases_is_exactly_this_one() -> None:
    assert {phase: set(TRANSITIONS[phase]) for phase in Phase} == {
        NEW: {HANDSHAKING, FAILED},
        HANDSHAKING: {FAILED, SECURED},
        FAILED: set(),
        SECURED: {ENDED, BROKEN},
        ENDED: set(),
        BROKEN: set(),
    }


def test_a_forbidden_change_of_phase_is_a_bug() -> None:
    assert move(HANDSHAKING, SECURED) is SECURED
    with pytest.raises(AssertionError, match="cannot move from FAILED to SECURED"):
        move(FAILED, SECURED)


# --- real connections -------------------------------------------------------------------------------------


def test_a_failed_handshake_is_counted_once(run: Run, security: Security, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the client then resets the connection."""
    original = TlsTransport.connection_lost
    monkeypatch.setattr(TlsTransport, "connection_lost", lambda self, _: original(self, ConnectionResetError()))

    def nobody(certificate: bytes | None) -> Principal:
        raise Disconnect("the certificate belongs to nobody")

    async def story() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(security.broker_file)
        server = Server(lambda request, connection: b"")
        refusing = ListenerSecurity(tls_context=lambda: context, principal_of=nobody)
        port = await server.listen("127.0.0.1", 0, "SSL", security=refusing)
        async with connected(port) as (reader, writer):
            await Peer(reader, writer, security).shake_hands()
            await eventually_async(lambda: server.failed_handshakes > 0 and not len(server.newcomers))
        await server.close()
        assert server.failed_handshakes == 1

    run(story())


class Recorder:
    """The transport of a socket that remembers how large the pieces were."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: list[bytes]) -> None:
        self.sizes += map(len, parts)
        self.raw.writelines(parts)


def test_small_records_of_tls_are_handled_together(
    run: Run, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka sends a request of a megabyte in a thousand records."""

    async def story() -> None:
        async with world(security) as at:
            deliveries: list[int] = []
            original = Connection.buffer_updated

            def count(self: Connection, nbytes: int) -> None:
                deliveries.append(nbytes)
                original(self, nbytes)

            monkeypatch.setattr(Connection, "buffer_updated", count)
            request = frame(bytes(range(256)) * 120)
            for start in range(0, len(request), 100):
                at.peer.encrypt(request[start : start + 100])
            at.peer.send()
            assert await at.peer.receive(len(request)) == request
            assert len(deliveries) <= 8, deliveries  # of 308

    run(story())


def test_requests_before_a_goodbye_are_handled(run: Run, security: Security) -> None:
    async def story() -> None:
        async with world(security) as at:
            at.peer.encrypt(frame(b"first"))
            at.peer.encrypt(frame(b"second"))
            with pytest.raises(ssl.SSLWantReadError):
                at.peer.session.unwrap()
            at.peer.send()
            await eventually_async(lambda: not at.server.connections)
            assert at.requests == [b"first", b"second"]

    run(story())


@pytest.mark.parametrize("end", [ENDED, BROKEN])
def test_an_end_in_the_middle_of_a_large_request_frees_its_memory_at_once(
    run: Run, security: Security, monkeypatch: pytest.MonkeyPatch, end: Phase
) -> None:
    """Not with the next garbage collection: nothing that is kept of a goodbye or an error may refer to the buffer."""
    buffers: list[weakref.ref[memoryview]] = []
    original = Connection.get_buffer

    def noted(self: Connection, sizehint: int) -> memoryview:
        buffer = original(self, sizehint)
        if buffer is not self._server.receive_view:  # which all connections share
            buffers.append(weakref.ref(buffer))
        return buffer

    monkeypatch.setattr(Connection, "get_buffer", noted)

    async def story() -> None:
        async with world(security) as at:
            at.peer.encrypt((1 << 20).to_bytes(4, "big") + bytes(500_000))
            at.peer.send()
            await eventually_async(lambda: at.connection.parser.filled > 0)
            left = at.connection
            if end is ENDED:
                with pytest.raises(ssl.SSLWantReadError):
                    at.peer.session.unwrap()
                at.peer.send()
            else:
                at.peer.send(FORGED)
            await eventually_async(lambda: not at.server.connections)
            assert left.transport._phase is end  # type: ignore[attr-defined]
            assert buffers
            assert not any(buffer() for buffer in buffers)

    gc.disable()
    try:
        run(story())
    finally:
        gc.enable()


def test_requests_before_a_forged_record_are_handled_and_the_log_says_why_it_ended(
    run: Run, security: Security, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with world(security) as at:
            at.peer.encrypt(frame(b"genuine"))
            at.peer.send(FORGED)
            await eventually_async(lambda: not at.server.connections)
            assert at.requests == [b"genuine"]

    caplog.set_level(logging.INFO)
    run(story())
    # OpenSSL 3.4 and newer give the second name.
    assert re.search("TLS: (DECRYPTION_FAILED_OR_BAD_RECORD_MAC|RECORD_LAYER_FAILURE)", caplog.text)


def test_the_end_of_a_connection_is_noticed_after_a_pause(run: Run, security: Security) -> None:
    async def story() -> None:
        async with world(security) as at:
            connection = at.connection

            def answer(request: bytes) -> bytes:
                connection.mute(300)
                return request

            at.answer = answer
            for number in range(3):
                at.peer.encrypt(frame(b"%d" % number))
            with pytest.raises(ssl.SSLWantReadError):
                at.peer.session.unwrap()
            at.peer.send()
            await eventually_async(lambda: not at.server.connections)
            assert at.requests[:1] == [b"0"]

    run(story())


def test_openssl_gets_large_requests_and_responses_in_small_pieces(run: Run, security: Security) -> None:
    """Its buffers never shrink: with half a megabyte at once, each of a thousand consumers would keep that."""

    async def story() -> None:
        async with world(security) as at:
            transport: Any = at.connection.transport
            transport._raw = recorder = Recorder(transport._raw)
            request = frame(bytes(range(256)) * 8192)
            for start in range(0, len(request), 16384):
                at.peer.encrypt(request[start : start + 16384])
            at.peer.send()
            assert await at.peer.receive(len(request)) == request
            assert max(recorder.sizes) < 1.5 * PIECE_BYTES

    run(story())
