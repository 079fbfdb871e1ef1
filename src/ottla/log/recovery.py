"""Loads a partition's files: finishes interrupted swaps, truncates a torn tail, rebuilds indexes and state.

After a clean shutdown, only the end of the last segment and the latest producer snapshot are read. Otherwise every
batch is read once, from the segment of the recovery point on, and checksums are verified from the recovery point.
The same pass rebuilds the indexes, the producer state, the aborted transactions and the leader epochs. The log ends
at the first corrupt batch.
"""

import logging
from typing import NamedTuple

from ottla.checks import unsigned_from_text
from ottla.log.checkpoints import CorruptCheckpoint, decode_epochs
from ottla.log.disk import Disk
from ottla.log.leader_epochs import LeaderEpochCache
from ottla.log.open_files import OpenFiles
from ottla.log.producers.producer_state import ProducerStateManager
from ottla.log.producers.replay import needs_bytes, note_batch
from ottla.log.producers.snapshot_files import SUFFIX as SNAPSHOT_SUFFIX
from ottla.log.producers.snapshot_files import SnapshotFiles
from ottla.log.segments.scan import BATCHES_CHUNK, scan_batches, scan_headers
from ottla.log.segments.segment import SUFFIXES, Segment, file_name
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.batch_layout import HEADER_SIZE, LENGTH_END, MAGIC, MAGIC_POSITION
from ottla.protocol.records.record_batch import CorruptBatch
from ottla.types import INT32_MAX

log = logging.getLogger("ottla.log")

EPOCHS_FILE = "leader-epoch-checkpoint"
_MAGIC = bytes([MAGIC])


class LoadedLog(NamedTuple):
    """The state loaded from a partition's directory."""

    segments: list[Segment]
    log_end_offset: int
    producers: ProducerStateManager
    snapshot_offset: int
    """The offset of the snapshot that the producer state is based on; -1 if there was none."""
    leader_epochs: LeaderEpochCache


