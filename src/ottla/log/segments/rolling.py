"""When to start a new segment: by size, age, index size, or because relative offsets would overflow. Pure."""

import zlib

from ottla.log.config import TopicConfig
from ottla.types import INT32_MAX, INT64_MAX, TopicPartition


class RollRules:
    """One log's limits for its active segment. Plain attributes, because every append reads them."""

    __slots__ = ("_config", "_name", "_roll_ms", "entries_max", "is_begun", "offset_max", "size_max", "timestamp_max")

    def __init__(self, topic_partition: TopicPartition, config: TopicConfig) -> None:
        self._name = str(topic_partition)
        self._config = config
        self._roll_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacts else config.segment_ms
        self.size_max = config.segment_bytes
        # Entries of the time index are larger, and it never has more entries than the offset index.
        self.entries_max = max(1, config.segment_index_bytes // 12)
        self.timestamp_max = INT64_MAX
        self.offset_max = INT64_MAX
        self.is_begun = False
        """Whether `begin` was called for the active segment."""

    def begin(self, base_offset: int, first_timestamp: int) -> None:
        """The first batch of the segment has `first_timestamp`; a record more than segment.ms later starts a new one.

        Without a timestamp (-1), only `is_due` limits the segment's age.
        """
        self.is_begun = True
        self.offset_max = base_offset + INT32_MAX
        self.timestamp_max = first_timestamp + self._life_ms(base_offset) if first_timestamp >= 0 else INT64_MAX

    def restart(self) -> None:
        self.is_begun = False

    def is_full(self, size: int, index_entries: int, last_offset: int, max_timestamp: int) -> bool:
        """Whether the segment, including the next batch, would exceed a limit."""
        return (
            size > self.size_max
            or max_timestamp > self.timestamp_max
            or last_offset > self.offset_max
            or index_entries >= self.entries_max
        )

    def is_due(self, base_offset: int, begun_monotonic_ms: int, monotonic_ms: int) -> bool:
        """Whether the segment is older than segment.ms, even if nothing is written."""
        return monotonic_ms - begun_monotonic_ms > self._life_ms(base_offset)

    def _life_ms(self, base_offset: int) -> int:
        bound = min(self._config.segment_jitter_ms, self._roll_ms)
        # A hash instead of a random number, so that a replayed simulation rolls at the same offsets.
        jitter = zlib.crc32(f"{self._name}:{base_offset}".encode()) % bound if bound > 0 else 0
        return self._roll_ms - jitter
