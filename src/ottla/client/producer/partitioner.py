"""Which partition a record goes to: by its key as Java does it, sticky without one, or as the user says. Pure."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ottla.client.producer.delivery import Sticky, murmur2, partition_for_key
from ottla.errors import ConfigError, ErrorCode, KafkaError, OttlaError

__all__ = ["Partitioner", "StickyPartitioner", "find_partitioner", "murmur2", "partition_for_key"]


class Partitioner(Protocol):
    """A function of the user's own that picks a partition, from 0 to `partition_count` - 1.

    None leaves the record to the usual rules. It is called for every record that is sent without a partition, by the
    thread that sends it or by the client's own; it should be quick.

    >>> def by_customer(topic, key, value, partition_count):
    ...     return int(key) % partition_count if key is not None else None
    >>> producer = Producer(partitioner=by_customer)
    """

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, /) -> int | None: ...


def find_partitioner(given: Any, setting: str | None) -> Partitioner | None:
    """The user's partitioner: what was passed, or what `partitioner.class` names (module:function)."""
    if given is None and setting is not None:
        module, _, name = setting.partition(":")
        try:
            given = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"partitioner {setting} cannot be imported: {error}", "Write module:function.") from error
        if isinstance(given, type):
            given = given()
    if given is not None and not callable(given):
        raise ConfigError(f"not a partitioner: {given!r}", "Pass a function of topic, key, value and partition_count.")
    found: Partitioner | None = given
    return found


def ask_partitioner(
    partitioner: Partitioner, topic: str, key: bytes | None, value: bytes | None, partition_count: int
) -> int | None:
    """What a user's partitioner says, if that can be."""
    partition = partitioner(topic, key, value, partition_count)
    if partition is None:
        return None
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise OttlaError(f"the partitioner gave {partition!r} for topic {topic}", "Give the number of a partition.")
    if not 0 <= partition < partition_count:
        detail = f"the partitioner gave {partition}, and topic {topic} has partitions 0 to {partition_count - 1}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    return partition


class StickyPartitioner:
    """Records without a key stay with one partition until it has had a batch's worth, then move to another.

    Spreading them evenly one by one would fill no batch at all.
    """

    def __init__(
        self, batch_size: int, choose: Callable[[Sequence[int]], int], available: Callable[[str], Sequence[int]]
    ) -> None:
        """`choose` picks one of several partitions at random; `available(topic)` lists those that can be written to."""
        self._batch_size = max(1, batch_size)
        self._choose = choose
        self._available = available
        self._current: dict[str, Sticky] = {}

    def partition(self, topic: str, size_bytes: int) -> int:
        """The partition for a record of this size."""
        current = self._current.get(topic)
        if current is None or current.bytes_left <= 0:
            candidates = self._available(topic)
            if current is not None and len(candidates) > 1:
                candidates = [partition for partition in candidates if partition != current.partition]
            current = self._current[topic] = Sticky(self._choose(candidates), self._batch_size)
        current.bytes_left -= size_bytes
        return current.partition

    def find_current(self, topic: str) -> Sticky | None:
        """What `partition` goes by, until it chooses another: a record that takes a shorter way counts there, too."""
        return self._current.get(topic)

    def forget(self, topic: str) -> None:
        """Chooses afresh for the next record, because the topic is not what it was."""
        self._current.pop(topic, None)
