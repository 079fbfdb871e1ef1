"""Generates Python functions from a message's table, one per version, so that no table is read at run time. Pure.

What makes the generated code fast:

- Neighbouring fields of fixed width are packed or unpacked by one call, together with the length that
  follows them.
- Nested structs and arrays become nested loops in one function.
- The slice of a string may reach past the end of the buffer: Python clips it, any later read fails, and the end
  of the message is checked once. No memory is allocated because of what a length claims.
- Arrays and tag sections that are usually empty are packed as part of their neighbours when they are.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ottla.protocol import primitives
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.schema import MISSING, Field, Message, Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "uuid": "16s",
}
WIDTHS = {kind: struct.calcsize(">" + code) for kind, code in FORMATS.items()}

SHORT_ARRAY = 16
"""Arrays of numbers shorter than this have prepared packers."""


class Source:
    """Python source under construction, with the objects it refers to."""

    def __init__(self, name: str, arguments: str) -> None:
        self.name = name
        self.lines = [f"def {name}({arguments}):"]
        self.indent = 1
        self.globals: dict[str, Any] = {"uvarint": primitives.uvarint, "ONE": primitives.ONE_BYTE}
        self.names = 0

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self(head)
        self.indent += 1
        length = len(self.lines)
        yield
        if len(self.lines) == length:
            self("pass")
        self.indent -= 1

    def fresh(self, prefix: str) -> str:
        """A local name not used before."""
        self.names += 1
        return f"{prefix}{self.names}"

    def constant(self, prefix: str, value: Any) -> str:
        """A name for `value`, the same for the same object."""
        for name, known in self.globals.items():
            if known is value:
                return name
        name = self.fresh(prefix.upper())
        self.globals[name] = value
        return name

    def build(self, filename: str) -> Callable[..., Any]:
        exec(compile("\n".join(self.lines), f"<{filename}>", "exec"), self.globals)
        built: Callable[..., Any] = self.globals[self.name]
        return built


_structs: dict[str, struct.Struct] = {}


def packing(codes: str) -> struct.Struct:
    """The struct for some format codes, shared between all messages."""
    if codes not in _structs:
        _structs[codes] = struct.Struct(">" + codes)
    return _structs[codes]


def check_version(cls: type[Message], version: int) -> None:
    if version not in cls.versions:
        raise ProtocolError(f"{cls.__name__} has no version {version}")


def element_of(declared: Field) -> Field:
    """An array's element as a field of its own: never null, never tagged."""
    element = Field(declared.element, "0+", "", MISSING, None, False, True)
    element.name, element.owner = declared.name, declared.owner
    return element


def build_constructor(cls: type[Struct]) -> Callable[..., None]:
    """The constructor of a struct: every field a keyword, every keyword optional."""
    source = Source("__init__", "")
    arguments = []
    for declared in cls._fields:
        name, default = declared.name, declared.default()
        if declared.is_array and default is not None:
            missing = source.constant("missing", MISSING)
            arguments.append(f"{name}={missing}")
            source(f"self.{name} = [] if {name} is {missing} else {name}")
        elif isinstance(default, Struct) and not default._shared:  # noqa: SLF001 - names of fields have no underscore
            missing, made = source.constant("missing", MISSING), source.constant("struct", declared.struct)
            arguments.append(f"{name}={missing}")
            source(f"self.{name} = {made}() if {name} is {missing} else {name}")
        else:
            shown = source.constant("default", default) if isinstance(default, Struct) else repr(default)
            arguments.append(f"{name}={shown}")
            source(f"self.{name} = {name}")
    if not arguments:
        source("pass")
    source.lines[0] = f"def __init__(self{', *, ' if arguments else ''}{', '.join(arguments)}):"
    constructor = source.build(f"{cls.__qualname__} constructor")
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    return constructor
