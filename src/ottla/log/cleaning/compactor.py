"""Runs a compaction in a thread: reads finished segments and writes `.cleaned` ones. Changes nothing else.

The log is written and read in the meantime. Its owner swaps in the result afterwards, on the event loop, or discards
it if the log has changed.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ottla.log.cleaning.compaction import (
    BatchCleaner,
    CleanableSegment,
    LastRecord,
    LatestOffsets,
    TransactionTracker,
    group_segments,
)
from ottla.log.cleaning.compaction_state import CompactionState, move
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.open_files import OpenFiles
from ottla.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot
from ottla.log.producers.producer_state import ProducerEntry
from ottla.log.producers.snapshot_files import SnapshotFiles
from ottla.log.segments.segment import Segment
from ottla.log.segments.segment_list import Segments
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.batch_rewriting import rewrite
from ottla.protocol.records.record_batch import BatchHeader, BytesLike, CorruptBatch, read_header, unreadable
from ottla.types import TopicPartition

log = logging.getLogger("ottla.log")

MAX_KEYS = 1_000_000
"""How many keys one pass holds in memory; a log with more keys is compacted in several passes."""

_OPEN_FILES = 8


class _Source(NamedTuple):
    """A segment to read, as of the time of planning."""

    base_offset: int
    next_offset: int
    size: int


class CleanedGroup:
    """One compacted segment, under `.cleaned` names, and the segments it replaces."""

    def __init__(self, sources: list[Segment], cleaned: Segment) -> None:
        self.sources = sources
        self.cleaned = cleaned

    def replacement(self, files: OpenFiles) -> Segment:
        """The compacted segment, opened for use by the log."""
        return Segment(
            self.cleaned.directory,
            self.cleaned.base_offset,
            files=files,
            size=self.cleaned.size,
            index_interval_bytes=self.cleaned.indexes.interval_bytes,
            suffix=self.cleaned.suffix,
        )


class _Cancelled(Exception):
    """The compaction is not wanted any more."""


class CompactionPlan:
    """What to compact, decided on the event loop. `run` can be called once, from any thread.

    While `run` is active, only that thread changes the state; before and after, only the event loop does.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        directory: str,
        config: TopicConfig,
        *,
        disk: Disk,
        now: int,
        held_ms: int = 0,
        log_start_offset: int,
        first_dirty_offset: int,
        end_offset: int,
        sources: list[Segment],
        aborted: list[AbortedTransaction],
        producers: Sequence[ProducerEntry],
        unsynced: list[str],
        max_keys: int = MAX_KEYS,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = directory
        self.config = config
        self.disk = disk
        self.now = now
        self.held_ms = held_ms
        self.log_start_offset = log_start_offset
        self.first_dirty_offset = first_dirty_offset
        self.end_offset = end_offset
        self.sources = sources
        self.cleaned: list[CleanedGroup] = []
        self.cleaned_up_to = first_dirty_offset
        self.state = CompactionState.PLANNED
        self._is_unwanted = False
        """A request to the thread that runs the plan. Has no effect on a compaction that is already finished."""
        self.max_keys = max_keys
        self._unsynced = unsynced
        self._aborted = list(aborted)
        # Copied, because entries change while producers write.
        self._last_records = _last_records(producers)
        ends = [segment.base_offset for segment in sources[1:]] + [end_offset]
        self._sources = [
            _Source(segment.base_offset, end, segment.size) for segment, end in zip(sources, ends, strict=True)
        ]

    def cancel(self) -> None:
        """Makes a running compaction stop soon. Any thread."""
        self._is_unwanted = True

    @property
    def has_failed_sync(self) -> bool:
        """Whether records that were appended before may be lost, as after a failed flush."""
        return self.state is CompactionState.SYNC_FAILED

    def run(self) -> None:
        """Reads, compacts, writes and syncs. On OSError or KafkaError the log is unchanged. Any thread."""
        self.state = move(self.state, CompactionState.RUNNING)
        try:
            used, cleaned_up_to = self._compact(OpenFiles(self.disk, _OPEN_FILES))
            self._sync_log()
            self._stop_if_unwanted()
        except _Cancelled:
            self.state = move(self.state, CompactionState.CANCELLED)
            self._remove_files()
            return
        except BaseException:
            if not self.has_failed_sync:
                self.state = move(self.state, CompactionState.FAILED)
            self._remove_files()
            raise
        self.sources = self.sources[: len(used)]
        self.cleaned_up_to = cleaned_up_to
        self.state = move(self.state, CompactionState.FINISHED)
        log.info(
            "%s: compacted up to offset %d, from %d to %d bytes",
            self.topic_partition,
            self.cleaned_up_to,
            sum(source.size for source in used),
            sum(group.cleaned.size for group in self.cleaned),
        )

    def _compact(self, files: OpenFiles) -> tuple[list[_Source], int]:
        """Writes the compacted segments. Returns the segments that they replace, and the offset they reach up to."""
        latest = self._read_keys(files)
        tracker = TransactionTracker(self._aborted)
        cleaner = BatchCleaner(
            latest,
            tracker,
            self._find_last_records(),
            # The horizon of a tombstone is stored: it must hold by both the old time and the new one.
            delete_retention_ms=self.config.delete_retention_ms + self.held_ms,
            log_start_offset=self.log_start_offset,
            now=self.now,
            max_bytes=self.config.max_decompressed_bytes,
        )
        used = [source for source in self._sources if source.base_offset < latest.end_offset]
        facts = [CleanableSegment(s.base_offset, s.next_offset, s.size, -1, -1) for s in used]
        for numbers in group_segments(facts, self.config):
            self._clean_group(numbers, cleaner, files)
        return used, latest.end_offset

    def _stop_if_unwanted(self) -> None:
        if self._is_unwanted:
            raise _Cancelled

    def _find_last_records(self) -> list[LastRecord]:
        """The last records of the active producers before the end offset.

        Not of the whole log: a follower may truncate what it has after the high watermark. Its producers must then
        still be known from what was compacted.
        """
        snapshot = SnapshotFiles(self.disk, self.directory).path(self.end_offset)
        try:
            entries = decode_snapshot(self.disk.read_file(snapshot), 0)
        except (CorruptSnapshot, OSError):
            return self._last_records
        active = {last.producer_id for last in self._last_records}
        return _last_records(entry for entry in entries if entry.producer_id in active)

    def _sync_log(self) -> None:
        """Syncs what was appended before the plan was made, which the pass relied on.

        Otherwise a power failure could lose a marker whose aborted records are already removed, or a producer's last
        batch, and with it every trace of a transaction or a sequence number that was on stable storage.
        """
        try:
            for path in self._unsynced:
                self._stop_if_unwanted()
                self.disk.sync_file(path)
            self._stop_if_unwanted()
            self.disk.sync_directory(self.directory)
        except FileNotFoundError:
            raise  # A segment was deleted in the meantime.
        except OSError:
            self.state = move(self.state, CompactionState.SYNC_FAILED)
            raise

    def still_fits(self, segments: Segments) -> bool:
        """Whether the log's segments still include the sources, finished and as they were read."""
        return all(
            segment in segments and segment is not segments.active and segment.size == source.size
            for segment, source in zip(self.sources, self._sources, strict=False)
        )

    def applied(self) -> None:
        """The log uses the compacted segments."""
        self.state = move(self.state, CompactionState.APPLIED)

    def discard(self) -> None:
        """Removes the result of a finished compaction that the log cannot use."""
        self.state = move(self.state, CompactionState.DISCARDED)
        self._remove_files()

    def _remove_files(self) -> None:
        for group in self.cleaned:
            group.cleaned.remove()
        self.cleaned.clear()

    def _open(self, source: _Source, files: OpenFiles) -> Segment:
        return Segment(
            self.directory,
            source.base_offset,
            files=files,
            size=source.size,
            index_interval_bytes=self.config.index_interval_bytes,
        )

    def _batches(self, source: _Source, files: OpenFiles) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch of a segment, with checksums verified: corrupt batches must not be copied."""
        segment = self._open(source, files)
        try:
            for _, header, batch in segment.batches(check_from_offset=0):
                self._stop_if_unwanted()
                yield header, batch
        finally:
            segment.close()

    def _read_keys(self, files: OpenFiles) -> LatestOffsets:
        """The offset of the last record of each key in the dirty part, or in as much of it as fits in memory."""
        latest = LatestOffsets(self.max_keys, self.config.max_decompressed_bytes)
        tracker = TransactionTracker(self._aborted)
        latest.end_offset = self.first_dirty_offset
        for source in self._sources:
            if source.next_offset <= self.first_dirty_offset:
                continue
            for header, batch in self._batches(source, files):
                if header.last_offset < self.first_dirty_offset:
                    continue
                if latest.is_full:
                    return latest
                try:
                    if header.is_control:
                        tracker.is_idle_marker(header, batch)
                    elif not tracker.is_aborted(header):
                        latest.add(header, batch, self.first_dirty_offset)
                except CorruptBatch as error:
                    raise unreadable(header, error) from None
                latest.end_offset = header.next_offset
            latest.end_offset = source.next_offset
        return latest

    def _clean_group(self, numbers: list[int], cleaner: BatchCleaner, files: OpenFiles) -> None:
        target = Segment.create(
            self.directory,
            self._sources[numbers[0]].base_offset,
            files=files,
            index_interval_bytes=self.config.index_interval_bytes,
            suffix=".cleaned",
        )
        self.cleaned.append(CleanedGroup([self.sources[number] for number in numbers], target))
        aborted = cleaner.tracker.still_needed
        known = len(aborted)
        kept: BytesLike | None = None
        batch: memoryview | None = None
        for number in numbers:
            for header, batch in self._batches(self._sources[number], files):
                try:
                    kept = cleaner.clean(header, batch)
                except CorruptBatch as error:
                    raise unreadable(header, error) from None
                if kept is not None:
                    self._write(target, kept)
        if kept is None and batch is not None:
            # Keep the last batch, at least without records: recovery treats a segment that ends before the next one
            # starts as truncated.
            self._write(target, rewrite(batch, keep_offsets=()))
        assert target.indexes.transactions is not None
        target.indexes.transactions += aborted[known:]
        paths = {*target.indexes.save(), target.indexes.save_transactions(rewrite=True), target.path(".log")}
        target.close()
        for path in sorted(path for path in paths if path is not None):
            self._stop_if_unwanted()
            self.disk.sync_file(path)

    @staticmethod
    def _write(target: Segment, batch: BytesLike) -> None:
        header = read_header(batch)
        target.append((batch,), header.size_bytes, header.last_offset, header.max_timestamp)


def _last_records(producers: Iterable[ProducerEntry]) -> list[LastRecord]:
    return [LastRecord(entry.producer_id, entry.last_data_offset, entry.producer_epoch) for entry in producers]
