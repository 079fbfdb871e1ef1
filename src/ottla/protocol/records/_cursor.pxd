# C-level helpers that every kernel module shares: numbers of variable length read and written at a cursor (a
# pointer, where it stands, where it must stop), big-endian numbers, and named tuples made in place.
# Malformed input raises ValueError, and nothing is read at or beyond `stop`.

from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

ctypedef unsigned char byte
ctypedef unsigned long long uint64
ctypedef long long int64

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(object)

# A named tuple is made in place and filled by `fill`: calling its type would make a plain tuple first, to copy
# from. It is hidden from the garbage collector, which has nothing to find in it: records hold only bytes, numbers
# and text, and a consumer that keeps a million of them would pay for each at every full collection.
cdef extern from *:
    """
    static PyObject *ottla_new_tuple(PyObject *type, Py_ssize_t size) {
        PyObject *self = ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, size);
        if (self == NULL) {
            return NULL;
        }
    #if PY_VERSION_HEX >= 0x030E0000
        ((PyTupleObject *)self)->ob_hash = -1; /* not computed yet; new in 3.14 */
    #endif
        PyObject_GC_UnTrack(self);
        return self;
    }
    """
    object new_tuple "ottla_new_tuple"(object type, Py_ssize_t size)

cdef inline void fill(object target, Py_ssize_t index, object value) noexcept:
    Py_INCREF(value)
    PyTuple_SET_ITEM(target, index, value)


# Reading. The value -(2**63 - 1) doubles as the sign of an error: no number in a record is near it.

cdef inline int64 long_number(byte *data, Py_ssize_t *position, Py_ssize_t stop, int bits) except? -0x7FFFFFFFFFFFFFFF:
    cdef uint64 raw = 0
    cdef byte piece
    cdef int shift = 0
    cdef int last_shift = 28 if bits == 32 else 63
    while True:
        if position[0] >= stop:
            raise ValueError("a number ends early")
        piece = data[position[0]]
        position[0] += 1
        if shift == last_shift and piece > (0x0F if bits == 32 else 0x01):
            raise ValueError("a number is too long")
        raw |= <uint64>(piece & 0x7F) << shift
        if piece < 0x80:
            return <int64>(raw >> 1) ^ -<int64>(raw & 1)
        shift += 7

cdef inline int64 number(byte *data, Py_ssize_t *position, Py_ssize_t stop, int bits) except? -0x7FFFFFFFFFFFFFFF:
    # The zigzag number at the cursor, of 32 or 64 bits; nearly all take one byte or two.
    cdef Py_ssize_t at = position[0]
    cdef int raw
    if at < stop:
        raw = data[at]
        if raw < 0x80:
            position[0] = at + 1
            return (raw >> 1) ^ -(raw & 1)
        if at + 1 < stop and data[at + 1] < 0x80:
            raw = (raw & 0x7F) | data[at + 1] << 7
            position[0] = at + 2
            return (raw >> 1) ^ -(raw & 1)
    return long_number(data, position, stop, bits)

cdef inline Py_ssize_t length(byte *data, Py_ssize_t *position, Py_ssize_t stop) except -2:
    # A length, -1 for null, of bytes that end at `stop` or before.
    cdef int64 size = number(data, position, stop, 32)
    if size < -1 or size > stop - position[0]:
        raise ValueError("a length is out of bounds")
    return size

cdef inline Py_ssize_t record_stop(byte *data, Py_ssize_t *position, Py_ssize_t end) except -1:
    # Reads a record's length and passes its attributes, which have no meaning: where the record stops.
    cdef Py_ssize_t size = length(data, position, end)
    if size < 1:
        raise ValueError("a length is out of bounds")
    size += position[0]
    position[0] += 1
    return size

cdef inline int64 offset_delta(byte *data, Py_ssize_t *position, Py_ssize_t stop) except -1:
    cdef int64 delta = number(data, position, stop, 32)
    if delta < 0:
        raise ValueError("a record's offset is out of order")
    return delta

cdef inline int64 header_count(byte *data, Py_ssize_t *position, Py_ssize_t stop) except -1:
    # A header takes two bytes at least.
    cdef int64 count = number(data, position, stop, 32)
    if count < 0 or count > (stop - position[0]) >> 1:
        raise ValueError("a record's header count is out of bounds")
    return count

cdef inline int64 added(int64 a, int64 b) except? -0x7FFFFFFFFFFFFFFF:
    cdef int64 total = <int64>(<uint64>a + <uint64>b)
    if (a ^ total) & (b ^ total) < 0:
        raise ValueError("a timestamp does not fit in 64 bits")
    return total

cdef inline uint64 big_endian(byte *data, int width) noexcept:
    cdef uint64 value = 0
    cdef int i
    for i in range(width):
        value = value << 8 | data[i]
    return value

cdef inline short int16_at(byte *data) noexcept:
    return <short>big_endian(data, 2)

cdef inline int int32_at(byte *data) noexcept:
    return <int>big_endian(data, 4)

cdef inline int64 int64_at(byte *data) noexcept:
    return <int64>big_endian(data, 8)


# Writing. The caller has made room; each function returns where the next byte goes.

cdef inline uint64 zigzag(int64 value) noexcept nogil:
    return (<uint64>value << 1) ^ <uint64>(value >> 63)

cdef inline Py_ssize_t number_size(int64 value) noexcept nogil:
    cdef uint64 raw = zigzag(value)
    cdef Py_ssize_t size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size

cdef inline byte *put_number(byte *out, int64 value) noexcept nogil:
    cdef uint64 raw = zigzag(value)
    while raw > 0x7F:
        out[0] = <byte>(raw & 0x7F | 0x80)
        out += 1
        raw >>= 7
    out[0] = <byte>raw
    return out + 1

cdef inline byte *put_big_endian(byte *out, uint64 value, int width) noexcept:
    cdef int i
    for i in range(width - 1, -1, -1):
        out[i] = <byte>(value & 0xFF)
        value >>= 8
    return out + width
