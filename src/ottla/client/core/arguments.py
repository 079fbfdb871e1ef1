"""Checks the arguments that users pass to a producer, consumer or admin, and converts them to one form. Pure.

A record is checked before it joins a batch, so that a bad record fails alone and not with the rest of its batch.
"""

import contextlib
import functools
import inspect
import logging
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.checks import require_number, whole_number
from ottla.client.core.model import Bytes, CommittedOffset, Headers, HeadersLike, NewTopic, OffsetAndTimestamp
from ottla.client.core.settings import ConsumerConfig, check_settings
from ottla.errors import ArgumentError, ConfigError, ErrorCode, KafkaError
from ottla.types import INT32_MAX, INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from ottla.assignors import Assignor

T = TypeVar("T")

log = logging.getLogger("ottla.client")

PartitionLike = TopicPartition | tuple[str, int]
ByPartition = Mapping[TopicPartition, T] | Mapping[tuple[str, int], T]
"""Two mappings, because type checkers do not accept a dict of TopicPartition keys as a Mapping of tuple keys."""
OffsetLike = int | CommittedOffset
OFFSETS_EXAMPLE = '{("orders", 0): 42}'
HEADERS_HINT = 'Write {"trace": b"42"} or [("trace", b"42")].'

LISTENER_METHODS = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")


def no_group(hint: str) -> ArgumentError:
    """The error of a call that needs a consumer group, with Kafka's text. The hint depends on the call."""
    return ArgumentError("To use the group management or offset commit APIs, you must provide a valid group.id", hint)


# --- numbers ----------------------------------------------------------------------------------------------------


Timeout = int | timedelta
"""How long a call may wait. Its unit is in its name, as in Kafka's settings: `timeout_ms` is a whole number of
milliseconds. A timedelta has its own unit. A float is rejected: in other clients it is a number of seconds."""

SUSPICIOUS_MS = 10
"""A positive timeout of poll() below this is probably meant in seconds."""


def as_timeout_ms(timeout_ms: Timeout) -> int:
    """Milliseconds, from a whole number of them or from a timedelta.

    >>> as_timeout_ms(1_000), as_timeout_ms(timedelta(seconds=1))
    (1000, 1000)
    """
    if isinstance(timeout_ms, timedelta):
        number: int | None = math.ceil(timeout_ms / timedelta(milliseconds=1))
    else:
        number = whole_number(timeout_ms)
    if number is None:
        hint = "Write 1_000 or timedelta(seconds=1) for a second."
        if isinstance(timeout_ms, numbers.Real) and not isinstance(timeout_ms, bool) and math.isfinite(timeout_ms):
            hint = f"For {timeout_ms} seconds write {round(timeout_ms * 1000)} or timedelta(seconds={timeout_ms})."
        raise ArgumentError(f"timeout_ms must be a whole number of milliseconds, not {timeout_ms!r}", hint)
    if number < 0:
        hint = "0 does not wait. To wait without a limit, call it in a loop, or iterate over the consumer."
        raise ArgumentError(f"timeout_ms must be at least 0, not {timeout_ms}", hint)
    return number


def as_poll_timeout_ms(timeout_ms: Timeout) -> int:
    """As `as_timeout_ms`, with a warning for numbers that look like seconds. The fast path is for hot loops."""
    if type(timeout_ms) is int and (timeout_ms >= SUSPICIOUS_MS or timeout_ms == 0):
        return timeout_ms
    number = as_timeout_ms(timeout_ms)
    if 0 < number < SUSPICIOUS_MS and not isinstance(timeout_ms, timedelta):
        _warn_of_seconds(number)
    return number


@functools.cache
def _warn_of_seconds(timeout_ms: int) -> None:
    """Once per number, because poll() is called in a loop."""
    log.warning(
        "consumer: poll(%d) waits %d ms; for seconds write %d or timedelta(seconds=%d). If milliseconds are meant, "
        "timedelta(milliseconds=%d) avoids this warning",
        timeout_ms,
        timeout_ms,
        timeout_ms * 1000,
        timeout_ms,
        timeout_ms,
    )


def check_max_records(max_records: Any) -> int:
    """The largest number of records to return. With zero, a call would wait and never return anything."""
    return require_number(max_records, "max_records", at_least=1)


# --- records ----------------------------------------------------------------------------------------------------


