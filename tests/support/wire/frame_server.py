"""A server and raw connections to it, for tests of frames."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from ottla.net.server.server import Connection, Limits, Server

MIB = 1024 * 1024


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def echo(request: bytes | memoryview, connection: Connection) -> bytes:
    return frame(bytes(request))


@asynccontextmanager
async def serving(
    handle: Any, limits: Limits | None = None, *, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[Server, int]]:
    server = Server(handle, limits)
    port = await server.listen(host, 0)
    try:
        yield server, port
    finally:
        await server.close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


Run = Callable[[Coroutine[Any, Any, None]], None]


class Parking:
    """A handler that parks requests starting with `wait` until the test lets them go."""

    def __init__(self) -> None:
        self.parked: dict[bytes, asyncio.Future[bytes | None]] = {}
        self.seen: list[bytes] = []

    def __call__(self, request: bytes | memoryview, connection: Connection) -> bytes | Awaitable[bytes | None]:
        body = bytes(request)
        self.seen.append(body)
        if not body.startswith(b"wait"):
            return frame(body)
        self.parked[body] = asyncio.get_running_loop().create_future()
        return self.parked[body]

    def release(self, body: bytes) -> None:
        self.parked[body].set_result(frame(body))
