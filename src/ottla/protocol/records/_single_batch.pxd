# C types for single_batch.py when it is compiled as _single_batch. Only types: the code is in single_batch.py.
cimport cython

cdef Py_ssize_t HEADER_SIZE
cdef Py_ssize_t LONG_NAME


@cython.locals(
    stop=Py_ssize_t, topic_start=Py_ssize_t, acks="long long", name_start=Py_ssize_t, size=Py_ssize_t, shift=int,
    octet="unsigned char", topic_end=Py_ssize_t, index="long long", start=Py_ssize_t, end=Py_ssize_t,
)
cpdef find_single_batch(bytes frame, Py_ssize_t position, bint by_id)
