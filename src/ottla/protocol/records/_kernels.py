"""The record kernels in Cython (pure-Python mode), function for function the same as `_pure.py`. Pure.

`setup.py` compiles this file to an extension beside it. `_speedups.py` uses the extension or `_pure.py`, and never
runs this source. `_pure.py` documents each kernel; this file works on C numbers and pointers, and creates Python
objects only for what it returns. `_cursor.pxd` has C helpers that the kernels for Arrow columns share.
"""
# mypy: ignore-errors
# The types here are C's, in Cython's declarations, which mypy does not read.

import cython
from cython.cimports.cpython.buffer import (
    Py_buffer,
    PyBUF_READ,
    PyBUF_SIMPLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.cpython.list import PyList_New, PyList_SET_ITEM
from cython.cimports.cpython.mem import PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cython.cimports.cpython.memoryview import PyMemoryView_FromMemory
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.cpython.tuple import PyTuple_New
from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from cython.cimports.libc.string import memcpy
from cython.cimports.ottla.protocol.records._cursor import (
    PyObject_GC_UnTrack,
    added,
    big_endian,
    fill,
    header_count,
    int16_at,
    int32_at,
    int64_at,
    length,
    new_tuple,
    number,
    number_size,
    offset_delta,
    put_big_endian,
    put_number,
    record_stop,
)

INTERFACE = 4

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_RECORD_SIZE_MIN = cython.declare(cython.Py_ssize_t, 7)
_INT32_MAX = cython.declare(cython.longlong, 0x7FFFFFFF)
_INT64_MAX = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_INT64_MIN = cython.declare(cython.longlong, -0x7FFFFFFFFFFFFFFF - 1)
_NULL_KEYS_MAX = cython.declare(cython.Py_ssize_t, 1000)
_SPARE_SIZE = cython.declare(cython.Py_ssize_t, 1 << 17)
_SPARE_SIZE_MAX = cython.declare(cython.Py_ssize_t, 1 << 20)
_spare = cython.declare(object, None)


# What is read from, and what is written to


@cython.final
@cython.freelist(4)
@cython.cclass
class _View:
    """A buffer, held as long as this object lives."""

    view: Py_buffer
    data: cython.p_uchar
    size: cython.Py_ssize_t

    def __dealloc__(self):
        PyBuffer_Release(cython.address(self.view))


@cython.cfunc
def _open(buffer: object) -> _View:
    opened: _View = _View.__new__(_View)
    PyObject_GetBuffer(buffer, cython.address(opened.view), PyBUF_SIMPLE)
    opened.data = cython.cast(cython.p_uchar, opened.view.buf)
    opened.size = opened.view.len
    return opened


@cython.cfunc
def _section(buffer: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong) -> _View:
    """Opens the buffer. Raises before anything is allocated if `count` records cannot fit."""
    section: _View = _open(buffer)
    if start < 0 or start > end or end > section.size:
        raise ValueError("the records end early")
    if count < 0 or count > (end - start) // _RECORD_SIZE_MIN:
        raise ValueError(f"{count} records do not fit in {end - start} bytes")
    return section


@cython.final
@cython.freelist(4)
@cython.cclass
class _Writer:
    """Bytes that grow."""

    data: cython.p_uchar
    size: cython.Py_ssize_t
    capacity: cython.Py_ssize_t

    def __dealloc__(self):
        PyMem_Free(self.data)

    @cython.cfunc
    @cython.inline
    def room(self, size: cython.Py_ssize_t) -> cython.p_uchar:
        """Where to write at most `size` bytes; `wrote` says how far it went."""
        if self.capacity - self.size < size:
            self.grow(size)
        return self.data + self.size

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def grow(self, size: cython.Py_ssize_t) -> cython.int:
        data: cython.p_uchar
        capacity: cython.Py_ssize_t = self.capacity * 2
        if size > _INT32_MAX or self.size + size > _INT32_MAX:
            raise ValueError(f"{self.size + size} bytes of records do not fit in a batch")
        if capacity < self.size + size:
            capacity = self.size + size
        data = cython.cast(cython.p_uchar, PyMem_Realloc(self.data, capacity))
        if data is cython.NULL:
            raise MemoryError
        self.data = data
        self.capacity = capacity
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def wrote(self, after: cython.p_uchar) -> cython.void:
        self.size = after - self.data

    @cython.cfunc
    def taken(self) -> bytes:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.data), self.size)


