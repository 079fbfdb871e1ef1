"""When a segment is full: by size, by age, by its index, or because offsets would no longer fit. Pure."""

import zlib

from ottla.log.config import TopicConfig
from ottla.types import INT32_MAX, INT64_MAX, TopicPartition


class RollRules:
    """The rules of one log for the segment it is writing."""

    __slots__ = ("_config", "_index_entries_max", "_is_begun", "_name", "_roll_ms", "_timestamp_max")

    def __init__(self, topic_partition: TopicPartition, config: TopicConfig) -> None:
        self._name = str(topic_partition)
        self._config = config
        self._roll_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacts else config.segment_ms
        # Entries of the time index are the larger ones, and it never has more of them than the offset index.
        self._index_entries_max = max(1, config.segment_index_bytes // 12)
        self._timestamp_max = INT64_MAX
        self._is_begun = False

    @property
    def is_begun(self) -> bool:
        """Whether `begin` was told about the segment being written."""
        return self._is_begun

    def begin(self, base_offset: int, first_timestamp: int) -> None:
        """A segment's first batch bears `first_timestamp`: a record much later does not belong in it.

        Without a timestamp (-1) the segment's age is a matter of `is_due` alone.
        """
        self._is_begun = True
        self._timestamp_max = first_timestamp + self._life_ms(base_offset) if first_timestamp >= 0 else INT64_MAX

    def restart(self) -> None:
        self._is_begun = False

    def is_full(
        self, base_offset: int, size: int, index_entries: int, batch_size: int, last_offset: int, max_timestamp: int
    ) -> bool:
        """Whether a batch must go into a new segment rather than to the end of this one."""
        return (
            size + batch_size > self._config.segment_bytes
            or max_timestamp > self._timestamp_max
            or last_offset - base_offset > INT32_MAX
            or index_entries >= self._index_entries_max
        )

    def is_due(self, base_offset: int, begun_at_ms: int, now: int) -> bool:
        """Whether the segment has been open for long enough, though nobody writes."""
        return now - begun_at_ms > self._life_ms(base_offset)

    def _life_ms(self, base_offset: int) -> int:
        bound = min(self._config.segment_jitter_ms, self._roll_ms)
        # A fixed hash spreads the partitions as well as a random number, and a replayed run rolls where it did.
        jitter = zlib.crc32(f"{self._name}:{base_offset}".encode()) % bound if bound > 0 else 0
        return self._roll_ms - jitter
