"""Picks a record's partition: by key like Kafka's Java client, sticky without a key, or by a custom function. Pure."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ottla.checks import whole_number
from ottla.client.core.arguments import check_callable
from ottla.client.producer.speedups import StickyPartition, murmur2, partition_for_key
from ottla.errors import ConfigError, ErrorCode, KafkaError, OttlaError

__all__ = ["Partitioner", "StickyPartitioner", "find_partitioner", "murmur2", "partition_for_key"]


JAVA_DEFAULTS = ("org.apache.kafka.clients.producer.internals.DefaultPartitioner",)
"""Classes of the Java client that pick the same partitions as our default."""


class Partitioner(Protocol):
    """A custom function that picks a partition from 0 to `partition_count` - 1, or None for the default rules.

    It is called for every record that is sent without a partition, on the thread that calls send() or on the client's
    own thread. It should be fast.

    >>> def by_customer(topic, key, value, partition_count):
    ...     return int(key) % partition_count if key is not None else None
    >>> producer = Producer(partitioner=by_customer)
    """

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int, /) -> int | None: ...


CALLED_WITH = "It is called with (topic, key, value, partition_count)."


def find_partitioner(given: Any, setting: str | None) -> Partitioner | None:
    """The custom partitioner: the one passed, or the one that `partitioner.class` names as module:function."""
    if given is None and setting is not None and setting not in JAVA_DEFAULTS:
        module, _, name = setting.partition(":")
        try:
            given = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            hint = "Set partitioner.class to module:function."
            raise ConfigError(f"partitioner {setting} cannot be imported: {error}", hint) from error
        if isinstance(given, type):
            given = given()
        if not callable(given):
            raise ConfigError(f"partitioner.class is not a function: {setting} is {given!r}", CALLED_WITH)
    check_callable(given, "partitioner", CALLED_WITH)
    found: Partitioner | None = given
    return found


def ask_partitioner(
    partitioner: Partitioner, topic: str, key: bytes | None, value: bytes | None, partition_count: int
) -> int | None:
    """Calls a custom partitioner and checks what it returns."""
    partition = partitioner(topic, key, value, partition_count)
    if partition is None:
        return None
    number = whole_number(partition)
    if number is None:
        hint = "Return a partition number, or None for the default rules."
        raise OttlaError(f"the partitioner returned {partition!r} for topic {topic}", hint)
    if not 0 <= number < partition_count:
        detail = f"the partitioner returned {number}, but topic {topic} has partitions 0 to {partition_count - 1}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    return number


class StickyPartitioner:
    """Sends records without a key to one partition until it got `batch.size` bytes, then switches to another.

    Round-robin would spread them over many small batches (KIP-480). Switching by bytes instead of by completed batches
    keeps slow brokers from getting more records than fast ones (KIP-794).
    """

    def __init__(
        self, batch_size: int, choose: Callable[[Sequence[int]], int], available: Callable[[str], Sequence[int]]
    ) -> None:
        """`choose` picks one of several partitions at random; `available(topic)` lists those that have a leader."""
        self._batch_size = max(1, batch_size)
        self._choose = choose
        self._available = available
        self._current: dict[str, StickyPartition] = {}

    def partition(self, topic: str, size_bytes: int) -> int:
        """The partition for a record of this size."""
        current = self._current.get(topic)
        if current is None or current.bytes_left <= 0:
            candidates = self._available(topic)
            if current is not None and len(candidates) > 1:
                candidates = [partition for partition in candidates if partition != current.partition]
            current = self._current[topic] = StickyPartition(self._choose(candidates), self._batch_size)
        current.bytes_left -= size_bytes
        return current.partition

    def find_current(self, topic: str) -> StickyPartition | None:
        """The current choice. The fast path of send() also counts its bytes there."""
        return self._current.get(topic)

    def forget(self, topic: str) -> None:
        """Makes a new choice for the next record, because the topic's partitions have changed."""
        self._current.pop(topic, None)
