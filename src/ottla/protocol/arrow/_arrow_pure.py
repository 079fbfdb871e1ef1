"""The Arrow kernels in plain Python, class for class the same as `_arrow_decode.py` and `_arrow_encode.py`. Pure.

Used where the extensions are not built, or with `OTTLA_PURE=1`. Both implementations accept and reject the same data
and return equal results: one test suite runs over both. A column is passed as the buffers of Arrow's layout: validity
bits (lowest bit first, 0 is null), offsets, data.
"""

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.records import _pure
from ottla.protocol.records._pure import BytesLike
from ottla.protocol.records._pure import encode_varint as varint
from ottla.protocol.records.batch_layout import RECORD_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERFACE = 2
"""Increased with every change of a kernel's signature or behaviour, so that a stale build is not used."""

HEADER_OVERHEAD = 10
_INT32_MAX = 2**31 - 1
_MICROSECONDS_MAX = (2**63 - 1) // 1000

Strings = tuple[BytesLike | None, BytesLike, BytesLike | None, int, int]
"""A column of byte strings: bits or None, offsets, data or None, an offset's width (4 or 8), rows before the first."""
Numbers = tuple[BytesLike | None, BytesLike, int]
"""A column of whole numbers: bits or None, data, rows before the first."""
Lists = tuple[BytesLike | None, BytesLike, int, BytesLike | None, int, int, Strings, Strings]
"""Headers: bits and offsets of the lists and rows before the first; bits of the structs and structs before the first;
how many structs there are; their names and values."""


