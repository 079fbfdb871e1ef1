"""The HTTP/1.1 connection to etcd, against a peer that answers byte by byte, wrongly, or not at all."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.metadata.etcd.http import BODY_BYTES_MAX, HttpConnection, HttpError
from ottla.metadata.etcd.location import Member

OK = b"HTTP/1.1 200 OK\r\n"


def talk(pieces: list[bytes], story: Callable[[HttpConnection], Coroutine[Any, Any, None]]) -> list[bytes]:
    """Runs `story` with a connection to a peer that sends these pieces as its answers. Returns the requests."""
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")
            )
            seen.append(head + await reader.readexactly(length))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def whole() -> None:
        async with asyncio.timeout(10):
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            connection = HttpConnection(Member("127.0.0.1", server.sockets[0].getsockname()[1]), None)
            try:
                await connection.open()
                await story(connection)
            finally:
                connection.close()
                server.close()
                await server.wait_closed()

    asyncio.run(whole())
    return seen


def post(pieces: list[bytes]) -> tuple[int, bytes]:
    found: list[tuple[int, bytes]] = []

    async def story(connection: HttpConnection) -> None:
        found.append(await connection.post("/v3/x", b"{}", {"Authorization": "t"}))

    (request,) = talk(pieces, story)
    assert request.startswith(b"POST /v3/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: t\r\n" in request
    assert request.endswith(b"\r\n\r\n{}")
    return found[0]


def lines(pieces: list[bytes]) -> list[bytes]:
    found: list[bytes] = []

    async def story(connection: HttpConnection) -> None:
        found.extend([line async for line in connection.post_for_lines("/v3/watch", b"{}", {})])

    talk(pieces, story)
    return found


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_answer_may_arrive_in_pieces_of_any_size(size: int) -> None:
    assert post(cut(OK + b"Content-Length: 5\r\n\r\nhello", size)) == (200, b"hello")
    assert post(cut(CHUNKED + b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: x\r\n\r\n", size)) == (200, b"hello")
    assert lines(cut(CHUNKED + b'5\r\n{"a":\r\n4\r\n1}\n{\r\n3\r\n"b"\r\n4\r\n:2}\n\r\n0\r\n\r\n', size)) == [
        b'{"a":1}',
        b'{"b":2}',
    ]


def test_a_last_line_without_an_end_is_a_line() -> None:
    assert lines([OK + b"Content-Length: 3\r\n\r\na\nb"]) == [b"a", b"b"]


def test_an_answer_without_a_body_is_empty() -> None:
    assert post([b"HTTP/1.1 204 No Content\r\n\r\n"]) == (204, b"")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 two\r\n\r\n",
        b"HTTP/1.1 \xb2 OK\r\n\r\n",  # a superscript two
        OK + b"Content-Length: many\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1),
        OK + b"Content-Length: 10\r\n\r\nshort",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"3\r\nhel\r\n",
        OK + b"X: " + b"y" * (1 << 17) + b"\r\n\r\n",
    ],
)
def test_an_invalid_answer_is_an_error_of_the_connection(answer: bytes) -> None:
    with pytest.raises(HttpError):
        post([answer])


def test_a_connection_that_the_peer_closes_is_not_used_again() -> None:
    async def story(connection: HttpConnection) -> None:
        await connection.post("/", b"{}", {})
        assert not connection.is_open

    talk([OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n"], story)
