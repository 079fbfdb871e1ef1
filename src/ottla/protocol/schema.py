"""Message tables: one class per message, one line per field, with all versions. Pure.

A message module is a table. The class statement collects the fields, and `encode` and `decode` are
generated from them for each version on first use (compiler.py, decoder.py, encoder.py).

>>> class Greeting(Message, versions=range(0, 3), flexible_since=2):
...     text:  str        = field("string")
...     topic: str | None = field("string", "1+", nullable="1+", default=None)
>>> Greeting(text="hi").encode(1).hex()
'00026869ffff'
>>> Greeting.decode(bytes.fromhex("0368690000"), 2)
Greeting(text='hi')

Every field has a default, so a constructor takes only what matters. A field that a version lacks reads as
its default there; writing another value raises ProtocolError, unless the field is `ignorable`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, dataclass_transform

from ottla.protocol.primitives import MALFORMED, MISFIT, Buffer, ProtocolError
from ottla.types import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable

Records = Buffer
"""What a `records` field holds: a view of the received bytes, or any bytes to send."""

FOREVER = 2**15

FIXED_DEFAULTS: dict[str, Any] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uint16": 0,
    "uint32": 0,
    "float64": 0.0,
    "uuid": ZERO_UUID,
}
"""The types of fixed width and their defaults."""

_DEFAULTS = FIXED_DEFAULTS | {"string": "", "bytes": b"", "records": None}


class Missing:
    """Stands for "no default given" in a table and "no value given" in a constructor."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


class Versions(NamedTuple):
    """A range of versions, written as Kafka writes it: `3+`, `0-12`, `7`, or empty for none."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        if not text:
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), FOREVER)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


class Field:
    """One field of a message or struct, in all its versions."""

    __slots__ = ("compact", "given_default", "ignorable", "name", "nullable", "owner", "tag", "type", "versions")

    name: str
    owner: type[Message]
    """The message whose nested structs the type may name."""

    def __init__(
        self, type_: str, versions: str, nullable: str, default: Any, tag: int | None, ignorable: bool, compact: bool
    ) -> None:
        self.type = type_
        self.versions = Versions.parse(versions)
        self.nullable = Versions.parse(nullable)
        self.given_default = default
        self.tag = tag
        self.ignorable = ignorable
        self.compact = compact

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element(self) -> str:
        """The type without the array."""
        return self.type.removeprefix("[]")

    @property
    def struct(self) -> type[Struct] | None:
        """The class of a struct, or of each element of an array of structs."""
        return None if self.element in _DEFAULTS else getattr(self.owner, self.element)

    @property
    def is_struct(self) -> bool:
        return self.type not in _DEFAULTS and not self.is_array

    def default(self) -> Any:
        """The default of the field: a new list for an array, otherwise a shared value."""
        if self.given_default is not MISSING:
            return self.given_default
        if self.is_array:
            return []
        if self.struct is not None:
            return self.struct.default()
        return _DEFAULTS[self.type]

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.type!r})"


def field(
    type: str,
    versions: str = "0+",
    *,
    nullable: str = "",
    default: Any = MISSING,
    tag: int | None = None,
    ignorable: bool = False,
    compact: bool = True,
) -> Any:
    """Declares one field of a message.

    `type` is Kafka's: `int32`, `string`, `[]int32`, `[]TopicData` (a struct nested in the same message).
    `versions` have the field, `nullable` ones allow null. A `tag` puts it into the tag section. `ignorable`
    fields are dropped silently where a version lacks them. `compact=False` keeps the classic form of a
    string even in flexible versions: request headers need that.
    """
    return Field(type, versions, nullable, default, tag, ignorable, compact)


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Turns the fields of a class body into slots."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        fields = []
        for key, value in list(namespace.items()):
            if isinstance(value, Field):
                if any(hasattr(base, key) for base in bases):
                    raise TypeError(f"{name}: the field {key} would hide a method")
                value.name = key
                fields.append(value)
                del namespace[key]
        namespace["__slots__"] = tuple(f.name for f in fields)
        namespace["_fields"] = tuple(fields)
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, namespace)
        if options:
            declare(cls, **options)


class Struct(metaclass=StructType):
    """A group of fields: a message, or a part of one. All arguments of the constructor are keywords."""

    _fields: ClassVar[tuple[Field, ...]]
    _default: ClassVar[Any]
    _shared: ClassVar[bool] = False
    """True for a default that many messages share. Defaults with lists are created per message instead."""

    def __init__(self, **values: Any) -> None:
        # The first call generates the real constructor, which then replaces this one.
        from ottla.protocol.compiler import build_constructor

        constructor = build_constructor(type(self))
        type(self).__init__ = constructor  # type: ignore[method-assign]
        constructor(self, **values)

    @classmethod
    def default(cls) -> Self:
        """The struct with all its defaults. Shared and frozen if it has no lists."""
        if "_default" not in cls.__dict__:
            cls._default = None if _holds_lists(cls) else _frozen_default(cls)
        return cls() if cls._default is None else cls._default

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)) and not isinstance(self, type(other)):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self._fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [(f.name, getattr(self, f.name), f.default()) for f in self._fields]
        values = ", ".join(f"{name}={value!r}" for name, value, default in shown if value != default)
        return f"{type(self).__qualname__}({values})"


class Codecs(dict[int, Any]):
    """Functions by version, each compiled on first use."""

    def __init__(self, build: Callable[[int], Any]) -> None:
        self.build = build

    def __missing__(self, version: int) -> Any:
        built = self[version] = self.build(version)
        return built


class Message(Struct):
    """A message that can be sent on its own, or a record that can be stored."""

    api_key: ClassVar[int]
    """The API a request or response belongs to, the type of a coordinator's record, or -1."""
    versions: ClassVar[range]
    flexible_since: ClassVar[int | None]
    carries_records: ClassVar[bool]
    """Whether it has a `records` field, so that it may be large."""

    _encoders: ClassVar[Codecs]
    _decoders: ClassVar[Codecs]
    _view_decoders: ClassVar[Codecs]

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return cls.flexible_since is not None and version >= cls.flexible_since

    @classmethod
    def decode(cls, buffer: Buffer, version: int, offset: int = 0) -> Self:
        """The message at `offset`. Bytes after its end are ignored, as Kafka's brokers do.

        Raises ProtocolError, and nothing else, if the bytes are not a message of that version.
        """
        # Text is decoded in one call from bytes, but in two from a memoryview, so each has its own decoder.
        decoders = cls._decoders if type(buffer) is bytes else cls._view_decoders
        try:
            found: Self = decoders[version](buffer, offset)[0]
            return found
        except MALFORMED as error:
            raise ProtocolError(f"{cls.__name__} v{version}: {error}") from None

    @classmethod
    def read(cls, buffer: Buffer, version: int, offset: int = 0) -> tuple[Self, int]:
        """Like `decode`, but also returns the position after the message."""
        decoders = cls._decoders if type(buffer) is bytes else cls._view_decoders
        try:
            found: tuple[Self, int] = decoders[version](buffer, offset)
            return found
        except MALFORMED as error:
            raise ProtocolError(f"{cls.__name__} v{version}: {error}") from None

    def encode(self, version: int) -> bytes:
        """The message's bytes in one version."""
        chunks: list[Buffer] = []
        self.encode_chunks(chunks, version)
        try:
            return b"".join(chunks)
        except TypeError as error:  # a bytes field holds something else
            raise _misfit(self, version, error) from None

    def encode_chunks(self, chunks: list[Buffer], version: int) -> None:
        """Appends the message's bytes in pieces. Records are not copied."""
        try:
            self._encoders[version](self, chunks)
        except MISFIT as error:
            raise _misfit(self, version, error) from None


