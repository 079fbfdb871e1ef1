"""One partition's log: appends, reads, cuts, and knows its offsets. Called from one thread only.

Offsets in order: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset. What is below
flushed_offset is on stable storage.
"""

import enum
import logging
import os
from bisect import bisect_right
from typing import Any, NamedTuple

from ottla.clock import Clock
from ottla.errors import ErrorCode, KafkaError
from ottla.log.checkpoints import encode_epochs
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.flush import FlushTicket, UnsyncedSegments
from ottla.log.index import CorruptIndex
from ottla.log.leader_epochs import LeaderEpochCache
from ottla.log.open_files import OpenFiles
from ottla.log.producer_state import ProducerStateManager
from ottla.log.recovery import EPOCHS_FILE, LogLoader
from ottla.log.replay import aborted_entry, note_batch
from ottla.log.retention import SegmentFacts, segments_to_delete
from ottla.log.rolling import RollRules
from ottla.log.segment import Segment
from ottla.log.segments import Segments
from ottla.log.snapshot_files import SnapshotFiles
from ottla.log.time_search import OffsetAndTimestamp, find_by_timestamp, find_latest
from ottla.log.transaction_index import AbortedTransaction, collect
from ottla.log.validation import BatchRules
from ottla.protocol.record_batch import (
    BatchHeader,
    ControlType,
    check_crc,
    iter_batches,
    read_end_marker,
    stamped_prefix,
)
from ottla.types import TopicPartition

log = logging.getLogger("ottla.log")

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_EPOCH_BUMP_SINCE_PRODUCE_VERSION = 12
PRODUCER_ID_EXPIRATION_MS = 86_400_000


