"""Reads the values of Spark options: numbers, truth values, durations, choices. Every mistake is a ConfigError. Pure.

Spark passes options as text. Each function takes the written options, by name, and the name of one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ottla.checks import number_from_text, unsigned_from_text
from ottla.errors import ConfigError, did_you_mean
from ottla.types import INT64_MAX

S = TypeVar("S", bound=str)

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}


def boolean(written: Mapping[str, str], name: str, default: bool) -> bool:
    """
    >>> boolean({"includeHeaders": "TRUE"}, "includeHeaders", False)
    True
    """
    text = written.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise _bad_value(written, name, "Use true or false.")
    return text == "true"


def integer(
    written: Mapping[str, str], name: str, *, at_least: int, at_most: int = INT64_MAX, hint: str = ""
) -> int | None:
    """A whole number, or None if the option is not written."""
    if name not in written:
        return None
    limits = f"of {at_least} or more" if at_most == INT64_MAX else f"from {at_least} to {at_most}"
    hint = hint or f"Use a number {limits}."
    value = number_from_text(written[name])
    if value is None:
        raise ConfigError(f"option {name} is {written[name]!r}, which is not a whole number", hint)
    if not at_least <= value <= at_most:
        raise ConfigError(f"option {name} is {value}", hint)
    return value


def integer_or(
    written: Mapping[str, str], name: str, default: int, *, at_least: int, at_most: int = INT64_MAX, hint: str = ""
) -> int:
    """A whole number, or the default if the option is not written."""
    value = integer(written, name, at_least=at_least, at_most=at_most, hint=hint)
    return default if value is None else value


def duration_ms(written: Mapping[str, str], name: str, default: int) -> int:
    """
    >>> duration_ms({"maxTriggerDelay": "15m"}, "maxTriggerDelay", 0)
    900000
    """
    if name not in written:
        return default
    found = re.fullmatch(r"([0-9]{1,18})\s*([a-z]*)", written[name].strip().lower())
    if found is None or found[2] not in UNITS_MS:
        raise _bad_value(written, name, "Use a number and a unit: 500ms, 30s, 15m or 1h.")
    return int(found[1]) * UNITS_MS[found[2]]


def choice(written: Mapping[str, str], name: str, choices: Sequence[S]) -> S:
    """One of the choices, whatever its case. The first is the default."""
    text = written.get(name, choices[0]).strip().lower()
    for each in choices:
        if each == text:
            return each
    allowed = f"Use {', '.join(choices[:-1])} or {choices[-1]}."
    raise _bad_value(written, name, did_you_mean(text, choices, allowed))


def batch_id(written: Mapping[str, str], name: str) -> int | None:
    """The id of a micro-batch, or None if the option is not written."""
    if name not in written:
        return None
    value = unsigned_from_text(written[name].strip())
    if value is None or value > INT64_MAX:
        raise _bad_value(written, name, "Pass the batch id that foreachBatch passes to its function.")
    return value


def _bad_value(written: Mapping[str, str], name: str, hint: str) -> ConfigError:
    return ConfigError(f"option {name} is {written[name]!r}", hint)
