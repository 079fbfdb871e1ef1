"""Checks of numbers, addresses and topic names, for arguments and for text, and of transitions between states. Pure."""

import enum
import re
from collections.abc import Collection, Mapping
from operator import index
from typing import Any, TypeVar

from ottla.errors import ArgumentError
from ottla.types import Endpoint

State = TypeVar("State", bound=enum.Enum)

_DIGITS_MAX = 1000
"""Python refuses to read numbers of some thousand digits, which a peer or a user can send."""
_DIGITS = re.compile(rf"[+-]?[0-9]{{1,{_DIGITS_MAX}}}")


TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def whole_number(value: Any) -> int | None:
    """An int from any integer type (numpy's too), or None if the value is not an integer. True and False are not."""
    if type(value) is int:
        return value
    return None if isinstance(value, bool) or not hasattr(value, "__index__") else index(value)


def require_number(value: Any, what: str, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """`value` as an int, or ArgumentError if it is not an integer from `at_least` to `at_most`.

    >>> require_number(3, "partition", at_least=0)
    3
    """
    number = whole_number(value)
    if number is None:
        raise ArgumentError(f"{what} must be a whole number, not {value!r}")
    if at_least is not None and number < at_least:
        raise ArgumentError(f"{what} must be at least {at_least}, not {number}")
    if at_most is not None and number > at_most:
        raise ArgumentError(f"{what} must be at most {at_most}, not {number}")
    return number


def number_from_text(text: str) -> int | None:
    """A decimal integer as Java reads it, or None. Python's int() also accepts underscores and other digits.

    >>> number_from_text(" -12 "), number_from_text("1_000"), number_from_text("1.5")
    (-12, None, None)
    """
    text = text.strip()
    return int(text) if _DIGITS.fullmatch(text) else None


def unsigned_from_text(text: str | bytes) -> int | None:
    """The number that consists of these ASCII digits; None for anything else, also for a sign or spaces.

    >>> unsigned_from_text("12"), unsigned_from_text(b"12"), unsigned_from_text("+12"), unsigned_from_text("²")
    (12, 12, None, None)
    """
    return int(text) if text.isdigit() and text.isascii() and len(text) <= _DIGITS_MAX else None


def port_from_text(text: str) -> int | None:
    """A TCP port from 0 to 65535, or None."""
    port = unsigned_from_text(text)
    return port if port is not None and port < 65_536 else None


def endpoint_from_text(text: str, *, default_port: int | None = None, needs_brackets: bool = False) -> Endpoint | None:
    """HOST:PORT, or None. The host may be empty, and the port 0.

    As in Kafka, an IPv6 address may lack its brackets, unless `needs_brackets`.

    >>> endpoint_from_text("broker.example:9092"), endpoint_from_text("[::1]", default_port=2379)
    (Endpoint(host='broker.example', port=9092), Endpoint(host='::1', port=2379))
    >>> endpoint_from_text("::1:9092"), endpoint_from_text("::1:9092", needs_brackets=True)
    (Endpoint(host='::1', port=9092), None)
    """
    host, colon, number = text.rpartition(":")
    port = port_from_text(number)
    if default_port is not None and (not colon or text.endswith("]")):
        host, port = text, default_port
    elif not colon:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif "[" in host or "]" in host or (":" in host and (needs_brackets or not _is_ipv6(host))):
        return None
    return None if port is None else Endpoint(host, port)


def _is_ipv6(host: str) -> bool:
    import ipaddress  # on first use: hardly any address gets here

    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def topic_name_problem(name: str) -> str | None:
    """Why a name is not a valid topic name; None if it is one.

    >>> topic_name_problem("orders.v2"), topic_name_problem("..")
    (None, "'..' is not allowed")
    """
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"its length {len(name)} is more than {TOPIC_NAME_LENGTH_MAX}"
    if not _TOPIC_NAME_CHARACTERS.issuperset(name):
        return f"{name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def moved(transitions: Mapping[State, Collection[State]], what: str, current: State, new: State) -> State:
    """Returns the state `new` if the table allows it after `current`. Anything else is a bug in the caller."""
    assert new in transitions[current], f"{what} cannot move from {current.name} to {new.name}"
    return new
