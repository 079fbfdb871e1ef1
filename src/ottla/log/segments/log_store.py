"""The bytes of one log: the segment for the next batch, the segments to read, and what is on stable storage.

Handles positions and sizes; producers, epochs and watermarks are in `partition_log.py`. Errors are OSError, except
for appends, which raise KAFKA_STORAGE_ERROR and leave no partial batch.
"""

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from ottla.clock import MonotonicClock
from ottla.errors import ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.log.flush import FlushTicket, Unsynced
from ottla.log.open_files import OpenFiles
from ottla.log.segments.file_records import FileRecords
from ottla.log.segments.rolling import RollRules
from ottla.log.segments.segment import Segment
from ottla.log.segments.segment_indexes import UNINDEXED_BYTES
from ottla.log.segments.segment_list import Segments
from ottla.types import INT32_MAX, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("ottla.log")


class LogStore:
    """The segments of one partition: appends at the end, reads anywhere."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: str,
        config: TopicConfig,
        *,
        files: OpenFiles,
        segments: list[Segment],
        monotonic: MonotonicClock,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.files = files
        self.disk = files.disk
        self.segments = Segments(files.disk, segments)
        self._monotonic = monotonic
        self._config = config
        self._rolling = RollRules(topic_partition, config)
        self._unsynced = Unsynced(files)
        for segment in segments:
            if segment.unsynced or segment.unsynced_indexes:
                self._unsynced.add(segment)
        self._is_torn = False
        """A failed append left bytes that could not be truncated yet."""
        self._has_failed = False
        """Accepted writes may be lost, which only opening the log again can determine."""
        self._is_truncated = False
        """Nothing was appended since the last truncation."""
        self._checkpointed = 0
        """How many truncations the offsets on disk take into account. Set from any thread."""
        self.checkpoint_truncation: Callable[[TopicPartition], None] | None = None
        """Writes the offsets of a truncated log to disk: recovery must not trust what is appended afterwards."""

    def update_config(self, config: TopicConfig) -> None:
        self._config = config
        self._rolling = RollRules(self.topic_partition, config)
        self.segments.active.indexes.interval_bytes = config.index_interval_bytes

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def is_small(self) -> bool:
        """Whether the whole log can be read in less time than it takes to write and read a file about it."""
        return len(self.segments) == 1 and self.segments.active.size <= UNINDEXED_BYTES

    def error(self, what: str, error: OSError) -> KafkaError:
        log.error("%s: %s: %s", self.topic_partition, what, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {what}: {error}")

    # --- writing ------------------------------------------------------------------------------------------

    def write(
        self,
        buffers: tuple[Any, ...],
        size: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        now: int,
    ) -> bool:
        """Appends one batch to the active segment, or to a new one. Returns whether it started a new segment.

        On KafkaError the log is unchanged.
        """
        if self._is_torn or self._has_failed or self._is_truncated:
            self._heal()
        if size > self._config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"batch of {size} bytes is larger than segment.bytes ({self._config.segment_bytes})",
            )
        segment, rolling, rolled = self.segments.active, self._rolling, False
        try:
            if segment.size:
                if not rolling.is_begun:
                    rolling.begin(segment.base_offset, segment.find_first_timestamp())
                if rolling.is_full(segment.size + size, segment.indexes.entries, last_offset, max_timestamp):
                    rolled = self.roll(base_offset)
                    segment = self.segments.active
            elif last_offset - segment.base_offset > INT32_MAX:
                # A follower can receive a batch far ahead if its leader has compacted everything in between.
                rolled = self.roll(base_offset)
                segment = self.segments.active
            if not segment.size:
                segment.begin(now, self._monotonic(), max_timestamp)
                rolling.begin(segment.base_offset, max_timestamp)
            segment.append(buffers, size, last_offset, max_timestamp)
        except OSError as error:
            self._is_torn = True
            try:
                self._heal()
            except KafkaError:
                pass  # Retried before the next append.
            raise self.error("cannot append", error) from error
        if not segment.unsynced:
            self._unsynced.add(segment)
        return rolled

    def _heal(self) -> None:
        """Truncates what a failed append left, so that the next batch does not follow a torn one.

        After a truncation of the log, the recovery point on disk may be beyond its end. It is corrected first.
        """
        if self._has_failed:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.topic_partition}: a write to disk failed earlier; restart the broker to recover the partition",
            )
        if self._is_torn:
            try:
                self.segments.active.heal()
            except OSError as error:
                raise self.error("cannot truncate a torn batch", error) from error
            self._is_torn = False
        if self._is_truncated:
            try:
                if self.checkpoint_truncation is not None and self._checkpointed != self.truncations:
                    self.checkpoint_truncation(self.topic_partition)
            except OSError as error:
                raise self.error("cannot write the recovery point of a truncated log", error) from error
            self._is_truncated = False

    @property
    def has_failed(self) -> bool:
        """Whether writes are rejected until the log is opened again."""
        return self._has_failed

    def fail(self) -> None:
        """Rejects writes until the log is opened again: accepted ones may be lost."""
        self._has_failed = True

    @property
    def truncations(self) -> int:
        """Counts truncations."""
        return self._unsynced.truncations

    @property
    def is_truncated(self) -> bool:
        """Whether nothing was appended since the last truncation."""
        return self._is_truncated

    def mark_truncated(self) -> None:
        """The log ends before an offset on disk, as if it had been truncated: that is corrected before an append."""
        self._is_truncated = True
        self._checkpointed = -1

    def mark_checkpointed(self, truncations: int) -> None:
        """The offsets on disk take this many truncations into account. Any thread."""
        self._checkpointed = truncations

    def is_due(self, now: int) -> bool:
        """Whether the active segment is older than segment.ms. `now` dates a segment from before a restart."""
        active, monotonic_ms = self.segments.active, self._monotonic()
        return active.size > 0 and self._rolling.is_due(
            active.base_offset, active.begun_at(now, monotonic_ms), monotonic_ms
        )

    def roll(self, next_offset: int) -> bool:
        """Starts a new segment at `next_offset`, unless the active one is empty. On OSError nothing changes."""
        finished = self.segments.active
        if next_offset == finished.base_offset:
            return False
        self.segments.add(self._new_segment(next_offset))
        self._unsynced.new_names = True
        finished.unsynced_indexes = True
        if not finished.unsynced:
            self._unsynced.add(finished)
        try:
            finished.indexes.save()
        except OSError as error:
            # Not fatal: they are in memory and are written again with the next flush.
            log.warning("%s: cannot write the indexes of a finished segment: %s", self.topic_partition, error)
        return True

    def _new_segment(self, base_offset: int) -> Segment:
        return Segment.create(
            self.directory,
            base_offset,
            files=self.files,
            index_interval_bytes=self._config.index_interval_bytes,
        )

    # --- reading ------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper_bound: int,
        log_end_offset: int,
        minimum_one_batch: bool,
        inline_bytes: int,
    ) -> bytes | FileRecords:
        """Complete batches from the one that contains `offset`, with base offsets below `upper_bound`."""
        segments = self.segments
        bases = segments.bases
        bound = min(upper_bound, log_end_offset)
        for number in range(bisect_right(bases, offset) - 1, len(bases)):
            segment = segments[number]
            if segment.base_offset >= upper_bound:
                break
            end = segments.end_position(number, upper_bound, log_end_offset)
            data = segment.read(offset, max_bytes, end, bound, minimum_one_batch, inline_bytes)
            if data is not None:
                return data
        return b""

    def size_between(self, offset: int, end: int, log_end_offset: int) -> int:
        """The bytes from the batch that contains `offset` up to offset `end`, from the indexes."""
        segments = self.segments
        first, last = segments.number_of(offset), segments.number_of(end - 1)
        start = segments[first].find_position(offset)
        if start is None:
            start = segments[first].size
        stop = segments.end_position(last, end, log_end_offset)
        return sum(segments[number].size for number in range(first, last)) + stop - start

    # --- truncating and deleting --------------------------------------------------------------------------

    def truncate(self, offset: int) -> int:
        """Removes every batch that contains `offset` or later ones. Returns the new log end offset."""
        self.segments.truncate_after(offset)
        active = self.segments.active
        self._unsynced.truncated(self.segments)
        self._is_truncated = True
        self._rolling.restart()
        position = active.find_position(offset)
        end = offset
        if position is not None:
            # A batch is removed as a whole, even if only some of its offsets are at or after `offset`.
            end = min(offset, active.header_at(position).base_offset)
            active.truncate(position, end)
            if not active.unsynced:
                # Even if nothing is appended: the file of its aborted transactions still has the truncated ones.
                self._unsynced.add(active)
        self._is_torn = False
        return end

    def start_over(self, start_offset: int) -> None:
        """Replaces everything by one empty segment. After an OSError the log is unusable until it is opened again."""
        self._unsynced.truncated([])
        self._is_truncated = True
        self._unsynced.new_names = True
        self._rolling.restart()
        try:
            self.segments.replace_all(lambda: self._new_segment(start_offset))
        except OSError:
            self.fail()
            raise
        self._is_torn = False

    def remove_oldest(self, count: int) -> None:
        """Removes the oldest segments; their files stay on disk for file.delete.delay.ms."""
        try:
            self.segments.remove_oldest(count, self._monotonic() + self._config.file_delete_delay_ms)
        finally:
            self._unsynced.retain(self.segments)

    def swap(self, old: list[Segment], cleaned: Segment) -> None:
        """Replaces segments by a compacted one, which is complete and synced under `.cleaned` names.

        After a crash at any step, the file names tell recovery how to continue. After an OSError the log is unusable
        until it is opened again.
        """
        try:
            cleaned.change_suffix(".swap")
            self.disk.sync_directory(self.directory)
            self.segments.replace(old, cleaned)
            self._unsynced.retain(self.segments)
            self.segments.schedule_deletion(old, self._monotonic() + self._config.file_delete_delay_ms)
            cleaned.change_suffix("")
        except OSError:
            self.fail()
            raise

    # --- stable storage -----------------------------------------------------------------------------------

    @property
    def has_unsynced(self) -> bool:
        return bool(self._unsynced)

    def add_snapshot(self, path: str) -> None:
        """A producer snapshot was written; the next flush must cover it."""
        self._unsynced.add_snapshot(path)
        self._unsynced.new_names = True

    def unsynced(self, offset: int, *, hold: bool = True) -> FlushTicket:
        """What to sync so that everything below `offset`, the end of the log, is on stable storage."""
        return self._unsynced.ticket(offset, self.directory, hold=hold)

    def flushed(self, ticket: FlushTicket) -> bool:
        """The ticket's files are synced. Returns whether its offset is still valid (the log was not truncated)."""
        counts = ticket.truncations == self._unsynced.truncations
        self._unsynced.settle(ticket, succeeded=True)
        return counts

    def flush_failed(self, ticket: FlushTicket) -> None:
        """A sync failed, and the kernel may have dropped the bytes: rejects further writes."""
        self.fail()
        self._unsynced.settle(ticket, succeeded=False)

    def prepare_close(self) -> None:
        """Writes the remaining index files; the next flush syncs them."""
        if self._is_torn or self._has_failed:
            self._heal()
        self.segments.purge()
        active = self.segments.active
        if not active.indexes.are_saved() and active.indexes.needs_files(active.size):
            active.indexes.save()
            active.unsynced_indexes = True
            if not active.unsynced:
                self._unsynced.add(active)

    def close(self) -> None:
        self.segments.close()
