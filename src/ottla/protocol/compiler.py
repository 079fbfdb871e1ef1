"""Turns a message's table into Python functions, one per version: no table is looked at while bytes flow. Pure.

What makes the generated code fast:

- Neighbouring fields of fixed width are packed or unpacked by one call, together with the length that
  follows them.
- Nested structs and arrays become nested loops in one function.
- A string's slice may reach past the end of the buffer unpunished: slices are clipped, any later read fails,
  and the end of the message is checked once. Nothing is allocated by what a length claims.
- Arrays and tag sections that are usually empty are packed as part of their neighbours when they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ottla.protocol import primitives
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.schema import FIXED_DEFAULTS, MISSING, Field, Message, Struct

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
"""Arrays of numbers shorter than this have their packers ready made."""


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
        return self.globals[self.name]


_structs: dict[str, struct.Struct] = {}


def packing(codes: str) -> struct.Struct:
    """The struct for some format codes, shared between all messages."""
    if codes not in _structs:
        _structs[codes] = struct.Struct(">" + codes)
    return _structs[codes]


_numbers: dict[tuple[str, str], tuple[struct.Struct, ...]] = {}


def short_arrays(prefix: str, code: str) -> tuple[struct.Struct, ...]:
    """Structs for arrays of 0, 1, … numbers, each behind a count of format `prefix`."""
    if (prefix, code) not in _numbers:
        _numbers[prefix, code] = tuple(packing(f"{prefix}{n}{code}") for n in range(SHORT_ARRAY))
    return _numbers[prefix, code]


def check_version(cls: type[Message], version: int) -> None:
    if version not in cls.versions:
        raise ProtocolError(f"{cls.__name__} has no version {version}")


# --- constructors ---------------------------------------------------------------------------------------------


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
        elif isinstance(default, Struct) and not default._shared:
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


# --- decoding -------------------------------------------------------------------------------------------------


def build_decoder(cls: type[Message], version: int, *, of_bytes: bool) -> Callable[..., Any]:
    """A function (buffer, position) -> (message, position after it)."""
    check_version(cls, version)
    return Decoder(cls, version, of_bytes).build()


class Decoder:
    """Writes the decoder of one message in one version."""

    def __init__(self, cls: type[Message], version: int, of_bytes: bool) -> None:
        self.cls, self.version, self.of_bytes = cls, version, of_bytes
        self.flexible = cls.is_flexible(version)
        self.source = Source("read", "buffer, position")
        self.source.globals |= {
            "new": object.__new__,
            "unpack_from": struct.unpack_from,
            "finish_uvarint": primitives.finish_uvarint,
            "read_tag": primitives.read_tag,
            "read_tag_count": primitives.read_tag_count,
            "skip_tags": primitives.skip_tags,
            "refuse": self.refuse,
        }
        self.run: list[tuple[str, str]] = []
        """Format codes and targets of the fixed-width parts not yet read."""

    def refuse(self, name: str, problem: Any) -> ProtocolError:
        return ProtocolError(f"{self.cls.__name__} v{self.version}: {name}: {problem}")

    def build(self) -> Callable[..., Any]:
        source = self.source
        source("limit = len(buffer)")
        if self.cls.carries_records:
            source("view = memoryview(buffer)")
        source(f"message = new({source.constant('struct', self.cls)})")
        self.struct(self.cls, "message", "")
        with source.block("if position > limit:"):
            source("raise refuse('message', f'{position - limit} bytes are missing at its end')")
        source("return message, position")
        return source.build(f"{self.cls.__name__} v{self.version} decoder")

    def struct(self, cls: type[Struct], target: str, path: str) -> None:
        """Reads a struct's fields and tag section into the object named `target`."""
        present = [f for f in cls._fields if self.version in f.versions]
        for declared in cls._fields:
            if declared not in present or declared.tag is not None:
                self.source(f"{target}.{declared.name} = {self.default(declared)}")
        for declared in present:
            if declared.tag is None:
                self.field(declared, f"{target}.{declared.name}", f"{path}{declared.name}")
        if self.flexible:
            count = self.source.fresh("tags")
            self.run.append(("B", count))
            self.flush()
            with self.source.block(f"if {count}:"):
                self.tags([f for f in present if f.tag is not None], target, count, path)
        self.flush()

    def default(self, declared: Field) -> str:
        default = declared.default()
        if not isinstance(default, Struct):
            return repr(default)
        if default._shared:
            return self.source.constant("default", default)
        return f"{self.source.constant('struct', declared.struct)}()"

    def tags(self, known: list[Field], target: str, count: str, path: str) -> None:
        source = self.source
        if not known:
            source(f"position = skip_tags(buffer, position, {count})")
            return
        tag, end = source.fresh("tag"), source.fresh("end")
        source(f"{count}, position = read_tag_count(buffer, position, {count})")
        source(f"{tag} = -1")
        with source.block(f"for _ in range({count}):"):
            source(f"{tag}, position, {end} = read_tag(buffer, position, {tag})")
            for declared in known:
                with source.block(f"if {tag} == {declared.tag}:"):
                    self.field(declared, f"{target}.{declared.name}", f"{path}{declared.name}")
                    self.flush()
                    with source.block(f"if position != {end}:"):
                        source(f"raise refuse({path + declared.name!r}, 'is not as long as its tag says')")
            source(f"position = {end}")

    def flush(self) -> None:
        """Reads all pending fixed-width parts at once."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        targets = [target for _, target in self.run]
        self.run = []
        size = struct.calcsize(">" + codes)
        if codes == "B":
            self.source(f"{targets[0]} = buffer[position]")
        else:
            unpack = "U_" + codes.replace("?", "_")
            self.source.globals[unpack] = packing(codes).unpack_from
            left = ", ".join(targets) + ("," if len(targets) == 1 else "")
            self.source(f"{left} = {unpack}(buffer, position)")
        self.source(f"position += {size}")

    def length(self, code: str) -> str:
        """Reads a length or count. In flexible versions it is one more than what it counts, and 0 is null."""
        name = self.source.fresh("n")
        self.run.append((code, name))
        self.flush()
        if code == "B":
            with self.source.block(f"if {name} > 127:"):
                self.source(f"{name}, position = finish_uvarint(buffer, position, {name})")
        return name

    def null(self, declared: Field, name: str, compact: bool, path: str, target: str) -> bool:
        """Deals with a null: gives True when an `else:` block must follow for the value itself."""
        nullable = self.version in declared.nullable
        null = "== 0" if compact else "== -1" if nullable else "< 0"
        with self.source.block(f"if {name} {null}:"):
            if nullable:
                self.source(f"{target} = None")
            else:
                self.source(f"raise refuse({path!r}, 'must not be null')")
        if not compact and nullable:
            with self.source.block(f"elif {name} < 0:"):
                self.source(f"raise refuse({path!r}, 'has a negative length')")
        return nullable

    def field(self, declared: Field, target: str, path: str) -> None:
        if declared.is_array:
            self.array(declared, target, path)
        elif declared.type in FORMATS:
            self.run.append((FORMATS[declared.type], target))
        elif declared.is_struct:
            self.nested(declared, target, path)
        else:
            self.sequence(declared, target, path)

    def nested(self, declared: Field, target: str, path: str) -> None:
        assert declared.struct is not None
        source, name = self.source, self.source.fresh("struct")
        if self.version in declared.nullable:
            present = source.fresh("n")
            self.run.append(("b", present))
            self.flush()
            with source.block(f"if {present} < 0:"):
                source(f"{target} = None")
            with source.block("else:"):
                source(f"{target} = {name} = new({source.constant('struct', declared.struct)})")
                self.struct(declared.struct, name, path + ".")
        else:
            self.flush()
            source(f"{target} = {name} = new({source.constant('struct', declared.struct)})")
            self.struct(declared.struct, name, path + ".")

    def sequence(self, declared: Field, target: str, path: str) -> None:
        """Reads a string, bytes or records."""
        source = self.source
        compact = self.flexible and declared.compact
        name = self.length("B" if compact else "h" if declared.type == "string" else "i")
        if self.null(declared, name, compact, path, target):
            with source.block("else:"):
                self.slice(declared.type, name, compact, path, target)
        else:
            self.slice(declared.type, name, compact, path, target)

    def slice(self, kind: str, name: str, compact: bool, path: str, target: str) -> None:
        source = self.source
        if kind == "string" and compact:
            with source.block(f"if {name} > {primitives.STRING_MAX + 1}:"):
                source(f"raise refuse({path!r}, 'is too long for a string')")
        source(f"end = position + {name}{' - 1' if compact else ''}")
        if kind == "records":
            source(f"{target} = view[position:end]")
        elif kind == "bytes":
            source(f"{target} = buffer[position:end]" if self.of_bytes else f"{target} = bytes(buffer[position:end])")
        elif self.of_bytes:
            source(f"{target} = buffer[position:end].decode()")
        else:
            source(f"{target} = str(buffer[position:end], 'utf-8')")
        source("position = end")

    def array(self, declared: Field, target: str, path: str) -> None:
        name = self.length("B" if self.flexible else "i")
        if self.null(declared, name, self.flexible, path, target):
            with self.source.block("else:"):
                self.elements(declared, name, path, target)
        else:
            self.elements(declared, name, path, target)

    def elements(self, declared: Field, name: str, path: str, target: str) -> None:
        source, element = self.source, declared.element
        if self.flexible:
            source(f"{name} -= 1")
        smallest = self.smallest(declared, element)
        with source.block(f"if {name} * {smallest} > limit - position:"):
            source(f"raise refuse({path!r}, f'{{{name}}} items do not fit into {{limit - position}} bytes')")
        if element in FORMATS and element != "uuid":
            code = FORMATS[element]
            table = f"ARRAYS_{code.replace('?', '_')}"
            source.globals[table] = tuple(s.unpack_from for s in short_arrays("", code))
            source(
                f"{target} = list({table}[{name}](buffer, position) if {name} < {SHORT_ARRAY}"
                f" else unpack_from(f'>{{{name}}}{code}', buffer, position))"
            )
            source(f"position += {name} * {WIDTHS[element]}" if WIDTHS[element] > 1 else f"position += {name}")
            return
        items = source.fresh("items")
        source(f"{target} = {items} = []")
        with source.block(f"for _ in range({name}):"):
            item = source.fresh("item")
            if declared.struct is not None:
                source(f"{item} = new({source.constant('struct', declared.struct)})")
                self.struct(declared.struct, item, path + ".")
            else:
                self.field(element_of(declared), item, path)
                self.flush()
            source(f"{items}.append({item})")

    def smallest(self, declared: Field, kind: str) -> int:
        """The fewest bytes one element can take; at least one, so that a count never exceeds the bytes left."""
        return max(1, self.smallest_struct(declared.struct) if declared.struct else self.smallest_value(kind))

    def smallest_value(self, kind: str) -> int:
        return WIDTHS.get(kind) or (1 if self.flexible else 2 if kind == "string" else 4)

    def smallest_struct(self, cls: type[Struct]) -> int:
        total = 1 if self.flexible else 0
        for declared in cls._fields:
            if self.version not in declared.versions or declared.tag is not None:
                continue
            if declared.is_array:
                total += self.smallest_value("[]")
            elif declared.struct is None:
                total += self.smallest_value(declared.type)
            elif self.version in declared.nullable:
                total += 1
            else:
                total += self.smallest_struct(declared.struct)
        return total


def element_of(declared: Field) -> Field:
    """An array's element as a field of its own: never null, never tagged."""
    element = Field(declared.element, "0+", "", MISSING, None, False, True)
    element.name, element.owner = declared.name, declared.owner
    return element


