"""Writes the Python source of decoders: bytes to one message in one version. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ottla.protocol import primitives
from ottla.protocol.compiler import (
    FORMATS,
    SHORT_ARRAY,
    WIDTHS,
    Source,
    check_version,
    element_of,
    packing,
)
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.schema import Field, Message, Struct

if TYPE_CHECKING:
    from collections.abc import Callable


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
        # Anyone can send requests, so only they are limited: responses were requested, and records written by a broker.
        self.limits_items = cls.__name__.endswith("Request")
        self.run: list[tuple[str, str]] = []
        """Format codes and targets of the fixed-width parts not yet read."""

    def refuse(self, name: str, problem: Any) -> ProtocolError:
        return ProtocolError(f"{self.cls.__name__} v{self.version}: {name}: {problem}")

    def build(self) -> Callable[..., Any]:
        source = self.source
        source("limit = len(buffer)")
        if self.limits_items:
            source(f"items_left = {primitives.REQUEST_ITEMS_MAX}")
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
                if self.limits_items:
                    # Skipping a tagged field costs as much as an item. This is only the first byte of a longer
                    # count, but such a section is rejected anyway.
                    self.use_items(count, path + "tags")
                self.tags([f for f in present if f.tag is not None], target, count, path)
        self.flush()

    def default(self, declared: Field) -> str:
        default = declared.default()
        if not isinstance(default, Struct):
            return repr(default)
        if default._shared:  # noqa: SLF001 - names of fields have no underscore
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
                self.source("more = buffer[position]")
                with self.source.block("if more < 128:"):
                    self.source(f"{name} += (more - 1) << 7")
                    self.source("position += 1")
                with self.source.block("else:"):
                    self.source(f"{name}, position = finish_uvarint(buffer, position, {name})")
        return name

    def null(self, declared: Field, name: str, compact: bool, path: str, target: str) -> bool:
        """Handles null. Returns True if an `else:` block must follow for the value itself."""
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
            # Behind a tag the byte is an unsigned number, and 0 is null.
            null = "<= 0" if declared.tag is not None else "< 0"
            with source.block(f"if {present} {null}:"):
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
        if self.limits_items:
            self.use_items(name, path)
        if element in FORMATS and element != "uuid":
            code = FORMATS[element]
            table = f"ARRAYS_{code.replace('?', '_')}"
            source.globals[table] = tuple(packing(f"{n}{code}").unpack_from for n in range(SHORT_ARRAY))
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

    def use_items(self, count: str, path: str) -> None:
        with self.source.block(f"if {count} > items_left:"):
            most = f"a request has at most {primitives.REQUEST_ITEMS_MAX}"
            self.source(f"raise refuse({path!r}, f'{{{count}}} items are too many: {most}')")
        self.source(f"items_left -= {count}")

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
