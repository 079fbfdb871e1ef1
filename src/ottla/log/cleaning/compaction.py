"""The rules of compaction: when a log is due, and which records, tombstones and markers are kept. Pure.

The last record of each key is kept. A tombstone is kept for delete.retention.ms after the first pass that reads it;
that pass stores the time in the batch (the delete horizon, KIP-534). Records of aborted transactions are removed
immediately. A marker is removed one delete horizon after the last record of its transaction. The last batch of an
active producer is kept, without records if necessary, so that its sequence number is not lost. Offsets never change.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.log.config import TopicConfig
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.batch_rewriting import rewrite
from ottla.protocol.records.record_batch import (
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    BytesLike,
    ControlType,
    read_end_marker,
    scan_keys,
)
from ottla.types import INT32_MAX, INT64_MAX


class CleanableSegment(NamedTuple):
    """The properties of a finished segment that decide what is compacted."""

    base_offset: int
    next_offset: int
    size_bytes: int
    first_timestamp: int
    max_timestamp: int


class Cleanable(NamedTuple):
    """Compact [first_dirty_offset, end_offset) together with everything before."""

    first_dirty_offset: int
    end_offset: int


def choose_cleanable(
    finished: Sequence[CleanableSegment],
    config: TopicConfig,
    first_dirty_offset: int,
    last_stable_offset: int,
    now: int,
) -> Cleanable | None:
    """What to compact if enough of the log is dirty or a record is older than max.compaction.lag.ms; else None.

    Only segments without open transactions, and older than min.compaction.lag.ms, count.
    """
    clean_bytes, dirty = 0, []
    for segment in finished:
        if segment.next_offset <= first_dirty_offset:
            clean_bytes += segment.size_bytes
            continue
        too_young = config.min_compaction_lag_ms > 0 and segment.max_timestamp > now - config.min_compaction_lag_ms
        if too_young or segment.next_offset > last_stable_offset:
            break
        dirty.append(segment)
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    if not dirty_bytes:
        return None
    if dirty_bytes / (clean_bytes + dirty_bytes) <= config.min_cleanable_dirty_ratio and not _is_overdue(
        dirty, config, now
    ):
        return None
    return Cleanable(first_dirty_offset, dirty[-1].next_offset)


def _is_overdue(dirty: Sequence[CleanableSegment], config: TopicConfig, now: int) -> bool:
    if config.max_compaction_lag_ms == INT64_MAX:
        return False
    oldest = min((segment.first_timestamp for segment in dirty if segment.first_timestamp >= 0), default=now)
    return now - oldest > config.max_compaction_lag_ms


def group_segments(segments: Sequence[CleanableSegment], config: TopicConfig) -> list[list[int]]:
    """Groups of adjacent segments to merge into one, so that compaction does not leave many tiny segments."""
    groups: list[list[int]] = []
    size = 0
    for number, segment in enumerate(segments):
        first = segments[groups[-1][0]] if groups else None
        if (
            first is not None
            and size + segment.size_bytes <= config.segment_bytes
            and segment.next_offset - first.base_offset <= INT32_MAX
        ):
            groups[-1].append(number)
            size += segment.size_bytes
        else:
            groups.append([number])
            size = segment.size_bytes
    return groups


class TransactionTracker:
    """Follows transactions while a log is read in order: which records are aborted, which markers are obsolete.

    Reading can begin anywhere: transactions that ended before are ignored.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._aborted_seen: set[int] = set()
        self._committed_seen: set[int] = set()
        self.still_needed: list[AbortedTransaction] = []
        """Aborted transactions that still have records: readers must still filter them out."""

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            entry = self._waiting.pop()
            self._aborting[entry.producer_id] = entry

    def _is_aborting(self, header: BatchHeader) -> bool:
        """Whether the batch lies in an aborted transaction of its producer, or is its marker."""
        self._begin_up_to(header.last_offset)
        entry = self._aborting.get(header.producer_id)
        # Its marker is not read if it was before the first batch that is read.
        return entry is not None and header.base_offset <= entry.last_offset

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        if self._is_aborting(header):
            self._aborted_seen.add(header.producer_id)
            return True
        self._committed_seen.add(header.producer_id)
        return False

    def is_idle_marker(self, header: BatchHeader, batch: BytesLike) -> bool:
        """Whether the transaction that this control batch ends has no records left before it."""
        if not header.record_count:
            return True
        kind, _ = read_end_marker(batch)
        producer_id = header.producer_id
        if kind is ControlType.ABORT and self._is_aborting(header) and producer_id in self._aborted_seen:
            self._aborted_seen.discard(producer_id)
            self.still_needed.append(self._aborting.pop(producer_id))
            return False
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            # An aborted transaction of which only an empty batch is left may have no entry in the index.
            seen = producer_id in self._committed_seen
            self._committed_seen.discard(producer_id)
            return not seen
        return False