def as_bytes(value: Bytes, what: str) -> bytes | None:
    """Bytes unchanged, text as UTF-8, None as null."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return _encode(value, f"a record's {what}")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    problem = f"a record's {what} must be bytes, text or None, not {type(value).__name__}"
    raise ArgumentError(problem, "Serialize it first, for example with json.dumps().")


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
            problem = f"headers must be pairs of a name and a value, not {type(headers).__name__}: {headers!r}"
            raise ArgumentError(problem, HEADERS_HINT)
    return tuple([_as_header(pair) for pair in pairs])


def _as_header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ArgumentError(f"a header must be a pair of a name and a value, not {pair!r}", HEADERS_HINT)
    name, value = pair
    if not isinstance(name, str):
        problem = f"the name of a header must be text, not {type(name).__name__}: {name!r}"
        raise ArgumentError(problem, HEADERS_HINT)
    if not name.isascii():
        _encode(name, "the name of a header")
    return name, value if type(value) is bytes else as_bytes(value, f"header {name!r}")


def as_timestamp(timestamp: Any) -> int:
    """Milliseconds since 1970, in the range that a batch can hold."""
    number = require_number(timestamp, "a record's timestamp")
    if number < 0:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"the timestamp {number} is negative")
    if number > INT64_MAX:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, f"the timestamp {number} has more than 64 bits")
    return number


def check_topic(topic: Any) -> None:
    """Raises for a topic name that no request can carry. The broker decides which names are legal."""
    if not isinstance(topic, str):
        raise ArgumentError(f"a topic must be text, not {type(topic).__name__}: {topic!r}")
    if not topic:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the name of a topic is empty")
    if not topic.isascii():
        _encode(topic, "the name of a topic")


def _encode(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        problem = f"{what} cannot be encoded as UTF-8: {error}"
        raise ArgumentError(problem, "Encode it yourself and send bytes.") from None


# --- partitions and offsets -------------------------------------------------------------------------------------


def as_partition(partition: PartitionLike) -> TopicPartition:
    """A TopicPartition, from one or from a plain (topic, partition) pair."""
    if isinstance(partition, TopicPartition) and type(partition.partition) is int:
        return partition
    topic: Any = None
    index: int | None = None
    with contextlib.suppress(TypeError, ValueError):
        topic, number = partition
        index = whole_number(number)
    if not isinstance(topic, str) or index is None:
        raise ArgumentError(f"not a partition: {partition!r}", 'Write TopicPartition("orders", 0) or ("orders", 0).')
    return TopicPartition(topic, index)


def as_partitions(partitions: Iterable[PartitionLike]) -> list[TopicPartition]:
    return [as_partition(partition) for partition in partitions]


def as_offset(offset: OffsetLike, partition: PartitionLike) -> CommittedOffset:
    """A CommittedOffset, from one, from another library's object with the same fields, or from a plain number.

    A record is rejected: its own offset is not the one to commit.
    """
    place = as_partition(partition)
    if hasattr(offset, "offset") and not hasattr(offset, "metadata") and not isinstance(offset, OffsetAndTimestamp):
        problem = f"the offset for {place} must be a whole number, not a {type(offset).__name__}"
        raise ArgumentError(problem, "The offset after a record is record.offset + 1.")
    number = _offset_number(getattr(offset, "offset", offset), place)
    epoch = getattr(offset, "leader_epoch", None)
    if epoch is not None:
        epoch = require_number(epoch, f"the leader epoch of the offset for {place}", at_least=-1, at_most=INT32_MAX)
    metadata = getattr(offset, "metadata", None) or ""
    if not isinstance(metadata, str):
        raise ArgumentError(f"the metadata of the offset for {place} must be text, not {metadata!r}")
    return CommittedOffset(number, -1 if epoch is None else epoch, metadata)


def as_committed_offsets(offsets: Any) -> dict[TopicPartition, CommittedOffset]:
    """Offsets to commit, by partition. Checked before they are sent: the coordinator would reject the whole request.

    >>> as_committed_offsets({("orders", 0): 42})
    {TopicPartition(topic='orders', partition=0): CommittedOffset(offset=42, leader_epoch=-1, metadata='')}
    """
    return {
        partition: as_offset(offset, partition)
        for partition, offset in by_partition(offsets, "offsets", OFFSETS_EXAMPLE).items()
    }


def as_positions(offsets: ByPartition[int]) -> dict[TopicPartition, int]:
    """Offsets to store, by partition: those of the next records to read."""
    return {
        partition: _offset_number(offset, partition)
        for partition, offset in by_partition(offsets, "offsets", OFFSETS_EXAMPLE).items()
    }


def _offset_number(number: Any, partition: TopicPartition) -> int:
    return require_number(number, f"the offset for {partition}", at_least=0, at_most=INT64_MAX)


def as_times(times: Any) -> dict[TopicPartition, int]:
    """The timestamps that `offsets_for_times` looks up."""
    wanted = {}
    for partition, at in by_partition(times, "times", '{("orders", 0): 1_700_000_000_000}').items():
        wanted[partition] = require_number(at, f"the time for {partition}")
        if wanted[partition] < 0:
            raise ArgumentError(f"the time for {partition} is negative: {at}", "Pass milliseconds since 1970.")
    return wanted


def by_partition(values: ByPartition[T], name: str, example: str) -> dict[TopicPartition, T]:
    """A dict by partition, from one whose keys may be plain pairs.

    >>> by_partition({("orders", 0): 42}, "offsets", "")
    {TopicPartition(topic='orders', partition=0): 42}
    """
    if not isinstance(values, Mapping):
        raise ArgumentError(f"{name} must be a dict by partition, not {values!r}", f"Write {example}.")
    pairs: Mapping[Any, T] = values
    return {as_partition(partition): value for partition, value in pairs.items()}


# --- names ------------------------------------------------------------------------------------------------------


def as_names(names: Iterable[str], what: str) -> list[str]:
    """A list of names. A plain string is rejected: its letters would become names (of topics to delete, say).

    >>> as_names(("orders", "bills"), "topics")
    ['orders', 'bills']
    """
    if isinstance(names, str):
        raise ArgumentError(f"{what} must be a list of names, not the one name {names!r}", f"Write [{names!r}].")
    if not isinstance(names, Iterable):
        raise ArgumentError(f"{what} must be a list of names, not {names!r}")
    checked = list(names)
    for name in checked:
        if not isinstance(name, str):
            raise ArgumentError(f"{what} must be a list of names, not of {type(name).__name__}: {name!r}")
    return checked


def as_new_topics(topics: Iterable[NewTopic]) -> list[NewTopic]:
    if isinstance(topics, NewTopic | str):
        raise ArgumentError(f"topics must be a list, not {topics!r}", 'Write [NewTopic("orders", 3)].')
    checked = list(topics)
    for topic in checked:
        if not isinstance(topic, NewTopic):
            raise ArgumentError(f"not a topic to create: {topic!r}", 'Write NewTopic("orders", 3).')
        require_number(topic.partitions, f"the partitions of topic {topic.name}")
        require_number(topic.replication_factor, f"the replication_factor of topic {topic.name}")
    return checked


def check_columns(columns: Sequence[str] | None) -> None:
    """Arrow columns by name. An empty list would consume records without returning any of their fields."""
    if isinstance(columns, str):
        raise ArgumentError(f"columns must be a list of names, not the one name {columns!r}", f"Write [{columns!r}].")
    if columns is not None and not columns:
        raise ArgumentError("columns is empty: records would be consumed and lost", "Omit it to get all columns.")


# --- user functions -----------------------------------------------------------------------------------------------

PASSED_BY_NAME = ("topic", "headers")
"""What serializers and deserializers may take besides the key or value."""


def check_callable(function: Any, name: str, hint: str) -> None:
    """Raises unless the argument is a function or None. The hint says how it is called."""
    if function is not None and not callable(function):
        raise ArgumentError(f"{name} is not a function: {function!r}", hint)


def parameters_by_name(function: Callable[..., Any]) -> tuple[str, ...]:
    """Which of `topic` and `headers` a function takes.

    >>> parameters_by_name(lambda value, *, topic: value), parameters_by_name(bytes.decode)
    (('topic',), ())
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return ()
    return tuple(name for name in PASSED_BY_NAME if name in parameters)


