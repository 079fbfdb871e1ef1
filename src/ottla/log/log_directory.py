"""A data directory: locked by one broker, with one log per partition and Kafka's checkpoint files.

Closing writes a clean-shutdown file and loading removes it: if it is missing, the logs need recovery.
"""

import functools
import gc
import logging
import resource
import threading
from collections.abc import Callable, Iterable

from ottla.checks import unsigned_from_text
from ottla.clock import NEVER_MS, Clock, MonotonicClock
from ottla.errors import KafkaError
from ottla.garbage_collection import garbage_collection_paused
from ottla.log.checkpoints import (
    CorruptCheckpoint,
    decode_offsets,
    decode_partition_metadata,
    encode_offsets,
    encode_partition_metadata,
)
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.flush import FlushTicket
from ottla.log.open_files import OpenFiles
from ottla.log.opening import open_log
from ottla.log.partition_log import PartitionLog
from ottla.log.shutdown_marks import (
    CLEAN_SHUTDOWN_FILE,
    mark_clean,
    mark_running,
    previous_broker_epoch,
    unmark_running,
)
from ottla.types import INT32_MAX, ZERO_UUID, TopicPartition

log = logging.getLogger("ottla.log")

LOCK_FILE = ".lock"
PARTITION_METADATA_FILE = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
DELETED_SUFFIX = "-delete"
PROBE_FILE = ".ottla_probe"
PROBE_BYTES = 64 * 1024
PROBE_INTERVAL_MS = 500

OTHER_FILES = 64
"""Open files of a broker besides logs and connections: the metadata store, sockets, files that are being synced."""

_CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS, CLEANED_OFFSETS)

_CLOSED_TOGETHER = 64
_FREEZE_ABOVE = 500
"""With more logs than this, their objects are excluded from garbage collection: scanning them would take long."""
_SYNCED_ONE_BY_ONE = 256
"""If more logs than this are not synced when the directory is closed, one sync of the file system is faster."""


