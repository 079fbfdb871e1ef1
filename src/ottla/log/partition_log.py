"""One partition's log: append, read, truncate, and its offsets. Called from one thread only.

`opening.py` opens it; `cleaning/log_cleaning.py` deletes and compacts.

Offsets in order: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset. Everything below
flushed_offset is on stable storage.
"""

import enum
import logging
import os
from typing import Any, NamedTuple

from ottla.clock import Clock, MonotonicClock
from ottla.errors import ErrorCode, KafkaError
from ottla.log.checkpoints import encode_epochs
from ottla.log.config import TopicConfig
from ottla.log.flush import FlushTicket
from ottla.log.leader_epochs import LeaderEpochCache
from ottla.log.producers.producer_state import ProducerStateManager, VerificationGuard
from ottla.log.producers.replay import note_batch, note_marker
from ottla.log.producers.snapshot_files import SnapshotFiles
from ottla.log.recovery import EPOCHS_FILE, LogLoader
from ottla.log.replicated_batches import check_batches
from ottla.log.segments.file_records import FileRecords
from ottla.log.segments.index import CorruptIndex
from ottla.log.segments.log_store import LogStore
from ottla.log.segments.segment import Segment
from ottla.log.segments.time_search import OffsetAndTimestamp, TimeSearch, find_by_timestamp, find_latest
from ottla.log.segments.transaction_index import AbortedTransaction, collect
from ottla.log.validation import BatchRules, Prepared, stamp_append_time
from ottla.protocol.records.batch_layout import CONTROL, LENGTH_END, TRANSACTIONAL
from ottla.protocol.records.record_batch import (
    BatchHeader,
    read_end_marker,
    stamped_prefix,
)
from ottla.protocol.wire_values import IMPLICIT_ADD_SINCE_PRODUCE
from ottla.types import INT32_MAX, INT64_MAX, TopicPartition

log = logging.getLogger("ottla.log")

PRODUCER_ID_EXPIRATION_MS = 86_400_000


