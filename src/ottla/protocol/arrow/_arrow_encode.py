"""The Cython kernel that turns rows of columns into records; `_arrow_pure.RowColumns` is the same in Python. Pure.

It creates no Python object per row. It sees buffers only and does not import pyarrow: `arrow_rows.py` takes the
columns apart and calls it. `_arrow_pure.py` documents each method.
"""
# mypy: ignore-errors
# The types here are C's, in Cython's declarations, which mypy does not read.

import cython
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBUF_WRITABLE
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cython.cimports.cpython.mem import PyMem_RawFree, PyMem_RawMalloc
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.ottla.protocol.arrow._arrow_buffers import View, open_buffer, open_sized
from cython.cimports.ottla.protocol.records._cursor import number_size, put_number

INTERFACE = 2

_RECORD_OVERHEAD = cython.declare(cython.longlong, 21)
_HEADER_OVERHEAD = cython.declare(cython.longlong, 10)
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
# Bytes to write. For fewer, getting the GIL back would take longer than the writing.
_WORTH_LETTING_OTHERS_RUN = cython.declare(cython.longlong, 262144)


@cython.final
@cython.cclass
class _Strings:
    """A column of byte strings: where each begins and ends, and which are null."""

    bits: cython.p_uchar
    narrow: cython.pointer(cython.int)
    wide: cython.pointer(cython.longlong)
    data: cython.p_uchar
    size: cython.longlong
    first: cython.Py_ssize_t
    held: list

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def start(self, row: cython.Py_ssize_t) -> cython.longlong:
        return self.narrow[self.first + row] if self.wide is cython.NULL else self.wide[self.first + row]

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def is_null(self, row: cython.Py_ssize_t) -> cython.bint:
        if self.bits is cython.NULL:
            return False
        row += self.first
        return not self.bits[row >> 3] >> (row & 7) & 1

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def length(self, row: cython.Py_ssize_t) -> cython.longlong:
        """-1 for null, -2 where the offsets point outside."""
        start: cython.longlong
        end: cython.longlong
        if self.is_null(row):
            return -1
        start = self.start(row)
        end = self.start(row + 1)
        if start < 0 or end < start or end > self.size:
            return -2
        return end - start


