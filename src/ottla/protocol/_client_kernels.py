"""A kernel of the client's own, for Cython in pure-Python mode: records with the place they came from. Pure.

Its twin in Python stands in `ottla/client/model.py`, where one of the two is chosen. As in `_kernels.py`, a record
that holds nothing but bytes, numbers and text is hidden from the garbage collector.
"""
# mypy: ignore-errors
# The types here are C's, in Cython's declarations, which mypy does not read.

import cython
from cython.cimports.cpython.list import PyList_New, PyList_SET_ITEM
from cython.cimports.cpython.ref import Py_INCREF
from cython.cimports.cpython.tuple import PyTuple_GET_ITEM
from cython.cimports.ottla.protocol._cursor import fill, new_tuple

INTERFACE = 1

_FIELDS = cython.declare(cython.Py_ssize_t, 5)


def placed(record_type: type, topic: object, partition: object, records: list) -> list:
    """Each of the records as a `record_type`: topic and partition, then the record's own five fields."""
    count: cython.Py_ssize_t = len(records)
    index: cython.Py_ssize_t
    field: cython.Py_ssize_t
    found: list
    if not issubclass(record_type, tuple):
        raise TypeError("a record is a named tuple of seven fields")
    for row in records:
        if not isinstance(row, tuple) or len(row) != _FIELDS:
            raise TypeError("a record is a tuple of five fields")
    found = PyList_New(count)
    for index in range(count):
        row = records[index]
        if _is_plain(_at(row, 2)) and _is_plain(_at(row, 3)):
            record = new_tuple(record_type, _FIELDS + 2)
            fill(record, 0, topic)
            fill(record, 1, partition)
            for field in range(_FIELDS):
                fill(record, field + 2, _at(row, field))
        else:
            record = tuple.__new__(record_type, (topic, partition, *row))
        Py_INCREF(record)
        PyList_SET_ITEM(found, index, record)
    return found


@cython.cfunc
@cython.inline
def _at(row: object, index: cython.Py_ssize_t) -> object:
    """A field of a tuple, of whatever kind of tuple."""
    return cython.cast(object, PyTuple_GET_ITEM(row, index))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_plain(part: object) -> cython.bint:
    """Whether a key or value cannot be part of a cycle."""
    return part is None or type(part) is bytes
