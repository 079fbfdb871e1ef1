"""The record kernels in plain Python, function for function the same as `_kernels.py`. Pure.

Used where the extension is not built, or with `OTTLA_PURE=1`. Both implementations accept and reject (ValueError) the
same data and return equal results: one test suite runs over both. A *record section* is what follows a batch's
header, uncompressed; it is passed as a buffer, a start and an end.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from ottla.protocol.records.batch_layout import (
    AFTER_CRC_FORMAT,
    CODEC_MASK,
    CRC_END,
    HEADER_FORMAT,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    RECORD_SIZE_MIN,
    UNTIL_CRC_FORMAT,
)

BytesLike = bytes | bytearray | memoryview
Headers = Iterable[tuple[str, BytesLike | None]]
Row = tuple[int, BytesLike | None, BytesLike | None, Headers | None]
T = TypeVar("T")

INTERFACE = 4
"""Increased with every change of a kernel's signature or behaviour, so that a stale build is not used."""

NULL_KEYS_MAX = 1000
"""The most records without a key that an error lists: all those of a large batch would waste memory."""

_HEADER = struct.Struct(HEADER_FORMAT)
_UNTIL_CRC, _AFTER_CRC = struct.Struct(UNTIL_CRC_FORMAT), struct.Struct(AFTER_CRC_FORMAT)
_HEADER_SIZE_MIN = 2  # of one header of one record
_INT32_MAX = 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_new = tuple.__new__


def unpack_header(
    header_type: type[T], buffer: BytesLike, position: int, crc32c: Callable[..., int] | None = None
) -> T:
    """The 13 fields of a batch's header as a `header_type`. Raises ValueError if no batch can have such a header.

    With `crc32c` the whole batch must be in the buffer, and its checksum must match.
    """
    if position < 0:
        raise ValueError(f"a batch cannot begin at {position}")
    try:
        fields = _HEADER.unpack_from(buffer, position)
    except struct.error:
        raise ValueError(f"a batch header takes {HEADER_SIZE} bytes, fewer are left") from None
    _, batch_length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, record_count = fields
    if magic != MAGIC:
        raise ValueError(f"magic {magic} is not a batch of format 2")
    if batch_length < HEADER_SIZE - LENGTH_END:
        raise ValueError(f"a batch cannot be {batch_length} bytes long")
    if last_offset_delta < 0 or record_count < 0:
        raise ValueError(f"{record_count} records up to offset delta {last_offset_delta}")
    if attributes & CODEC_MASK > 4:
        raise ValueError(f"unknown codec {attributes & CODEC_MASK}")
    if crc32c is not None:
        with memoryview(buffer) as view:
            end = position + LENGTH_END + batch_length
            if end > len(view):
                raise ValueError(f"{batch_length + LENGTH_END} bytes announced, {len(view) - position} left")
            found = crc32c(view[position + CRC_END : end])
        if found != crc:
            raise ValueError(f"checksum {crc:08x} expected, {found:08x} found")
    return _new(header_type, fields)  # type: ignore[type-var]


_crc_table: list[int] = []


