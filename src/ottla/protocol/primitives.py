"""Unsigned varints, tag sections, and the error for bytes that cannot be decoded. Pure.

The compiled codecs (compiler.py) inline the common cases and call in here for the rest. None of these
functions checks for the end of the buffer: reading past it raises IndexError or struct.error, which the
caller at the edge turns into ProtocolError.
"""

import struct

Buffer = bytes | bytearray | memoryview

LENGTH_MAX = 2**31 - 1
"""Lengths and counts are Java ints."""

STRING_MAX = 0x7FFF
"""The limit of a string in bytes, in the compact and in the classic form."""

REQUEST_ITEMS_MAX = 50_000
"""The most items in all arrays of one request. An item of two bytes becomes an object of a hundred, and takes about
5 µs to serve, so a request takes at most a quarter of a second."""

TAGS_MAX = 100
"""The most tagged fields of one struct. The published messages have three or less; unknown ones are skipped."""

MALFORMED = (struct.error, IndexError, UnicodeDecodeError)
"""What decoding raises internally if bytes run out or are not UTF-8."""

MISFIT = (struct.error, TypeError, AttributeError, UnicodeEncodeError, OverflowError)
"""What encoding raises internally if a value does not fit its field."""

ONE_BYTE = tuple(bytes([n]) for n in range(128))
"""The unsigned varints below 128."""


class ProtocolError(ValueError):
    """Bytes that are not a valid message, or a message that cannot be encoded in the requested version."""


def uvarint(value: int) -> bytes:
    """An unsigned varint: seven bits a byte, the lowest first.

    >>> uvarint(300).hex()
    'ac02'
    """
    if value < 128:
        return ONE_BYTE[value]
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7))
    if value > 0xFFFFFFFF:
        raise ProtocolError(f"{value} is too large for an unsigned varint")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def string_length(length_plus_one: int, name: str) -> bytes:
    """The compact length of a string of 127 bytes or more."""
    if length_plus_one > STRING_MAX + 1:
        raise ProtocolError(f"{name}: {length_plus_one - 1} bytes are too many for a string")
    return uvarint(length_plus_one)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """The unsigned varint at `position`, and the position after it.

    >>> read_uvarint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    first = buffer[position]
    return (first, position + 1) if first < 128 else finish_uvarint(buffer, position + 1, first)


def finish_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Reads the rest of a varint whose first byte, just before `position`, announced more."""
    byte = buffer[position]
    value = first & 127 | (byte & 127) << 7
    position += 1
    shift = 14
    while byte > 127:
        if shift > 28:
            raise ProtocolError("an unsigned varint is longer than five bytes")
        byte = buffer[position]
        value |= (byte & 127) << shift
        position += 1
        shift += 7
    if value > LENGTH_MAX + 1:
        raise ProtocolError(f"the unsigned varint {value} is larger than any length")
    return value, position


def read_tag(buffer: Buffer, position: int, previous: int) -> tuple[int, int, int]:
    """The head of one tagged field: its tag, where its value starts, and where it ends."""
    tag, position = read_uvarint(buffer, position)
    if tag <= previous:
        raise ProtocolError(f"tag {tag} follows tag {previous}: tags must ascend")
    size, position = read_uvarint(buffer, position)
    end = position + size
    if end > len(buffer):
        raise ProtocolError(f"tag {tag} is {size} bytes long, {len(buffer) - position} are left")
    return tag, position, end


def read_tag_count(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """The number of tagged fields, from its first byte; the position is the one after that byte."""
    count = first
    if first > 127:
        count, position = finish_uvarint(buffer, position, first)
    if count > TAGS_MAX:
        raise ProtocolError(f"{count} tagged fields are too many: a struct has at most {TAGS_MAX}")
    # The smallest tagged field is two bytes: its tag and a size of zero.
    if count * 2 > len(buffer) - position:
        raise ProtocolError(f"{count} tagged fields do not fit into {len(buffer) - position} bytes")
    return count, position


def skip_tags(buffer: Buffer, position: int, first: int) -> int:
    """Skips a tag section without known tags. Returns the position after it."""
    count, position = read_tag_count(buffer, position, first)
    tag = -1
    for _ in range(count):
        tag, _, position = read_tag(buffer, position, tag)
    return position