class _Row(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _room(buffer: Any, size: int) -> memoryview:
    """A buffer of at least `size` bytes."""
    view = memoryview(b"" if buffer is None else buffer)
    view = view.cast("B") if view.format != "B" else view
    if len(view) < size:
        raise ValueError(f"a buffer of {len(view)} bytes is too small: {size} are needed")
    return view


def _bit(bits: memoryview | None, index: int) -> bool:
    return bits is None or bool(bits[index >> 3] >> (index & 7) & 1)


# Records in: batches to columns


class RecordColumns:
    """Collects record sections, computes how large the buffers for keys and values must be, then fills them.

    >>> columns = RecordColumns(1000, 2**30, 1, offsets, timestamps, …)     # room for 1000 rows
    >>> columns.add(buffer, start, end, count, …)                           # for each section
    >>> columns.fill(bytearray(columns.key_bytes), bytearray(columns.value_bytes))
    """

    def __init__(
        self,
        capacity: int,
        bytes_max: int,
        multiplier: int,
        offsets: Any,
        timestamps: Any,
        timestamp_types: Any,
        key_offsets: Any,
        key_bits: Any,
        value_offsets: Any,
        value_bits: Any,
        list_offsets: Any,
    ) -> None:
        """`multiplier` is 1 for timestamps in milliseconds and 1000 for microseconds.

        The buffers hold `capacity` rows: 64-bit offsets and timestamps, 32-bit timestamp types (0 CreateTime,
        1 LogAppendTime), and Arrow's 32-bit offsets and bits of the columns key, value and headers. Keys, values and
        headers together take at most `bytes_max` bytes, unless a single record is larger.
        """
        if not 0 <= capacity <= _INT32_MAX or multiplier not in (1, 1000):
            raise ValueError("capacity or multiplier out of range")
        if not 0 <= bytes_max <= _INT32_MAX:
            raise ValueError(f"columns hold at most {_INT32_MAX} bytes, not {bytes_max}")
        self.rows = self.key_bytes = self.value_bytes = 0
        self.header_rows = self.header_key_bytes = self.header_value_bytes = 0
        self.null_keys = self.null_values = self.null_header_values = 0
        self.last_offset = -1
        self.is_full = False
        self._capacity, self._bytes_max, self._multiplier = capacity, bytes_max, multiplier
        self._offsets = _room(offsets, 8 * capacity)
        self._timestamps = _room(timestamps, 8 * capacity)
        self._timestamp_types = _room(timestamp_types, 4 * capacity)
        self._key_offsets = _room(key_offsets, 4 * (capacity + 1))
        self._value_offsets = _room(value_offsets, 4 * (capacity + 1))
        self._list_offsets = _room(list_offsets, 4 * (capacity + 1))
        bits_size = (capacity + 7) >> 3
        self._key_bits, self._value_bits = _room(key_bits, bits_size), _room(value_bits, bits_size)
        self._key_bits[:bits_size] = self._value_bits[:bits_size] = bytes(bits_size)
        for ends in (self._key_offsets, self._value_offsets, self._list_offsets):
            ends[:4] = bytes(4)
        self._taken: list[_Row] = []
        self._names: list[list[bytes]] = []

    def add(
        self,
        buffer: BytesLike,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        from_offset: int,
        until_offset: int,
    ) -> bool:
        """Adds the records of a section from `from_offset` to before `until_offset`. Returns whether all were added.

        False means that `until_offset` was reached or that there is no more room; then `is_full` is set. If the
        section is malformed anywhere (ValueError) or a timestamp does not fit (OverflowError), none of it is added.
        """
        before = self.__dict__.copy()
        taken, names = len(self._taken), len(self._names)
        try:
            rows, raw_names = _read_section(
                buffer, start, end, count, base_offset, last_offset_delta, base_timestamp, append_time
            )
            for row, row_names in zip(rows, raw_names, strict=True):
                if row.offset < from_offset:
                    continue
                if row.offset >= until_offset:
                    return False
                if self.rows >= self._capacity or not self._take(row, row_names, append_time is not None):
                    self.is_full = True
                    return False
        except BaseException:
            for row_index in range(before["rows"], self.rows):
                self._key_bits[row_index >> 3] &= ~(1 << (row_index & 7)) & 0xFF
                self._value_bits[row_index >> 3] &= ~(1 << (row_index & 7)) & 0xFF
            self.__dict__.update(before)
            del self._taken[taken:], self._names[names:]
            raise
        return True

    def _take(self, row: _Row, names: list[bytes], is_append_time: bool) -> bool:
        key_size = 0 if row.key is None else len(row.key)
        value_size = 0 if row.value is None else len(row.value)
        name_bytes = sum(map(len, names))
        content_bytes = sum(len(content) for _, content in row.headers if content is not None)
        total = self.key_bytes + self.value_bytes + self.header_key_bytes + self.header_value_bytes + self.header_rows
        if total + key_size + value_size + name_bytes + content_bytes + len(names) > self._bytes_max and self.rows:
            return False
        timestamp = row.timestamp
        if self._multiplier != 1:
            if not -_MICROSECONDS_MAX <= timestamp <= _MICROSECONDS_MAX:
                raise OverflowError(f"the timestamp {timestamp} at offset {row.offset} does not fit in microseconds")
            timestamp *= 1000
        index = self.rows
        struct.pack_into("=q", self._offsets, 8 * index, row.offset)
        struct.pack_into("=q", self._timestamps, 8 * index, timestamp)
        struct.pack_into("=i", self._timestamp_types, 4 * index, is_append_time)
        if row.key is None:
            self.null_keys += 1
        else:
            self.key_bytes += key_size
            self._key_bits[index >> 3] |= 1 << (index & 7)
        if row.value is None:
            self.null_values += 1
        else:
            self.value_bytes += value_size
            self._value_bits[index >> 3] |= 1 << (index & 7)
        self.header_rows += len(names)
        self.header_key_bytes += name_bytes
        self.header_value_bytes += content_bytes
        self.null_header_values += sum(content is None for _, content in row.headers)
        struct.pack_into("=i", self._key_offsets, 4 * index + 4, self.key_bytes)
        struct.pack_into("=i", self._value_offsets, 4 * index + 4, self.value_bytes)
        struct.pack_into("=i", self._list_offsets, 4 * index + 4, self.header_rows)
        self.last_offset = row.offset
        self.rows = index + 1
        self._taken.append(row)
        self._names.append(names)
        return True

    def fill(self, key_data: Any, value_data: Any) -> None:
        """Writes the keys and the values, one after the other."""
        keys, values = _room(key_data, self.key_bytes), _room(value_data, self.value_bytes)
        keys[: self.key_bytes] = b"".join(row.key for row in self._taken if row.key is not None)
        values[: self.value_bytes] = b"".join(row.value for row in self._taken if row.value is not None)

    def fill_headers(
        self, key_offsets: Any, key_data: Any, value_offsets: Any, value_bits: Any, value_data: Any
    ) -> bool:
        """Writes the headers' names and values. Returns whether all names are ASCII."""
        count = self.header_rows
        names = [name for row_names in self._names for name in row_names]
        contents = [content for row in self._taken for _, content in row.headers]
        bits = _room(value_bits, (count + 7) >> 3)
        bits[: (count + 7) >> 3] = bytes((count + 7) >> 3)
        ends = [0], [0]
        for index, (name, content) in enumerate(zip(names, contents, strict=True)):
            ends[0].append(ends[0][-1] + len(name))
            ends[1].append(ends[1][-1] + len(content or b""))
            if content is not None:
                bits[index >> 3] |= 1 << (index & 7)
        for offsets, values in zip((key_offsets, value_offsets), ends, strict=True):
            _room(offsets, 4 * (count + 1))[: 4 * (count + 1)] = struct.pack(f"={count + 1}i", *values)
        joined = b"".join(names)
        _room(key_data, len(joined))[: len(joined)] = joined
        data = b"".join(content for content in contents if content is not None)
        _room(value_data, len(data))[: len(data)] = data
        return joined.isascii()


def _read_section(
    buffer: BytesLike,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
) -> tuple[list[_Row], list[list[bytes]]]:
    """The rows, with the names of headers as bytes."""
    rows = _pure.decode_records(
        _Row, buffer, start, end, count, base_offset, last_offset_delta, base_timestamp, append_time
    )
    names: list[list[bytes]] = []
    position = start
    for row in rows:
        names.append([])
        size, position = _pure.decode_varint(buffer, position)
        stop = position + size
        if row.headers:
            position += 1
            for _ in range(2):
                _, position = _pure.decode_varint(buffer, position)
            for _ in range(2):
                size, position = _pure.decode_varint(buffer, position)
                position += max(size, 0)
            headers, position = _pure.decode_varint(buffer, position)
            for _ in range(headers):
                size, position = _pure.decode_varint(buffer, position)
                names[-1].append(bytes(memoryview(buffer)[position : position + size]))
                size, position = _pure.decode_varint(buffer, position + size)
                position += max(size, 0)
        position = stop
    return rows, names


# Rows out: columns to batches


class _Strings:
    def __init__(self, column: Strings, count: int) -> None:
        bits, offsets, data, width, first = column
        if first < 0:
            raise ValueError("a column cannot begin before its first row")
        if width not in (4, 8):
            raise ValueError(f"offsets take 4 or 8 bytes, not {width}")
        self._bits = None if bits is None else _room(bits, (first + count + 7) >> 3)
        view = _room(offsets, width * (first + count + 1))[: width * (first + count + 1)]
        self._ends: Sequence[int] = view.cast("i" if width == 4 else "q")
        self._data = _room(data, 0)
        self._first = first

    def length(self, row: int) -> int:
        """-1 for null, -2 if the offsets point outside the buffer."""
        row += self._first
        if not _bit(self._bits, row):
            return -1
        start, end = self._ends[row], self._ends[row + 1]
        return end - start if 0 <= start <= end <= len(self._data) else -2

    def get(self, row: int) -> bytes | None:
        row += self._first
        if not _bit(self._bits, row):
            return None
        return bytes(self._data[self._ends[row] : self._ends[row + 1]])


def murmur2(key: BytesLike) -> int:
    """The 32-bit MurmurHash2 with Kafka's seed, unsigned.

    >>> hex(murmur2(b"21"))
    '0xc5f2f8ec'
    """
    data = bytes(key)
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        k = (k ^ k >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        h = (h * 0x5BD1E995 & 0xFFFFFFFF) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ h >> 15


class RowColumns:
    """The columns of some rows: measures them, assigns partitions, and writes records.

    >>> rows = RowColumns(count, 0, keys, values, None, now, None)
    >>> rows.measure(1_048_576)
    >>> rows.encode(None, 0, count, 16_384, 61)         # as many rows as fit into a batch
    """

    def __init__(
        self,
        count: int,
        first_row: int,
        key: Strings | None,
        value: Strings,
        timestamps: Numbers | None,
        default_time: int,
        headers: Lists | None,
    ) -> None:
        """Errors name rows counted from `first_row`. `default_time` is for rows without a timestamp."""
        if not 0 <= count <= _INT32_MAX:
            raise ValueError(f"{count} rows are too many at once")
        self.count = count
        self._first_row = first_row
        self._default_time = default_time
        self._keys = None if key is None else _Strings(key, count)
        self._values = _Strings(value, count)
        self._times: Sequence[int] | None = None
        if timestamps is not None:
            bits, data, self._time_first = timestamps
            self._time_bits = None if bits is None else _room(bits, (self._time_first + count + 7) >> 3)
            self._times = _room(data, 8 * (self._time_first + count))[: 8 * (self._time_first + count)].cast("q")
        self._lists: Sequence[int] | None = None
        if headers is not None:
            bits, offsets, self._list_first, struct_bits, self._struct_first, child_count, names, contents = headers
            self._list_bits = None if bits is None else _room(bits, (self._list_first + count + 7) >> 3)
            size = 4 * (self._list_first + count + 1)
            self._lists = _room(offsets, size)[:size].cast("i")
            self._struct_bits = None
            if struct_bits is not None:
                self._struct_bits = _room(struct_bits, (self._struct_first + child_count + 7) >> 3)
            self._names, self._contents = _Strings(names, child_count), _Strings(contents, child_count)
            for row in range(count):
                start, end = self._lists[self._list_first + row], self._lists[self._list_first + row + 1]
                if not 0 <= start <= end <= child_count:
                    raise ValueError(f"row {first_row + row}: its headers lie outside their buffers")
        self._sizes = [0] * count

    def _headers_of(self, row: int) -> range:
        if self._lists is None:
            return range(0)
        row += self._list_first
        return range(self._lists[row], self._lists[row + 1]) if _bit(self._list_bits, row) else range(0)

    def _timestamp(self, row: int) -> int:
        if self._times is None or not _bit(self._time_bits, self._time_first + row):
            return self._default_time
        return self._times[self._time_first + row]

    def measure(self, size_max: int) -> int:
        """Checks every row and computes the most bytes it can take. Returns the sum.

        Raises ValueError for a row that cannot be sent, OverflowError for one of more than `size_max` bytes.
        """
        for row in range(self.count):
            name = f"row {self._first_row + row}"
            size = RECORD_OVERHEAD
            for strings, what in ((self._keys, "key"), (self._values, "value")):
                part = -1 if strings is None else strings.length(row)
                if part < -1:
                    raise ValueError(f"{name}: its {what} lies outside its buffer")
                size += max(part, 0)
            for index in self._headers_of(row):
                if not _bit(self._struct_bits, self._struct_first + index):
                    raise ValueError(f"{name}: a header is null")
                part, content = self._names.length(index), self._contents.length(index)
                if part == -1:
                    raise ValueError(f"{name}: a header's key is null")
                if part < 0 or content < -1:
                    raise ValueError(f"{name}: a header lies outside its buffer")
                size += HEADER_OVERHEAD + part + max(content, 0)
            if size > size_max:
                raise OverflowError(f"{name}: a record of {size} bytes")
            timestamp = self._timestamp(row)
            if timestamp < 0:
                raise ValueError(f"{name}: the timestamp {timestamp} is negative")
            self._sizes[row] = size
        return sum(self._sizes)

    def assign(
        self,
        slots: Any,
        topics: BytesLike | None,
        partitions: Numbers | None,
        bases: list[int],
        counts: list[int],
    ) -> int:
        """Writes each row's slot: its partition's place among all partitions of all topics.

        `topics` holds each row's topic as a 32-bit number, None means 0; a topic's partitions have the slots from
        `bases[topic]` on, `counts[topic]` of them. A partition that the row asks for comes first, then the key's
        hash. Rows with neither get -1 - topic, for `stick`; their number is returned. Raises LookupError(row, topic,
        partition) if a topic has no such partition.
        """
        out = _room(slots, 4 * self.count)[: 4 * self.count].cast("i")
        codes: Sequence[int] | None = None if topics is None else _room(topics, 4 * self.count).cast("i")
        chosen: Sequence[int] | None = None
        bits, first = None, 0
        if partitions is not None:
            valid, data, first = partitions
            chosen = _room(data, 4 * (first + self.count))[: 4 * (first + self.count)].cast("i")
            bits = None if valid is None else _room(valid, (first + self.count + 7) >> 3)
        loose = 0
        for row in range(self.count):
            topic = 0 if codes is None else codes[row]
            key = None
            if chosen is not None and _bit(bits, first + row):
                if not 0 <= chosen[first + row] < counts[topic]:
                    raise LookupError(self._first_row + row, topic, chosen[first + row])
                out[row] = bases[topic] + chosen[first + row]
            elif counts[topic] == 1:
                out[row] = bases[topic]
            elif self._keys is not None and (key := self._keys.get(row)) is not None:
                out[row] = bases[topic] + (murmur2(key) & 0x7FFFFFFF) % counts[topic]
            else:
                out[row] = -1 - topic
                loose += 1
        return loose

    def stick(self, slots: Any, row: int, topic: int, slot: int, bytes_max: int) -> tuple[int, int]:
        """Assigns this slot to a topic's rows without one, from `row` on, up to `bytes_max` bytes but at least one row.

        Returns the row to continue with, and the number of bytes assigned.
        """
        out = _room(slots, 4 * self.count)[: 4 * self.count].cast("i")
        if row < 0:
            raise ValueError("there is no such row")
        used = 0
        while row < self.count:
            if out[row] == -1 - topic:
                if used and used + self._sizes[row] > bytes_max:
                    break
                out[row] = slot
                used += self._sizes[row]
            row += 1
        return row, used

    def group(self, slots: BytesLike, slot_count: int, order: Any) -> list[int]:
        """Writes the rows' numbers to `order`, slot after slot; returns where each slot's rows end."""
        chosen = _room(slots, 4 * self.count)[: 4 * self.count].cast("i")
        out = _room(order, 4 * self.count)[: 4 * self.count].cast("i")
        if slot_count < 1:
            raise ValueError("there must be a slot")
        rows: list[list[int]] = [[] for _ in range(slot_count)]
        for row in range(self.count):
            if not 0 <= chosen[row] < slot_count:
                raise ValueError(f"row {self._first_row + row} has no partition")
            rows[chosen[row]].append(row)
        ends: list[int] = []
        total = 0
        for group in rows:
            for place, row in enumerate(group, total):
                out[place] = row
            total += len(group)
            ends.append(total)
        return ends

    def encode(
        self,
        order: BytesLike | None,
        start: int,
        end: int,
        bytes_max: int,
        space: int,
        batch: bytearray | None = None,
    ) -> tuple[bytearray, int, int, int]:
        """Writes the rows `order[start:end]` as records, as many as fit into `bytes_max` bytes, but at least one.

        Without an order the rows are `start` to `end` themselves. Returns `space` empty bytes followed by the
        records; the number of records; the base timestamp; the highest timestamp. `batch` is overwritten if given:
        new memory costs as much as the writing.
        """
        if start < 0 or end <= start or end > self.count or space < 0:
            raise ValueError("there are no such rows")
        numbers: Sequence[int] = range(self.count) if order is None else _room(order, 4 * self.count).cast("i")
        if batch is None:
            batch = bytearray()
        batch[:] = bytes(space)
        base = highest = self._timestamp(numbers[start])
        total = count = 0
        for row in numbers[start:end]:
            if not 0 <= row < self.count:
                raise ValueError("there are no such rows")
            if count and total + self._sizes[row] > bytes_max:
                break
            total += self._sizes[row]
            timestamp = self._timestamp(row)
            highest = max(highest, timestamp)
            headers = self._headers_of(row)
            parts = [b"\x00", varint(timestamp - base), varint(count)]
            parts += _with_length(None if self._keys is None else self._keys.get(row))
            parts += _with_length(self._values.get(row))
            parts.append(varint(len(headers)))
            for index in headers:
                parts += _with_length(self._names.get(index))
                parts += _with_length(self._contents.get(index))
            body = b"".join(parts)
            batch += varint(len(body))
            batch += body
            count += 1
        return batch, count, base, highest


def _with_length(data: bytes | None) -> tuple[bytes, bytes]:
    return (b"\x01", b"") if data is None else (varint(len(data)), data)
