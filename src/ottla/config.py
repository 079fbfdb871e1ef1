"""Settings as typed dataclasses under Kafka's dotted names: name, default, check and documentation together. Pure.

A component declares its own small config. `parse` fills it from text and rejects unknown names.

>>> @dataclass(frozen=True, kw_only=True)
... class GroupConfig:
...     session_timeout_ms: int = setting("group.consumer.session.timeout.ms", 45_000, "…", at_least=1)
>>> parse(GroupConfig, {"group.consumer.session.timeout.ms": "50000"}).session_timeout_ms
50000
"""

import math
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ottla.checks import number_from_text
from ottla.errors import ConfigError, did_you_mean

C = TypeVar("C")

BROKER_ALIASES = {"broker.id": "node.id", "log.dir": "log.dirs"}
"""Other names of broker settings."""

HIDDEN = "[hidden]"
"""What is shown instead of a secret, as in Kafka."""


def looks_secret(name: str) -> bool:
    """Whether the name of an unknown setting suggests that its value is a secret."""
    return any(word in name for word in ("password", "secret", "jaas", "key"))


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting. CLI help, DescribeConfigs and the documentation are generated from it."""

    name: str
    default: Any
    doc: str
    kind: str
    """One of Kafka's types: boolean, string, int, short, long, double, list, password; or a Python object."""
    attribute: str
    check: Callable[[Any], bool] | None = None
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    server_name: str = ""
    """For a topic setting: the broker setting that gives its default (`log.retention.ms` for `retention.ms`)."""
    read_only: bool = True
    """For a broker setting: whether it needs a restart to change."""
    rule: str = ""
    """What `check` requires, for the error message."""

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is a secret (Kafka's type PASSWORD): never described, logged or quoted in an error."""
        return self.kind == "password"

    def parse(self, text: str) -> Any:
        """Parses `text`. Raises ConfigError with the setting and what it accepts."""
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise ConfigError(f"Invalid value {text} for configuration {self.name}: {_EXPECTED[self.kind]}") from None
        self.validate(value, text)
        return tuple(dict.fromkeys(value)) if self.kind == "list" and self.choices else value

    def validate(self, value: Any, text: str | None = None) -> None:
        if value is None:
            return
        shown = HIDDEN if self.is_sensitive else self.format(value) if text is None else text
        if self.at_least is not None and value < self.at_least:
            raise ConfigError(
                f"Invalid value {shown} for configuration {self.name}: Value must be at least {self.at_least}"
            )
        if self.at_most is not None and value > self.at_most:
            raise ConfigError(
                f"Invalid value {shown} for configuration {self.name}: Value must be no more than {self.at_most}"
            )
        if self.choices:
            for item in value if self.kind == "list" else (value,):
                if item not in self.choices:
                    raise ConfigError(
                        f"Invalid value {HIDDEN if self.is_sensitive else item} for configuration {self.name}: "
                        f"String must be one of: {', '.join(self.choices)}"
                    )
        if self.check is not None and not self.check(value):
            raise ConfigError(
                f"Invalid value {shown} for configuration {self.name}" + (f": {self.rule}" if self.rule else ""),
                "" if self.rule else self.doc,
            )

    def format(self, value: Any) -> str | None:
        """The text Kafka shows for a value: `true`, `1,2`, `604800000`; None stays None, and a secret becomes None."""
        if value is None or self.is_sensitive:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


def setting(name: str, default: Any, doc: str, **rules: Any) -> Any:
    """Declares one field of a config dataclass; `rules` are the remaining fields of Setting."""
    is_secret = rules.get("kind") == "password"  # kept out of the dataclass's repr
    return field(default=default, repr=not is_secret, metadata={"setting": (name, doc, rules)})


class BaseConfig:
    """Base of the broker's config classes: immutable, keyword arguments only.

    Subclasses declare their settings under `@dataclass(init=False, repr=False, eq=False)`. The broker has over a
    hundred settings, and a generated `__init__`, `__repr__` and `__setattr__` would add several milliseconds to every
    start. The defaults are class attributes; an instance holds only what differs from them.
    """

    def __init__(self, **values: Any) -> None:
        known: dict[str, Any] = getattr(type(self), "__dataclass_fields__", {})
        for name in values:
            if name not in known:
                raise TypeError(f"{type(self).__name__} has no {name!r}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name}")

    def __repr__(self) -> str:
        known: dict[str, Any] = getattr(type(self), "__dataclass_fields__", {})
        secret = {setting.attribute for setting in settings_of(type(self)).values() if setting.is_sensitive}
        values = ", ".join(
            f"{name}={HIDDEN if name in secret else repr(value)}"
            for name, value in self.__dict__.items()
            if name in known
        )
        return f"{type(self).__name__}({values})"


_declared: dict[type, dict[str, Setting]] = {}


def settings_of(config_class: type) -> dict[str, Setting]:
    """Every setting of a config dataclass by its dotted name, in the order of declaration."""
    if config_class not in _declared:
        _declared[config_class] = _collect(config_class)
    return _declared[config_class]


def _collect(config_class: Any) -> dict[str, Setting]:
    hints = typing.get_type_hints(config_class)
    found = {}
    for declared in fields(config_class):
        if "setting" in declared.metadata:
            name, doc, rules = declared.metadata["setting"]
            kind = rules.get("kind") or _kind_of(hints[declared.name])
            rest = {k: v for k, v in rules.items() if k != "kind"}
            found[name] = Setting(name, declared.default, doc, kind, declared.name, **rest)
    return found


def parse(config_class: type[C], values: Mapping[str, str]) -> C:
    """Builds `config_class` from text values under dotted names. Unknown names are an error."""
    known = settings_of(config_class)
    chosen = {}
    for name, text in values.items():
        if name not in known:
            raise unknown_setting(name, known)
        chosen[known[name].attribute] = known[name].parse(text)
    return config_class(**chosen)


def unknown_setting(name: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown name, with the most similar known one as a hint."""
    return ConfigError(f"Unknown setting {name}", did_you_mean(name, known, "docs/settings.md lists the settings."))


def describe(config: Any) -> dict[str, str | None]:
    """Every setting of `config` as the text that Kafka shows."""
    return {name: s.format(getattr(config, s.attribute)) for name, s in settings_of(type(config)).items()}


def read_properties(text: str) -> dict[str, str]:
    """Reads Java's .properties form: `name=value` or `name: value`, `#` and `!` comments, `\\` continues a line.

    A name without a value, which Java reads as an empty value, is an error: it is usually a mistake.

    >>> read_properties("# ports\\nlisteners = PLAINTEXT://:9092\\nlog.dirs=/tmp/a,\\\\\\n  /tmp/b")
    {'listeners': 'PLAINTEXT://:9092', 'log.dirs': '/tmp/a,/tmp/b'}
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _SEPARATOR.match(line)
        if match is None:
            # The line is not quoted: it may be part of a private key.
            raise ConfigError(f"line {number} has no '='", "Write one name=value per line.")
        found[_unescape(match[1].strip())] = _unescape(line[match.end() :].strip())
    return found


_SEPARATOR = re.compile(r"((?:\\.|[^\\=:])*)[=:]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPES.get(escaped, escaped)

    return _ESCAPE.sub(plain, text)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are neither empty nor comments, with continuations joined and the number of their first line."""
    pending, start = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = pending + raw.lstrip()
        start = start if pending else number
        pending = ""
        if not line or line[0] in "#!":
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
        else:
            yield start, line
    if pending:
        yield start, pending


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _integer(bits: int) -> Callable[[str], int]:
    def parse_integer(text: str) -> int:
        value = number_from_text(text)
        if value is None or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(text)
        return value

    return parse_integer


def _double(text: str) -> float:
    value = float(text)
    if "_" in text or not text.isascii() or not math.isfinite(value):
        raise ValueError(text)
    return value


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: dict[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    "string": str,
    "int": _integer(32),
    "short": _integer(16),
    "long": _integer(64),
    "double": _double,
    "list": _list,
    "password": str,
    "object": str,
}
_EXPECTED = {
    "boolean": "Expected value to be either true or false",
    "int": "Not a number of type INT",
    "short": "Not a number of type SHORT",
    "long": "Not a number of type LONG",
    "double": "Not a number of type DOUBLE",
}


def _kind_of(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return "list"
    options = [h for h in typing.get_args(hint) or (hint,) if h is not type(None)]
    if typing.get_origin(options[0]) is tuple:
        return "list"
    return {bool: "boolean", int: "int", float: "double", str: "string"}[options[0]]
