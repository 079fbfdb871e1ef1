"""Messages for tests: every message class, Hypothesis strategies from the tables, and a simple reference encoder."""

from __future__ import annotations

import importlib
import pkgutil
import struct
from typing import Any

from hypothesis import strategies as st

from ottla.protocol import messages
from ottla.protocol.compiler import FORMATS
from ottla.protocol.messages import unserved
from ottla.protocol.schema import Field, Message, Struct

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def every_message() -> list[type[Message]]:
    """Every message class of the protocol, by name."""
    found = {}
    for package in (messages, unserved):
        for module in pkgutil.iter_modules(package.__path__):
            for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
                if isinstance(value, type) and issubclass(value, Message) and value is not Message:
                    found[value.__name__] = value
    return [found[name] for name in sorted(found)]


def values(declared: Field, version: int) -> st.SearchStrategy[Any]:
    """Values of one field that a version can carry."""
    if declared.is_array:
        strategy: st.SearchStrategy[Any] = st.lists(_elements(declared, version), max_size=3)
    else:
        strategy = _elements(declared, version)
    return st.none() | strategy if version in declared.nullable else strategy


def _elements(declared: Field, version: int) -> st.SearchStrategy[Any]:
    kind = declared.element
    if declared.struct is not None:
        return structs(declared.struct, version)
    if kind in INTEGERS:
        limit = 2 ** (INTEGERS[kind] - 1)
        return st.integers(-limit, limit - 1)
    return {
        "bool": st.booleans(),
        "uint16": st.integers(0, 2**16 - 1),
        "uint32": st.integers(0, 2**32 - 1),
        "float64": st.floats(allow_nan=False),
        "uuid": st.binary(min_size=16, max_size=16),
        "string": st.text(max_size=12) | st.just("x" * 130),
        "bytes": st.binary(max_size=12) | st.just(bytes(130)),
        "records": st.binary(max_size=12) | st.just(bytes(20_000)),
    }[kind]


def structs(cls: type[Struct], version: int) -> st.SearchStrategy[Any]:
    """Messages, or parts of them, with any value that a version can carry."""
    present = [f for f in cls._fields if version in f.versions]
    return st.builds(cls, **{f.name: values(f, version) for f in present})


def full(cls: type[Struct], version: int) -> Any:
    """A message with no field at its default, as far as a version has the field."""
    return cls(**{f.name: _full_value(f, version) for f in cls._fields if version in f.versions})


def _full_value(declared: Field, version: int) -> Any:
    kind = declared.element
    if declared.struct is not None:
        value = full(declared.struct, version)
    elif kind in INTEGERS:
        value = 2 ** (INTEGERS[kind] - 1) - 2
    else:
        value = {
            "bool": declared.given_default is not True,
            "uint16": 2**16 - 1,
            "uint32": 2**32 - 1,
            "float64": 0.5,
            "uuid": bytes(range(16)),
            "string": "naïve",
            "bytes": b"\xff\0",
            "records": b"batch",
        }[kind]
    return [value, value] if declared.is_array else value


# The encoding rules in the simplest form: slow, short, and independent of the compiler.


def reference_encode(message: Message, version: int) -> bytes:
    """The bytes of a message, one field at a time."""
    return _struct(message, version, message.is_flexible(version))


def _struct(value: Struct, version: int, flexible: bool) -> bytes:
    present = [f for f in value._fields if version in f.versions]
    out = b"".join(_value(f, getattr(value, f.name), version, flexible) for f in present if f.tag is None)
    if flexible:
        tagged = [f for f in present if f.tag is not None and getattr(value, f.name) != f.default()]
        out += _uvarint(len(tagged))
        for declared in sorted(tagged, key=lambda f: f.tag or 0):
            body = _value(declared, getattr(value, declared.name), version, flexible)
            out += _uvarint(declared.tag or 0) + _uvarint(len(body)) + body
    return out


def _value(declared: Field, value: Any, version: int, flexible: bool) -> bytes:
    if declared.is_array:
        if value is None:
            return _length(None, "i", flexible)
        items = [_element(declared, item, version, flexible) for item in value]
        return _length(len(value), "i", flexible) + b"".join(items)
    if declared.is_struct and version in declared.nullable:
        null = b"\xff" if declared.tag is None else b"\0"
        return null if value is None else b"\x01" + _element(declared, value, version, flexible)
    return _element(declared, value, version, flexible)


def _element(declared: Field, value: Any, version: int, flexible: bool) -> bytes:
    kind = declared.element
    if declared.struct is not None:
        return _struct(value, version, flexible)
    if kind in FORMATS:
        return struct.pack(">" + FORMATS[kind], value)
    data = value.encode() if isinstance(value, str) else value
    length = None if data is None else len(data)
    return _length(length, "h" if kind == "string" else "i", flexible and declared.compact) + bytes(data or b"")


def _length(length: int | None, code: str, compact: bool) -> bytes:
    if compact:
        return _uvarint(0 if length is None else length + 1)
    return struct.pack(">" + code, -1 if length is None else length)


def _uvarint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + _uvarint(value // 128)
