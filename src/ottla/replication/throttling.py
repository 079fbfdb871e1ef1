"""Limits on the bytes that replicas copy to catch up (KIP-73). Pure.

The topic settings `leader.replication.throttled.replicas` and `follower.replication.throttled.replicas` name the
throttled replicas, the broker settings `….replication.throttled.rate` limit them. What throttled replicas copy counts,
but only those that are not in sync have to wait: a throttled in-sync replica would delay acks=all.
"""

import math
from collections import deque
from typing import TYPE_CHECKING

from ottla.types import INT64_MAX

if TYPE_CHECKING:
    from ottla.replication.replica import Replica

WINDOW_MS = 10_000
"""The rate is the average over this time. After a pause, over the time since then."""
SAMPLE_MS = 1_000
"""The length of a sample. Also the shortest time for an average."""

ALL = "*"


def names_replica(throttled: tuple[str, ...], partition: int, broker_id: int) -> bool:
    """Whether a topic setting of throttled replicas names this one.

    >>> names_replica(("0:1", "0:2"), 0, 2), names_replica(("*",), 7, 1), names_replica((), 0, 2)
    (True, True, False)
    """
    return bool(throttled) and (throttled[0] == ALL or f"{partition}:{broker_id}" in throttled)


def is_throttled_leader(replica: "Replica") -> bool:
    """Whether what followers fetch from this leader counts."""
    throttled = replica.log.config.leader_replication_throttled_replicas
    return names_replica(throttled, replica.topic_partition.partition, replica.broker_id)


def is_throttled_follower(replica: "Replica") -> bool:
    """Whether what this follower fetches counts."""
    throttled = replica.log.config.follower_replication_throttled_replicas
    return names_replica(throttled, replica.topic_partition.partition, replica.broker_id)


class ReplicationQuota:
    """The bytes per second that a broker copies as a leader, or as a follower, for throttled replicas."""

    def __init__(self, rate: int = INT64_MAX) -> None:
        self.is_limited = False
        self.rate = rate
        self._samples: deque[list[int]] = deque()
        """[start in monotonic milliseconds, bytes], oldest first."""
        self._total = 0
        self.set_rate(rate)

    def set_rate(self, rate: int) -> None:
        if rate != self.rate:
            # Bytes that were copied under the old limit do not count against the new one.
            self._samples.clear()
            self._total = 0
        self.rate = rate
        self.is_limited = rate < INT64_MAX

    def record(self, size_bytes: int, monotonic_ms: int) -> None:
        """A throttled replica has copied this much."""
        if not self.is_limited or size_bytes <= 0:
            return
        self._expire(monotonic_ms)
        if not self._samples or monotonic_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append([monotonic_ms, 0])
        self._samples[-1][1] += size_bytes
        self._total += size_bytes

    def wait_ms(self, monotonic_ms: int) -> int:
        """How long to wait until more may be copied, at most SAMPLE_MS: then check again. 0 if it may be copied now."""
        if not self.is_limited:
            return 0
        self._expire(monotonic_ms)
        if not self._total:
            return 0 if self.rate > 0 else SAMPLE_MS
        elapsed_ms = max(SAMPLE_MS, monotonic_ms - self._samples[0][0])
        if self._total * 1000 <= self.rate * elapsed_ms:
            return 0
        needed_ms = self._total * 1000 / self.rate if self.rate else math.inf
        until_ms = self._samples[0][0] + needed_ms - monotonic_ms
        return max(1, min(SAMPLE_MS, math.ceil(until_ms) if until_ms < SAMPLE_MS else SAMPLE_MS))

    def _expire(self, monotonic_ms: int) -> None:
        samples = self._samples
        while samples and monotonic_ms - samples[0][0] >= WINDOW_MS + SAMPLE_MS:
            self._total -= samples.popleft()[1]
