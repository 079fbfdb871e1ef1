"""What users hand to a producer, made plain or refused by the name of the argument. Pure.

A record is looked at before it joins a batch: what is wrong with it must not become the trouble of its neighbours.
"""

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

from ottla.client.core.model import Bytes, Headers, HeadersLike
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.types import INT64_MAX


def as_bytes(value: Bytes, what: str) -> bytes | None:
    """Bytes as they are, text as UTF-8, None as null."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return _encode(value, f"a record's {what}")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a record's {what} is bytes, text or None, not {type(value).__name__}")


def as_headers(headers: HeadersLike) -> Headers:
    """
    >>> as_headers({"trace": "42"})
    (('trace', b'42'),)
    """
    if not headers:
        return ()
    pairs: Any = headers
    if type(headers) is not list and type(headers) is not tuple:
        if isinstance(headers, Mapping):
            pairs = headers.items()
        elif isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
            raise TypeError(f"headers are pairs of a name and a value, not {type(headers).__name__}: {headers!r}")
    return tuple([_as_header(pair) for pair in pairs])


def _as_header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"a header is a pair of a name and a value, not {pair!r}")
    name, value = pair
    if not isinstance(name, str):
        raise TypeError(f"the name of a header is text, not {type(name).__name__}: {name!r}")
    if not name.isascii():
        _encode(name, "the name of a header")
    return name, value if type(value) is bytes else as_bytes(value, f"header {name!r}")


def as_timestamp(timestamp: Any) -> int:
    """Milliseconds since 1970, as a number that a batch can hold."""
    timestamp = as_number(timestamp, "a record's timestamp", "milliseconds since 1970, as a whole number")
    if timestamp < 0:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"the timestamp {timestamp} is negative")
    if timestamp > INT64_MAX:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"the timestamp {timestamp} has more than 64 bits")
    return timestamp


def as_number(value: Any, what: str, wanted: str) -> int:
    number = whole_number(value)
    if number is None:
        raise TypeError(f"{what} is {wanted}, not {type(value).__name__}: {value!r}")
    return number


def whole_number(value: Any) -> int | None:
    """A whole number of any type that is one, else None; true and false are none."""
    if type(value) is int:
        return value
    return None if isinstance(value, bool) or not hasattr(value, "__index__") else index(value)


def check_topic(topic: Any) -> None:
    """Raises for what cannot be a topic's name in any request; which names are legal, the broker knows."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is text, not {type(topic).__name__}: {topic!r}")
    if not topic:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the name of a topic is empty")
    if not topic.isascii():
        _encode(topic, "the name of a topic")


def _encode(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise OttlaError(f"{what} cannot be sent as UTF-8: {error}", "Encode it yourself, and send bytes.") from None
