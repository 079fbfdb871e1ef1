"""When to retry partitions that could not be opened, and what to report about them. Pure.

A full disk or too many open files are temporary failures: the partition is then served again without a restart.
"""

from collections.abc import Callable
from typing import NamedTuple

from ottla.net.backoff import Backoff
from ottla.types import TopicPartition

BACKOFF = Backoff(1_000, 60_000)


class Attempt(NamedTuple):
    """The last attempt to open a partition, and when to make the next one."""

    topic_id: bytes
    failures: int
    due_ms: int


class Reopening:
    """The partitions that could not be opened, each with an exponential back-off."""

    def __init__(self) -> None:
        self._attempts: dict[TopicPartition, Attempt] = {}
        self._offline: dict[TopicPartition, str] = {}
        self._online: list[TopicPartition] = []

    def is_due(self, partition: TopicPartition, now: int) -> bool:
        """Whether to try to open a partition now. The first attempt is always due."""
        attempt = self._attempts.get(partition)
        return attempt is None or attempt.due_ms <= now

    def failed(self, partition: TopicPartition, topic_id: bytes, reason: str, now: int) -> None:
        previous = self._attempts.get(partition)
        if previous is None:
            self._offline[partition] = reason
        failures = 1 if previous is None else previous.failures + 1
        self._attempts[partition] = Attempt(topic_id, failures, now + BACKOFF.delay_ms(failures, 0.0))

    def opened(self, partition: TopicPartition) -> None:
        if self._attempts.pop(partition, None) is not None and self._offline.pop(partition, None) is None:
            self._online.append(partition)

    def forget_all_but(self, is_wanted: Callable[[TopicPartition, bytes], bool]) -> list[TopicPartition]:
        """Drops the partitions that this broker no longer has to host, and returns them."""
        gone = [each for each, attempt in self._attempts.items() if not is_wanted(each, attempt.topic_id)]
        for partition in gone:
            del self._attempts[partition]
            self._offline.pop(partition, None)
        return gone

    def next_due_ms(self) -> int | None:
        """When the next attempt is due; None if every partition is open."""
        return min((attempt.due_ms for attempt in self._attempts.values()), default=None)

    def due_topics(self, now: int) -> set[str]:
        return {partition.topic for partition, attempt in self._attempts.items() if attempt.due_ms <= now}

    def take_changes(self) -> tuple[list[tuple[TopicPartition, str]], list[TopicPartition]]:
        """The partitions that went offline since the last call, with the reason, and those that came back."""
        offline, online = list(self._offline.items()), self._online
        self._offline, self._online = {}, []
        return offline, online
