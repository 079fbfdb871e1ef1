"""Frames (a size, a header, a message), and stored blobs that start with their version or type. Pure.

ApiVersions is special, because it is sent before both sides agree on versions: its response always has the oldest
header, and a request of an unknown version still has a readable header (KIP-511).
"""

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from ottla.errors import ErrorCode
from ottla.protocol.api import API, ApiKey
from ottla.protocol.primitives import MALFORMED, MISFIT, Buffer, ProtocolError, skip_tags
from ottla.protocol.response_parts import ResponseParts
from ottla.protocol.schema import Message

M = TypeVar("M", bound=Message)

_REQUEST_HEADER = struct.Struct(">hhih")
_REQUEST_PREFIX = struct.Struct(">ihhih")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_SIZE_CORRELATION = struct.Struct(">ii")
_SIZE_CORRELATION_NO_TAGS = struct.Struct(">iix")
_API_VERSIONS = int(ApiKey.API_VERSIONS)

LARGE_PART_BYTES = 8192
"""From this size on, passing bytes as a separate part is cheaper than copying them into a frame."""


INLINE_RECORDS_BYTES = 128 * 1024
"""Up to this size, a response with records is one block of memory. Records beyond it may stay in their files."""


class RequestHeader(NamedTuple):
    """The header of a request. The body starts at `body_offset` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    """Empty if the client sent none."""
    body_offset: int


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Reads the header of a request frame (without its size)."""
    try:
        api_key, api_version, correlation_id, length = _REQUEST_HEADER.unpack_from(frame)
        api = API.get(api_key)
        if api is None:
            raise ProtocolError(f"unknown API key {api_key}")
        position = 10
        client_id = ""
        if length > 0:
            position += length
            client_id = str(frame[10:position], "utf-8")  # a slice is clipped: its end is checked below
        elif length < -1:
            raise ProtocolError("client_id has a negative length")
        if not api.min_version <= api_version <= api.max_version:
            # The body cannot be read, but ApiVersions must be answered: the response lists the versions we support.
            if api_key != _API_VERSIONS:
                raise ProtocolError(f"{api.name} has no version {api_version}")
        elif api.flexible_since is not None and api_version >= api.flexible_since:
            tags = frame[position]
            position += 1
            if tags:
                position = skip_tags(frame, position, tags)
    except MALFORMED as error:
        raise ProtocolError(f"request header: {error}") from None
    if position > len(frame):
        raise ProtocolError("request header: it ends within client_id")
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def _join(message: Message, version: int, chunks: list[Buffer]) -> bytes:
    """Joins the chunks of an encoded message and its header."""
    try:
        return b"".join(chunks)
    except TypeError:
        message.encode(version)  # says which field is not bytes
        raise


def encode_request(key: int, version: int, correlation_id: int, client_id: str | None, message: Message) -> bytes:
    """A whole request frame, its size first."""
    return _join(message, version, _request_chunks(key, version, correlation_id, client_id, message))


def encode_request_parts(
    key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Buffer]:
    """The same frame in a few parts: large values are separate parts and are not copied."""
    chunks = _request_chunks(key, version, correlation_id, client_id, message)
    parts: list[Buffer] = []
    start = 0
    for index, chunk in enumerate(chunks):
        if len(chunk) >= LARGE_PART_BYTES and isinstance(chunk, bytes | bytearray | memoryview):
            parts += (_join(message, version, chunks[start:index]), chunk)
            start = index + 1
    parts.append(_join(message, version, chunks[start:]))
    return parts


def _request_chunks(
    key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Buffer]:
    chunks: list[Buffer] = [b""]
    message.encode_chunks(chunks, version)
    try:
        name = b"" if client_id is None else client_id.encode()
        tags = b"\0" if API[key].is_flexible(version) else b""
        size = 10 + len(name) + len(tags) + sum(map(len, chunks))
        length = -1 if client_id is None else len(name)
        chunks[0] = _REQUEST_PREFIX.pack(size, key, version, correlation_id, length) + name + tags
    except MISFIT as error:
        raise ProtocolError(f"request header: {error}") from None
    return chunks


def encode_response(key: int, version: int, correlation_id: int, message: Message) -> bytes:
    """A whole response frame, its size first."""
    response = encode_response_parts(key, version, correlation_id, message)
    return response if isinstance(response, bytes) else b"".join(response.take(response.remaining))


def encode_response_parts(key: int, version: int, correlation_id: int, message: Message) -> bytes | ResponseParts:
    """The same frame. Large records stay separate parts, which are neither copied nor read."""
    chunks: list[Any] = [b""]
    message.encode_chunks(chunks, version)
    header = _response_header(key, version)
    try:
        if not message.carries_records:
            body = b"".join(chunks)
            return header.pack(header.size - 4 + len(body), correlation_id) + body
        # Adding up the lengths of the chunks costs more than copying a small body, but less than a large one.
        size = header.size + sum(map(len, chunks))
        chunks[0] = header.pack(size - 4, correlation_id)
    except TypeError:
        message.encode(version)  # says which field is not bytes
        raise
    except MISFIT as error:
        raise ProtocolError(f"response header: {error}") from None
    return _join(message, version, chunks) if size <= INLINE_RECORDS_BYTES else ResponseParts(chunks, size)


@cache
def _response_header(key: int, version: int) -> struct.Struct:
    """Size and correlation id, with an empty tag section in flexible versions."""
    return _SIZE_CORRELATION_NO_TAGS if API[key].is_flexible(version) and key != _API_VERSIONS else _SIZE_CORRELATION


def decode_response(key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """The correlation id and the message of a response frame (without its size).

    A broker that does not know the version of an ApiVersions request answers in version 0 (KIP-511).
    """
    api = API[key]
    try:
        (correlation_id,) = _INT32.unpack_from(frame)
        position = 4
        if api.is_flexible(version) and key != _API_VERSIONS:
            position = 5
            if frame[4]:
                position = skip_tags(frame, 5, frame[4])
        if key == _API_VERSIONS and _INT16.unpack_from(frame, 4)[0] == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
    except MALFORMED as error:
        raise ProtocolError(f"response header: {error}") from None
    return correlation_id, api.response.decode(frame, version, position)


# Stored blobs: an int16, then a message. For keys of coordinator records the number is the record's type, for
# everything else the version.


def encode_versioned(message: Message, version: int) -> bytes:
    """A message prefixed with its version: values of coordinator records, and the consumer protocol."""
    return _INT16.pack(version) + message.encode(version)


def decode_versioned(cls: type[M], blob: Buffer, *, accept_newer: bool = False) -> M:
    """Reads what `encode_versioned` writes.

    With `accept_newer`, a version above the newest known one is read as the newest, and the rest is ignored, as the
    consumer protocol and control records require.
    """
    version = _read_int16(cls.__name__, blob)
    if accept_newer and version > cls.versions[-1]:
        version = cls.versions[-1]
    return cls.decode(blob, version, 2)


def encode_record_key(key: Message) -> bytes:
    """The key of a coordinator's record, prefixed with its type."""
    return _INT16.pack(key.api_key) + key.encode(0)


def decode_record_key(keys: Mapping[int, type[Message]], blob: Buffer) -> Message | None:
    """The key of a coordinator's record, or None for a type not in `keys`: unknown records are skipped."""
    cls = keys.get(_read_int16("record key", blob))
    return None if cls is None else cls.decode(blob, 0, 2)


def _read_int16(name: str, blob: Buffer) -> int:
    if len(blob) < 2:
        raise ProtocolError(f"{name}: {len(blob)} bytes are too short")
    return int(_INT16.unpack_from(blob)[0])