def crc32c(buffer: BytesLike, crc: int = 0) -> int:
    """CRC-32C (Castagnoli), a byte at a time: the fallback where no native implementation is installed.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    if not _crc_table:
        for value in range(256):
            for _ in range(8):
                value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
            _crc_table.append(value)
    table = _crc_table
    crc ^= 0xFFFFFFFF
    for byte in memoryview(buffer):
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# Variable-length integers


def encode_varint(value: int) -> bytes:
    """A signed number in zigzag form, seven bits a byte, low bits first (up to 64 bits).

    >>> encode_varint(-1), encode_varint(64).hex()
    (b'\\x01', '8001')
    """
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise OverflowError(f"{value} does not fit in 64 bits")
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_varint(buffer: BytesLike, position: int) -> tuple[int, int]:
    """The 64-bit zigzag number at `position`, and the position after it."""
    try:
        raw, position = _unsigned(buffer, position, 63)
    except IndexError:
        raise ValueError("a number ends early") from None
    return (raw >> 1) ^ -(raw & 1), position


def _unsigned(data: BytesLike, position: int, last_shift: int) -> tuple[int, int]:
    """An unsigned varint whose last allowed byte is shifted by `last_shift`: 28 for 32 bits, 63 for 64."""
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        if shift == last_shift and byte > (0x0F if last_shift == 28 else 0x01):
            raise ValueError("a number is too long")
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, position
        shift += 7


_SMALL = [bytes((n << 1,)) for n in range(64)]
_SMALL += [bytes((n << 1 & 0x7F | 0x80, n >> 6)) for n in range(64, 1024)]
"""Most lengths and deltas are small; a lookup is many times faster than `encode_varint`."""


# Records out


def encode_records(
    rows: Iterable[Row], offset_deltas: Sequence[int] | None = None, base_timestamp: int | None = None
) -> tuple[bytes, int, int, int]:
    """Rows of (timestamp, key, value, headers) as a record section: (section, count, base, max timestamp).

    Offset deltas count from 0 and the base timestamp is the first row's, unless passed.
    """
    if not isinstance(rows, list | tuple):
        rows = list(rows)
    if not rows:
        return b"", 0, -1 if base_timestamp is None else base_timestamp, -1
    if offset_deltas is not None and len(offset_deltas) != len(rows):
        raise ValueError(f"{len(offset_deltas)} offset deltas for {len(rows)} records")
    base: int = rows[0][0] if base_timestamp is None else base_timestamp
    max_timestamp: int = rows[0][0]
    small, join = _SMALL, b"".join
    parts: list[bytes] = []
    for index, (timestamp, key, value, headers) in enumerate(rows):
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        delta = timestamp - base
        if 0 <= delta < 1024:
            encoded_delta = small[delta]
        elif timestamp < _INT64_MIN:
            raise OverflowError(f"timestamp {timestamp} does not fit in 64 bits")
        else:
            encoded_delta = encode_varint(delta)
        if offset_deltas is not None:
            index = offset_deltas[index]
            if not 0 <= index <= _INT32_MAX:
                raise ValueError(f"offset delta {index} is out of range")
        encoded_index = small[index] if index < 1024 else encode_varint(index)
        if key is None:
            key_length, key = b"\x01", b""
        else:
            if type(key) is not bytes:
                key = bytes(memoryview(key))
            size = len(key)
            key_length = small[size] if size < 1024 else encode_varint(size)
        if value is None:
            value_length, value = b"\x01", b""
        else:
            if type(value) is not bytes:
                value = bytes(memoryview(value))
            size = len(value)
            value_length = small[size] if size < 1024 else encode_varint(size)
        encoded_headers = _encode_headers(headers) if headers else b"\x00"
        body = join((b"\x00", encoded_delta, encoded_index, key_length, key, value_length, value, encoded_headers))
        size = len(body)
        parts.append(small[size] if size < 1024 else encode_varint(size))
        parts.append(body)
    if not _INT64_MIN <= base <= _INT64_MAX or max_timestamp > _INT64_MAX:
        raise OverflowError("a timestamp does not fit in 64 bits")
    section = join(parts)
    if len(section) > _INT32_MAX - HEADER_SIZE:
        raise ValueError(f"{len(section)} bytes of records do not fit in a batch")
    return section, len(rows), base, max_timestamp


def encode_batch(
    rows: Iterable[Row],
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    crc32c: Callable[..., int],
) -> bytes:
    """A whole batch of rows. It is not compressed, whatever the attributes say."""
    section, count, base, highest = encode_records(rows)
    if not count:
        raise ValueError("a batch needs at least one record")
    try:
        checked = _AFTER_CRC.pack(
            attributes, count - 1, base, highest, producer_id, producer_epoch, base_sequence, count
        )
        crc = crc32c(section, crc32c(checked))
        before = _UNTIL_CRC.pack(base_offset, HEADER_SIZE - LENGTH_END + len(section), leader_epoch, MAGIC, crc)
    except struct.error as error:
        raise OverflowError(str(error)) from None
    return b"".join((before, checked, section))


def _encode_headers(headers: Headers) -> bytes:
    parts: list[bytes] = []
    count = 0
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a str, not {type(name).__name__}")
        encoded_name = name.encode()
        parts += (encode_varint(len(encoded_name)), encoded_name)
        if value is None:
            parts.append(b"\x01")
        else:
            value = bytes(memoryview(value))
            parts += (encode_varint(len(value)), value)
        count += 1
    return encode_varint(count) + b"".join(parts)


# Records in


def _section(buffer: BytesLike, start: int, end: int, count: int) -> bytes:
    """The record section as bytes. Raises before anything is allocated if `count` records cannot fit."""
    view = memoryview(buffer)
    if not 0 <= start <= end <= len(view):
        raise ValueError("the records end early")
    if count < 0 or count * RECORD_SIZE_MIN > end - start:
        raise ValueError(f"{count} records do not fit in {end - start} bytes")
    return bytes(view[start:end])


def decode_records(
    record_type: type[T],
    buffer: BytesLike,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
    lead: tuple[str | int, ...] = (),
) -> list[T]:
    """The records of a section as `record_type` (offset, timestamp, key, value, headers), in order.

    `append_time` becomes the timestamp of every record if passed (LogAppendTime). Each record starts with the fields
    of `lead`.
    """
    data = _section(buffer, start, end, count)
    if last_offset_delta < 0 or base_offset > _INT64_MAX - last_offset_delta:
        raise ValueError(f"offset {base_offset} + {last_offset_delta} does not fit in 64 bits")
    size = len(data)
    new, unsigned = _new, _unsigned
    edge = not _INT64_MIN + 0x2000 <= base_timestamp <= _INT64_MAX - 0x2000
    records: list[T] = []
    append = records.append
    position = 0
    previous = -1
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    try:
        for _ in range(count):
            raw = data[position]
            position += 1
            if raw > 0x7F:
                more = data[position]
                if more < 0x80:
                    raw += (more << 7) - 0x80
                    position += 1
                else:
                    raw, position = unsigned(data, position - 1, 28)
            stop = position + (raw >> 1)
            if raw & 1 or stop > size:
                raise ValueError("a length is out of bounds")
            raw = data[position + 1]  # after the attributes, which have no meaning yet
            position += 2
            if raw > 0x7F:
                more = data[position]
                if more < 0x80:
                    raw += (more << 7) - 0x80
                    position += 1
                else:
                    raw, position = unsigned(data, position - 1, 63)
            timestamp = base_timestamp + ((raw >> 1) ^ -(raw & 1))
            if (edge or raw > 0x3FFF) and not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise ValueError("a timestamp does not fit in 64 bits")
            raw = data[position]
            position += 1
            if raw > 0x7F:
                more = data[position]
                if more < 0x80:
                    raw += (more << 7) - 0x80
                    position += 1
                else:
                    raw, position = unsigned(data, position - 1, 28)
            offset_delta = raw >> 1
            if raw & 1 or offset_delta <= previous or offset_delta > last_offset_delta:
                raise ValueError("a record's offset is out of order")
            previous = offset_delta
            raw = data[position]
            position += 1
            if raw == 1:
                key = None
            else:
                if raw > 0x7F:
                    more = data[position]
                    if more < 0x80:
                        raw += (more << 7) - 0x80
                        position += 1
                    else:
                        raw, position = unsigned(data, position - 1, 28)
                after = position + (raw >> 1)
                if raw & 1 or after > stop:
                    raise ValueError("a length is out of bounds")
                key = data[position:after]
                position = after
            raw = data[position]
            position += 1
            if raw == 1:
                value = None
            else:
                if raw > 0x7F:
                    more = data[position]
                    if more < 0x80:
                        raw += (more << 7) - 0x80
                        position += 1
                    else:
                        raw, position = unsigned(data, position - 1, 28)
                after = position + (raw >> 1)
                if raw & 1 or after > stop:
                    raise ValueError("a length is out of bounds")
                value = data[position:after]
                position = after
            if data[position] == 0:
                position += 1
                headers = ()
            else:
                headers, position = _decode_headers(data, position, stop)
            if position != stop:
                raise ValueError("a record's length does not match its content")
            if append_time is not None:
                timestamp = append_time
            append(new(record_type, (*lead, base_offset + offset_delta, timestamp, key, value, headers)))  # type: ignore
    except IndexError:
        raise ValueError("the records end early") from None
    if position != size:
        raise ValueError(f"{size - position} bytes follow the last record")
    return records


def _decode_headers(data: bytes, position: int, stop: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    raw, position = _unsigned(data, position, 28)
    if raw & 1 or (raw >> 1) * _HEADER_SIZE_MIN > stop - position:
        raise ValueError("a record's header count is out of bounds")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(raw >> 1):
        raw, position = _unsigned(data, position, 28)
        after = position + (raw >> 1)
        if raw & 1 or after > stop:
            raise ValueError("a length is out of bounds")
        # Kafka does not check that names are UTF-8; its clients show invalid bytes as U+FFFD.
        name = data[position:after].decode("utf-8", "replace")
        raw, position = _unsigned(data, after, 28)
        if raw == 1:
            headers.append((name, None))
            continue
        after = position + (raw >> 1)
        if raw & 1 or after > stop:
            raise ValueError("a length is out of bounds")
        headers.append((name, data[position:after]))
        position = after
    return tuple(headers), position


# Records examined without creating objects


def _outline(data: bytes, position: int) -> tuple[int, int, int, int, int, int, int]:
    """One record's (stop, after_timestamp, timestamp_delta, offset_delta, key_start, key_end, value_start).

    A null key has key_end -1; a null value has value_start -1, else it is where the value's bytes begin.
    """
    raw, position = _unsigned(data, position, 28)
    stop = position + (raw >> 1)
    if raw & 1 or not raw or stop > len(data):
        raise ValueError("a length is out of bounds")
    raw, position = _unsigned(data, position + 1, 63)
    timestamp_delta = (raw >> 1) ^ -(raw & 1)
    after_timestamp = position
    raw, position = _unsigned(data, position, 28)
    if raw & 1:
        raise ValueError("a record's offset is out of order")
    offset_delta = raw >> 1
    raw, key_start = _unsigned(data, position, 28)
    if raw == 1:
        key_end, position = -1, key_start
    else:
        key_end = position = key_start + (raw >> 1)
        if raw & 1 or key_end > stop:
            raise ValueError("a length is out of bounds")
    raw, value_start = _unsigned(data, position, 28)
    if raw == 1:
        value_end, value_start = value_start, -1
    else:
        value_end = value_start + (raw >> 1)
    if (raw & 1 and raw != 1) or value_end >= stop:  # a header count follows at least
        raise ValueError("a length is out of bounds")
    return stop, after_timestamp, timestamp_delta, offset_delta, key_start, key_end, value_start


def scan_keys(buffer: BytesLike, start: int, end: int, count: int) -> list[tuple[int, bytes | None, bool]]:
    """Each record's (offset_delta, key, is_tombstone). Values and headers are not read."""
    data = _section(buffer, start, end, count)
    found: list[tuple[int, bytes | None, bool]] = []
    position = 0
    try:
        for _ in range(count):
            position, _, _, offset_delta, key_start, key_end, value_start = _outline(data, position)
            found.append((offset_delta, None if key_end < 0 else data[key_start:key_end], value_start < 0))
    except IndexError:
        raise ValueError("the records end early") from None
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes follow the last record")
    return found