class LogDirectory:
    """Owns one data directory and every log in it."""

    def __init__(self, path: str, *, disk: Disk, clock: Clock, monotonic: MonotonicClock, lock: int) -> None:
        """Use `open`."""
        self.path = path
        self.disk = disk
        self.clock = clock
        self.monotonic = monotonic
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.failed: dict[TopicPartition, str] = {}
        """Partitions whose files cannot be used, with the reason."""
        self.was_clean = False
        self.previous_broker_epoch: int | None = None
        """The epoch of the last broker that used the directory; None if something that it wrote may be lost."""
        self.broker_epoch = -1
        """Of the broker that uses the directory now."""
        self._boot_id = ""
        self._probed_ms: int = NEVER_MS
        self._is_writable = True
        self._is_loaded = False
        self.files = OpenFiles(disk, _handle_limit())
        self._lock = lock
        self._is_closing = False
        self._checkpoints: dict[str, dict[TopicPartition, int]] = {name: {} for name in _CHECKPOINTS}
        """The offsets of the last checkpoint. A partition that cannot be opened keeps them."""
        self.leftovers: list[str] = []
        """Directories of deleted partitions that an earlier run did not remove, for the caller to remove."""
        self._written: dict[str, bytes] = {}
        self._saved: dict[str, dict[TopicPartition, int]] = {name: {} for name in _CHECKPOINTS}
        """What the checkpoint files contain."""
        self._saving = threading.Lock()
        self._plans = 0
        self._lowered: dict[TopicPartition, tuple[int, dict[str, int]]] = {}
        """The highest offsets of a truncated log in checkpoints that were planned before the one with this number."""

    @classmethod
    def open(
        cls, path: str, *, disk: Disk, clock: Clock, monotonic: MonotonicClock, boot_id: str = ""
    ) -> "LogDirectory":
        """Locks the directory for this process, and creates it if missing. OttlaError if another process has it.

        `boot_id` identifies the run of the machine; empty if unknown.
        """
        disk.make_directories(path)
        lock = disk.lock(f"{path}/{LOCK_FILE}")
        self = cls(path.rstrip("/") or "/", disk=disk, clock=clock, monotonic=monotonic, lock=lock)
        self.previous_broker_epoch = previous_broker_epoch(disk, self.path, boot_id)
        self._boot_id = boot_id
        return self

    def registered(self, broker_epoch: int) -> None:
        """The broker that uses the directory has a new epoch. The next start needs it to prove that nothing is lost."""
        if broker_epoch == self.broker_epoch:
            return
        self.broker_epoch = broker_epoch
        try:
            if self._boot_id:
                mark_running(self.disk, self.path, broker_epoch, self._boot_id)
        except OSError as error:
            log.warning("%s: cannot write the broker epoch: %s", self.path, error)

    def lost_writes(self) -> None:
        """Something that was written may be lost, because a sync failed."""
        self._boot_id = ""
        try:
            unmark_running(self.disk, self.path)
        except OSError as error:
            log.warning("%s: cannot remove the broker epoch: %s", self.path, error)

    def can_write(self) -> bool:
        """Whether the disk accepts new data again after a failed write. Probes it at most twice a second."""
        now = self.monotonic()
        if now >= self._probed_ms + PROBE_INTERVAL_MS:
            self._probed_ms, path = now, f"{self.path}/{PROBE_FILE}"
            try:
                self.disk.overwrite_file(path, bytes(PROBE_BYTES))
                self._is_writable = True
            except OSError:
                self._is_writable = False
            try:
                self.disk.remove(path)
            except OSError:
                pass  # It was not created, or the next attempt overwrites it.
        return self._is_writable

    # --- opening ------------------------------------------------------------------------------------------

    def load(self, config_of: Callable[[str], TopicConfig] | None = None) -> dict[TopicPartition, PartitionLog]:
        """Opens every partition; `config_of` returns a topic's settings. A failure does not affect other partitions."""
        names = set(self.disk.list(self.path))
        self._is_loaded = True
        self.was_clean = CLEAN_SHUTDOWN_FILE in names
        for name in _CHECKPOINTS:
            self._checkpoints[name] = self._read_offsets(name) if name in names else {}
            self._saved[name] = dict(self._checkpoints[name])
        if self.was_clean:
            # The removal must be durable before anything is written: a crash from now on is not a clean shutdown.
            self.disk.remove(f"{self.path}/{CLEAN_SHUTDOWN_FILE}")
            self.disk.sync_directory(self.path)
        # Thousands of logs are many new objects and no garbage: searching them for garbage takes longer than this.
        with garbage_collection_paused():
            for name in sorted(names):
                if name.endswith(DELETED_SUFFIX) and "." in name:
                    self.leftovers.append(f"{self.path}/{name}")
                elif (partition := partition_of(name)) is not None:
                    self._load_partition(name, partition, config_of)
            if len(self.logs) > _FREEZE_ABOVE:
                gc.freeze()
        for known in self._checkpoints.values():
            for partition in [each for each in known if each not in self.logs and each not in self.failed]:
                del known[partition]
        return self.logs

    def _load_partition(
        self, name: str, partition: TopicPartition, config_of: Callable[[str], TopicConfig] | None
    ) -> None:
        try:
            topic_id = self._read_topic_id(name)
            config = TopicConfig() if config_of is None else config_of(partition.topic)
            self._open_log(partition, topic_id, config, clean_shutdown=self.was_clean)
        except (OSError, KafkaError) as error:
            log.error("%s: cannot open the log: %s", partition, error)
            self.failed[partition] = str(error)

    def _open_log(
        self,
        partition: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        *,
        clean_shutdown: bool,
        is_new: bool = False,
    ) -> PartitionLog:
        known = self._checkpoints
        opened = open_log(
            f"{self.path}/{partition}",
            partition,
            topic_id,
            config,
            disk=self.disk,
            clock=self.clock,
            monotonic=self.monotonic,
            clean_shutdown=clean_shutdown,
            is_new=is_new,
            log_start_offset=known[LOG_START_OFFSETS].get(partition, 0),
            high_watermark=known[HIGH_WATERMARKS].get(partition, 0),
            recovery_point=known[RECOVERY_POINTS].get(partition, 0),
            first_dirty_offset=known[CLEANED_OFFSETS].get(partition, 0),
            files=self.files,
        )
        opened.store.checkpoint_truncation = self._checkpoint_truncation
        end = opened.log_end_offset
        if any(saved.get(partition, 0) > end for saved in self._saved.values()):
            # The checkpoints have the offsets of a deleted log with this name, or this one has lost its end.
            opened.store.mark_truncated()
        self.logs[partition] = opened
        return opened

    def _read_topic_id(self, name: str) -> bytes:
        path = f"{self.path}/{name}/{PARTITION_METADATA_FILE}"
        try:
            return decode_partition_metadata(self.disk.read_file(path))
        except FileNotFoundError:
            return ZERO_UUID
        except CorruptCheckpoint as error:
            log.warning("%s: %s", path, error)
            return ZERO_UUID

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        try:
            data = self.disk.read_file(path)
            found = decode_offsets(data)
            self._written[name] = data
            return found
        except CorruptCheckpoint as error:
            # Offset 0 is always safe: recovery reads more, and the high watermark is recomputed.
            log.warning("%s: ignoring the corrupt checkpoint: %s", path, error)
            return {}

    # --- creating and deleting logs -----------------------------------------------------------------------

    def create_log(self, partition: TopicPartition, topic_id: bytes, config: TopicConfig) -> PartitionLog:
        """Creates an empty log. On OSError its directory is removed, unless it existed before."""
        assert partition not in self.logs, f"{partition} exists"
        directory = f"{self.path}/{partition}"
        is_new = self.disk.make_directory(directory)
        try:
            self.disk.overwrite_file(f"{directory}/{PARTITION_METADATA_FILE}", encode_partition_metadata(topic_id))
            for known in self._checkpoints.values():
                known.pop(partition, None)
            created = self._open_log(partition, topic_id, config, clean_shutdown=True, is_new=is_new)
        except (OSError, KafkaError):
            if is_new:
                self.disk.remove_tree(directory)
            raise
        self.failed.pop(partition, None)
        return created

    def reopen(self, partition: TopicPartition, config: TopicConfig) -> None:
        """Tries again to open a log that is in `failed`. OSError or KafkaError if that fails again."""
        self._open_log(partition, self._read_topic_id(str(partition)), config, clean_shutdown=self.was_clean)
        del self.failed[partition]

    def adopt(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Sets the topic id of a log whose partition.metadata file was lost."""
        self.logs[partition].topic_id = topic_id
        path = f"{self.path}/{partition}/{PARTITION_METADATA_FILE}"
        self.disk.write_file(path, encode_partition_metadata(topic_id))

    def delete_log(self, partition: TopicPartition) -> str:
        """Removes a log and renames its directory. Returns the new path, for the caller to delete in a thread."""
        deleted = self.logs.pop(partition)
        for known in self._checkpoints.values():
            known.pop(partition, None)
        return deleted.rename_for_deletion()

    # --- checkpoints --------------------------------------------------------------------------------------

    def plan_checkpoint(self, changed: Iterable[PartitionLog] | None = None) -> Callable[[], None]:
        """Captures what to write, on the event loop. The returned function writes it, in any thread.

        `changed` are the logs whose offsets may have changed; None for all. A log's leader epochs are written first:
        recovery reads batches only from the recovery point on, so earlier epochs must be in the file.
        """
        unsaved: list[tuple[PartitionLog, str, bytes]] = []
        truncations: list[tuple[PartitionLog, int]] = []
        for each in self.logs.values() if changed is None else changed:
            self._note_offsets(each)
            if each.store.is_truncated:
                truncations.append((each, each.store.truncations))
            if (content := each.epochs_to_save()) is not None:
                unsaved.append((each, *content))
                each.leader_epochs.saved()
        offsets = {name: dict(known) for name, known in self._checkpoints.items()}
        self._plans += 1
        number = self._plans

        def write() -> None:
            with self._saving:
                if not self._write_epochs(unsaved):
                    return
                self._lower(offsets, number)
                self._write_offsets(offsets)
            for each, count in truncations:
                each.store.mark_checkpointed(count)

        return write

    def _write_epochs(self, unsaved: list[tuple[PartitionLog, str, bytes]]) -> bool:
        """Returns whether all are written. Stops early if the directory will be closed soon."""
        for number, (each, path, data) in enumerate(unsaved):
            try:
                if self._is_closing:
                    _mark_unsaved(unsaved[number:])
                    return False
                self.disk.write_file(path, data)
            except OSError:
                if self.logs.get(each.topic_partition) is not each:
                    continue  # Deleted in the meantime.
                _mark_unsaved(unsaved[number:])
                raise
        return True

    def _checkpoint_truncation(self, partition: TopicPartition) -> None:
        """Lowers the offsets on disk to those of a log that was truncated, before the next append to it.

        They are not raised: the leader epochs that this requires may not be on disk.
        """
        each = self.logs[partition]
        self._note_offsets(each)
        bounds = {name: known.get(partition, 0) for name, known in self._checkpoints.items()}
        with self._saving:
            self._plans += 1
            self._lowered[partition] = (self._plans, bounds)
            offsets = {name: dict(saved) for name, saved in self._saved.items()}
            self._lower(offsets, 0)
            self._write_offsets(offsets)
        each.store.mark_checkpointed(each.store.truncations)

    def _lower(self, offsets: dict[str, dict[TopicPartition, int]], number: int) -> None:
        """A checkpoint that was planned before a log was truncated must not have the offsets from before."""
        for partition, (lowered, bounds) in list(self._lowered.items()):
            if lowered < number:
                del self._lowered[partition]  # All later ones are planned after it too.
                continue
            for name, bound in bounds.items():
                if offsets[name].get(partition, 0) > bound:
                    offsets[name][partition] = bound

    def checkpoint(self) -> None:
        """Writes changed recovery points, high watermarks and log start offsets. OSError if writing fails."""
        self.plan_checkpoint()()

    def _note_offsets(self, each: PartitionLog) -> None:
        known, partition = self._checkpoints, each.topic_partition
        known[RECOVERY_POINTS][partition] = each.flushed_offset
        known[HIGH_WATERMARKS][partition] = each.high_watermark
        if each.log_start_offset > each.segments[0].base_offset:
            known[LOG_START_OFFSETS][partition] = each.log_start_offset
        else:
            known[LOG_START_OFFSETS].pop(partition, None)
        if each.config.compacts and each.first_dirty_offset > 0:
            known[CLEANED_OFFSETS][partition] = each.first_dirty_offset
        else:
            known[CLEANED_OFFSETS].pop(partition, None)

    def _write_offsets(self, offsets: dict[str, dict[TopicPartition, int]]) -> None:
        for name, found in offsets.items():
            data = encode_offsets(found)
            if self._written.get(name) != data:
                self.disk.write_file(f"{self.path}/{name}", data)
                self._written[name] = data
            self._saved[name] = found

    # --- closing ------------------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """The directory will be closed soon: a checkpoint that is being written in a thread ends early."""
        self._is_closing = True

    def close(self) -> None:
        """Closes every log. If all closes succeed, writes the clean-shutdown file: the next start needs no recovery.

        Any thread, if no other one uses the directory any more.
        """
        if not self._is_loaded:
            # The checkpoints were not read, so they must not be overwritten.
            self.disk.close(self._lock)
            return
        self._is_closing = True
        logs = list(self.logs.values())
        try:
            is_clean = self._close_logs(logs)
            for each in logs:
                self._note_offsets(each)
            self._write_offsets(self._checkpoints)
            if is_clean:
                mark_clean(self.disk, self.path, self.broker_epoch)
        except OSError as error:
            log.error("%s: not closed cleanly: %s", self.path, error)
        finally:
            self.disk.close(self._lock)

    def _close_logs(self, logs: list[PartitionLog]) -> bool:
        """Closes all logs. Returns whether all succeeded."""
        if self.disk.can_sync_all and sum(each.has_unsynced for each in logs) > _SYNCED_ONE_BY_ONE:
            return self._close_together(logs)
        closed = [
            self._close_chunk(logs[start : start + _CLOSED_TOGETHER]) for start in range(0, len(logs), _CLOSED_TOGETHER)
        ]
        return all(closed)

    def _close_together(self, logs: list[PartitionLog]) -> bool:
        """Closes many logs with one sync of the file system. Returns whether all succeeded."""
        tickets: list[tuple[PartitionLog, FlushTicket | None]] = []
        epochs = []
        for each in logs:
            ticket = None
            try:
                ticket = each.begin_close(hold=False)
                if (content := each.epochs_to_save()) is not None:
                    self.disk.overwrite_file(f"{content[0]}.tmp", content[1])
                    epochs.append((each, content[0]))
            except (OSError, KafkaError) as error:
                log.error("%s: not closed cleanly: %s", each.topic_partition, error)
                ticket = None
            tickets.append((each, ticket))
        is_synced = False
        try:
            self.disk.sync_all(self._lock)
            is_synced = True
            for each, path in epochs:
                self.disk.rename(f"{path}.tmp", path)
                each.leader_epochs.saved()
        finally:
            for each, ticket in tickets:
                each.finish_close(ticket if is_synced else None)
        return all(ticket is not None for _, ticket in tickets)

    def _close_chunk(self, logs: list[PartitionLog]) -> bool:
        """Closes several logs with one wait for the disk. Returns whether all succeeded."""
        tickets = []
        for each in logs:
            try:
                tickets.append((each, each.begin_close()))
            except KafkaError as error:
                log.error("%s: not closed cleanly: %s", each.topic_partition, error)
                each.finish_close(None)
        errors = self.disk.run_all([functools.partial(self._settle, each, ticket) for each, ticket in tickets])
        for (each, ticket), problem in zip(tickets, errors, strict=True):
            if problem is not None:
                log.error("%s: not closed cleanly: %s", each.topic_partition, problem)
                each.flush_failed(ticket)
            each.finish_close(ticket if problem is None else None)
        return len(tickets) == len(logs) and not any(errors)

    def _settle(self, each: PartitionLog, ticket: FlushTicket) -> None:
        """The part of closing that blocks on the disk. Any thread."""
        ticket.sync(self.disk)
        each.save_epochs()


def partition_of(name: str) -> TopicPartition | None:
    """The partition whose directory has this name; None if it is not a partition directory.

    >>> partition_of("my-orders-12"), partition_of("meta.properties")
    (TopicPartition(topic='my-orders', partition=12), None)
    """
    topic, _, number = name.rpartition("-")
    partition = unsigned_from_text(number)
    return TopicPartition(topic, partition) if topic and partition is not None else None


def _mark_unsaved(epochs: list[tuple[PartitionLog, str, bytes]]) -> None:
    for each, *_ in epochs:
        each.leader_epochs.is_dirty = True


def files_for_connections() -> int:
    """How many connections the process's file limit allows besides the files of the logs and of everything else."""
    return max(1, _file_limit() - _handle_limit() - OTHER_FILES)


def _handle_limit() -> int:
    """Half of the process's file limit: the other half is for connections."""
    return max(64, min(4096, _file_limit() // 2))


def _file_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return INT32_MAX if soft == resource.RLIM_INFINITY else soft
