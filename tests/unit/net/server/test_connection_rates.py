"""Limits of new connections on real sockets: they apply before TLS, and a muted peer that leaves is noticed."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.net.server.connection_rates import ConnectionRates
from ottla.net.server.server import Connection, Limits, ListenerSecurity, Server
from tests.support.secure_brokers import Security
from tests.support.waiting import eventually_async
from tests.support.wire.frame_server import connected, frame, read_frame, serving

Run = Callable[[Coroutine[Any, Any, None]], None]
FREE = 10
"""With one connection per second, so many are accepted at once: ten seconds' worth."""


def echo(request: bytes | memoryview, connection: Connection) -> bytes:
    return frame(bytes(request))


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    return Security(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def tls_serving(security: Security, limits: Limits | None = None) -> AsyncIterator[tuple[Server, int]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(security.broker_file)
    server = Server(echo, limits)
    port = await server.listen("127.0.0.1", 0, "SSL", security=ListenerSecurity(tls_context=lambda: context))
    try:
        yield server, port
    finally:
        await server.close()


def limited(server: Server, *, address: float | None = None, broker: float | None = None) -> ConnectionRates:
    server.rates = rates = ConnectionRates()
    if address is not None:
        rates.by_address = {"": address}
    if broker is not None:
        rates.by_listener = {"": broker}
    return rates


def client_hello(security: Security) -> bytes:
    """The first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = security.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


async def greet(security: Security, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a complete handshake and a request."""
    reader, writer = await asyncio.open_connection("localhost", port, ssl=security.client_context())
    writer.write(frame(b"hello"))
    assert await read_frame(reader) == b"hello"
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> bytes:
    """All bytes until the end. A connection whose bytes were never read ends with a reset."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def test_an_address_above_its_rate_gets_no_handshake(run: Run, security: Security) -> None:
    async def story() -> None:
        async with tls_serving(security) as (server, port):
            rates = limited(server, address=1)
            opened = [await greet(security, port) for _ in range(FREE)]
            assert rates.refused == 0, "a connection with TLS counts once"
            async with connected(port) as (reader, writer):
                writer.write(client_hello(security))
                assert await answer(reader) == b"", "not one byte of a handshake"
            assert (server.refused, server.failed_handshakes, len(server.newcomers)) == (1, 0, 0)
            for _, each in opened:
                each.close()

    run(story())


def test_above_the_brokers_rate_the_handshake_waits_its_turn(run: Run, security: Security) -> None:
    async def story() -> None:
        async with tls_serving(security) as (server, port):
            rates = limited(server, broker=2)
            # On a busy machine these take so long that the next one need not wait.
            begun = asyncio.get_running_loop().time()
            opened = [await greet(security, port) for _ in range(2 * FREE)]
            assert rates.delayed == 0
            async with connected(port) as (reader, writer):
                writer.write(client_hello(security))
                assert await reader.readexactly(1)
                assert asyncio.get_running_loop().time() - begun > 0.3
            opened.append(await greet(security, port))
            for _, each in opened:
                each.close()

    run(story())


def test_too_many_connections_of_an_address_are_refused_before_the_handshake(run: Run, security: Security) -> None:
    async def story() -> None:
        async with tls_serving(security, Limits(max_connections_per_host=1)) as (server, port):
            _, first = await greet(security, port)
            async with connected(port) as (reader, writer):
                writer.write(client_hello(security))
                assert await answer(reader) == b""
            assert server.refused == 1
            first.close()

    run(story())


def test_without_tls_a_connection_that_came_too_soon_is_not_read(run: Run) -> None:
    async def story() -> None:
        async with serving(echo) as (server, port):
            limited(server, address=1)
            for _ in range(FREE):
                async with connected(port) as (reader, writer):
                    writer.write(frame(b"x"))
                    assert await read_frame(reader) == b"x"
            async with connected(port) as (reader, writer):
                writer.write(frame(b"x"))
                assert await answer(reader) == b""
            assert server.refused == 1

    run(story())


@pytest.mark.parametrize("leaves", ["close", "reset"])
@pytest.mark.parametrize("uses_tls", [False, True])
def test_a_muted_peer_that_leaves_is_noticed_at_once(run: Run, security: Security, leaves: str, uses_tls: bool) -> None:
    async def story() -> None:
        async with tls_serving(security) if uses_tls else serving(mute) as (server, port):
            server.handle = mute
            context = security.client_context() if uses_tls else None
            reader, writer = await asyncio.open_connection("localhost" if uses_tls else "127.0.0.1", port, ssl=context)
            writer.write(frame(b"x"))
            assert await read_frame(reader) == b"x"
            assert len(server.connections) == 1
            if leaves == "close":
                writer.close()
            else:
                writer.transport.abort()
            await eventually_async(lambda: not server.connections)

    run(story())


def mute(request: bytes | memoryview, connection: Connection) -> bytes:
    connection.mute(60_000)
    return frame(bytes(request))


def test_a_muted_peer_that_goes_on_sending_is_read_no_further(run: Run) -> None:
    async def story() -> None:
        async with serving(mute) as (server, port), connected(port) as (reader, writer):
            writer.write(frame(b"x"))
            assert await read_frame(reader) == b"x"
            for _ in range(200):
                writer.write(frame(bytes(50_000)))
            await asyncio.sleep(0.2)
            assert server.bytes_in < 2_000_000, "what arrives stays in the kernel"
            (connection,) = server.connections
            connection._unmute()  # noqa: SLF001 - the pause is over
            assert await read_frame(reader) == bytes(50_000)

    run(story())