def declare(cls: Any, *, versions: range, flexible_since: int | None = None, api_key: int = -1) -> None:
    """Finishes the class of a message: its versions, and which class each field's struct is."""
    cls.api_key, cls.versions, cls.flexible_since = api_key, versions, flexible_since
    cls._encoders = Codecs(lambda version: _compile_encoder(cls, version))
    cls._decoders = Codecs(lambda version: _compile_decoder(cls, version, of_bytes=True))
    cls._view_decoders = Codecs(lambda version: _compile_decoder(cls, version, of_bytes=False))
    structs = [cls, *(value for value in vars(cls).values() if isinstance(value, StructType))]
    cls.carries_records = any(f.type == "records" for struct in structs for f in struct._fields)
    for struct in structs:
        for declared in struct._fields:
            declared.owner = cls
            if declared.element not in _DEFAULTS and not hasattr(cls, declared.element):
                raise TypeError(f"{struct.__qualname__}.{declared.name}: no struct {declared.element}")


# The compilers import this module, so it can only import them at the end.


def _compile_encoder(cls: type[Message], version: int) -> Any:
    from ottla.protocol.encoder import build_encoder

    return build_encoder(cls, version)


def _misfit(message: Message, version: int, error: Exception) -> ProtocolError:
    from ottla.protocol.encoder import find_misfit

    return ProtocolError(f"{type(message).__name__} v{version}: {find_misfit(message, version) or error}")


def _compile_decoder(cls: type[Message], version: int, *, of_bytes: bool) -> Any:
    from ottla.protocol.decoder import build_decoder

    return build_decoder(cls, version, of_bytes=of_bytes)


def _holds_lists(cls: type[Struct]) -> bool:
    defaults = [f.default() for f in cls._fields]
    return any(isinstance(d, list) or (isinstance(d, Struct) and _holds_lists(type(d))) for d in defaults)


def _frozen_default(cls: type[Struct]) -> Any:
    """An immutable instance with every default, which many messages can share."""

    def refuse(self: Any, name: str, value: Any = None) -> None:
        raise AttributeError(
            f"the default {cls.__qualname__} is shared: assign a new one instead of setting its {name}"
        )

    namespace = {
        "__setattr__": refuse,
        "__delattr__": refuse,
        "__reduce__": lambda self: (cls, ()),
        "__qualname__": cls.__qualname__,
        "_shared": True,
    }
    frozen_class: Any = StructType(cls.__name__, (cls,), namespace)
    frozen_class._fields = cls._fields
    frozen = object.__new__(frozen_class)
    for declared in cls._fields:
        object.__setattr__(frozen, declared.name, declared.default())
    return frozen
