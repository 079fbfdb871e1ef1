"""What users hand to a consumer, made plain or refused by the name of the argument. Pure."""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ottla.assignors import Assignor
from ottla.assignors.choosing import SETTING, choose_assignors
from ottla.client.admin.group_model import CommittedOffset
from ottla.client.core.arguments import whole_number
from ottla.client.core.settings import ConsumerConfig, check_settings
from ottla.errors import OttlaError
from ottla.types import TopicPartition

T = TypeVar("T")

PartitionLike = TopicPartition | tuple[str, int]
ByPartition = Mapping[TopicPartition, T] | Mapping[tuple[str, int], T]
"""Two mappings, since type checkers do not take one of TopicPartitions for one of pairs."""
OffsetLike = int | CommittedOffset

LISTENER_METHODS = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")


def as_partition(partition: PartitionLike) -> TopicPartition:
    """A TopicPartition from one, or from a plain (topic, partition)."""
    if isinstance(partition, TopicPartition):
        return partition
    try:
        topic, index = partition
    except (TypeError, ValueError):
        topic = index = None  # type: ignore[assignment]
    if not isinstance(topic, str) or not isinstance(index, int):
        raise OttlaError(f"not a partition: {partition!r}", 'Write TopicPartition("orders", 0) or ("orders", 0).')
    return TopicPartition(topic, index)


def as_offset(offset: OffsetLike, partition: PartitionLike) -> CommittedOffset:
    """An offset with what belongs to it, from one or from a plain number."""
    if isinstance(offset, CommittedOffset):
        return offset
    return CommittedOffset(_whole_number(offset, f"the offset for {as_partition(partition)}"))


def as_times(times: Any) -> dict[TopicPartition, int]:
    """What `offsets_for_times` is asked for."""
    wanted = {}
    for like, at in check_mapping(times, "times", '{("orders", 0): 1_700_000_000_000}').items():
        partition = as_partition(like)
        wanted[partition] = _whole_number(at, f"the time for {partition}")
        if wanted[partition] < 0:
            raise OttlaError(f"the time for {partition} is negative: {at}")
    return wanted


def check_mapping(given: Any, name: str, example: str) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise OttlaError(f"{name} must be a dict by partition, not {given!r}", f"Write {example}.")
    return given


def check_timeout(timeout_ms: Any) -> None:
    is_number = isinstance(timeout_ms, numbers.Real) and not isinstance(timeout_ms, bool)
    if not is_number or not math.isfinite(timeout_ms):
        raise OttlaError(f"timeout_ms must be a number of milliseconds, not {timeout_ms!r}")


def check_max_records(max_records: Any) -> int:
    """How many records may be taken. None at all could be waited for in vain, for ever."""
    count = _whole_number(max_records, "max_records")
    if count < 1:
        raise OttlaError(f"max_records must be at least 1, not {max_records!r}", "Leave it out for the usual number.")
    return count


def check_columns(columns: Sequence[str] | None) -> None:
    """Columns by name. Without a single one, records would be consumed and nobody would see them."""
    if isinstance(columns, str):
        raise OttlaError(f"columns must be a list of names, not the one name {columns!r}", f"Write [{columns!r}].")
    if columns is not None and not columns:
        raise OttlaError("columns is empty: nothing would be left of the records", "Leave it out for all columns.")


def check_listener(listener: Any) -> None:
    names = ", ".join(LISTENER_METHODS)
    if isinstance(listener, type):
        raise OttlaError(f"listener is the class {listener.__name__}", f"Give an object: {listener.__name__}().")
    if listener is not None and not any(hasattr(listener, name) for name in LISTENER_METHODS):
        raise OttlaError(f"listener has none of {names}: {listener!r}", "Write a subclass of RebalanceListener.")


def take_assignors(
    settings: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[Assignor]]:
    """The settings with assignors by name in them, where classes may have been, and the assignors themselves."""
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
    return settings, keywords, assignors


def _whole_number(value: Any, what: str) -> int:
    number = whole_number(value)
    if number is None:
        raise OttlaError(f"{what} must be a whole number, not {value!r}")
    return number