@cython.cfunc
def _writer(capacity: cython.Py_ssize_t) -> _Writer:
    writer: _Writer = _Writer.__new__(_Writer)
    writer.data = cython.cast(cython.p_uchar, PyMem_Malloc(capacity))
    if writer.data is cython.NULL:
        raise MemoryError
    writer.size = 0
    writer.capacity = capacity
    return writer


@cython.cfunc
def _batch_writer() -> _Writer:
    """A writer with room for a typical batch: the last one used, if it is not in use."""
    global _spare
    writer: _Writer = _spare
    if writer is None:
        return _writer(_SPARE_SIZE)
    _spare = None
    writer.size = 0
    return writer


@cython.cfunc
def _taken_batch(writer: _Writer) -> bytes:
    """What was written. The writer is kept if it is not too large: new memory costs more than writing to it."""
    global _spare
    taken: bytes = writer.taken()
    if writer.capacity <= _SPARE_SIZE_MAX:
        _spare = writer
    return taken


# Headers and numbers


def unpack_header(header_type: type, buffer: object, position: cython.Py_ssize_t, crc32c: object = None) -> object:
    view: _View = _open(buffer)
    p: cython.p_uchar
    batch_length: cython.int
    crc: cython.uint
    found: cython.uint
    if not issubclass(header_type, tuple):
        raise TypeError("a header is a named tuple of 13 fields")
    if position < 0:
        raise ValueError(f"a batch cannot begin at {position}")
    if view.size - position < _HEADER_SIZE:
        raise ValueError("a batch header takes 61 bytes, fewer are left")
    p = view.data + position
    if p[16] != 2:
        raise ValueError(f"magic {cython.cast(cython.schar, p[16])} is not a batch of format 2")
    batch_length = int32_at(p + 8)
    if batch_length < _HEADER_SIZE - 12:
        raise ValueError(f"a batch cannot be {batch_length} bytes long")
    if int32_at(p + 23) < 0 or int32_at(p + 57) < 0:
        raise ValueError(f"{int32_at(p + 57)} records up to offset delta {int32_at(p + 23)}")
    if p[22] & 7 > 4:
        raise ValueError(f"unknown codec {p[22] & 7}")
    crc = cython.cast(cython.uint, big_endian(p + 17, 4))
    if crc32c is not None:
        if view.size - position - 12 < batch_length:
            raise ValueError(f"{batch_length + 12} bytes announced, {view.size - position} left")
        found = crc32c(PyMemoryView_FromMemory(cython.cast(cython.p_char, p + 21), batch_length - 9, PyBUF_READ))
        if found != crc:
            raise ValueError(f"checksum {crc:08x} expected, {found:08x} found")
    header = new_tuple(header_type, 13)
    fill(header, 0, int64_at(p))
    fill(header, 1, batch_length)
    fill(header, 2, int32_at(p + 12))
    fill(header, 3, 2)
    fill(header, 4, crc)
    fill(header, 5, int16_at(p + 21))
    fill(header, 6, int32_at(p + 23))
    fill(header, 7, int64_at(p + 27))
    fill(header, 8, int64_at(p + 35))
    fill(header, 9, int64_at(p + 43))
    fill(header, 10, int16_at(p + 51))
    fill(header, 11, int32_at(p + 53))
    fill(header, 12, int32_at(p + 57))
    return header


def encode_varint(value: cython.longlong) -> bytes:
    writer: _Writer = _writer(10)
    writer.wrote(put_number(writer.data, value))
    return writer.taken()


def decode_varint(buffer: object, position: cython.Py_ssize_t) -> tuple:
    view: _View = _open(buffer)
    value: cython.longlong
    if position < 0:
        raise ValueError("a number ends early")
    value = number(view.data, cython.address(position), view.size, 64)
    return value, position


# Records out


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size_of(data: object) -> cython.Py_ssize_t:
    """What a length and as many bytes take; `data` is bytes or None."""
    if data is None:
        return 1
    return number_size(PyBytes_GET_SIZE(data)) + PyBytes_GET_SIZE(data)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(out: cython.p_uchar, data: object) -> cython.p_uchar:
    size: cython.Py_ssize_t
    if data is None:
        out[0] = 1
        return out + 1
    size = PyBytes_GET_SIZE(data)
    out = put_number(out, size)
    memcpy(out, PyBytes_AS_STRING(data), size)
    return out + size


