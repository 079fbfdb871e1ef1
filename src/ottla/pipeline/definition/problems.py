"""Mistakes in a pipeline's file, each with its place and a hint, and a reader that collects them. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.checks import TOPIC_NAME_LENGTH_MAX, topic_name_problem
from ottla.errors import ConfigError, did_you_mean

INTERVAL = re.compile(r"[0-9]+ *(milliseconds?|ms|seconds?|s|minutes?|min|hours?|h|days?|d)")
UNITS = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True)
class Problem:
    """One mistake: where it is, what is wrong, and how to fix it."""

    file: str
    line: int | None
    key: str
    cause: str
    hint: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.key}: {self.cause}" if self.key else f"{place}: {self.cause}"


class PipelineError(ConfigError):
    """A pipeline's file has mistakes; `problems` has all that were found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        first = self.problems[0]
        more = len(self.problems) - 1
        also = f" (and {more} more: ottla pipeline validate shows them)" if more else ""
        super().__init__(f"{first}{also}", first.hint)


class Reader:
    """Reads a document and collects every problem, instead of stopping at the first one."""

    def __init__(self, file: str, lines: Mapping[tuple[str, ...], int]) -> None:
        self.file = file
        self.lines = lines
        self.problems: list[Problem] = []

    def problem(self, path: Sequence[str], cause: str, hint: str = "") -> None:
        line = next((self.lines[key] for n in range(len(path), 0, -1) if (key := tuple(path[:n])) in self.lines), None)
        self.problems.append(Problem(self.file, line, ".".join(path), cause, hint))

    # --- values -------------------------------------------------------------------------------------------

    def mapping(self, value: Any, path: Sequence[str], known: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A mapping; unknown keys are reported."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problem(path, f"is {_kind(value)}; it must be keys with values", "Indent `key: value` lines under it.")
            return {}
        if known is not None:
            for key in value:
                if str(key) not in known:
                    hint = did_you_mean(str(key), known, f"The keys are {', '.join(known)}.")
                    self.problem([*path, str(key)], "unknown key", hint)
        return {str(key): item for key, item in value.items()}

    def text(self, value: Any, path: Sequence[str], *, among: Sequence[str] = ()) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            self.problem(path, f"is {_kind(value)}; it must be text", "Write it as text, in quotes if necessary.")
            return None
        text = str(value).strip()
        if not text:
            self.problem(path, "is empty", "Set a value, or remove the key.")
            return None
        if among and text not in among:
            self.problem(
                path,
                f"is {text}",
                did_you_mean(text.lower().replace("_", "-"), among, f"Use {', '.join(among[:-1])} or {among[-1]}."),
            )
            return None
        return text

    def texts(self, value: Any, path: Sequence[str]) -> tuple[str, ...]:
        """A text, several texts separated by commas, or a list."""
        if value is None:
            return ()
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list | tuple):
            self.problem(path, f"is {_kind(value)}; it must be a name or a list of names", "Use [a, b].")
            return ()
        found = [self.text(item, path) for item in value]
        return tuple(item for item in found if item)

    def flag(self, value: Any, path: Sequence[str]) -> bool:
        if value is None or isinstance(value, bool):
            return bool(value)
        self.problem(path, f"is {value!r}; it must be true or false", "Use true or false, without quotes.")
        return False

    def settings(self, value: Any, path: Sequence[str]) -> dict[str, str]:
        """Names with values as text, as Kafka and Spark expect them."""
        found = {}
        for key, item in self.mapping(value, path).items():
            if isinstance(item, bool):
                found[key] = "true" if item else "false"
            elif isinstance(item, str | int | float):
                found[key] = str(item)
            else:
                self.problem([*path, key], f"is {_kind(item)}; it must be one value", "Use text or a number.")
        return found

    def interval(self, value: Any, path: Sequence[str]) -> str | None:
        text = self.text(value, path)
        if text is None:
            return None
        if not INTERVAL.fullmatch(text):
            self.problem(path, f"{text!r} is not a duration", "Use a number and a unit, for example 5 seconds.")
            return None
        number, unit = re.fullmatch(r"([0-9]+) *([a-z]+)", text).groups()  # type: ignore[union-attr]
        return f"{number} {UNITS.get(unit, unit)}"

    def topic(self, value: Any, path: Sequence[str]) -> str | None:
        text = self.text(value, path)
        if text is not None and topic_name_problem(text) is not None:
            self.problem(
                path,
                f"{text!r} is not a valid topic name",
                f"Use up to {TOPIC_NAME_LENGTH_MAX} letters, digits, '.', '_' and '-'.",
            )
            return None
        return text


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a set of keys"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value)