# --- listeners and assignors ------------------------------------------------------------------------------------


def check_listener(listener: Any) -> None:
    names = ", ".join(LISTENER_METHODS)
    if isinstance(listener, type):
        raise ArgumentError(f"listener is the class {listener.__name__}", f"Pass an instance: {listener.__name__}().")
    if listener is not None and not any(hasattr(listener, name) for name in LISTENER_METHODS):
        raise ArgumentError(f"listener has none of {names}: {listener!r}", "Write a subclass of RebalanceListener.")


def take_assignors(
    settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> "tuple[dict[str, Any], dict[str, Any], list[Assignor]]":
    """The settings with assignor classes replaced by their names, and an instance of each assignor."""
    from ottla.assignors.choosing import SETTING, choose_assignors  # only consumers need it

    check_settings(settings)
    settings, keywords = dict(settings or {}), dict(keywords)
    chosen: Any = None
    for where, name in ((settings, SETTING), (keywords, SETTING.replace(".", "_"))):
        if where.get(name) is not None:
            chosen = where[name]
    assignors = choose_assignors(ConsumerConfig.partition_assignment_strategy if chosen is None else chosen)
    for where, name in ((settings, SETTING), (keywords, SETTING.replace(".", "_"))):
        if where.get(name) is not None:
            where[name] = [assignor.name for assignor in assignors]
    for assignor in assignors:
        if assignor.shares_partitions:
            _turn_off_auto_commit(settings, keywords, assignor)
    return settings, keywords, assignors


def _turn_off_auto_commit(settings: dict[str, Any], keywords: dict[str, Any], assignor: "Assignor") -> None:
    """A group stores one offset per partition: members that read the same one would overwrite each other's."""
    problem = f"assignor {assignor.name} may assign a partition to several members, and their commits would overwrite "
    written = keywords.get("enable_auto_commit", settings.get("enable.auto.commit"))
    if written is not None and str(written).strip().lower() != "false":
        raise ConfigError(
            f"enable.auto.commit is on, but {problem}each other",
            "Turn it off, and keep the offsets in a StoredOffsets.",
        )
    if written is None:
        log.warning(
            "consumer: enable.auto.commit is off, because %seach other. Keep the offsets in a StoredOffsets, and set "
            "enable.auto.commit to false",
            problem,
        )
        keywords["enable_auto_commit"] = False
        settings.pop("enable.auto.commit", None)