@cython.cfunc
def _write_headers(writer: _Writer, headers: object) -> cython.Py_ssize_t:
    """Appends the headers' names and values; returns how many there are."""
    count: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = 0
    text: cython.p_const_char
    out: cython.p_uchar
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a str, not {type(name).__name__}")
        if value is not None and type(value) is not bytes:
            value = bytes(memoryview(value))
        text = PyUnicode_AsUTF8AndSize(name, cython.address(size))
        out = put_number(writer.room(10 + size + _size_of(value)), size)
        memcpy(out, text, size)
        writer.wrote(_put_bytes(out + size, value))
        count += 1
    return count


@cython.cfunc
def _write_records(
    writer: _Writer,
    rows: object,
    offset_deltas: object,
    base_timestamp: object,
    times: cython.pointer(cython.longlong),
) -> cython.Py_ssize_t:
    """Appends the rows as records; sets times[0] to the base timestamp and times[1] to the highest."""
    base: cython.longlong = 0
    highest: cython.longlong = 0
    timestamp: cython.longlong
    delta: cython.longlong
    place: cython.longlong
    index: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t
    out: cython.p_uchar
    headers_writer: _Writer = None
    if base_timestamp is not None:
        base = base_timestamp
    for row in rows:
        stamp, key, value, headers = row
        if not isinstance(stamp, int):  # Cython would truncate a float
            raise TypeError(f"a timestamp is an int, not {type(stamp).__name__}")
        timestamp = stamp
        if index == 0 and base_timestamp is None:
            base = timestamp
        if index == 0 or timestamp > highest:
            highest = timestamp
        delta = cython.cast(
            cython.longlong, cython.cast(cython.ulonglong, timestamp) - cython.cast(cython.ulonglong, base)
        )
        if (timestamp ^ base) & (timestamp ^ delta) < 0:
            raise OverflowError(f"timestamps {base} and {timestamp} are too far apart")
        place = index
        if offset_deltas is not None:
            place = offset_deltas[index]
            if place < 0 or place > _INT32_MAX:
                raise ValueError(f"offset delta {place} is out of range")
        if key is not None and type(key) is not bytes:
            key = bytes(memoryview(key))
        if value is not None and type(value) is not bytes:
            value = bytes(memoryview(value))
        size = 1 + number_size(delta) + number_size(place) + _size_of(key) + _size_of(value)
        count = 0
        if headers:
            if headers_writer is None:
                headers_writer = _writer(1024)
            headers_writer.size = 0
            count = _write_headers(headers_writer, headers)
            size += headers_writer.size
        size += number_size(count)
        out = put_number(writer.room(size + 10), size)
        out[0] = 0
        out = put_number(out + 1, delta)
        out = put_number(out, place)
        out = _put_bytes(out, key)
        out = _put_bytes(out, value)
        out = put_number(out, count)
        if count:
            memcpy(out, headers_writer.data, headers_writer.size)
            out += headers_writer.size
        writer.wrote(out)
        index += 1
    if writer.size > _INT32_MAX - _HEADER_SIZE:
        raise ValueError(f"{writer.size} bytes of records do not fit in a batch")
    times[0] = base
    times[1] = highest
    return index


def encode_records(rows: object, offset_deltas: object = None, base_timestamp: object = None) -> tuple:
    writer: _Writer
    times: cython.longlong[2] = [0, 0]
    count: cython.Py_ssize_t
    if not isinstance(rows, (list, tuple)):
        rows = list(rows)
    if not rows:
        return b"", 0, -1 if base_timestamp is None else base_timestamp, -1
    if offset_deltas is not None and len(offset_deltas) != len(rows):
        raise ValueError(f"{len(offset_deltas)} offset deltas for {len(rows)} records")
    writer = _batch_writer()
    count = _write_records(writer, rows, offset_deltas, base_timestamp, times)
    return _taken_batch(writer), count, times[0], times[1]


def encode_batch(
    rows: object,
    base_offset: cython.longlong,
    leader_epoch: cython.int,
    attributes: cython.short,
    producer_id: cython.longlong,
    producer_epoch: cython.short,
    base_sequence: cython.int,
    crc32c: object,
) -> bytes:
    writer: _Writer
    times: cython.longlong[2] = [0, 0]
    count: cython.Py_ssize_t
    p: cython.p_uchar
    crc: cython.uint
    if not isinstance(rows, (list, tuple)):
        rows = list(rows)
    writer = _batch_writer()
    writer.size = _HEADER_SIZE
    count = _write_records(writer, rows, None, None, times)
    if not count:
        raise ValueError("a batch needs at least one record")
    p = put_big_endian(writer.data, base_offset, 8)
    p = put_big_endian(p, writer.size - 12, 4)
    p = put_big_endian(p, leader_epoch, 4)
    p = put_big_endian(p, 2, 1)
    p = put_big_endian(p + 4, attributes, 2)
    p = put_big_endian(p, count - 1, 4)
    p = put_big_endian(p, times[0], 8)
    p = put_big_endian(p, times[1], 8)
    p = put_big_endian(p, producer_id, 8)
    p = put_big_endian(p, producer_epoch, 2)
    p = put_big_endian(p, base_sequence, 4)
    put_big_endian(p, count, 4)
    p = writer.data
    crc = crc32c(PyMemoryView_FromMemory(cython.cast(cython.p_char, p + 21), writer.size - 21, PyBUF_READ))
    put_big_endian(p + 17, crc, 4)
    return _taken_batch(writer)