class LogLoader:
    """Loads one partition's directory."""

    def __init__(self, directory: str, *, files: OpenFiles, index_interval_bytes: int, monotonic_ms: int) -> None:
        self.directory = directory
        self.files = files
        self.disk: Disk = files.disk
        self.index_interval_bytes = index_interval_bytes
        self.monotonic_ms = monotonic_ms
        self.producers = ProducerStateManager()
        self.snapshots = SnapshotFiles(self.disk, directory)
        self.snapshot_offset = -1
        self._has_cut = False
        self.leader_epochs = LeaderEpochCache()

    def load(self, *, clean_shutdown: bool, recovery_point: int, first_offset: int, is_new: bool = False) -> LoadedLog:
        """`first_offset` is the start of a log without segments; `is_new` says that there is no file at all."""
        names = [] if is_new else finish_interrupted_work(self.disk, self.directory)
        segments = [self._segment(name) for name in names if name.endswith(".log")]
        self._remove_orphans(names, {segment.base_offset for segment in segments})
        if not segments:
            segments = [self.new_segment(first_offset, is_new)]
        epochs_known = self._load_epochs(names)
        snapshots = sorted(offset_of(name) for name in names if name.endswith(SNAPSHOT_SUFFIX))
        if not epochs_known and any(segment.size for segment in segments):
            self._rebuild_epochs(segments)
        log_end_offset = self._load_clean(segments, snapshots) if clean_shutdown else None
        if log_end_offset is None:
            log_end_offset = self._recover(segments, snapshots, recovery_point)
        self.leader_epochs.truncate_from_end(log_end_offset)
        for offset in snapshots:
            if offset > log_end_offset:
                self.disk.remove(self.snapshots.path(offset))
                self._has_cut = True
        if self._has_cut:
            # Removed files must not reappear after a power failure.
            self.disk.sync_directory(self.directory)
        for segment in segments:
            segment.close()
        return LoadedLog(segments, log_end_offset, self.producers, self.snapshot_offset, self.leader_epochs)

    def new_segment(self, base_offset: int, is_new: bool) -> Segment:
        return Segment.create(
            self.directory,
            base_offset,
            may_exist=not is_new,
            files=self.files,
            index_interval_bytes=self.index_interval_bytes,
        )

    def _segment(self, name: str) -> Segment:
        return Segment(
            self.directory,
            offset_of(name),
            files=self.files,
            size=self.disk.file_size(f"{self.directory}/{name}"),
            index_interval_bytes=self.index_interval_bytes,
        )

    def _remove_orphans(self, names: list[str], bases: set[int]) -> None:
        for name in names:
            if name.endswith(SUFFIXES[:-1]) and offset_of(name) not in bases:
                self.disk.remove(f"{self.directory}/{name}")

    def _load_epochs(self, names: list[str]) -> bool:
        if EPOCHS_FILE not in names:
            return False
        try:
            data = self.disk.read_file(f"{self.directory}/{EPOCHS_FILE}")
            self.leader_epochs = LeaderEpochCache(decode_epochs(data))
            return True
        except CorruptCheckpoint as error:
            log.warning("%s/%s: rebuilding the corrupt file from the log: %s", self.directory, EPOCHS_FILE, error)
            return False
        finally:
            self.leader_epochs.has_file = True

    def _rebuild_epochs(self, segments: list[Segment]) -> None:
        for segment in segments:
            try:
                for _, header in scan_headers(self.disk, segment.file.handle(), 0, segment.size):
                    self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
            except CorruptBatch:
                return

    # --- after a clean shutdown ---------------------------------------------------------------------------

    def _load_clean(self, segments: list[Segment], snapshots: list[int]) -> int | None:
        """The log end offset, or None if the files are not those of a clean shutdown."""
        try:
            log_end_offset = segments[-1].next_offset()
            self.load_producers(segments, log_end_offset, snapshots)
            return log_end_offset
        except CorruptBatch as error:
            log.warning("%s: not closed cleanly, recovering: %s", self.directory, error.detail)
            return None

    def load_producers(
        self, segments: list[Segment], end: int, snapshots: list[int] | None = None
    ) -> ProducerStateManager:
        """The producer state at offset `end`: the latest snapshot plus the batches after it."""
        self.snapshot_offset, self.producers = self.snapshots.load_latest(end, self.monotonic_ms, snapshots)
        start = max(0, self.snapshot_offset)
        if start < end:
            self.replay(segments, start, end)
        return self.producers

    def replay(self, segments: list[Segment], start: int, end: int) -> None:
        """Updates the producer state with every batch in [start, end)."""
        for number, segment in enumerate(segments):
            if number + 1 < len(segments) and segments[number + 1].base_offset <= start:
                continue
            if segment.base_offset >= end:
                return
            handle = segment.file.handle()
            try:
                position = segment.find_position(start)
                if position is None:
                    continue
                for at, header in scan_headers(self.disk, handle, position, segment.size):
                    if start <= header.base_offset < end:
                        batch = self.disk.pread(handle, header.size_bytes, at) if needs_bytes(header) else None
                        note_batch(self.producers, header, batch, self.monotonic_ms)
            except CorruptBatch as error:
                # Only readers of the damaged records get an error; the partition stays available.
                log.error("%s: corrupt batch: %s", segment.path(".log"), error.detail)

    def rebuild_transaction_index(self, segments: list[Segment], segment: Segment) -> list[AbortedTransaction]:
        """Rebuilds the aborted transactions of one segment from the log."""
        self.load_producers(segments, segment.base_offset)
        entries = []
        try:
            for _, header, batch in segment.batches():
                entry = note_batch(self.producers, header, batch, self.monotonic_ms)
                if entry is not None:
                    entries.append(entry)
        except CorruptBatch as error:
            log.error("%s: corrupt batch: %s", segment.path(".log"), error.detail)
        segment.indexes.transactions = entries
        segment.indexes.save_transactions(rewrite=True)
        return entries

    # --- after a crash ------------------------------------------------------------------------------------

    def _recover(self, segments: list[Segment], snapshots: list[int], recovery_point: int) -> int:
        first = 0
        while first + 1 < len(segments) and segments[first + 1].base_offset <= recovery_point:
            first += 1
        base = segments[first].base_offset
        self.load_producers(segments[:first], base, snapshots)
        log_end_offset, whole = base, True
        for number, segment in enumerate(segments[first:], first):
            # A segment that does not reach the next one has lost its end. The exception is a follower whose leader
            # compacted nearly everything: it leaves a gap larger than any segment.
            gap = segment.base_offset - log_end_offset
            if not whole or gap < 0 or 0 < gap <= INT32_MAX:
                for lost in segments[number:]:
                    log.warning("%r: removed, because it follows a truncated segment", lost)
                    lost.remove()
                del segments[number:]
                self._has_cut = True
                break
            if number > first:
                self._repair_snapshot(segment.base_offset)
            log_end_offset, whole = self._recover_segment(segment, recovery_point)
        for segment in segments[first:]:
            # An empty segment can have a transaction index of markers that were lost in a power failure.
            segment.unsynced = segment.size > 0 or self.disk.exists(segment.path(".txnindex"))
            if segment is not segments[-1]:
                segment.unsynced_indexes = True
                try:
                    segment.indexes.save()
                except OSError as error:
                    # Not fatal: they are in memory and are written again with the next flush.
                    log.warning("%s: cannot write the indexes: %s", segment.path(".log"), error)
        return log_end_offset

    def _repair_snapshot(self, offset: int) -> None:
        """Rewrites the snapshot at the start of a segment if a power failure damaged it."""
        if not self.snapshots.is_valid(offset, self.monotonic_ms):
            try:
                self.snapshots.write(offset, self.producers)
            except OSError as error:
                log.warning("%s: cannot write the producer snapshot: %s", self.snapshots.path(offset), error)

    def _recover_segment(self, segment: Segment, recovery_point: int) -> tuple[int, bool]:
        """Reads a segment once. Returns (offset after its last valid batch, whether the whole segment is valid)."""
        segment.indexes.begin()
        size = segment.size
        position, next_offset = 0, segment.base_offset
        while position < size:
            position, next_offset, error = self._recover_from(segment, position, next_offset, recovery_point)
            if error is None:
                break
            resumed = self._find_next_good(segment, position, next_offset) if next_offset < recovery_point else None
            if resumed is None:
                log.warning("%s: truncated at position %d of %d: %s", segment.path(".log"), position, size, error)
                self.disk.truncate(segment.file.handle(), position)
                self.disk.sync(segment.file.handle())
                segment.size = position
                self._has_cut = True
                break
            # These bytes were synced and have been damaged since. The batches after them are valid and stay; only
            # readers of the damaged bytes get an error.
            log.error("%s: corrupt from position %d to %d: %s", segment.path(".log"), position, resumed, error)
            position = resumed
        segment.indexes.complete_times()
        return next_offset, position == size

    def _recover_from(
        self, segment: Segment, start: int, next_offset: int, recovery_point: int
    ) -> tuple[int, int, str | None]:
        """Reads valid batches. Returns (position after them, next offset, what is wrong there or None)."""
        position, aborted, epochs, indexes = start, segment.aborted(), self.leader_epochs, segment.indexes
        handle = segment.file.handle()
        try:
            for at, header, batch in scan_batches(self.disk, handle, start, segment.size, recovery_point):
                base_offset, last_offset = header.base_offset, header.last_offset
                if base_offset < next_offset:
                    raise CorruptBatch(f"offset {base_offset} follows {next_offset - 1}")
                if header.producer_id >= 0:
                    entry = note_batch(self.producers, header, batch, self.monotonic_ms)
                    if entry is not None:
                        aborted.append(entry)
                if header.partition_leader_epoch != epochs.epoch_for_offset(base_offset):
                    # A new epoch, or a file from before a truncation: the records are right (KAFKA-10706).
                    epochs.truncate_from_end(base_offset)
                    epochs.assign(header.partition_leader_epoch, base_offset)
                size = header.batch_length + LENGTH_END
                indexes.note(at, size, last_offset, header.max_timestamp)
                position, next_offset = at + size, last_offset + 1
        except CorruptBatch as error:
            return position, next_offset, error.detail
        return position, next_offset, None

    def _find_next_good(self, segment: Segment, position: int, next_offset: int) -> int | None:
        """The position of the first batch after a corrupt range with a plausible header and a correct checksum."""
        handle, start = segment.file.handle(), position + 1
        while start + HEADER_SIZE <= segment.size:
            chunk = self.disk.pread(handle, BATCHES_CHUNK, start)
            at = chunk.find(_MAGIC, MAGIC_POSITION)
            while at >= 0:
                candidate = start + at - MAGIC_POSITION
                if self._is_batch(segment, candidate, next_offset):
                    return candidate
                at = chunk.find(_MAGIC, at + 1)
            start += max(1, len(chunk) - MAGIC_POSITION)
        return None

    def _is_batch(self, segment: Segment, position: int, next_offset: int) -> bool:
        try:
            _, header, _ = next(scan_batches(self.disk, segment.file.handle(), position, segment.size, 0))
        except CorruptBatch:
            return False
        return next_offset <= header.base_offset <= segment.base_offset + INT32_MAX


