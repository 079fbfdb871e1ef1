"""Entries of JSON files that users write: a wrong value is an error that names the entry, the value and the fix. Pure.

>>> entry = Entry("moves.json, entry 1", {"partition": 3}, example='{"partition": 0}')
>>> entry.number("partition", at_most=9)
3
"""

import json
from dataclasses import dataclass
from typing import Any

from ottla.checks import whole_number
from ottla.errors import OttlaError

SHOWN_LENGTH_MAX = 60


@dataclass(frozen=True)
class Entry:
    """One object of a file. `where` names the file and the entry, `example` is an entry as it should be."""

    where: str
    fields: Any
    example: str

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, value, f'write a name in quotes, as in "{name}": "orders"')
        return value

    def number(self, name: str, *, at_most: int) -> int:
        return self._checked(name, self._value(name), at_most)

    def numbers(self, name: str, each: str, *, at_most: int) -> tuple[int, ...]:
        """A list of at least one number. `each` is what one of them is called."""
        value = self._value(name)
        if not isinstance(value, list) or not value:
            raise self._wrong(name, value, f"write a list of whole numbers, as in {self.example}")
        return tuple(self._checked(each, item, at_most) for item in value)

    def _value(self, name: str) -> Any:
        if not isinstance(self.fields, dict):
            raise self._wrong("the entry", self.fields, f"write {self.example}")
        if name not in self.fields:
            raise OttlaError(f"{self.where}: {name} is missing", f"write {self.example}")
        return self.fields[name]

    def _checked(self, name: str, value: Any, at_most: int) -> int:
        number = whole_number(value)
        if number is None or not 0 <= number <= at_most:
            raise self._wrong(name, value, f"write a whole number from 0 to {at_most}")
        return number

    def _wrong(self, name: str, value: Any, hint: str) -> OttlaError:
        shown = json.dumps(value, ensure_ascii=False)
        if len(shown) > SHOWN_LENGTH_MAX:
            shown = f"{shown[:SHOWN_LENGTH_MAX]}…"
        return OttlaError(f"{self.where}: {name} is {shown}", hint)