@cython.cfunc
def _strings(column: object, count: cython.Py_ssize_t) -> _Strings:
    """Opens (bits or None, offsets, data or None, bytes of an offset, rows before the first)."""
    strings: _Strings = _Strings.__new__(_Strings)
    view: View
    bits, offsets, data, width, first = column
    strings.held = []
    strings.first = first
    strings.bits = strings.data = cython.NULL
    strings.narrow = cython.NULL
    strings.wide = cython.NULL
    if strings.first < 0:
        raise ValueError("a column cannot begin before its first row")
    if bits is not None:
        view = open_sized(bits, PyBUF_SIMPLE, (strings.first + count + 7) >> 3)
        strings.held.append(view)
        strings.bits = view.data
    view = open_sized(offsets, PyBUF_SIMPLE, width * (strings.first + count + 1))
    strings.held.append(view)
    if width == 8:
        strings.wide = cython.cast(cython.pointer(cython.longlong), view.data)
    elif width == 4:
        strings.narrow = cython.cast(cython.pointer(cython.int), view.data)
    else:
        raise ValueError(f"offsets take 4 or 8 bytes, not {width}")
    view = open_buffer(data, PyBUF_SIMPLE)
    strings.held.append(view)
    strings.data = view.data
    strings.size = view.size
    return strings


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_string(out: cython.p_uchar, strings: _Strings, row: cython.Py_ssize_t) -> cython.p_uchar:
    start: cython.longlong
    size: cython.longlong
    if strings.is_null(row):
        out[0] = 1
        return out + 1
    start = strings.start(row)
    size = strings.start(row + 1) - start
    out = put_number(out, size)
    memcpy(out, strings.data + start, size)
    return out + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _murmur2(data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.uint:
    seed: cython.uint = 0x9747B28C
    m: cython.uint = 0x5BD1E995
    h: cython.uint = seed ^ cython.cast(cython.uint, size)
    k: cython.uint
    i: cython.Py_ssize_t = 0
    rest: cython.Py_ssize_t
    while size - i >= 4:
        k = (
            cython.cast(cython.uint, data[i])
            | cython.cast(cython.uint, data[i + 1]) << 8
            | cython.cast(cython.uint, data[i + 2]) << 16
            | cython.cast(cython.uint, data[i + 3]) << 24
        )
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        i += 4
    rest = size - i
    if rest > 2:
        h ^= cython.cast(cython.uint, data[i + 2]) << 16
    if rest > 1:
        h ^= cython.cast(cython.uint, data[i + 1]) << 8
    if rest > 0:
        h ^= cython.cast(cython.uint, data[i])
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h


def murmur2(key: object) -> int:
    view: View = open_buffer(key, PyBUF_SIMPLE)
    return _murmur2(view.data, view.size)


@cython.final
@cython.cclass
class RowColumns:
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    first_row: cython.longlong
    keys: _Strings
    values: _Strings
    names: _Strings
    contents: _Strings
    list_bits: cython.p_uchar
    list_offsets: cython.pointer(cython.int)
    list_first: cython.Py_ssize_t
    struct_bits: cython.p_uchar
    struct_first: cython.Py_ssize_t
    times: cython.pointer(cython.longlong)
    time_bits: cython.p_uchar
    time_first: cython.Py_ssize_t
    default_time: cython.longlong
    sizes: cython.pointer(cython.longlong)
    held: list

    def __cinit__(self):
        self.sizes = cython.NULL

    def __init__(
        self,
        count: cython.Py_ssize_t,
        first_row: cython.longlong,
        key: object,
        value: object,
        timestamps: object,
        default_time: cython.longlong,
        headers: object,
    ):
        if count < 0 or count > _INT32_MAX:
            raise ValueError(f"{count} rows are too many at once")
        self.count = count
        self.first_row = first_row
        self.default_time = default_time
        self.held = []
        self.keys = None if key is None else _strings(key, count)
        self.values = _strings(value, count)
        self.names = self.contents = None
        self.list_offsets = cython.NULL
        self.list_bits = self.struct_bits = self.time_bits = cython.NULL
        self.times = cython.NULL
        if timestamps is not None:
            bits, data, first = timestamps
            self.time_first = first
            self.time_bits = self.keep(bits, (self.time_first + count + 7) >> 3)
            self.times = cython.cast(cython.pointer(cython.longlong), self.keep(data, 8 * (self.time_first + count)))
        if headers is not None:
            bits, offsets, first, struct_bits, struct_first, child_count, names, contents = headers
            self.list_first = first
            self.list_bits = self.keep(bits, (self.list_first + count + 7) >> 3)
            self.list_offsets = cython.cast(
                cython.pointer(cython.int), self.keep(offsets, 4 * (self.list_first + count + 1))
            )
            self.struct_first = struct_first
            self.struct_bits = self.keep(struct_bits, (self.struct_first + child_count + 7) >> 3)
            self.names = _strings(names, child_count)
            self.contents = _strings(contents, child_count)
            self.check_lists(child_count)
        PyMem_RawFree(self.sizes)
        self.sizes = cython.cast(cython.pointer(cython.longlong), PyMem_RawMalloc(8 * (count + 1)))
        if self.sizes is cython.NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_RawFree(self.sizes)

    @cython.cfunc
    def keep(self, buffer: object, size: cython.longlong) -> cython.p_uchar:
        """Opens a buffer for as long as this object lives; NULL for None."""
        view: View
        if buffer is None:
            return cython.NULL
        view = open_sized(buffer, PyBUF_SIMPLE, size)
        self.held.append(view)
        return view.data

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def check_lists(self, child_count: cython.longlong) -> cython.int:
        row: cython.Py_ssize_t
        start: cython.int
        end: cython.int
        for row in range(self.count):
            start = self.list_offsets[self.list_first + row]
            end = self.list_offsets[self.list_first + row + 1]
            if start < 0 or end < start or end > child_count:
                raise ValueError(f"row {self.first_row + row}: its headers lie outside their buffers")
        return 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def headers_of(self, row: cython.Py_ssize_t, start: cython.pointer(cython.Py_ssize_t)) -> cython.Py_ssize_t:
        """How many headers a row has, and where the first is."""
        at: cython.Py_ssize_t = self.list_first + row
        if self.list_offsets is cython.NULL:
            return 0
        if self.list_bits is not cython.NULL and not self.list_bits[at >> 3] >> (at & 7) & 1:
            return 0
        start[0] = self.list_offsets[at]
        return self.list_offsets[at + 1] - self.list_offsets[at]

    def measure(self, size_max: cython.longlong) -> int:
        row: cython.Py_ssize_t
        index: cython.Py_ssize_t
        at: cython.Py_ssize_t
        start: cython.Py_ssize_t = 0
        headers: cython.Py_ssize_t
        size: cython.longlong
        part: cython.longlong
        total: cython.longlong = 0
        timestamp: cython.longlong
        for row in range(self.count):
            size = _RECORD_OVERHEAD
            if self.keys is not None:
                part = self.keys.length(row)
                if part < -1:
                    raise ValueError(f"row {self.first_row + row}: its key lies outside its buffer")
                size += max(part, 0)
            part = self.values.length(row)
            if part < -1:
                raise ValueError(f"row {self.first_row + row}: its value lies outside its buffer")
            size += max(part, 0)
            headers = self.headers_of(row, cython.address(start))
            for index in range(start, start + headers):
                at = self.struct_first + index
                if self.struct_bits is not cython.NULL and not self.struct_bits[at >> 3] >> (at & 7) & 1:
                    raise ValueError(f"row {self.first_row + row}: a header is null")
                part = self.names.length(index)
                if part == -1:
                    raise ValueError(f"row {self.first_row + row}: a header's key is null")
                if part < 0:
                    raise ValueError(f"row {self.first_row + row}: a header lies outside its buffer")
                size += _HEADER_OVERHEAD + part
                part = self.contents.length(index)
                if part < -1:
                    raise ValueError(f"row {self.first_row + row}: a header lies outside its buffer")
                size += max(part, 0)
            if size > size_max:
                raise OverflowError(f"row {self.first_row + row}: a record of {size} bytes")
            timestamp = self.timestamp(row)
            if timestamp < 0:
                raise ValueError(f"row {self.first_row + row}: the timestamp {timestamp} is negative")
            self.sizes[row] = size
            total += size
        return total

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def timestamp(self, row: cython.Py_ssize_t) -> cython.longlong:
        at: cython.Py_ssize_t = self.time_first + row
        if self.times is cython.NULL:
            return self.default_time
        if self.time_bits is not cython.NULL and not self.time_bits[at >> 3] >> (at & 7) & 1:
            return self.default_time
        return self.times[at]

    def assign(self, slots: object, topics: object, partitions: object, bases: list, counts: list) -> int:
        slots_view: View = open_sized(slots, PyBUF_WRITABLE, 4 * self.count)
        out: cython.pointer(cython.int) = cython.cast(cython.pointer(cython.int), slots_view.data)
        view: View
        codes: cython.pointer(cython.int) = cython.NULL
        chosen: cython.pointer(cython.int) = cython.NULL
        bits: cython.p_uchar = cython.NULL
        first: cython.Py_ssize_t = 0
        held: list = []
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        topic: cython.int = 0
        base: cython.int = bases[0]
        number_of: cython.int = counts[0]
        seen: cython.int = 0
        loose: cython.Py_ssize_t = 0
        start: cython.longlong
        if topics is not None:
            view = open_sized(topics, PyBUF_SIMPLE, 4 * self.count)
            held.append(view)
            codes = cython.cast(cython.pointer(cython.int), view.data)
        if partitions is not None:
            valid, data, place = partitions
            first = place
            view = open_sized(data, PyBUF_SIMPLE, 4 * (first + self.count))
            held.append(view)
            chosen = cython.cast(cython.pointer(cython.int), view.data)
            if valid is not None:
                view = open_sized(valid, PyBUF_SIMPLE, (first + self.count + 7) >> 3)
                held.append(view)
                bits = view.data
        for row in range(self.count):
            if codes is not cython.NULL:
                topic = codes[row]
                if topic != seen:
                    base = bases[topic]
                    number_of = counts[topic]
                    seen = topic
            at = first + row
            if chosen is not cython.NULL and (bits is cython.NULL or bits[at >> 3] >> (at & 7) & 1):
                if chosen[at] < 0 or chosen[at] >= number_of:
                    raise LookupError(self.first_row + row, topic, chosen[at])
                out[row] = base + chosen[at]
            elif number_of == 1:
                out[row] = base
            elif self.keys is not None and not self.keys.is_null(row):
                start = self.keys.start(row)
                out[row] = base + cython.cast(
                    cython.int,
                    (_murmur2(self.keys.data + start, self.keys.start(row + 1) - start) & 0x7FFFFFFF)
                    % cython.cast(cython.uint, number_of),
                )
            else:
                out[row] = -1 - topic
                loose += 1
        return loose

    def stick(
        self,
        slots: object,
        row: cython.Py_ssize_t,
        topic: cython.int,
        slot: cython.int,
        bytes_max: cython.longlong,
    ) -> tuple:
        slots_view: View = open_sized(slots, PyBUF_WRITABLE, 4 * self.count)
        out: cython.pointer(cython.int) = cython.cast(cython.pointer(cython.int), slots_view.data)
        used: cython.longlong = 0
        if row < 0:
            raise ValueError("there is no such row")
        while row < self.count:
            if out[row] == -1 - topic:
                if used and used + self.sizes[row] > bytes_max:
                    break
                out[row] = slot
                used += self.sizes[row]
            row += 1
        return row, used

    def group(self, slots: object, slot_count: cython.Py_ssize_t, order: object) -> list:
        slots_view: View = open_sized(slots, PyBUF_SIMPLE, 4 * self.count)
        chosen: cython.pointer(cython.int) = cython.cast(cython.pointer(cython.int), slots_view.data)
        order_view: View = open_sized(order, PyBUF_WRITABLE, 4 * self.count)
        out: cython.pointer(cython.int) = cython.cast(cython.pointer(cython.int), order_view.data)
        nexts: cython.pointer(cython.Py_ssize_t)
        row: cython.Py_ssize_t
        slot: cython.Py_ssize_t
        total: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        ends: list = []
        if slot_count < 1:
            raise ValueError("there must be a slot")
        nexts = cython.cast(
            cython.pointer(cython.Py_ssize_t), PyMem_RawMalloc(cython.sizeof(cython.Py_ssize_t) * slot_count)
        )
        if nexts is cython.NULL:
            raise MemoryError
        try:
            memset(nexts, 0, cython.sizeof(cython.Py_ssize_t) * slot_count)
            for row in range(self.count):
                if chosen[row] < 0 or chosen[row] >= slot_count:
                    raise ValueError(f"row {self.first_row + row} has no partition")
                nexts[chosen[row]] += 1
            for slot in range(slot_count):
                size = nexts[slot]
                nexts[slot] = total
                total += size
                ends.append(total)
            for row in range(self.count):
                out[nexts[chosen[row]]] = cython.cast(cython.int, row)
                nexts[chosen[row]] += 1
        finally:
            PyMem_RawFree(nexts)
        return ends

    def encode(
        self,
        order: object,
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        bytes_max: cython.longlong,
        space: cython.Py_ssize_t,
        batch: bytearray | None = None,
    ) -> tuple:
        rows: cython.pointer(cython.int) = cython.NULL
        view: View = None
        out: cython.p_uchar
        first: cython.p_uchar
        stop: cython.Py_ssize_t = start
        row: cython.Py_ssize_t
        total: cython.longlong = 0
        size: cython.longlong
        base: cython.longlong
        highest: cython.longlong
        if start < 0 or end <= start or end > self.count or space < 0:
            raise ValueError("there are no such rows")
        if order is not None:
            view = open_sized(order, PyBUF_SIMPLE, 4 * self.count)
            rows = cython.cast(cython.pointer(cython.int), view.data)
        while stop < end:
            row = stop if rows is cython.NULL else rows[stop]
            if row < 0 or row >= self.count:
                raise ValueError("there are no such rows")
            size = self.sizes[row]
            if stop > start and total + size > bytes_max:
                break
            total += size
            stop += 1
        if batch is None:
            batch = PyByteArray_FromStringAndSize(cython.NULL, space + total)
        else:
            PyByteArray_Resize(batch, space + total)
        first = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(batch))
        base = self.timestamp(start if rows is cython.NULL else rows[start])
        highest = base
        if total >= _WORTH_LETTING_OTHERS_RUN:
            with cython.nogil:
                out = self.put_records(first + space, rows, start, stop, base, cython.address(highest))
        else:
            out = self.put_records(first + space, rows, start, stop, base, cython.address(highest))
        PyByteArray_Resize(batch, out - first)
        return batch, stop - start, base, highest

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def put_records(
        self,
        out: cython.p_uchar,
        rows: cython.pointer(cython.int),
        start: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        base: cython.longlong,
        highest: cython.pointer(cython.longlong),
    ) -> cython.p_uchar:
        index: cython.Py_ssize_t
        row: cython.Py_ssize_t
        header: cython.Py_ssize_t
        first_header: cython.Py_ssize_t = 0
        headers: cython.Py_ssize_t
        size: cython.longlong
        part: cython.longlong
        timestamp: cython.longlong
        for index in range(start, stop):
            row = index if rows is cython.NULL else rows[index]
            timestamp = self.timestamp(row)
            if timestamp > highest[0]:
                highest[0] = timestamp
            size = 1 + number_size(timestamp - base) + number_size(index - start)
            part = -1 if self.keys is None else self.keys.length(row)
            size += number_size(part) + (part if part > 0 else 0)
            part = self.values.length(row)
            size += number_size(part) + (part if part > 0 else 0)
            headers = self.headers_of(row, cython.address(first_header))
            size += number_size(headers)
            for header in range(first_header, first_header + headers):
                part = self.names.length(header)
                size += number_size(part) + part
                part = self.contents.length(header)
                size += number_size(part) + (part if part > 0 else 0)
            out = put_number(out, size)
            out[0] = 0
            out = put_number(out + 1, timestamp - base)
            out = put_number(out, index - start)
            if self.keys is None:
                out[0] = 1
                out += 1
            else:
                out = _put_string(out, self.keys, row)
            out = _put_string(out, self.values, row)
            out = put_number(out, headers)
            for header in range(first_header, first_header + headers):
                out = _put_string(out, self.names, header)
                out = _put_string(out, self.contents, header)
        return out