def offset_of(name: str) -> int:
    """The offset in a file's name."""
    return int(name.partition(".")[0])


def finish_interrupted_work(disk: Disk, directory: str) -> list[str]:
    """Removes or completes what a crash interrupted. Returns the names of the remaining files.

    Compaction writes `.cleaned` files, renames them to `.swap`, removes the segments they replace, and renames them
    to their final names; the `.log` file is always renamed last. So a `.log.swap` file is complete and its swap must
    be finished. Without it, other `.swap` files belong to a swap that never started.
    """
    names = disk.list(directory)
    suffixes = (".cleaned", ".swap", ".deleted", ".tmp")
    leftovers = [name for name in names if name.endswith(suffixes)]
    if not leftovers:
        return [name for name in names if _is_ours(name)]
    swaps = sorted(offset_of(name) for name in leftovers if name.endswith(".log.swap"))
    for base_offset in swaps:
        _finish_swap(disk, directory, base_offset)
    for name in disk.list(directory):
        if name.endswith(suffixes):
            disk.remove(f"{directory}/{name}")
    return [name for name in disk.list(directory) if _is_ours(name)]


def _is_ours(name: str) -> bool:
    stem, _, kind = name.partition(".")
    has_offset = len(stem) == 20 and unsigned_from_text(stem) is not None
    return name == EPOCHS_FILE or (has_offset and f".{kind}" in (*SUFFIXES, SNAPSHOT_SUFFIX))


def _finish_swap(disk: Disk, directory: str, base_offset: int) -> None:
    swapped = f"{directory}/{file_name(base_offset, '.log.swap')}"
    handle = disk.open(swapped)
    next_offset = base_offset
    try:
        for _, header in scan_headers(disk, handle, 0, disk.size(handle)):
            next_offset = header.next_offset
    finally:
        disk.close(handle)
    for name in disk.list(directory):
        # Segments that the swap replaces, except the one with the same base offset.
        if name.endswith(SUFFIXES) and base_offset < offset_of(name) < next_offset:
            disk.remove(f"{directory}/{name}")
    for kind in SUFFIXES:
        new = f"{directory}/{file_name(base_offset, kind)}"
        if disk.exists(new + ".swap"):
            disk.rename(new + ".swap", new)
    log.info("%s: finished an interrupted compaction of the segment at offset %d", directory, base_offset)
