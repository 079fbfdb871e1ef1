"""When a segment is full: by size, by age, by its index, or because offsets would no longer fit. Pure."""

import zlib

from ottla.log.config import TopicConfig
from ottla.types import INT32_MAX, INT64_MAX, TopicPartition


class RollRules:
    """The rules of one log for the segment it is writing. The limits are plain attributes: every append looks."""

    __slots__ = ("_config", "_name", "_roll_ms", "entries_max", "is_begun", "offset_max", "size_max", "timestamp_max")

    def __init__(self, topic_partition: TopicPartition, config: TopicConfig) -> None:
        self._name = str(topic_partition)
        self._config = config
        self._roll_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacts else config.segment_ms
        self.size_max = config.segment_bytes
        # Entries of the time index are the larger ones, and it never has more of them than the offset index.
        self.entries_max = max(1, config.segment_index_bytes // 12)
        self.timestamp_max = INT64_MAX
        self.offset_max = INT64_MAX
        self.is_begun = False
        """Whether `begin` was told about the segment being written."""

    def begin(self, base_offset: int, first_timestamp: int) -> None:
        """A segment's first batch bears `first_timestamp`: a record much later does not belong in it.

        Without a timestamp (-1) the segment's age is a matter of `is_due` alone.
        """
        self.is_begun = True
        self.offset_max = base_offset + INT32_MAX
        self.timestamp_max = first_timestamp + self._life_ms(base_offset) if first_timestamp >= 0 else INT64_MAX

    def restart(self) -> None:
        self.is_begun = False

    def is_full(self, size: int, index_entries: int, last_offset: int, max_timestamp: int) -> bool:
        """Whether the segment would be too large, or the batch too far off, with it at the end."""
        return (
            size > self.size_max
            or max_timestamp > self.timestamp_max
            or last_offset > self.offset_max
            or index_entries >= self.entries_max
        )

    def is_due(self, base_offset: int, begun_at_ms: int, now: int) -> bool:
        """Whether the segment has been open for long enough, though nobody writes."""
        return now - begun_at_ms > self._life_ms(base_offset)

    def _life_ms(self, base_offset: int) -> int:
        bound = min(self._config.segment_jitter_ms, self._roll_ms)
        # A fixed hash spreads the partitions as well as a random number, and a replayed run rolls where it did.
        jitter = zlib.crc32(f"{self._name}:{base_offset}".encode()) % bound if bound > 0 else 0
        return self._roll_ms - jitter