class LatestOffsets:
    """The offset of the last record of each key, in the part of the log that was read."""

    def __init__(self, max_keys: int, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> None:
        self._offsets: dict[bytes, int] = {}
        self._max_bytes = max_bytes
        self._max_keys = max_keys
        self.end_offset = 0
        """Everything below this offset was read."""

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self._max_keys

    def add(self, header: BatchHeader, batch: BytesLike, start_offset: int) -> None:
        base_offset = header.base_offset
        for delta, key, _ in scan_keys(batch, 0, header, max_bytes=self._max_bytes):
            if key is not None and base_offset + delta >= start_offset:
                self._offsets[key] = base_offset + delta

    def is_latest(self, key: bytes, offset: int) -> bool:
        return offset >= self._offsets.get(key, -1)


class LastRecord(NamedTuple):
    """The offset of an active producer's last record, or -1 if its last batch was a marker."""

    producer_id: int
    last_data_offset: int
    producer_epoch: int


class BatchCleaner:
    """Decides for each batch what is kept."""

    def __init__(
        self,
        latest: LatestOffsets,
        tracker: TransactionTracker,
        last_records: Iterable[LastRecord],
        *,
        log_start_offset: int,
        delete_retention_ms: int,
        now: int,
        max_bytes: int = MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.latest = latest
        self.tracker = tracker
        self.log_start_offset = log_start_offset
        self.now = now
        self.delete_horizon_ms = now + delete_retention_ms
        self._max_bytes = max_bytes
        self._last_records = {last.producer_id: last for last in last_records}

    def clean(self, header: BatchHeader, batch: BytesLike) -> BytesLike | None:
        """What replaces the batch: the batch itself, a smaller one, or None."""
        if header.is_control:
            return self._clean_control(header, batch)
        if self.tracker.is_aborted(header):
            return self._emptied(header, batch)
        horizon = header.base_timestamp if header.has_delete_horizon else None
        drop_tombstones = horizon is not None and horizon <= self.now
        kept, has_tombstones = [], False
        records = scan_keys(batch, 0, header, max_bytes=self._max_bytes)
        for delta, key, is_tombstone in records:
            offset = header.base_offset + delta
            if offset < self.log_start_offset:
                # Otherwise a value could outlive its tombstone, and reappear if a crash moves the log start back.
                continue
            if offset < self.latest.end_offset:
                if key is None or not self.latest.is_latest(key, offset) or (is_tombstone and drop_tombstones):
                    continue
                # Not for later tombstones: the values that they delete are still there for readers to see.
                has_tombstones = has_tombstones or is_tombstone
            kept.append(offset)
        if not kept:
            return self._emptied(header, batch)
        new_horizon = self.delete_horizon_ms if has_tombstones and horizon is None else None
        if len(kept) == len(records):
            if new_horizon is None:
                return batch
            return rewrite(batch, delete_horizon_ms=new_horizon, max_bytes=self._max_bytes)
        return rewrite(batch, keep_offsets=kept, delete_horizon_ms=new_horizon, max_bytes=self._max_bytes)

    def _clean_control(self, header: BatchHeader, batch: BytesLike) -> BytesLike | None:
        if not self.tracker.is_idle_marker(header, batch):
            return batch
        if not header.record_count:
            return self._emptied(header, batch)
        if not header.has_delete_horizon:
            # Readers may already have fetched records of the transaction before this pass: keep its marker for now.
            return rewrite(batch, delete_horizon_ms=self.delete_horizon_ms)
        return self._emptied(header, batch) if header.base_timestamp <= self.now else batch

    def _emptied(self, header: BatchHeader, batch: BytesLike) -> BytesLike | None:
        """For a batch without remaining records: an empty batch if an active producer's state needs it, else None."""
        last = self._last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return None
        if last.last_data_offset >= 0:
            is_needed = header.last_offset == last.last_data_offset
        else:
            is_needed = header.is_control and header.producer_epoch == last.producer_epoch
        if not is_needed:
            return None
        return batch if not header.record_count else rewrite(batch, keep_offsets=())