class Origin(enum.Enum):
    """Who appends: a client, or this broker's own coordinators (whose batches bear no sequences)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Appended(NamedTuple):
    """Where a batch went. A duplicate went there earlier."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class PartitionLog:
    """All of one partition on one disk."""

    producers: ProducerStateManager
    leader_epochs: LeaderEpochCache
    segments: Segments

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        files: OpenFiles,
        clock: Clock,
    ) -> None:
        """Use `open`."""
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.files = files
        self.disk: Disk = files.disk
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.flushed_offset = 0
        self.first_dirty_offset = 0
        """Compaction has seen everything below."""
        self._snapshots = SnapshotFiles(self.disk, directory)
        self._snapshot_offset = -1
        """Where the latest producer snapshot was taken."""
        self._clock = clock
        self._opened_ms = self._last_flush_ms = clock()
        self._unsynced = UnsyncedSegments()
        self._is_torn = False
        """A failed append left bytes behind that could not be cut off yet."""
        self._has_lost_writes = False
        """A sync failed: what the disk had accepted may be gone, and only opening the log again can tell."""
        self._update_rules()

    @classmethod
    def open(
        cls,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        *,
        disk: Disk,
        clock: Clock,
        clean_shutdown: bool,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        recovery_point: int = 0,
        first_dirty_offset: int = 0,
        files: OpenFiles | None = None,
    ) -> "PartitionLog":
        """Opens the log in `directory`, which may be new. OSError if its files cannot be used at all."""
        self = cls(directory, topic_partition, topic_id, config, OpenFiles(disk) if files is None else files, clock)
        disk.make_directories(directory)
        loaded = self._loader().load(
            clean_shutdown=clean_shutdown, recovery_point=recovery_point, first_offset=log_start_offset
        )
        self.log_end_offset = loaded.log_end_offset
        self.producers = loaded.producers
        self.leader_epochs = loaded.leader_epochs
        self._snapshot_offset = loaded.snapshot_offset
        self.segments = Segments(disk, loaded.segments)
        self.log_start_offset = max(log_start_offset, self.segments[0].base_offset)
        self.flushed_offset = loaded.log_end_offset if clean_shutdown else min(recovery_point, loaded.log_end_offset)
        for segment in loaded.segments:
            if segment.unsynced or segment.unsynced_indexes:
                self._unsynced.add(segment)
        self._unsynced.new_names = not clean_shutdown
        if self.log_start_offset > self.log_end_offset:
            self.truncate_fully(self.log_start_offset)
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.producers.on_high_watermark(self.high_watermark)
        self.leader_epochs.truncate_from_start(self.log_start_offset)
        active = self.segments.active
        self.first_dirty_offset = min(max(first_dirty_offset, self.log_start_offset), active.base_offset)
        return self

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}))"

    def _loader(self) -> LogLoader:
        return LogLoader(
            self.directory,
            files=self.files,
            index_interval_bytes=self.config.index_interval_bytes,
            now=self._clock(),
        )

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self.segments.active.index_interval_bytes = config.index_interval_bytes
        self._update_rules()

    def _update_rules(self) -> None:
        self._rules = BatchRules(self.config)
        self._rolling = RollRules(self.topic_partition, self.config)

    @property
    def first_unstable_offset(self) -> int | None:
        return self.producers.first_unstable_offset

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(self.high_watermark, unstable)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def advance_high_watermark(self, offset: int) -> bool:
        """Raises the high watermark, never past the end of the log; whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)
        return True

    # --- appending ----------------------------------------------------------------------------------------

    def append(
        self,
        batch: Any,
        *,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
        produce_version: int | None = None,
        transaction_version: int = 0,
        verification_guard: int | None = None,
    ) -> Appended:
        """Appends one batch as the leader. KafkaError if it is refused or cannot be written; then nothing changed.

        `transaction_version` is that of a marker's coordinator. `verification_guard` is what `producers` gave
        out before the coordinator was asked whether the transaction is open.
        """
        header = self._rules.open(batch)
        now = self._clock()
        append_time = -1
        if origin is Origin.CLIENT:
            batch, header, append_time = self._rules.prepare(batch, header, now, produce_version)
        producer_id, marker = header.producer_id, None
        if producer_id >= 0:
            if header.attributes & _CONTROL:
                marker = read_end_marker(batch)
                self.producers.check_marker(
                    producer_id, header.producer_epoch, marker[1], transaction_version=transaction_version
                )
            else:
                duplicate = self._check_producer(header, origin, produce_version, verification_guard)
                if duplicate is not None:
                    return duplicate if append_time >= 0 else duplicate._replace(log_append_time_ms=-1)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        length = header.batch_length
        prefix = stamped_prefix(base_offset, length, leader_epoch)
        self._write((prefix, memoryview(batch)[16:]), length + 12, last_offset, header.max_timestamp, now)
        if leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if marker is not None:
            self._note_marker(header, marker, last_offset, now)
        elif producer_id >= 0:
            self.producers.update(header, base_offset, now)
        return Appended(base_offset, last_offset, append_time, self.log_start_offset, False)

    def _check_producer(
        self, header: BatchHeader, origin: Origin, produce_version: int | None, guard: int | None
    ) -> Appended | None:
        """Refuses a data batch out of turn; for a duplicate, where the original went."""
        duplicate = self.producers.check(
            header,
            check_sequence=origin is Origin.CLIENT,
            require_known_start=(
                produce_version is not None
                and produce_version >= _EPOCH_BUMP_SINCE_PRODUCE_VERSION
                and bool(header.attributes & _TRANSACTIONAL)
            ),
        )
        if duplicate is not None:
            return Appended(
                duplicate.first_offset, duplicate.last_offset, duplicate.timestamp, self.log_start_offset, True
            )
        if (
            guard is not None
            and guard != self.producers.verification_guard(header.producer_id)
            and not self.producers.has_open_transaction(header.producer_id, header.producer_epoch)
        ):
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id}: the transaction ended while it was being verified",
            )
        return None

    def _note_marker(self, header: BatchHeader, marker: tuple[ControlType, int], offset: int, now: int) -> None:
        kind, coordinator_epoch = marker
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return
        completed = self.producers.update_marker(
            header, offset, now, aborted=kind is ControlType.ABORT, coordinator_epoch=coordinator_epoch
        )
        entry = aborted_entry(self.producers, completed)
        if entry is not None:
            self._aborted_in(self.segments.active).append(entry)

    def append_replicated(self, records: Any) -> None:
        """Appends batches as a follower: offsets and epochs are the leader's. All are checked before any is written.

        A batch cut short at the end is left out; the next fetch brings it whole.
        """
        now = self._clock()
        view = memoryview(records)
        batches = list(iter_batches(view))
        next_offset = self.log_end_offset
        for position, header in batches:
            check_crc(view, position, header)
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{self.topic_partition}: the leader sent offset {header.base_offset}, {next_offset} is next",
                )
            next_offset = header.next_offset
        for position, header in batches:
            size = header.batch_length + 12
            batch = view[position : position + size]
            self._write((batch,), size, header.last_offset, header.max_timestamp, now)
            self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
            entry = note_batch(self.producers, header, batch, now)
            if entry is not None:
                self._aborted_in(self.segments.active).append(entry)

    def begin_leader_epoch(self, leader_epoch: int) -> None:
        """This replica leads from here on: the epoch starts at the end of the log."""
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    def _write(self, buffers: tuple[Any, ...], size: int, last_offset: int, max_timestamp: int, now: int) -> None:
        """Puts one batch at the end of the active segment, or of a new one, and moves the log end offset."""
        if self._is_torn or self._has_lost_writes:
            self._mend()
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes; segment.bytes is {self.config.segment_bytes}",
            )
        segment, rolling = self.segments.active, self._rolling
        try:
            if not rolling.is_begun and segment.size:
                rolling.begin(segment.base_offset, segment.find_first_timestamp())
            if segment.size and rolling.is_full(
                segment.base_offset, segment.size, segment.index_entries, size, last_offset, max_timestamp
            ):
                self.roll()
                segment = self.segments.active
            if segment.size == 0:
                segment.begin(now, max_timestamp)
                rolling.begin(segment.base_offset, max_timestamp)
            segment.append(buffers, size, last_offset, max_timestamp)
        except OSError as error:
            self._is_torn = True
            try:
                self._mend()
            except KafkaError:
                pass  # Tried again before the next append.
            raise self._storage_error("cannot append", error) from error
        if not segment.unsynced:
            self._unsynced.add(segment)
        self.log_end_offset = last_offset + 1

    def _mend(self) -> None:
        """Cuts off what a failed append left, so that the next one does not follow a torn batch."""
        if self._has_lost_writes:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: the disk failed to keep what was written"
            )
        try:
            self.segments.active.heal()
        except OSError as error:
            raise self._storage_error("cannot cut off a torn batch", error) from error
        self._is_torn = False

    def _storage_error(self, what: str, error: OSError) -> KafkaError:
        log.error("%s: %s: %s", self.topic_partition, what, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: {what}: {error}")

    # --- rolling ------------------------------------------------------------------------------------------

    def roll_if_due(self, now: int) -> bool:
        """Starts a new segment if the active one has been written to for segment.ms, though nobody appends."""
        active = self.segments.active
        if active.size == 0 or not self._rolling.is_due(active.base_offset, active.begun_at(now), now):
            return False
        try:
            self.roll()
        except OSError as error:
            raise self._storage_error("cannot start a segment", error) from error
        return True

    def roll(self) -> None:
        """Starts a new segment at the end of the log. OSError if its file cannot be made; then nothing changed."""
        finished = self.segments.active
        if self.log_end_offset == finished.base_offset:
            return
        self.segments.add(self._loader().new_segment(self.log_end_offset))
        self._unsynced.new_names = True
        finished.unsynced_indexes = True
        if not finished.unsynced:
            self._unsynced.add(finished)
        try:
            finished.save_indexes()
            self.snapshot_producers()
        except OSError as error:
            # Both can be had again from the log: the indexes go with the next flush, the state by replay.
            log.warning("%s: cannot write the indexes of a finished segment: %s", self.topic_partition, error)

    # --- reading ------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upper_bound: int, minimum_one_batch: bool = True) -> bytes:
        """Stored batches from the one that holds `offset`: whole ones that begin below `upper_bound`.

        At most `max_bytes`, but one batch at least with `minimum_one_batch`. Empty at the end of the log.
        """
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: {offset} is not in [{self.log_start_offset}, {log_end_offset}]",
            )
        if offset >= upper_bound or offset == log_end_offset:
            return b""
        segments = self.segments
        bases = segments.bases
        try:
            for number in range(bisect_right(bases, offset) - 1, len(bases)):
                segment = segments[number]
                if segment.base_offset >= upper_bound:
                    break
                if upper_bound >= segments.end_of(number, log_end_offset):
                    end = segment.size
                else:
                    end = segment.end_position(upper_bound)
                bound = min(upper_bound, log_end_offset)
                data = segment.read(offset, max_bytes, end, bound, minimum_one_batch)
                if data is not None:
                    return data
        except OSError as error:
            raise self._storage_error(f"cannot read at offset {offset}", error) from error
        return b""

    def _aborted_in(self, segment: Segment) -> list[AbortedTransaction]:
        try:
            return segment.aborted()
        except CorruptIndex as error:
            log.warning("rebuilding %s: %s", segment.path(".txnindex"), error)
            return self._loader().rebuild_transaction_index(list(self.segments), segment)

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """The aborted transactions that a read_committed reader of [fetch_offset, upper_bound) must know of."""
        found: list[AbortedTransaction] = []
        try:
            for number in range(self.segments.number_of(fetch_offset), len(self.segments)):
                if collect(self._aborted_in(self.segments[number]), fetch_offset, upper_bound, found):
                    break
        except OSError as error:
            raise self._storage_error("cannot read the transaction index", error) from error
        return found

    def find_offset_by_timestamp(self, timestamp: int, *, upper_bound: int) -> OffsetAndTimestamp | None:
        """The first record below `upper_bound` that is as late as `timestamp`."""
        try:
            return find_by_timestamp(self.segments, timestamp, self.log_start_offset, upper_bound)
        except OSError as error:
            raise self._storage_error("cannot search by time", error) from error

    def find_max_timestamp(self, upper_bound: int) -> OffsetAndTimestamp | None:
        """The record below `upper_bound` with the largest timestamp; the first of them, if several."""
        try:
            return find_latest(self.segments, self.log_start_offset, upper_bound, self.log_end_offset)
        except OSError as error:
            raise self._storage_error("cannot search by time", error) from error

    # --- cutting ------------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> None:
        """Moves the log's start up to `offset`; the files follow when retention is next enforced."""
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: {offset} is above the high watermark {self.high_watermark}",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.first_dirty_offset = max(self.first_dirty_offset, offset)
            self.leader_epochs.truncate_from_start(offset)

    def truncate_to(self, offset: int) -> None:
        """Cuts off everything from `offset` on: a follower gives up what its leader never had."""
        if offset >= self.log_end_offset:
            return
        if offset <= self.log_start_offset:
            self.truncate_fully(max(0, offset))
            return
        try:
            self._truncate_segments(offset)
        except OSError as error:
            raise self._storage_error(f"cannot truncate to {offset}", error) from error

    def _truncate_segments(self, offset: int) -> None:
        self.segments.cut_after(offset)
        active = self.segments.active
        self._unsynced.cut(list(self.segments))
        position = active.find_position(offset)
        end = offset
        if position is not None:
            # Offsets of a batch go together: one that only reaches past `offset` goes with the rest.
            end = min(offset, active.header_at(position).base_offset)
            active.truncate(position, end)
        self.log_end_offset = end
        self.high_watermark = min(self.high_watermark, end)
        self.flushed_offset = min(self.flushed_offset, end)
        self.first_dirty_offset = min(self.first_dirty_offset, active.base_offset)
        self._is_torn = False
        self._snapshot_offset = -1
        self._rolling.restart()
        self.leader_epochs.truncate_from_end(end)
        self._reload_producers()

    def truncate_fully(self, start_offset: int) -> None:
        """Forgets everything and starts over at `start_offset`."""
        try:
            self.segments.replace_all(lambda: self._loader().new_segment(start_offset))
            self._snapshots.remove_above(-1)
        except OSError as error:
            self._has_lost_writes = True
            raise self._storage_error(f"cannot start over at {start_offset}", error) from error
        self._unsynced.cut([])
        self._unsynced.new_names = True
        self._is_torn = False
        self._snapshot_offset = -1
        self._rolling.restart()
        self.log_start_offset = self.log_end_offset = self.high_watermark = start_offset
        self.flushed_offset = self.first_dirty_offset = start_offset
        self.leader_epochs.clear()
        self.producers.clear()
        log.info("%s: starts over at %d", self.topic_partition, start_offset)

    def _reload_producers(self) -> None:
        """The producers' state as of the end of the log: from a snapshot and what follows it."""
        self._snapshots.remove_above(self.log_end_offset)
        self.producers = self._loader().load_producers(list(self.segments), self.log_end_offset)
        self.producers.on_high_watermark(self.high_watermark)

    # --- upkeep -------------------------------------------------------------------------------------------

    def enforce_retention(self, now: int) -> int:
        """Removes the segments that are too old, too many, or below the log's start; how many."""
        try:
            self.segments.purge(now)
            facts = [
                SegmentFacts(
                    segment.base_offset,
                    self.segments.end_of(number, self.log_end_offset),
                    segment.size,
                    self._latest_ms(segment),
                )
                for number, segment in enumerate(self.segments)
            ]
            count = segments_to_delete(
                facts,
                self.config,
                now=now,
                high_watermark=self.high_watermark,
                log_start_offset=self.log_start_offset,
            )
            if not count:
                return 0
            if count == len(facts):
                self.roll()
            # The start moves first: should a file stay behind, its records are still out of reach.
            self.log_start_offset = max(self.log_start_offset, facts[count - 1].next_offset)
            self.first_dirty_offset = max(self.first_dirty_offset, self.log_start_offset)
            self.leader_epochs.truncate_from_start(self.log_start_offset)
            gone = self.segments.remove_oldest(count, now + self.config.file_delete_delay_ms)
            self._unsynced.forget(gone)
            self._snapshots.prune(self.segments.bases)
        except OSError as error:
            raise self._storage_error("cannot remove old segments", error) from error
        log.info("%s: %d segments removed, starts at %d", self.topic_partition, count, self.log_start_offset)
        return count

    def _latest_ms(self, segment: Segment) -> int:
        latest = segment.max_timestamp if segment.size else -1
        if latest < 0:
            latest = segment.created_ms if segment.created_ms is not None else self._opened_ms
        return latest

    def expire_producers(self, now: int, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> int:
        """Forgets producers that have not written for so long; how many."""
        return self.producers.expire(now, expiration_ms)

    def unsynced(self) -> FlushTicket:
        """What to sync so that everything appended until now is on stable storage. Report back, either way."""
        try:
            return self._unsynced.ticket(self.log_end_offset, self.directory)
        except OSError as error:
            raise self._storage_error("cannot flush", error) from error

    def flushed(self, ticket: FlushTicket) -> None:
        """The ticket's files are synced."""
        if ticket.truncations == self._unsynced.truncations:
            self.flushed_offset = max(self.flushed_offset, ticket.offset)
        self._unsynced.settle(ticket, succeeded=True)
        self._last_flush_ms = self._clock()

    def flush_failed(self, ticket: FlushTicket) -> None:
        """The ticket's files could not be synced. The kernel may have dropped the bytes: nothing more is accepted."""
        self._has_lost_writes = True
        self._unsynced.settle(ticket, succeeded=False)

    def flush(self) -> None:
        """Syncs everything, waiting for the disk."""
        ticket = self.unsynced()
        try:
            ticket.sync(self.disk)
        except OSError as error:
            self.flush_failed(ticket)
            raise self._storage_error("cannot flush", error) from error
        self.flushed(ticket)

    @property
    def has_unsynced(self) -> bool:
        return bool(self._unsynced)

    def needs_flush(self, now: int) -> bool:
        """Whether flush.messages or flush.ms asks for a flush now."""
        return bool(self._unsynced) and (
            self.log_end_offset - self.flushed_offset >= self.config.flush_messages
            or now - self._last_flush_ms >= self.config.flush_ms
        )

    def snapshot_producers(self) -> None:
        """Writes the producers' state as of the end of the log, so that a start need not read what lies before."""
        if self._snapshot_offset != self.log_end_offset:
            self._snapshots.write(self.log_end_offset, self.producers)
            self._snapshot_offset = self.log_end_offset
            self._snapshots.prune(self.segments.bases)

    def epochs_to_save(self) -> tuple[str, bytes] | None:
        """The leader epochs' file and content if it lacks something; to be written before a recovery point is."""
        if not self.leader_epochs.is_dirty:
            return None
        return f"{self.directory}/{EPOCHS_FILE}", encode_epochs(self.leader_epochs.entries())

    def save_epochs(self) -> None:
        if (unsaved := self.epochs_to_save()) is not None:
            self.disk.write_file(*unsaved)
            self.leader_epochs.is_dirty = False

    def close(self) -> None:
        """Leaves everything on stable storage, so that the next start need not look. KafkaError if it cannot."""
        try:
            if not self._has_lost_writes:
                if self._is_torn:
                    self._mend()
                self.segments.purge()
                self.segments.active.save_indexes()
                self.segments.active.unsynced_indexes = self.segments.active.unsynced
                self.flush()
                self.snapshot_producers()
                self.save_epochs()
        except OSError as error:
            raise self._storage_error("cannot close", error) from error
        finally:
            for segment in self.segments:
                segment.close()

    def rename_for_deletion(self) -> str:
        """Closes the log and renames its directory, which the owner removes when it likes; the new path."""
        for segment in self.segments:
            segment.close()
        parent, _, name = self.directory.rpartition("/")
        mark = f".{os.urandom(16).hex()}-delete"
        new = f"{parent}/{name[: 255 - len(mark)]}{mark}"
        self.disk.rename(self.directory, new)
        self.directory = new
        return new
