"""References in a pipeline file to values that are kept elsewhere. They are resolved when a client needs the value.

`${env:NAME}` is an environment variable, `${file:/path}` the content of a file, and `${file:/path:name}` a name in a
properties file, as Kafka's FileConfigProvider reads it. Only the reference is ever printed, logged or stored.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ottla.config import read_properties
from ottla.errors import ConfigError, OttlaError

_REFERENCE = re.compile(r"\$\{(env|file):([^${}]*)\}")


class MissingSecret(OttlaError):
    """A reference to something that does not exist."""


def resolve(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with every reference replaced. Raises MissingSecret."""
    return {name: resolve_text(value) for name, value in settings.items()}


def resolve_text(text: str) -> str:
    if "${" not in text:
        return text
    return _REFERENCE.sub(lambda match: _value(match[1], match[2]), text)


def problems_in(text: str) -> Iterator[OttlaError]:
    """What is wrong with the references of a value."""
    for kind, place in _REFERENCE.findall(text):
        try:
            _value(kind, place)
        except OttlaError as error:
            yield error


def _value(kind: str, place: str) -> str:
    if kind == "env":
        found = os.environ.get(place)
        if found is None:
            raise MissingSecret(f"environment variable {place} is not set", f"Run: export {place}=…")
        return found
    path, _, name = place.rpartition(":") if ":" in place else (place, "", "")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise MissingSecret(
            f"cannot read {path}: {reason}", "Check the path and the permissions of the file."
        ) from None
    if not name:
        return text.removesuffix("\n").removesuffix("\r")
    try:
        properties = read_properties(text)
    except ConfigError as error:
        raise MissingSecret(f"{path}: {error.message}", error.hint) from None
    if name not in properties:
        raise MissingSecret(f"{path} has no {name}", "Add a line name=value.")
    return properties[name]
