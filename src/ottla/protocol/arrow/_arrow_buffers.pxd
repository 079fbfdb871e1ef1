# Buffers that both Arrow kernels read and write; `_arrow_buffers.py` implements them.

cdef class View:
    cdef Py_buffer view
    cdef unsigned char *data
    cdef Py_ssize_t size
    cdef bint is_open

cdef View open_buffer(object buffer, int flags)
cdef View open_sized(object buffer, int flags, long long size)
