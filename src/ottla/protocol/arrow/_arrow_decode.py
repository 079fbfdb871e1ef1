"""The Cython kernel that turns record batches into columns; `_arrow_pure.RecordColumns` is the same in Python. Pure.

It creates no Python object per record. It sees buffers only and does not import pyarrow: `arrow_batches.py` allocates,
calls and assembles. `_arrow_pure.py` documents each method.
"""
# mypy: ignore-errors
# The types here are C's, in Cython's declarations, which mypy does not read.

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBUF_WRITABLE
from cython.cimports.cpython.mem import PyMem_RawFree, PyMem_RawMalloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.ottla.protocol.arrow._arrow_buffers import View, open_buffer, open_sized
from cython.cimports.ottla.protocol.records._cursor import (
    added,
    header_count,
    length,
    number,
    offset_delta,
    record_stop,
)

INTERFACE = 2

_RECORD_SIZE_MIN = cython.declare(cython.Py_ssize_t, 7)
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)


@cython.final
@cython.cclass
class RecordColumns:
    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    key_bytes = cython.declare(cython.longlong, visibility="readonly")
    value_bytes = cython.declare(cython.longlong, visibility="readonly")
    header_rows = cython.declare(cython.longlong, visibility="readonly")
    header_key_bytes = cython.declare(cython.longlong, visibility="readonly")
    header_value_bytes = cython.declare(cython.longlong, visibility="readonly")
    null_keys = cython.declare(cython.Py_ssize_t, visibility="readonly")
    null_values = cython.declare(cython.Py_ssize_t, visibility="readonly")
    null_header_values = cython.declare(cython.Py_ssize_t, visibility="readonly")
    last_offset = cython.declare(cython.longlong, visibility="readonly")
    is_full = cython.declare(cython.bint, visibility="readonly")
    capacity: cython.Py_ssize_t
    bytes_max: cython.longlong
    multiplier: cython.longlong
    offsets: cython.pointer(cython.longlong)
    timestamps: cython.pointer(cython.longlong)
    timestamp_types: cython.pointer(cython.int)
    key_offsets: cython.pointer(cython.int)
    value_offsets: cython.pointer(cython.int)
    list_offsets: cython.pointer(cython.int)
    key_bits: cython.p_uchar
    value_bits: cython.p_uchar
    positions: cython.pointer(cython.Py_ssize_t)
    held: list
    sections: list

    def __cinit__(self):
        self.positions = cython.NULL

    def __init__(
        self,
        capacity: cython.Py_ssize_t,
        bytes_max: cython.longlong,
        multiplier: cython.longlong,
        offsets: object,
        timestamps: object,
        timestamp_types: object,
        key_offsets: object,
        key_bits: object,
        value_offsets: object,
        value_bits: object,
        list_offsets: object,
    ):
        held: list = []
        view: View
        needs = (8, 8, 4, 4, 4, 4)
        buffers = (offsets, timestamps, timestamp_types, key_offsets, value_offsets, list_offsets)
        if capacity < 0 or capacity > _INT32_MAX or multiplier not in (1, 1000):
            raise ValueError("capacity or multiplier out of range")
        if bytes_max < 0 or bytes_max > _INT32_MAX:
            raise ValueError(f"columns hold at most {_INT32_MAX} bytes, not {bytes_max}")
        for index, buffer in enumerate(buffers):
            view = open_sized(buffer, PyBUF_WRITABLE, needs[index] * (capacity + (index >= 3)))
            held.append(view)
        for bits in (key_bits, value_bits):
            view = open_sized(bits, PyBUF_WRITABLE, (capacity + 7) >> 3)
            memset(view.data, 0, (capacity + 7) >> 3)
            held.append(view)
        self.held = held
        self.sections = []
        self.offsets = cython.cast(cython.pointer(cython.longlong), cython.cast(View, held[0]).data)
        self.timestamps = cython.cast(cython.pointer(cython.longlong), cython.cast(View, held[1]).data)
        self.timestamp_types = cython.cast(cython.pointer(cython.int), cython.cast(View, held[2]).data)
        self.key_offsets = cython.cast(cython.pointer(cython.int), cython.cast(View, held[3]).data)
        self.value_offsets = cython.cast(cython.pointer(cython.int), cython.cast(View, held[4]).data)
        self.list_offsets = cython.cast(cython.pointer(cython.int), cython.cast(View, held[5]).data)
        self.key_bits = cython.cast(View, held[6]).data
        self.value_bits = cython.cast(View, held[7]).data
        self.key_offsets[0] = self.value_offsets[0] = self.list_offsets[0] = 0
        self.capacity = capacity
        self.bytes_max = bytes_max
        self.multiplier = multiplier
        self.last_offset = -1
        PyMem_RawFree(self.positions)
        self.positions = cython.cast(
            cython.pointer(cython.Py_ssize_t), PyMem_RawMalloc(2 * cython.sizeof(cython.Py_ssize_t) * (capacity + 1))
        )
        if self.positions is cython.NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.positions)

    def add(
        self,
        buffer: object,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        count: cython.longlong,
        base_offset: cython.longlong,
        last_offset_delta: cython.longlong,
        base_timestamp: cython.longlong,
        append_time: object,
        from_offset: cython.longlong,
        until_offset: cython.longlong,
    ) -> bool:
        section: View = open_buffer(buffer, PyBUF_SIMPLE)
        whole: cython.bint
        stamped: cython.bint = append_time is not None
        before = (
            self.rows,
            self.key_bytes,
            self.value_bytes,
            self.header_rows,
            self.header_key_bytes,
            self.header_value_bytes,
            self.null_keys,
            self.null_values,
            self.null_header_values,
            self.last_offset,
        )
        if start < 0 or start > end or end > section.size:
            raise ValueError("the records end early")
        if count < 0 or count > (end - start) // _RECORD_SIZE_MIN:
            raise ValueError(f"{count} records do not fit in {end - start} bytes")
        if last_offset_delta < 0 or base_offset > _INT64_MAX - last_offset_delta:
            raise ValueError(f"offset {base_offset} + {last_offset_delta} does not fit in 64 bits")
        try:
            whole = self.scan(
                section.data,
                start,
                end,
                count,
                base_offset,
                last_offset_delta,
                base_timestamp,
                stamped,
                append_time if stamped else 0,
                from_offset,
                until_offset,
            )
        except BaseException:
            self.forget(before[0])
            (
                self.rows,
                self.key_bytes,
                self.value_bytes,
                self.header_rows,
                self.header_key_bytes,
                self.header_value_bytes,
                self.null_keys,
                self.null_values,
                self.null_header_values,
                self.last_offset,
            ) = before
            raise
        if self.rows > before[0]:
            self.sections.append((section, before[0], self.rows))
        return whole

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def forget(self, rows: cython.Py_ssize_t) -> cython.int:
        """Clears the bits of rows that a failed section had set."""
        row: cython.Py_ssize_t
        for row in range(rows, min(self.rows + 1, self.capacity)):
            self.key_bits[row >> 3] &= cython.cast(cython.uchar, ~(1 << (row & 7)) & 0xFF)
            self.value_bits[row >> 3] &= cython.cast(cython.uchar, ~(1 << (row & 7)) & 0xFF)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def scan(
        self,
        data: cython.p_uchar,
        position: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        count: cython.longlong,
        base_offset: cython.longlong,
        last_offset_delta: cython.longlong,
        base_timestamp: cython.longlong,
        stamped: cython.bint,
        append_time: cython.longlong,
        from_offset: cython.longlong,
        until_offset: cython.longlong,
    ) -> cython.int:
        """Every length and number is checked here, so that `fill` only copies. 0: not everything was taken."""
        row: cython.Py_ssize_t = self.rows
        stop: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        size: cython.Py_ssize_t
        key_at: cython.Py_ssize_t
        value_at: cython.Py_ssize_t
        headers: cython.longlong
        left: cython.longlong
        name_bytes: cython.longlong
        content_bytes: cython.longlong
        null_contents: cython.longlong
        timestamp: cython.longlong
        place: cython.longlong
        previous: cython.longlong = -1
        is_cut: cython.bint = False
        total: cython.longlong
        positions: cython.pointer(cython.Py_ssize_t) = self.positions
        for _ in range(count):
            stop = record_stop(data, cython.address(position), end)
            timestamp = added(base_timestamp, number(data, cython.address(position), stop, 64))
            place = offset_delta(data, cython.address(position), stop)
            if place <= previous or place > last_offset_delta:
                raise ValueError("a record's offset is out of order")
            previous = place
            key_size = length(data, cython.address(position), stop)
            key_at = position
            if key_size > 0:
                position += key_size
            value_size = length(data, cython.address(position), stop)
            value_at = position
            if value_size > 0:
                position += value_size
            headers = name_bytes = content_bytes = null_contents = 0
            if position < stop and data[position] == 0:
                position += 1
            else:
                headers = header_count(data, cython.address(position), stop)
                left = headers
                while left > 0:
                    size = length(data, cython.address(position), stop)
                    if size < 0:
                        raise ValueError("a length is out of bounds")
                    position += size
                    name_bytes += size
                    size = length(data, cython.address(position), stop)
                    if size < 0:
                        null_contents += 1
                    else:
                        position += size
                        content_bytes += size
                    left -= 1
            if position != stop:
                raise ValueError("a record's length does not match its content")
            place += base_offset
            if place < from_offset or is_cut:
                continue
            if place >= until_offset:
                is_cut = True
                continue
            if row >= self.capacity:
                is_cut = self.is_full = True
                continue
            total = self.key_bytes + self.value_bytes + self.header_key_bytes + self.header_value_bytes
            total += self.header_rows + max(key_size, 0) + max(value_size, 0) + name_bytes + content_bytes + headers
            if total > self.bytes_max and row > 0:
                is_cut = self.is_full = True
                continue
            if stamped:
                timestamp = append_time
            if self.multiplier != 1:
                if timestamp > _INT64_MAX // 1000 or timestamp < -(_INT64_MAX // 1000):
                    raise OverflowError(f"the timestamp {timestamp} at offset {place} does not fit in microseconds")
                timestamp = timestamp * 1000
            self.offsets[row] = place
            self.timestamps[row] = timestamp
            self.timestamp_types[row] = stamped
            positions[2 * row] = key_at
            positions[2 * row + 1] = value_at
            if key_size >= 0:
                self.key_bytes += key_size
                self.key_bits[row >> 3] |= cython.cast(cython.uchar, 1 << (row & 7))
            else:
                self.null_keys += 1
            self.key_offsets[row + 1] = cython.cast(cython.int, self.key_bytes)
            if value_size >= 0:
                self.value_bytes += value_size
                self.value_bits[row >> 3] |= cython.cast(cython.uchar, 1 << (row & 7))
            else:
                self.null_values += 1
            self.value_offsets[row + 1] = cython.cast(cython.int, self.value_bytes)
            if headers:
                self.header_rows += headers
                self.header_key_bytes += name_bytes
                self.header_value_bytes += content_bytes
                self.null_header_values += null_contents
            self.list_offsets[row + 1] = cython.cast(cython.int, self.header_rows)
            self.last_offset = place
            row += 1
            self.rows = row
        if position != end:
            raise ValueError(f"{end - position} bytes follow the last record")
        return 0 if is_cut else 1

    def fill(self, key_data: object, value_data: object) -> None:
        keys: View = open_sized(key_data, PyBUF_WRITABLE, self.key_bytes)
        values: View = open_sized(value_data, PyBUF_WRITABLE, self.value_bytes)
        source: cython.p_uchar
        first: cython.Py_ssize_t
        last: cython.Py_ssize_t
        for section, first, last in self.sections:
            source = cython.cast(View, section).data
            with cython.nogil:  # other threads run meanwhile: one may receive the next fetch
                self.copy(source, first, last, keys.data, values.data)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def copy(
        self,
        source: cython.p_uchar,
        first: cython.Py_ssize_t,
        last: cython.Py_ssize_t,
        keys: cython.p_uchar,
        values: cython.p_uchar,
    ) -> cython.void:
        row: cython.Py_ssize_t
        has_keys: cython.bint = self.key_bytes > 0
        for row in range(first, last):
            if has_keys:
                memcpy(
                    keys + self.key_offsets[row],
                    source + self.positions[2 * row],
                    self.key_offsets[row + 1] - self.key_offsets[row],
                )
            memcpy(
                values + self.value_offsets[row],
                source + self.positions[2 * row + 1],
                self.value_offsets[row + 1] - self.value_offsets[row],
            )

    def fill_headers(
        self, key_offsets: object, key_data: object, value_offsets: object, value_bits: object, value_data: object
    ) -> bool:
        names: View = open_sized(key_offsets, PyBUF_WRITABLE, 4 * (self.header_rows + 1))
        name_data: View = open_sized(key_data, PyBUF_WRITABLE, self.header_key_bytes)
        contents: View = open_sized(value_offsets, PyBUF_WRITABLE, 4 * (self.header_rows + 1))
        bits: View = open_sized(value_bits, PyBUF_WRITABLE, (self.header_rows + 7) >> 3)
        content_data: View = open_sized(value_data, PyBUF_WRITABLE, self.header_value_bytes)
        name_ends: cython.pointer(cython.int) = cython.cast(cython.pointer(cython.int), names.data)
        content_ends: cython.pointer(cython.int) = cython.cast(cython.pointer(cython.int), contents.data)
        source: cython.p_uchar
        row: cython.Py_ssize_t
        first: cython.Py_ssize_t
        last: cython.Py_ssize_t
        position: cython.Py_ssize_t
        end: cython.Py_ssize_t
        size: cython.Py_ssize_t
        left: cython.longlong
        index: cython.Py_ssize_t = 0
        name_at: cython.int = 0
        content_at: cython.int = 0
        plain: cython.bint = True
        memset(bits.data, 0, (self.header_rows + 7) >> 3)
        name_ends[0] = content_ends[0] = 0
        for section, first, last in self.sections:
            source = cython.cast(View, section).data
            end = cython.cast(View, section).size
            for row in range(first, last):
                if self.list_offsets[row + 1] == self.list_offsets[row]:
                    continue
                position = self.positions[2 * row + 1] + self.value_offsets[row + 1] - self.value_offsets[row]
                left = header_count(source, cython.address(position), end)
                while left > 0:
                    size = length(source, cython.address(position), end)
                    memcpy(name_data.data + name_at, source + position, size)
                    position += size
                    name_at += cython.cast(cython.int, size)
                    size = length(source, cython.address(position), end)
                    if size >= 0:
                        memcpy(content_data.data + content_at, source + position, size)
                        position += size
                        content_at += cython.cast(cython.int, size)
                        bits.data[index >> 3] |= cython.cast(cython.uchar, 1 << (index & 7))
                    index += 1
                    name_ends[index] = name_at
                    content_ends[index] = content_at
                    left -= 1
        for position in range(name_at):
            if name_data.data[position] > 0x7F:
                plain = False
        return plain
