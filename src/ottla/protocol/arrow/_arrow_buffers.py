"""The buffers that the Arrow kernels read and write, in Cython. Pure.

Compiled only, like the kernels: `_arrow_pure.py` uses memoryviews. `_arrow_buffers.pxd` declares the C types.
"""
# mypy: ignore-errors
# The types here are C's, in Cython's declarations, which mypy does not read.

import cython
from cython.cimports.cpython.buffer import PyBuffer_Release, PyObject_GetBuffer


@cython.final
@cython.cclass
class View:
    """A buffer, held as long as this object lives. None is an empty one."""

    def __dealloc__(self):
        if self.is_open:
            PyBuffer_Release(cython.address(self.view))


@cython.cfunc
def open_buffer(buffer: object, flags: cython.int) -> View:
    opened: View = View.__new__(View)
    opened.is_open = False
    opened.data = cython.NULL
    opened.size = 0
    if buffer is not None:
        PyObject_GetBuffer(buffer, cython.address(opened.view), flags)
        opened.is_open = True
        opened.data = cython.cast(cython.p_uchar, opened.view.buf)
        opened.size = opened.view.len
    return opened


@cython.cfunc
def open_sized(buffer: object, flags: cython.int, size: cython.longlong) -> View:
    """A buffer of at least `size` bytes."""
    opened: View = open_buffer(buffer, flags)
    if opened.size < size:
        raise ValueError(f"a buffer of {opened.size} bytes is too small: {size} are needed")
    return opened
