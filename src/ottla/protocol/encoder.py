"""Writes the Python source of encoders: one message in one version to bytes. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from ottla.checks import number_from_text
from ottla.protocol import primitives
from ottla.protocol.compiler import FORMATS, SHORT_ARRAY, Source, check_version, element_of, packing
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.schema import Field, Message, Struct


def build_encoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """A function (message, chunks) that appends the message's bytes to the list of chunks."""
    check_version(cls, version)
    return Encoder(cls, version).build()


SEQUENCES = ("string", "bytes", "records")


class Packers(dict[Any, Callable[..., bytes]]):
    """Packs a run that contains arrays of numbers, with one function per combination of their lengths."""

    def __init__(self, codes: list[str], flexible: bool) -> None:
        self.codes, self.flexible = codes, flexible

    def __missing__(self, lengths: Any) -> Callable[..., bytes]:
        counts = [lengths] if isinstance(lengths, int) else list(lengths)
        longest = max(counts)
        if self.flexible and longest > 126:
            return partial(self.pack_long, counts)
        prefix, left = "B" if self.flexible else "i", iter(counts)
        codes = [f"{prefix}{next(left)}{code[1:]}" if code[0] == "[" else code for code in self.codes]
        pack = struct.Struct(">" + "".join(codes)).pack
        if longest < SHORT_ARRAY and len(self) < 1000:
            self[lengths] = pack
        return pack

    def pack_long(self, counts: list[int], *values: Any) -> bytes:
        """The slow path, for a compact array whose count takes more than one byte."""
        out, at, left = [], 0, iter(counts)
        for code in self.codes:
            if code[0] == "[":
                length = next(left)
                end = at + 1 + length
                out.append(primitives.uvarint(values[at]))
                out.append(struct.pack(f">{length}{code[1:]}", *values[at + 1 : end]))
                at = end
            else:
                out.append(struct.pack(">" + code, values[at]))
                at += 1
        return b"".join(out)


