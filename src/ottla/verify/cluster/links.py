"""OWNER of proxies between clients, brokers and the metadata store, whose links can be cut.

A cut link loses nothing and reports nothing: bytes wait, as they do on a network that drops every packet. When the link
heals, connections continue, except those that one side has closed meanwhile: their undelivered bytes are lost.
The client id in the first request identifies the sender of a connection: brokers use `broker-<id>`.
"""

import asyncio
import contextlib
import struct
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

CLIENTS, STORE = "clients", "store"
PIECE_BYTES = 65_536
CLOSING_TURNS = 10
_HEAD = struct.Struct(">ihhih")
"""Size, API key, version, correlation id, and the length of the client id that follows."""
T = TypeVar("T")


class Links:
    """Proxies on one event loop in its own thread. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._cut: set[frozenset[str]] = set()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="verify-links", daemon=True)
        self._thread.start()

    def open(self, target: str, port: int, source: str = "") -> int:
        """Starts a proxy for a server on this machine and returns its port.

        `target` names the server. `source` names the sender; without it, the first request identifies it.
        """
        return self._call(self._open(target, port, source))

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Cuts the links between these parties, in both directions."""
        self._call(self._set({frozenset(pair) for pair in pairs}, set()))

    def heal(self, *pairs: tuple[str, str]) -> None:
        self._call(self._set(set(), {frozenset(pair) for pair in pairs}))

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _open(self, target: str, port: int, source: str) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._serve(reader, writer, target, port, source)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                self._tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=PIECE_BYTES)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _set(self, cut: set[frozenset[str]], healed: set[frozenset[str]]) -> None:
        self._cut = (self._cut | cut) - healed
        self._changed.set()
        self._changed = asyncio.Event()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        # Connections that were waiting to be accepted get their tasks a moment later.
        for _ in range(CLOSING_TURNS):
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, port: int, source: str
    ) -> None:
        first = b""
        if not source:
            first = await reader.readexactly(_HEAD.size)
            length = _HEAD.unpack(first)[4]
            name = await reader.readexactly(max(0, length))
            first += name
            source = name.decode(errors="replace") if name.startswith(b"broker-") else CLIENTS
        link = frozenset((source, target))
        await self._until_healed(link)
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port, limit=PIECE_BYTES)
        try:
            to_writer.write(first)
            there = asyncio.create_task(self._pump(link, reader, to_writer))
            back = asyncio.create_task(self._pump(link, to_reader, writer))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (there, back):
                    task.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        finally:
            to_writer.close()

    async def _pump(self, link: frozenset[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            if link in self._cut:
                await self._until_healed(link)
                if reader.at_eof() or writer.is_closing():
                    return  # closed meanwhile
            writer.write(piece)
            with contextlib.suppress(ConnectionError):
                await writer.drain()

    async def _until_healed(self, link: frozenset[str]) -> None:
        while link in self._cut:
            await self._changed.wait()