# Records in


@cython.cfunc
@cython.inline
def _get_bytes(data: cython.p_uchar, position: cython.pointer(cython.Py_ssize_t), stop: cython.Py_ssize_t) -> object:
    size: cython.Py_ssize_t = length(data, position, stop)
    start: cython.Py_ssize_t = position[0]
    if size < 0:
        return None
    position[0] = start + size
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, data + start), size)


@cython.cfunc
def _get_headers(data: cython.p_uchar, position: cython.pointer(cython.Py_ssize_t), stop: cython.Py_ssize_t) -> tuple:
    count: cython.Py_ssize_t = header_count(data, position, stop)
    index: cython.Py_ssize_t
    size: cython.Py_ssize_t
    headers: tuple = PyTuple_New(count)
    PyObject_GC_UnTrack(headers)
    for index in range(count):
        size = length(data, position, stop)
        if size < 0:
            raise ValueError("a length is out of bounds")
        name = PyUnicode_DecodeUTF8(cython.cast(cython.p_char, data + position[0]), size, b"replace")
        position[0] += size
        header = (name, _get_bytes(data, position, stop))
        PyObject_GC_UnTrack(header)
        fill(headers, index, header)
    return headers


def decode_records(
    record_type: type,
    buffer: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_offset: cython.longlong,
    last_offset_delta: cython.longlong,
    base_timestamp: cython.longlong,
    append_time: object,
    lead: tuple = (),
) -> list:
    section: _View = _section(buffer, start, end, count)
    data: cython.p_uchar = section.data
    position: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    index: cython.Py_ssize_t
    field: cython.Py_ssize_t
    first: cython.Py_ssize_t
    timestamp: cython.longlong
    place: cython.longlong
    previous: cython.longlong = -1
    records: list
    stamp: object = append_time
    if not issubclass(record_type, tuple):
        raise TypeError("a record is a named tuple")
    for part in lead:  # records are hidden from the garbage collector
        if type(part) is not str and type(part) is not int:
            raise TypeError(f"a record's place is text and numbers, not {type(part).__name__}")
    first = len(lead)
    if last_offset_delta < 0 or base_offset > _INT64_MAX - last_offset_delta:
        raise ValueError(f"offset {base_offset} + {last_offset_delta} does not fit in 64 bits")
    records = PyList_New(count)
    for index in range(count):
        stop = record_stop(data, cython.address(position), end)
        timestamp = added(base_timestamp, number(data, cython.address(position), stop, 64))
        place = offset_delta(data, cython.address(position), stop)
        if place <= previous or place > last_offset_delta:
            raise ValueError("a record's offset is out of order")
        previous = place
        key = _get_bytes(data, cython.address(position), stop)
        value = _get_bytes(data, cython.address(position), stop)
        if position < stop and data[position] == 0:
            position += 1
            headers = ()
        else:
            headers = _get_headers(data, cython.address(position), stop)
        if position != stop:
            raise ValueError("a record's length does not match its content")
        if append_time is None:
            stamp = timestamp
        record = new_tuple(record_type, first + 5)
        for field in range(first):
            fill(record, field, lead[field])
        fill(record, first, base_offset + place)
        fill(record, first + 1, stamp)
        fill(record, first + 2, key)
        fill(record, first + 3, value)
        fill(record, first + 4, headers)
        Py_INCREF(record)
        PyList_SET_ITEM(records, index, record)
    if position != end:
        raise ValueError(f"{end - position} bytes follow the last record")
    return records


# Records examined without creating objects


def scan_keys(buffer: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t, count: cython.longlong) -> list:
    section: _View = _section(buffer, start, end, count)
    data: cython.p_uchar = section.data
    position: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    size: cython.Py_ssize_t
    place: cython.longlong
    found: list = []
    for _ in range(count):
        stop = record_stop(data, cython.address(position), end)
        number(data, cython.address(position), stop, 64)
        place = offset_delta(data, cython.address(position), stop)
        key = _get_bytes(data, cython.address(position), stop)
        size = length(data, cython.address(position), stop)
        if position + max(size, 0) >= stop:  # a header count follows at least
            raise ValueError("a length is out of bounds")
        found.append((place, key, size < 0))
        position = stop
    if position != end:
        raise ValueError(f"{end - position} bytes follow the last record")
    return found