# --- encoding -------------------------------------------------------------------------------------------------


def build_encoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """A function (message, chunks) that appends the message's bytes to the list of chunks."""
    check_version(cls, version)
    return Encoder(cls, version).build()


class Encoder:
    """Writes the encoder of one message in one version."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls, self.version = cls, version
        self.flexible = cls.is_flexible(version)
        self.source = Source("write", "message, out")
        self.source.globals |= {
            "pack": struct.pack,
            "absent": self.absent,
            "wrong_uuid": self.wrong_uuid,
        }
        self.out = "out"
        self.run: list[tuple[str, str]] = []
        """Format codes and expressions of the fixed-width parts not yet written."""

    def absent(self, value: Struct, names: tuple[str, ...]) -> ProtocolError:
        for declared in value._fields:
            if declared.name in names and getattr(value, declared.name) != declared.default():
                break
        return ProtocolError(
            f"{type(value).__qualname__} v{self.version} has no {declared.name}: "
            f"it cannot carry {getattr(value, declared.name)!r}"
        )

    def wrong_uuid(self, name: str, value: Any) -> ProtocolError:
        return ProtocolError(f"{self.cls.__name__} v{self.version}: {name}: {value!r} is not 16 bytes")

    def build(self) -> Callable[..., Any]:
        self.struct(self.cls, "message", "", inner=False)
        self.source("return out")
        return self.source.build(f"{self.cls.__name__} v{self.version} encoder")

    def flush(self) -> None:
        """Writes all pending fixed-width parts at once."""
        if self.run:
            self.source(f"{self.out}.append({self.packed(self.run)})")
            self.run = []

    def packed(self, run: list[tuple[str, str]]) -> str:
        """An expression for the bytes of some fixed-width parts."""
        codes, values = "".join(code for code, _ in run), [value for _, value in run]
        if all(value.lstrip("-").isdigit() for value in values):
            return repr(struct.pack(">" + codes, *map(int, values)))
        name = "P_" + codes.replace("?", "_")
        self.source.globals[name] = packing(codes).pack
        return f"{name}({', '.join(values)})"

    def struct(self, cls: type[Struct], value: str, path: str, *, inner: bool = True) -> None:
        """Writes a struct's fields and tag section from the object named `value`."""
        self.refuse_absent(cls, value)
        present = [f for f in cls._fields if self.version in f.versions]
        plain = [f for f in present if f.tag is None]
        tagged = sorted((f for f in present if f.tag is not None), key=lambda f: f.tag or 0)
        parts: list[Field | list[Field]] = [*plain, *([tagged] if self.flexible else [])]
        while parts:
            count = self.speculate(parts, value, path) if inner else 0
            if not count:
                self.part(parts[0], value, path)
                count = 1
            parts = parts[count:]
        self.flush()

    def refuse_absent(self, cls: type[Struct], value: str) -> None:
        """A value that this version cannot carry must not vanish silently."""
        missing = [f for f in cls._fields if self.version not in f.versions and not f.ignorable]
        if missing:
            conditions = " or ".join(self.differs(f, f"{value}.{f.name}") for f in missing)
            with self.source.block(f"if {conditions}:"):
                self.source(f"raise absent({value}, {tuple(f.name for f in missing)!r})")

    def differs(self, declared: Field, value: str) -> str:
        """A condition: the value is not the field's default."""
        default = declared.default()
        if default is None:
            return f"{value} is not None"
        if declared.is_array or default == "" or default == b"":
            return f"{value} is None or {value}"
        if declared.is_struct:
            name = self.source.constant("default", default)
            return f"({value} is not {name} and {value} != {name})"
        if default is False or default is True:
            return f"not {value}" if default else value
        return f"{value} != {default!r}"

    # Parts that are usually empty: when all of a run of neighbours are, one call packs the run.

    def speculate(self, parts: list[Field | list[Field]], value: str, path: str) -> int:
        """Writes the longest run of fixed-width and usually empty parts two ways; gives its length, or 0."""
        run, conditions, length = list(self.run), [], 0
        for part in parts:
            guess = self.guess(part, value)
            if guess is None:
                break
            condition, code, expression = guess
            if condition:
                conditions.append(condition)
            run.append((code, expression))
            length += 1
        if not conditions or len(run) < 2:
            return 0
        for part in parts[:length]:
            self.check_uuid(part, value, path)
        before, self.run = self.run, []
        with self.source.block(f"if {' or '.join(conditions)}:"):
            self.run = before
            for part in parts[:length]:
                self.part(part, value, path, checked=True)
            self.flush()
        with self.source.block("else:"):
            self.source(f"{self.out}.append({self.packed(run)})")
        return length

    def guess(self, part: Field | list[Field], value: str) -> tuple[str, str, str] | None:
        """(condition that it is not empty, format code, expression for the empty form) of a part."""
        if isinstance(part, list):
            return " or ".join(self.differs(f, f"{value}.{f.name}") for f in part), "B", "0"
        name = f"{value}.{part.name}"
        if part.type in FORMATS:
            return "", FORMATS[part.type], name
        nullable = self.version in part.nullable
        if part.is_struct:
            return (f"{name} is not None", "b", "-1") if nullable else None
        if part.is_array:
            if part.struct is None:
                return None
        elif part.type == "records" or not nullable:
            return None
        code = "B" if self.flexible and part.compact else "h" if part.type == "string" else "i"
        null, empty = (0, 1) if code == "B" else (-1, 0)
        if nullable:
            return name, code, f"{null} if {name} is None else {empty}"
        return f"{name} is None or {name}", code, str(empty)  # None goes the slow way, where it is refused

    def part(self, part: Field | list[Field], value: str, path: str, *, checked: bool = False) -> None:
        if isinstance(part, list):
            self.tags(part, value, path)
        else:
            if not checked:
                self.check_uuid(part, value, path)
            self.field(part, f"{value}.{part.name}", path + part.name)

    def check_uuid(self, part: Field | list[Field], value: str, path: str) -> None:
        # A format of 16s would pad or cut an id of another length without a word.
        if isinstance(part, Field) and part.type == "uuid":
            with self.source.block(f"if len({value}.{part.name}) != 16:"):
                self.source(f"raise wrong_uuid({path + part.name!r}, {value}.{part.name})")

    def tags(self, tagged: list[Field], value: str, path: str) -> None:
        source = self.source
        if not tagged:
            self.run.append(("B", "0"))
            return
        self.flush()
        count, chunks = source.fresh("tags"), source.fresh("out")
        with source.block(f"if {' or '.join(self.differs(f, f'{value}.{f.name}') for f in tagged)}:"):
            source(f"{count} = 0")
            source(f"{chunks} = []")
            for declared in tagged:
                with source.block(f"if {self.differs(declared, f'{value}.{declared.name}')}:"):
                    inner = source.fresh("out")
                    source(f"{count} += 1")
                    source(f"{inner} = []")
                    outer, self.out = self.out, inner
                    self.check_uuid(declared, value, path)
                    self.field(declared, f"{value}.{declared.name}", path + declared.name)
                    self.flush()
                    self.out = outer
                    source(f"{inner} = b''.join({inner})")
                    source(f"{chunks} += (uvarint({declared.tag}), uvarint(len({inner})), {inner})")
            source(f"{self.out}.append(uvarint({count}))")
            source(f"{self.out} += {chunks}")
        with source.block("else:"):
            source(f"{self.out}.append(b'\\0')")

    def field(self, declared: Field, value: str, path: str) -> None:
        nullable = self.version in declared.nullable
        if declared.type in FORMATS:
            self.run.append((FORMATS[declared.type], value))
        elif declared.is_struct:
            self.nested(declared, value, path, nullable)
        elif nullable:
            compact = self.flexible and declared.compact
            null = r"b'\0'" if compact else r"b'\xff\xff'" if declared.type == "string" else r"b'\xff\xff\xff\xff'"
            local = self.source.fresh("value")
            self.flush()
            self.source(f"{local} = {value}")
            with self.source.block(f"if {local} is None:"):
                self.source(f"{self.out}.append({null})")
            with self.source.block("else:"):
                self.value(declared, local, path)
                self.flush()
        else:
            self.value(declared, value, path)

    def nested(self, declared: Field, value: str, path: str, nullable: bool) -> None:
        assert declared.struct is not None
        local = self.source.fresh("struct")
        self.source(f"{local} = {value}")
        if not nullable:
            self.struct(declared.struct, local, path + ".")
            return
        self.flush()
        with self.source.block(f"if {local} is None:"):
            self.source(rf"{self.out}.append(b'\xff')")
        with self.source.block("else:"):
            self.run.append(("b", "1"))
            self.struct(declared.struct, local, path + ".")

    def value(self, declared: Field, value: str, path: str) -> None:
        """Writes an array, string, bytes or records that is not null."""
        source = self.source
        if declared.is_array:
            self.array(declared, value, path)
            return
        if declared.type == "string":
            text = source.fresh("text")
            source(f"{text} = {value}.encode()")
            value = text
        elif not value.isidentifier():
            data = source.fresh("data")
            source(f"{data} = {value}")
            value = data
        if self.flexible and declared.compact:
            if declared.type == "string":
                with source.block(f"if len({value}) > {primitives.STRING_MAX}:"):
                    source(f"raise OverflowError({path + ' is too long for a string'!r})")
            self.count(f"len({value})")
        else:
            self.run.append(("h" if declared.type == "string" else "i", f"len({value})"))
            self.flush()
        source(f"{self.out}.append({value})")

    def count(self, expression: str) -> None:
        """Writes a length or count before what it counts."""
        if not self.flexible:
            self.run.append(("i", expression))
            self.flush()
            return
        self.flush()
        count = self.source.fresh("n")
        self.source(f"{count} = {expression} + 1")
        self.source(f"{self.out}.append(ONE[{count}] if {count} < 128 else uvarint({count}))")

    def array(self, declared: Field, value: str, path: str) -> None:
        source, element = self.source, declared.element
        items = source.fresh("items")
        source(f"{items} = {value}")
        if element in FORMATS and element != "uuid":
            self.flush()
            code, prefix = FORMATS[element], "B" if self.flexible else "i"
            table = f"ARRAYS_{prefix}_{code.replace('?', '_')}"
            source.globals[table] = tuple(s.pack for s in short_arrays(prefix, code))
            count = source.fresh("n")
            source(f"{count} = len({items})")
            with source.block(f"if {count} < {SHORT_ARRAY}:"):
                source(f"{self.out}.append({table}[{count}]({count}{' + 1' if self.flexible else ''}, *{items}))")
            with source.block("else:"):
                self.count(count)
                source(f"{self.out}.append(pack(f'>{{{count}}}{code}', *{items}))")
            return
        self.count(f"len({items})")
        item = source.fresh("item")
        with source.block(f"for {item} in {items}:"):
            if declared.struct is not None:
                self.struct(declared.struct, item, path + ".")
            elif element == "uuid":
                with source.block(f"if len({item}) != 16:"):
                    source(f"raise wrong_uuid({path!r}, {item})")
                source(f"{self.out}.append({item})")
            else:
                self.value(element_of(declared), item, path)


assert set(FORMATS) == set(FIXED_DEFAULTS)
