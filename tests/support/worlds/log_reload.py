"""Checks that a fresh load of a log's files yields the state that the live log holds in memory.

Live appends and recovery share `producers/replay.py` and `ProducerStateManager.update*`, so most state must be equal.
These differences are intended, and `LogState` leaves them out:

- `last_seen_ms` and `markers_seen` of a producer start over with the process.
- The last batch's timestamp is read back as the producer's last timestamp: the snapshot has one field for both,
  as in Kafka.
- A leader epoch without records is not kept: the next leader starts a newer one.
- A transaction whose marker is not yet below the high watermark holds back the live log's last stable offset. A
  snapshot does not record this, so the last stable offset is compared only when everything is committed.
- Compaction may leave only the last batch of a producer, and removes markers with their coordinator epoch. If the
  epochs were not checkpointed, an epoch starts at the first batch that compaction left of it.
- Expired producers come back if the log still holds their batches.
"""

from typing import NamedTuple

from ottla.clock import MonotonicMs
from ottla.log.disk import Disk
from ottla.log.opening import open_log
from ottla.log.partition_log import PartitionLog
from ottla.log.producers.producer_state import BatchMetadata, ProducerEntry
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.testing.sim_disk import SimDisk, SimPlatter
from ottla.testing.sim_loop import SimLoop


class ProducerFacts(NamedTuple):
    """What a load must restore of one producer."""

    producer_epoch: int
    coordinator_epoch: int
    next_sequence: int
    transaction_first_offset: int | None
    batches: tuple[tuple[int, int, int], ...]
    """Last sequence, last offset and offset delta of each cached batch, oldest first."""


class LogState(NamedTuple):
    """The state of a log that its files must be able to restore."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int | None
    leader_epochs: list[tuple[int, int]]
    """(epoch, start offset); for a compacted log (epoch, base offset of a stored batch)."""
    producers: dict[int, ProducerFacts]
    aborted: list[AbortedTransaction]
    segment_bases: list[int]


def state_of(log: PartitionLog) -> LogState:
    """The comparable state of a live or a freshly loaded log."""
    return LogState(
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.last_stable_offset if log.high_watermark == log.log_end_offset else None,
        _epochs_of(log),
        {entry.producer_id: _facts(entry, compacts=log.config.compacts) for entry in log.producers.entries()},
        _aborted_of(log),
        list(log.segments.bases),
    )


def _aborted_of(log: PartitionLog) -> list[AbortedTransaction]:
    """Those that readers have to skip. Compaction removes aborted records; recovery then finds no trace of them.

    A pass that stops early may remove the first records only: in a compacted log a transaction begins at the first
    batch that is left.
    """
    aborted = list(log.aborted_transactions(log.log_start_offset, log.log_end_offset))
    if not log.config.compacts:
        return aborted
    headers = [header for segment in log.segments for _, header, _ in segment.batches() if header.record_count]
    found = []
    for transaction in aborted:
        left = [
            header.base_offset
            for header in headers
            if header.producer_id == transaction.producer_id
            and not header.is_control
            and transaction.first_offset <= header.base_offset <= transaction.last_offset
        ]
        if left:
            found.append(transaction._replace(first_offset=left[0], last_stable_offset=-1))
    return found


def _epochs_of(log: PartitionLog) -> list[tuple[int, int]]:
    if not log.config.compacts:
        return [entry for entry in log.leader_epochs.entries() if entry[1] < log.log_end_offset]
    return [
        (log.leader_epochs.epoch_for_offset(header.base_offset), header.base_offset)
        for segment in log.segments
        for _, header, _ in segment.batches()
        if header.base_offset >= log.log_start_offset
    ]


def _facts(entry: ProducerEntry, *, compacts: bool) -> ProducerFacts:
    batches: list[BatchMetadata] = entry.batches[-1:] if compacts else entry.batches
    return ProducerFacts(
        entry.producer_epoch,
        -1 if compacts else entry.coordinator_epoch,
        entry.next_sequence,
        entry.transaction_first_offset,
        tuple((batch.last_sequence, batch.last_offset, batch.offset_delta) for batch in batches),
    )


def load_copy(log: PartitionLog, *, recovery_point: int, now: int) -> PartitionLog:
    """Loads a copy of the log's files as after a crash; the live log and its files stay untouched."""
    copy = SimPlatter(SimLoop()).disk()
    copy.make_directories(log.directory)
    for path, data in _files_of(log).items():
        copy.write_file(path, data)
    if (unsaved := log.epochs_to_save()) is not None:
        copy.write_file(*unsaved)  # A checkpoint writes the epochs before the recovery point.
    return open_log(
        log.directory,
        log.topic_partition,
        log.topic_id,
        log.config,
        disk=copy,
        clock=lambda: now,
        monotonic=lambda: MonotonicMs(now),
        clean_shutdown=False,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        recovery_point=recovery_point,
        first_dirty_offset=log.first_dirty_offset,
    )


def _files_of(log: PartitionLog) -> dict[str, bytes]:
    """Bypasses the log's disk object, which a test may have made fail."""
    if isinstance(log.disk, SimDisk):
        files = log.disk.platter.files.items()
        return {path: bytes(file.content) for path, file in files if path.startswith(f"{log.directory}/")}
    disk = Disk()
    paths = [f"{log.directory}/{name}" for name in disk.list(log.directory)]
    return {path: disk.read_file(path) for path in paths}


def is_appending(log: PartitionLog) -> bool:
    """Whether the log is inside an append: the batch is in the file, but not yet in memory."""
    active = log.segments.active
    return len(_files_of(log)[active.path(".log")]) != active.size


def reload_differences(log: PartitionLog, *, now: int) -> list[str]:
    """How the live log differs from a load at its recovery point, and from one that replays every batch."""
    live = state_of(log)
    found = []
    for recovery_point in sorted({0, log.flushed_offset}):
        loaded = state_of(load_copy(log, recovery_point=recovery_point, now=now))
        found += [
            f"{log.topic_partition}, recovery from offset {recovery_point}: {name} is {there!r}, live {here!r}"
            for name, here, there in zip(LogState._fields, live, loaded, strict=True)
            if here != there
        ]
    return found


def assert_reload_matches(log: PartitionLog, *, now: int) -> None:
    """A load of the log's files yields the live state."""
    assert reload_differences(log, now=now) == []