def inspect_records(
    buffer: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    base_timestamp: cython.longlong,
    first: cython.longlong = 0,
    is_last: cython.bint = True,
    null_keys: list = None,  # noqa: RUF013
) -> tuple:
    section: _View
    data: cython.p_uchar
    position: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t
    size: cython.Py_ssize_t
    index: cython.longlong = first
    headers: cython.longlong
    timestamp: cython.longlong
    misplaced: cython.longlong = -1
    lowest: cython.longlong = _INT64_MAX
    highest: cython.longlong = _INT64_MIN
    if is_last:
        section = _section(buffer, start, end, count)
    else:
        section = _section(buffer, start, end, 0)
    data = section.data
    try:
        while index < first + count:
            if not is_last and not _holds_a_record(data, position, end):
                break
            stop = record_stop(data, cython.address(position), end)
            timestamp = added(base_timestamp, number(data, cython.address(position), stop, 64))
            if timestamp < lowest and timestamp != -1:
                lowest = timestamp
            if timestamp > highest:
                highest = timestamp
            if offset_delta(data, cython.address(position), stop) != index and misplaced < 0:
                misplaced = index
            size = length(data, cython.address(position), stop)
            if size >= 0:
                position += size
            elif null_keys is not None and len(null_keys) < _NULL_KEYS_MAX:
                null_keys.append(index)
            size = length(data, cython.address(position), stop)
            position += max(size, 0)
            if position < stop and data[position] == 0:
                position += 1
            else:
                headers = header_count(data, cython.address(position), stop)
                while headers > 0:
                    size = length(data, cython.address(position), stop)
                    if size < 0:
                        raise ValueError("a length is out of bounds")
                    position += size
                    size = length(data, cython.address(position), stop)
                    position += max(size, 0)
                    headers -= 1
            if position != stop:
                raise ValueError("a record's length does not match its content")
            index += 1
    except ValueError as error:
        raise ValueError(f"record {index}: {error}") from None
    if is_last and position != end:
        raise ValueError(f"{end - position} bytes follow the last record")
    return misplaced, lowest, highest, position, index


@cython.cfunc
@cython.exceptval(-1, check=False)
def _holds_a_record(data: cython.p_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """Whether the record at `position` is complete, or is known to be invalid already."""
    size: cython.longlong
    at: cython.Py_ssize_t = position
    while at < end and data[at] > 0x7F:
        at += 1
    if at == end and end - position < 5:
        return 0
    size = number(data, cython.address(position), end, 32)
    return size < 1 or size <= end - position


def filter_records(
    buffer: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    keep: object,
    timestamp_shift: cython.longlong,
) -> tuple:
    section: _View = _section(buffer, start, end, count)
    data: cython.p_uchar = section.data
    position: cython.Py_ssize_t = start
    first: cython.Py_ssize_t
    body: cython.Py_ssize_t
    rest: cython.Py_ssize_t
    size: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    delta: cython.longlong
    place: cython.longlong
    highest: cython.longlong = 0
    kept: cython.Py_ssize_t = 0
    out: cython.p_uchar
    writer: _Writer = _writer(end - start + 64)
    for _ in range(count):
        first = position
        stop = record_stop(data, cython.address(position), end)
        body = position - 1
        delta = number(data, cython.address(position), stop, 64)
        rest = position
        place = offset_delta(data, cython.address(position), stop)
        size = length(data, cython.address(position), stop)
        position += max(size, 0)
        size = length(data, cython.address(position), stop)
        if position + max(size, 0) >= stop:
            raise ValueError("a length is out of bounds")
        position = stop
        if keep is not None and place not in keep:
            continue
        delta = added(delta, timestamp_shift)
        if kept == 0 or delta > highest:
            highest = delta
        kept += 1
        out = writer.room(stop - first + 20)
        if timestamp_shift:
            out = put_number(out, 1 + number_size(delta) + stop - rest)
            out[0] = data[body]
            out = put_number(out + 1, delta)
            first = rest
        memcpy(out, data + first, stop - first)
        writer.wrote(out + (stop - first))
    if position != end:
        raise ValueError(f"{end - position} bytes follow the last record")
    return writer.taken(), kept, highest
