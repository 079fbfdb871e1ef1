"""OWNER of HTTP/1.1 connections to etcd's JSON gateway: one request at a time, answers whole or as a stream of lines.

Only what etcd's gateway needs: POST, answers with a length or in chunks, persistent connections. Anything else is an
error that closes the connection.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping

from ottla.checks import unsigned_from_text
from ottla.metadata.etcd.location import Member

HEADER_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 256 << 20
_LIMIT = 1 << 20
_LONG_HEADER = f"the header of the answer has more than {HEADER_BYTES_MAX} bytes"


class HttpError(OSError):
    """The peer sent something that is not an HTTP response."""


class HttpConnection:
    """One connection. After any exception it must be closed."""

    def __init__(self, member: Member, context: ssl.SSLContext | None) -> None:
        self.member = member
        self._context = context
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            self.member.host,
            self.member.port,
            limit=_LIMIT,
            ssl=self._context,
            server_hostname=self.member.host if self._context is not None else None,
        )

    @property
    def is_open(self) -> bool:
        """Whether the connection can be reused: the peer is not known to have closed it."""
        return self._writer is not None and self._reader is not None and not self._reader.at_eof()

    def close(self) -> None:
        if self._writer is not None:
            # Aborted, not closed gracefully: an outstanding response may never arrive.
            self._writer.transport.abort()
            self._writer = self._reader = None

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """The status and the whole body of the answer."""
        status, found = await self._ask(path, body, headers)
        pieces, size = [], 0
        async for piece in self._body(found):
            size += len(piece)
            if size > BODY_BYTES_MAX:
                raise HttpError(f"the answer has more than {BODY_BYTES_MAX} bytes")
            pieces.append(piece)
        if found.get("connection", "").lower() == "close":
            self.close()
        return status, b"".join(pieces)

    async def post_for_lines(self, path: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The lines of an answer that does not end. The first line of an error's body is a line like any other."""
        _, found = await self._ask(path, body, headers)
        parts: list[bytes] = []
        async for piece in self._body(found):
            *complete, rest = piece.split(b"\n")
            for line in complete:
                parts.append(line)
                if whole := b"".join(parts):
                    yield whole
                parts.clear()
            if rest:
                parts.append(rest)
        if whole := b"".join(parts):
            yield whole

    async def _ask(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, dict[str, str]]:
        assert self._reader is not None, "the connection is not open"
        assert self._writer is not None
        lines = [f"POST {path} HTTP/1.1", f"Host: {self.member}", "Content-Type: application/json"]
        lines += [f"{header}: {value}" for header, value in headers.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1") + body)
        await self._writer.drain()
        return await self._read_head(self._reader)

    async def _read_head(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise HttpError("the connection was closed before the answer") from error
        except asyncio.LimitOverrunError as error:
            raise HttpError(_LONG_HEADER) from error
        if len(head) > HEADER_BYTES_MAX:
            raise HttpError(_LONG_HEADER)
        first, *fields = head[:-4].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status = unsigned_from_text(rest.partition(" ")[0])
        if not version.startswith("HTTP/1.") or status is None:
            raise HttpError(f"the answer is not HTTP: {first[:60]!r}")
        found = {}
        for line in fields:
            name, _, value = line.partition(":")
            found[name.strip().lower()] = value.strip()
        return status, found

    async def _body(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        reader = self._reader
        assert reader is not None
        try:
            if headers.get("transfer-encoding", "").lower() == "chunked":
                while size := _size(await reader.readuntil(b"\r\n"), 16):
                    yield await reader.readexactly(size)
                    await reader.readexactly(2)
                while await reader.readuntil(b"\r\n") != b"\r\n":
                    pass  # trailers
            elif size := _size(headers.get("content-length", "0").encode(), 10):
                yield await reader.readexactly(size)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise HttpError("the answer is incomplete") from error


def _size(text: bytes, base: int) -> int:
    try:
        size = int(text.partition(b";")[0].strip(), base)
    except ValueError:
        raise HttpError(f"{text[:20]!r} is not the size of an answer") from None
    if not 0 <= size <= BODY_BYTES_MAX:
        raise HttpError(f"the answer has {size} bytes (limit: {BODY_BYTES_MAX})")
    return size