class Encoder:
    """Writes the encoder of one message in one version."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls, self.version = cls, version
        self.flexible = cls.is_flexible(version)
        self.source = Source("write", "message, out")
        self.source.globals |= {
            "string_length": primitives.string_length,
            "absent": self.absent,
            "wrong_uuid": self.wrong_uuid,
        }
        self.out = "out"
        self.run: list[tuple[str, str]] = []
        """Format codes and expressions of the fixed-width parts not yet written; `[i` is an array of numbers."""

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
        codes = "".join(code for code, _ in run)
        if "[" in codes:
            return self.packed_with_numbers(run)
        values = [value for _, value in run]
        numbers = [number_from_text(value) for value in values]
        if None not in numbers:
            return repr(struct.pack(">" + codes, *numbers))
        name = "P_" + codes.replace("?", "_")
        self.source.globals[name] = packing(codes).pack
        return f"{name}({', '.join(values)})"

    def packed_with_numbers(self, run: list[tuple[str, str]]) -> str:
        """The same where arrays of numbers are among the parts: their lengths choose what packs them."""
        lengths, values = [], []
        for code, value in run:
            if code.startswith("["):
                length = self.source.fresh("n")
                lengths.append(f"({length} := len({value}))")
                values += [f"{length} + 1" if self.flexible else length, f"*{value}"]
            else:
                values.append(value)
        packers = self.source.fresh("PACKERS")
        self.source.globals[packers] = Packers([code for code, _ in run], self.flexible)
        return f"{packers}[{', '.join(lengths)}]({', '.join(values)})"

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
        """Raises for a value that this version cannot carry, instead of dropping it silently."""
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
        """Writes the longest run of fixed-width and usually empty parts as two branches. Returns its length, or 0."""
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
        # A sequence after the run is written in both branches, so that its length is packed with the run.
        tail = [part for part in parts[length : length + 1] if isinstance(part, Field) and part.type in SEQUENCES]
        for part in parts[:length]:
            self.check_uuid(part, value, path)
        with self.source.block(f"if {' or '.join(conditions)}:"):
            for part in parts[:length] + tail:
                self.part(part, value, path, checked=True)
            self.flush()
        with self.source.block("else:"):
            self.run = run
            for part in tail:
                self.part(part, value, path, checked=True)
            self.flush()
        return length + len(tail)

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
        return f"{name} is None or {name}", code, str(empty)  # None takes the slow path, which rejects it

    def part(self, part: Field | list[Field], value: str, path: str, *, checked: bool = False) -> None:
        if isinstance(part, list):
            self.tags(part, value, path)
        else:
            if not checked:
                self.check_uuid(part, value, path)
            self.field(part, f"{value}.{part.name}", path + part.name)

    def check_uuid(self, part: Field | list[Field], value: str, path: str) -> None:
        # A format of 16s would silently pad or cut an id of another length.
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
            null = ("B", "0") if compact else ("h" if declared.type == "string" else "i", "-1")
            local = self.source.fresh("value")
            self.source(f"{local} = {value}")
            before = list(self.run)
            with self.source.block(f"if {local} is None:"):
                self.run.append(null)
                self.flush()
            with self.source.block("else:"):
                self.run = before
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
        before = list(self.run)
        with self.source.block(f"if {local} is None:"):
            # Behind a tag the byte is an unsigned number, and 0 is null.
            self.run.append(("b", "0" if declared.tag is not None else "-1"))
            self.flush()
        with self.source.block("else:"):
            self.run = [*before, ("b", "1")]
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
            self.count(f"len({value})", declared.type, path)
        else:
            self.run.append(("h" if declared.type == "string" else "i", f"len({value})"))
            self.flush()
        source(f"{self.out}.append({value})")

    def count(self, expression: str, kind: str = "", path: str = "") -> None:
        """Writes a length or count before what it counts, together with the run before it."""
        if not self.flexible:
            self.run.append(("i", expression))
            self.flush()
            return
        source, count = self.source, self.source.fresh("n")
        source(f"{count} = {expression} + 1")
        longer = f"string_length({count}, {path!r})" if kind == "string" else f"uvarint({count})"
        if not self.run:
            source(f"{self.out}.append(ONE[{count}] if {count} < 128 else {longer})")
            return
        forms = [(128, [count])]
        if kind == "records":
            forms.append((2**14, [f"{count} & 127 | 128", f"{count} >> 7"]))
            forms.append((2**21, [f"{count} & 127 | 128", f"{count} >> 7 & 127 | 128", f"{count} >> 14"]))
        word = "if"
        for limit, form in forms:
            with source.block(f"{word} {count} < {limit}:"):
                source(f"{self.out}.append({self.packed(self.run + [('B', byte) for byte in form])})")
            word = "elif"
        with source.block("else:"):
            self.flush()
            source(f"{self.out}.append({longer})")

    def array(self, declared: Field, value: str, path: str) -> None:
        source, element = self.source, declared.element
        items = source.fresh("items")
        source(f"{items} = {value}")
        if element in FORMATS and element != "uuid":
            self.run.append((f"[{FORMATS[element]}", items))
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


def find_misfit(value: Struct, version: int, path: str = "") -> str:
    """The field whose value cannot be encoded, for the error message. Empty if there is none."""
    for declared in value._fields:
        if version not in declared.versions:
            continue
        name, held = path + declared.name, getattr(value, declared.name)
        if held is None and version in declared.nullable:
            continue
        if declared.is_array and not isinstance(held, list | tuple):
            return f"{name} holds {held!r}"
        for item in held if declared.is_array else [held]:
            if declared.struct is None:
                found = "" if _fits(declared.element, item) else f"{name} holds {item!r}"
            elif isinstance(item, declared.struct):
                found = find_misfit(item, version, name + ".")
            else:
                found = f"{name} holds {item!r}"
            if found:
                return found
    return ""


def _fits(kind: str, item: Any) -> bool:
    try:
        if kind in FORMATS:
            struct.pack(">" + FORMATS[kind], item)
        elif kind == "string":
            return len(item.encode()) <= primitives.STRING_MAX
        else:
            memoryview(item)
    except primitives.MISFIT:
        return False
    return True
