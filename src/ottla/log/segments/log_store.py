"""The bytes of one log: which segment takes the next batch, which one a reader wants, and what is on stable storage.

Knows positions and sizes, nothing of producers, epochs or watermarks. Errors are OSError, but for appends, which
end in KAFKA_STORAGE_ERROR with nothing half-written left behind.
"""

import logging
from bisect import bisect_right
from typing import Any

from ottla.errors import ErrorCode, KafkaError
from ottla.log.config import TopicConfig
from ottla.log.flush import FlushTicket, Unsynced
from ottla.log.open_files import OpenFiles
from ottla.log.segments.rolling import RollRules
from ottla.log.segments.segment import Segment
from ottla.log.segments.segment_list import Segments
from ottla.types import INT32_MAX, TopicPartition

log = logging.getLogger("ottla.log")


class LogStore:
    """The segments of one partition, written at the end and read anywhere."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: str,
        config: TopicConfig,
        *,
        files: OpenFiles,
        segments: list[Segment],
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.files = files
        self.disk = files.disk
        self.segments = Segments(files.disk, segments)
        self._config = config
        self._rolling = RollRules(topic_partition, config)
        self._unsynced = Unsynced(files)
        for segment in segments:
            if segment.unsynced or segment.unsynced_indexes:
                self._unsynced.add(segment)
        self._is_torn = False
        """A failed append left bytes behind that could not be cut off yet."""
        self.has_failed = False
        """What the disk had accepted may be gone, and only opening the log again can tell."""

    def update_config(self, config: TopicConfig) -> None:
        self._config = config
        self._rolling = RollRules(self.topic_partition, config)
        self.segments.active.indexes.interval_bytes = config.index_interval_bytes

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

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
        """Puts one batch at the end of the active segment, or of a new one; whether a new one was begun for it.

        KafkaError leaves the log as it was.
        """
        if self._is_torn or self.has_failed:
            self._mend()
        if size > self._config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes; segment.bytes is {self._config.segment_bytes}",
            )
        segment, rolling, rolled = self.segments.active, self._rolling, False
        try:
            if segment.size:
                if not rolling.is_begun:
                    rolling.begin(segment.base_offset, segment.find_first_timestamp())
                if rolling.is_full(segment.size + size, segment.indexes.entries, last_offset, max_timestamp):
                    rolled = self.roll(base_offset, now)
                    segment = self.segments.active
            elif last_offset - segment.base_offset > INT32_MAX:
                # A follower may be sent a batch far ahead, when its leader has compacted all that lay between.
                rolled = self.roll(base_offset, now)
                segment = self.segments.active
            if not segment.size:
                segment.begin(now, max_timestamp)
                rolling.begin(segment.base_offset, max_timestamp)
            segment.append(buffers, size, last_offset, max_timestamp)
        except OSError as error:
            self._is_torn = True
            try:
                self._mend()
            except KafkaError:
                pass  # Tried again before the next append.
            raise self.error("cannot append", error) from error
        if not segment.unsynced:
            self._unsynced.add(segment)
        return rolled

    def _mend(self) -> None:
        """Cuts off what a failed append left, so that the next one does not follow a torn batch."""
        if self.has_failed:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: the disk failed to keep what was written"
            )
        try:
            self.segments.active.heal()
        except OSError as error:
            raise self.error("cannot cut off a torn batch", error) from error
        self._is_torn = False

    def is_due(self, now: int) -> bool:
        """Whether the active segment has been written to for segment.ms."""
        active = self.segments.active
        return active.size > 0 and self._rolling.is_due(active.base_offset, active.begun_at(now), now)

    def roll(self, next_offset: int, now: int) -> bool:
        """Starts a new segment at `next_offset`, unless the active one is empty. OSError: nothing changed."""
        finished = self.segments.active
        if next_offset == finished.base_offset:
            return False
        self.segments.add(self._new_segment(next_offset, now))
        self._unsynced.new_names = True
        finished.unsynced_indexes = True
        if not finished.unsynced:
            self._unsynced.add(finished)
        try:
            finished.indexes.save()
        except OSError as error:
            # They are in memory, and are written again with the next flush.
            log.warning("%s: cannot write the indexes of a finished segment: %s", self.topic_partition, error)
        return True

    def _new_segment(self, base_offset: int, now: int) -> Segment:
        return Segment.create(
            self.directory,
            base_offset,
            files=self.files,
            index_interval_bytes=self._config.index_interval_bytes,
            created_ms=now,
        )

    # --- reading ------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, upper_bound: int, log_end_offset: int, minimum_one_batch: bool
    ) -> bytes:
        """Whole batches from the one that holds `offset`, of those that begin below `upper_bound`."""
        segments = self.segments
        bases = segments.bases
        bound = min(upper_bound, log_end_offset)
        for number in range(bisect_right(bases, offset) - 1, len(bases)):
            segment = segments[number]
            if segment.base_offset >= upper_bound:
                break
            if upper_bound >= segments.end_of(number, log_end_offset):
                end = segment.size
            else:
                end = segment.end_position(upper_bound)
            data = segment.read(offset, max_bytes, end, bound, minimum_one_batch)
            if data is not None:
                return data
        return b""

    def size_between(self, offset: int, end: int, log_end_offset: int) -> int:
        """The bytes of the batches from the one that holds `offset` up to `end`, by the indexes."""
        segments = self.segments
        first, last = segments.number_of(offset), segments.number_of(end - 1)
        start = segments[first].find_position(offset)
        if start is None:
            start = segments[first].size
        if end >= segments.end_of(last, log_end_offset):
            stop = segments[last].size
        else:
            stop = segments[last].end_position(end)
        return sum(segments[number].size for number in range(first, last)) + stop - start

    # --- cutting ------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> int:
        """Cuts off every batch that reaches to `offset` or past it; where the log ends now."""
        self.segments.cut_after(offset)
        active = self.segments.active
        self._unsynced.cut(self.segments)
        self._rolling.restart()
        position = active.find_position(offset)
        end = offset
        if position is not None:
            # Offsets of a batch go together: one that only reaches past `offset` goes with the rest.
            end = min(offset, active.header_at(position).base_offset)
            active.truncate(position, end)
        self._is_torn = False
        return end

    def start_over(self, start_offset: int, now: int) -> None:
        """Drops everything for one empty segment. OSError: there is no log any more until it is opened again."""
        self._unsynced.cut([])
        self._unsynced.new_names = True
        self._rolling.restart()
        try:
            self.segments.replace_all(lambda: self._new_segment(start_offset, now))
        except OSError:
            self.has_failed = True
            raise
        self._is_torn = False

    def remove_oldest(self, count: int, now: int) -> None:
        """Takes the oldest segments out; their files stay for file.delete.delay.ms."""
        try:
            self.segments.remove_oldest(count, now + self._config.file_delete_delay_ms)
        finally:
            self._unsynced.retain(self.segments)

    def swap(self, old: list[Segment], cleaned: Segment, now: int) -> None:
        """Puts a compacted segment, whole and synced under `.cleaned` names, in the place of those it was made from.

        Every step leaves names from which opening the log knows how far this came (see recovery). OSError: which
        names are left is not known until then.
        """
        try:
            cleaned.change_suffix(".swap")
            self.disk.sync_directory(self.directory)
            self.segments.replace(old, cleaned)
            self._unsynced.retain(self.segments)
            self.segments.doom(old, now + self._config.file_delete_delay_ms)
            cleaned.change_suffix("")
        except OSError:
            self.has_failed = True
            raise

    # --- stable storage -----------------------------------------------------------------------------------

    @property
    def has_unsynced(self) -> bool:
        return bool(self._unsynced)

    def add_snapshot(self, path: str) -> None:
        """A producer snapshot was written that the next flush has to cover."""
        self._unsynced.add_snapshot(path)
        self._unsynced.new_names = True

    def unsynced(self, offset: int) -> FlushTicket:
        """What to sync so that everything below `offset`, the end of the log, is on stable storage."""
        return self._unsynced.ticket(offset, self.directory)

    def flushed(self, ticket: FlushTicket) -> bool:
        """The ticket's files are synced; whether its offset still means what it did (the log was not cut)."""
        counts = ticket.truncations == self._unsynced.truncations
        self._unsynced.settle(ticket, succeeded=True)
        return counts

    def flush_failed(self, ticket: FlushTicket) -> None:
        """A sync failed, and the kernel may have dropped the bytes: nothing more is accepted."""
        self.has_failed = True
        self._unsynced.settle(ticket, succeeded=False)

    def prepare_close(self) -> None:
        """Writes the last of the index files; the flush that follows syncs them."""
        if self._is_torn or self.has_failed:
            self._mend()
        self.segments.purge()
        active = self.segments.active
        if not active.indexes.are_saved() and active.indexes.needs_files(active.size):
            active.indexes.save()
            active.unsynced_indexes = True
            if not active.unsynced:
                self._unsynced.add(active)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