def inspect_records(
    buffer: BytesLike,
    start: int,
    end: int,
    count: int,
    base_timestamp: int,
    first: int = 0,
    is_last: bool = True,
    null_keys: list[int] | None = None,
) -> tuple[int, int, int, int, int]:
    """Checks every length of `count` records, the first with index `first`. Returns what a broker needs to know:

    (index of the first record whose offset delta is not its index or -1, lowest timestamp, highest timestamp, position
    after the last record read, index after it). The lowest timestamp ignores records without one (-1); without any
    timestamp it is 2**63 - 1.

    Without `is_last` more data follows: the call returns at a record that is not complete yet. The indexes of the first
    NULL_KEYS_MAX records without a key are added to `null_keys`.
    """
    data = _section(buffer, start, end, count if is_last else 0)
    misplaced = -1
    lowest, highest = _INT64_MAX, _INT64_MIN
    position, index = 0, first
    try:
        while index < first + count:
            if not is_last and not _holds_a_record(data, position):
                break
            stop, _, timestamp_delta, offset_delta, key_start, key_end, value_start = _outline(data, position)
            timestamp = base_timestamp + timestamp_delta
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise ValueError("a timestamp does not fit in 64 bits")
            if key_end < 0:
                key_end = key_start
                if null_keys is not None and len(null_keys) < NULL_KEYS_MAX:
                    null_keys.append(index)
            if offset_delta != index and misplaced < 0:
                misplaced = index
            if timestamp < lowest and timestamp != -1:
                lowest = timestamp
            if timestamp > highest:
                highest = timestamp
            raw, position = _unsigned(data, key_end, 28)
            if value_start >= 0:
                position = value_start + (raw >> 1)
            if data[position]:
                position = _pass_headers(data, position, stop)
            else:
                position += 1
            if position != stop:
                raise ValueError("a record's length does not match its content")
            index += 1
    except IndexError:
        raise ValueError(f"record {index}: the records end early") from None
    except ValueError as error:
        raise ValueError(f"record {index}: {error}") from None
    if is_last and position != len(data):
        raise ValueError(f"{len(data) - position} bytes follow the last record")
    return misplaced, lowest, highest, start + position, index