class Origin(enum.Enum):
    """Who appends: a client, or this broker's own coordinators, whose batches have no sequence numbers."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Appended(NamedTuple):
    """Where a batch is stored. For a duplicate, where the original is stored."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class PartitionLog:
    """The log of one partition on one disk."""

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        *,
        store: LogStore,
        producers: ProducerStateManager,
        leader_epochs: LeaderEpochCache,
        clock: Clock,
        monotonic: MonotonicClock,
    ) -> None:
        """Use `open_log`."""
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.disk = store.disk
        self.store = store
        self.segments = store.segments
        self.producers = producers
        self.leader_epochs = leader_epochs
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.high_watermark = 0
        self.flushed_offset = 0
        self.first_dirty_offset = 0
        """Everything below has been compacted."""
        self.rules = BatchRules(config)
        self._clock = clock
        self.monotonic = monotonic
        self.opened_ms = clock()
        self._last_flush_monotonic_ms = monotonic()
        self.snapshots = SnapshotFiles(self.disk, directory)
        self.snapshot_offset = -1
        """The offset of the latest producer snapshot."""

    def __repr__(self) -> str:
        return f"PartitionLog({self.topic_partition}, [{self.log_start_offset}, {self.log_end_offset}))"

    def loader(self) -> LogLoader:
        """Reads the files of the log again."""
        return LogLoader(
            self.directory,
            files=self.store.files,
            index_interval_bytes=self.config.index_interval_bytes,
            monotonic_ms=self.monotonic(),
        )

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self.rules = BatchRules(config)
        self.store.update_config(config)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the earliest open transaction; the log start offset if its beginning was deleted."""
        unstable = self.producers.first_unstable_offset
        return None if unstable is None else max(unstable, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return self.store.size_bytes

    def advance_high_watermark(self, offset: int) -> bool:
        """Raises the high watermark, at most to the end of the log. Returns whether it moved."""
        offset = min(offset, self.log_end_offset)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.producers.on_high_watermark(offset)
        return True

    # --- appending ----------------------------------------------------------------------------------------

    def prepare(self, batch: Any, produce_version: int | None, work_bytes_max: int | None = None) -> Prepared:
        """Validates a client's batch for a later `append`. KafkaError if it is rejected. Any thread.

        TooMuchWork if that takes decompressing, or compressing, more than `work_bytes_max` bytes.
        """
        rules = self.rules
        try:
            return rules.prepare(batch, rules.open(batch), self._clock(), produce_version, work_bytes_max)
        except KafkaError as error:
            error.detail = f"{self.topic_partition}: {error.detail}"
            raise

    def append(
        self,
        batch: Any,
        *,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
        produce_version: int | None = None,
        transaction_version: int = 0,
        verification_guard: VerificationGuard | None = None,
        prepared: Prepared | None = None,
    ) -> Appended:
        """Appends one batch as the leader. KafkaError if it is rejected or cannot be written; nothing changes then.

        `prepared` is what `prepare` returned for the batch, if the caller has checked it before.
        `transaction_version` is that of the coordinator that sent a marker. `verification_guard` is the value of
        `producers.verification_guard` from before the coordinator was asked whether the transaction is open (KIP-890).
        """
        if verification_guard is not None and verification_guard.leader_epoch != leader_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self.topic_partition}: a new leader epoch began while the transaction was being verified",
            )
        now = self._clock()
        append_time = -1
        if prepared is not None:
            batch, header, append_time, _ = stamp_append_time(prepared, now)
        else:
            try:
                header = self.rules.open(batch)
                if origin is Origin.CLIENT:
                    batch, header, append_time, _ = self.rules.prepare(batch, header, now, produce_version)
            except KafkaError as error:
                error.detail = f"{self.topic_partition}: {error.detail}"
                raise
        producer_id, marker = header.producer_id, None
        if producer_id >= 0:
            if header.attributes & CONTROL:
                marker = read_end_marker(batch)
                self.producers.check_marker(
                    producer_id, header.producer_epoch, marker[1], transaction_version=transaction_version
                )
            else:
                duplicate = self._find_duplicate(header, origin, produce_version, verification_guard)
                if duplicate is not None:
                    return duplicate if append_time >= 0 else duplicate._replace(log_append_time_ms=-1)
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        length = header.batch_length
        buffers = (stamped_prefix(base_offset, length, leader_epoch), memoryview(batch)[16:])
        if self.store.write(buffers, length + LENGTH_END, base_offset, last_offset, header.max_timestamp, now):
            self._snapshot_at_roll()
        self.log_end_offset = last_offset + 1
        if leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if marker is not None:
            entry = note_marker(self.producers, header, marker, last_offset, self.monotonic())
            if entry is not None:
                self._aborted_in(self.segments.active).append(entry)
        elif producer_id >= 0:
            self.producers.update(header, base_offset, self.monotonic())
        return Appended(base_offset, last_offset, append_time, self.log_start_offset, False)

    def _find_duplicate(
        self, header: BatchHeader, origin: Origin, produce_version: int | None, guard: VerificationGuard | None
    ) -> Appended | None:
        """Rejects a data batch that is out of sequence. For a duplicate, returns where the original is stored."""
        duplicate = self.producers.check(
            header,
            check_sequence=origin is Origin.CLIENT,
            require_known_start=(
                produce_version is not None
                and produce_version >= IMPLICIT_ADD_SINCE_PRODUCE
                and bool(header.attributes & TRANSACTIONAL)
            ),
            guard=guard,
        )
        if duplicate is None:
            return None
        return Appended(duplicate.first_offset, duplicate.last_offset, duplicate.timestamp, self.log_start_offset, True)

    def append_replicated(self, records: Any) -> None:
        """Appends batches as a follower, with the leader's offsets and epochs. All are checked before any is written.

        An incomplete batch at the end is ignored; the next fetch returns it complete.
        """
        now, monotonic_ms = self._clock(), self.monotonic()
        view = memoryview(records)
        start_offset = self.log_end_offset
        batches, starts_inside = check_batches(view, self.topic_partition, start_offset, self.size_bytes == 0)
        if starts_inside:
            self.truncate_fully(batches[0][1].base_offset)
        for position, header in batches:
            size = header.batch_length + LENGTH_END
            batch = view[position : position + size]
            # A new segment starts where the last one ends, even if the leader has compacted the offsets in between.
            next_offset = self.log_end_offset
            start = next_offset if header.last_offset - next_offset <= INT32_MAX else header.base_offset
            if self.store.write((batch,), size, start, header.last_offset, header.max_timestamp, now):
                self._snapshot_at_roll()
            self.log_end_offset = header.next_offset
            self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
            entry = note_batch(self.producers, header, batch, monotonic_ms)
            if entry is not None:
                self._aborted_in(self.segments.active).append(entry)
        if starts_inside:
            self.move_start(start_offset)
            self.advance_high_watermark(start_offset)

    def begin_leader_epoch(self, leader_epoch: int) -> None:
        """This replica becomes leader: the epoch starts at the end of the log."""
        self.leader_epochs.assign(leader_epoch, self.log_end_offset)

    def roll_if_due(self) -> bool:
        """Starts a new segment if the active one is older than segment.ms, even if nothing is appended."""
        return self.store.is_due(self._clock()) and self.roll()

    def roll(self) -> bool:
        """Starts a new segment at the end of the log, unless the active one is empty. Returns whether it did."""
        try:
            rolled = self.store.roll(self.log_end_offset)
        except OSError as error:
            raise self.store.error("cannot start a segment", error) from error
        if rolled:
            self._snapshot_at_roll()
        return rolled

    def _snapshot_at_roll(self) -> None:
        try:
            self.snapshot_producers()
            self.store.add_snapshot(self.snapshots.path(self.log_end_offset))
        except OSError as error:
            # Not fatal: the next start reads more of the log instead.
            log.warning("%s: cannot write a producer snapshot: %s", self.topic_partition, error)

    # --- reading ------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upper_bound: int) -> bytes:
        """Complete stored batches, from the one that contains `offset`, with base offsets below `upper_bound`.

        At most `max_bytes`, but at least one batch. Empty at the end of the log.
        """
        records = self.find_records(offset, max_bytes, upper_bound=upper_bound)
        assert isinstance(records, bytes)
        return records

    def find_records(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_bound: int,
        minimum_one_batch: bool = True,
        inline_bytes: int = INT64_MAX,
    ) -> bytes | FileRecords:
        """Like `read`, but more than `inline_bytes` stay in the file. At least one batch with `minimum_one_batch`."""
        log_end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: offset {offset} is not in [{self.log_start_offset}, {log_end_offset}]",
            )
        if offset >= upper_bound or offset == log_end_offset:
            return b""
        try:
            return self.store.read(offset, max_bytes, upper_bound, log_end_offset, minimum_one_batch, inline_bytes)
        except OSError as error:
            raise self.store.error(f"cannot read at offset {offset}", error) from error

    def size_between(self, offset: int, end: int) -> int:
        """How many bytes a reader gets from the batch that contains `offset` up to offset `end`; from the indexes."""
        if not self.log_start_offset <= offset < min(end, self.log_end_offset):
            return 0
        try:
            return self.store.size_between(offset, end, self.log_end_offset)
        except OSError as error:
            raise self.store.error(f"cannot read at offset {offset}", error) from error

    def _aborted_in(self, segment: Segment) -> list[AbortedTransaction]:
        try:
            return segment.aborted()
        except CorruptIndex as error:
            log.warning("%s: rebuilding the corrupt index: %s", segment.path(".txnindex"), error)
            return self.loader().rebuild_transaction_index(list(self.segments), segment)

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """The aborted transactions that a read_committed reader of [fetch_offset, upper_bound) must filter out."""
        found: list[AbortedTransaction] = []
        try:
            for number in range(self.segments.number_of(fetch_offset), len(self.segments)):
                if collect(self._aborted_in(self.segments[number]), fetch_offset, upper_bound, found):
                    break
        except OSError as error:
            raise self.store.error("cannot read the transaction index", error) from error
        return found

    def time_search(self, timestamp: int | None) -> TimeSearch:
        """For `search`: the first record with at least `timestamp`; without one, the record with the largest."""
        return TimeSearch(timestamp, self.config.max_decompressed_bytes)

    def search(self, search: TimeSearch, upper_bound: int) -> OffsetAndTimestamp | None:
        """Looks for a record below `upper_bound`. LargeBatch if that takes long, CorruptBatch if one is unreadable."""
        try:
            if search.timestamp is None:
                return find_latest(self.segments, search, self.log_start_offset, upper_bound, self.log_end_offset)
            return find_by_timestamp(self.segments, search, self.log_start_offset, upper_bound)
        except OSError as error:
            raise self.store.error("cannot search by timestamp", error) from error

    # --- deleting and truncating --------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> None:
        """Moves the log start offset up to `offset`; the next retention check deletes the files."""
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: offset {offset} is above the high watermark {self.high_watermark}",
            )
        self.move_start(offset)

    def move_start(self, offset: int) -> None:
        """Raises the log start offset; never lowers it."""
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.first_dirty_offset = max(self.first_dirty_offset, offset)
            self.leader_epochs.truncate_from_start(offset)

    def truncate_to(self, offset: int) -> None:
        """Removes everything from `offset` on: a follower drops records that its leader does not have.

        The next append makes sure that the new recovery point is on disk: recovery trusts everything below it, and
        reads the leader epochs of what follows from the records. Write a checkpoint before, so that it need not wait.
        """
        if offset >= self.log_end_offset:
            # An epoch without records may still be there, and the leader may not have it (KAFKA-10706).
            self.leader_epochs.truncate_from_end(offset)
            return
        if offset <= self.log_start_offset:
            self.truncate_fully(max(0, offset))
            return
        try:
            end = self.log_end_offset = self.store.truncate(offset)
            self.high_watermark = min(self.high_watermark, end)
            self.flushed_offset = min(self.flushed_offset, end)
            self.first_dirty_offset = min(self.first_dirty_offset, self.segments.active.base_offset)
            self.leader_epochs.truncate_from_end(end)
            self.snapshots.remove_above(end)
            # Truncated segments and snapshots must not reappear after a power failure.
            self.disk.sync_directory(self.directory)
            loader, unreplicated = self.loader(), self.producers.unreplicated
            self.producers = loader.load_producers(list(self.segments), end)
            self.snapshot_offset = loader.snapshot_offset
            # A snapshot does not contain which markers wait for the high watermark.
            self.producers.unreplicated |= {first: marker for first, marker in unreplicated.items() if marker < end}
            self.producers.on_high_watermark(self.high_watermark)
        except OSError as error:
            raise self.store.error(f"cannot truncate to offset {offset}", error) from error

    def truncate_fully(self, start_offset: int) -> None:
        """Deletes everything and starts an empty log at `start_offset`."""
        try:
            self.store.start_over(start_offset)
            self.snapshots.remove_above(-1)
            self.disk.sync_directory(self.directory)
        except OSError as error:
            raise self.store.error(f"cannot restart the log at offset {start_offset}", error) from error
        self.snapshot_offset = -1
        self.log_start_offset = self.log_end_offset = self.high_watermark = start_offset
        self.flushed_offset = self.first_dirty_offset = start_offset
        self.leader_epochs.clear()
        self.producers.clear()
        log.info("%s: deleted all records, log restarts at offset %d", self.topic_partition, start_offset)

    # --- stable storage -----------------------------------------------------------------------------------

    def unsynced(self, *, hold: bool = True) -> FlushTicket:
        """What to sync so that everything appended so far is on stable storage.

        Call `flushed` or `flush_failed` with the ticket afterwards. Without `hold`, sync the whole file system.
        """
        try:
            return self.store.unsynced(self.log_end_offset, hold=hold)
        except OSError as error:
            raise self.store.error("cannot flush", error) from error

    def flushed(self, ticket: FlushTicket) -> None:
        """The ticket's files are synced."""
        if self.store.flushed(ticket):
            self.flushed_offset = max(self.flushed_offset, ticket.offset)
        self._last_flush_monotonic_ms = self.monotonic()

    def flush_failed(self, ticket: FlushTicket) -> None:
        """The ticket's files could not be synced: writes are rejected until the log is opened again."""
        self.store.flush_failed(ticket)

    def flush(self) -> None:
        """Syncs everything and blocks until it is done."""
        ticket = self.unsynced()
        try:
            ticket.sync(self.disk)
        except OSError as error:
            self.flush_failed(ticket)
            raise self.store.error("cannot flush", error) from error
        self.flushed(ticket)

    @property
    def has_unsynced(self) -> bool:
        return self.store.has_unsynced

    def needs_flush(self, monotonic_ms: int) -> bool:
        """Whether flush.messages or flush.ms requires a flush now."""
        return self.store.has_unsynced and (
            self.log_end_offset - self.flushed_offset >= self.config.flush_messages
            or monotonic_ms - self._last_flush_monotonic_ms >= self.config.flush_ms
        )

    def expire_producers(self, monotonic_ms: int, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> int:
        """Removes the state of producers idle for `expiration_ms`. Returns how many."""
        return self.producers.expire(monotonic_ms, expiration_ms)

    def snapshot_producers(self) -> None:
        """Writes the producer state at the end of the log, so that the next start need not replay earlier batches."""
        if self.snapshot_offset != self.log_end_offset:
            self.snapshots.write(self.log_end_offset, self.producers)
            self.snapshot_offset = self.log_end_offset
            self.snapshots.prune(self.segments.bases)

    def epochs_to_save(self) -> tuple[str, bytes] | None:
        """Path and content of the leader epochs file if it is out of date. Write it before a recovery point.

        A small log has none: a start without the file reads the epochs from the batches.
        """
        if not self.leader_epochs.is_dirty or (self.store.is_small and not self.leader_epochs.has_file):
            return None
        entries = self.leader_epochs.to_save(self.log_end_offset)
        return None if entries is None else (f"{self.directory}/{EPOCHS_FILE}", encode_epochs(entries))

    def save_epochs(self) -> None:
        """Writes the leader epochs if the file is out of date. Any thread, while nothing is appended."""
        if (unsaved := self.epochs_to_save()) is not None:
            self.disk.write_file(*unsaved)
            self.leader_epochs.saved()

    def begin_close(self, *, hold: bool = True) -> FlushTicket:
        """First step of closing, without blocking. Then sync the ticket, save the epochs and call `finish_close`."""
        try:
            self.store.prepare_close()
            if len(self.producers) or self.snapshot_offset >= 0 or not self.store.is_small:
                self.snapshot_producers()
        except OSError as error:
            raise self.store.error("cannot close", error) from error
        return self.unsynced(hold=hold)

    def finish_close(self, ticket: FlushTicket | None) -> None:
        """Closes the files. Without a ticket, what was not synced stays unsynced."""
        if ticket is not None:
            self.flushed(ticket)
        self.store.close()

    def close(self) -> None:
        """Syncs and closes everything, so that the next start needs no recovery. KafkaError if that fails."""
        ticket = None
        try:
            ticket = self.begin_close()
            try:
                ticket.sync(self.disk)
                self.save_epochs()
            except OSError as error:
                self.flush_failed(ticket)
                ticket = None
                raise self.store.error("cannot close", error) from error
        finally:
            self.finish_close(ticket)

    def rename_for_deletion(self) -> str:
        """Closes the log and renames its directory. Returns the new path, for the caller to remove later."""
        self.store.close()
        parent, _, name = self.directory.rpartition("/")
        mark = f".{os.urandom(16).hex()}-delete"
        new = f"{parent}/{name[: 255 - len(mark)]}{mark}"
        self.disk.rename(self.directory, new)
        self.directory = new
        for segment in self.segments:
            segment.forget()
        return new