def _pass_headers(data: bytes, position: int, stop: int) -> int:
    raw, position = _unsigned(data, position, 28)
    if raw & 1 or (raw >> 1) * _HEADER_SIZE_MIN > stop - position:
        raise ValueError("a record's header count is out of bounds")
    for _ in range(raw >> 1):
        raw, position = _unsigned(data, position, 28)
        position += raw >> 1
        if raw & 1 or position > stop:
            raise ValueError("a length is out of bounds")
        raw, position = _unsigned(data, position, 28)
        if raw != 1:
            position += raw >> 1
            if raw & 1 or position > stop:
                raise ValueError("a length is out of bounds")
    return position


def _holds_a_record(data: bytes, position: int) -> bool:
    """Whether the record at `position` is complete, or is known to be invalid already."""
    try:
        raw, after = _unsigned(data, position, 28)
    except IndexError:
        return False
    return bool(raw & 1) or raw < 2 or raw >> 1 <= len(data) - after


def filter_records(
    buffer: BytesLike, start: int, end: int, count: int, keep: Collection[int] | None, timestamp_shift: int
) -> tuple[bytes, int, int]:
    """The records whose offset delta is in `keep` (None: all), byte for byte but for their timestamp deltas,
    which grow by `timestamp_shift`: (section, records kept, highest new timestamp delta)."""
    data = _section(buffer, start, end, count)
    parts: list[Any] = []
    kept = 0
    highest = _INT64_MIN
    position = 0
    try:
        for _ in range(count):
            first = position
            position, after_timestamp, timestamp_delta, offset_delta, _, _, _ = _outline(data, position)
            if keep is not None and offset_delta not in keep:
                continue
            kept += 1
            timestamp_delta += timestamp_shift
            if timestamp_delta > highest:
                highest = timestamp_delta
            if not timestamp_shift:
                parts.append(data[first:position])
                continue
            try:
                encoded_delta = encode_varint(timestamp_delta)
            except OverflowError:
                raise ValueError("a timestamp does not fit in 64 bits") from None
            _, body = _unsigned(data, first, 28)
            size = 1 + len(encoded_delta) + position - after_timestamp
            parts += (encode_varint(size), data[body : body + 1], encoded_delta, data[after_timestamp:position])
    except IndexError:
        raise ValueError("the records end early") from None
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes follow the last record")
    return b"".join(parts), kept, highest if kept else 0
