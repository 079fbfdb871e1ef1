"""OWNER of the logs' background work: syncing, checkpoints, retention, compaction, directory removal.

Nothing here polls. A timer runs only while there is work for it: a thousand idle partitions cost one check every
`log.retention.check.interval.ms`.
"""

import asyncio
import functools
import heapq
import logging
from collections.abc import Callable, Iterator
from typing import Any

from ottla.clock import Clock
from ottla.errors import KafkaError
from ottla.log.cleaning.compactor import CompactionPlan
from ottla.log.cleaning.log_cleaning import apply_compaction, compaction_failed, enforce_retention, plan_compaction
from ottla.log.flush import FlushTicket
from ottla.log.log_directory import LogDirectory
from ottla.protocol.records.record_batch import CorruptBatch
from ottla.replication.clock_guard import FILE as CLOCK_FILE
from ottla.replication.clock_guard import ClockGuard
from ottla.replication.config import ReplicaConfig
from ottla.replication.replica import Replica
from ottla.types import INT64_MAX, TopicPartition

log = logging.getLogger("ottla.replication")

REMOVED_TOGETHER = 32
RETENTION_CHUNK = 100
"""How many logs are checked before the event loop gets its turn."""


class Upkeep:
    """Pending background work of one log. Stored on the replica, so that an append checks one flag."""

    __slots__ = ("flush_timer", "flushes", "is_changed", "is_closed", "is_syncing", "uncleanable_start", "wants_sync")

    def __init__(self) -> None:
        self.is_changed = False
        """Offsets changed since the last checkpoint."""
        self.flushes = False
        """An append may require a sync, because of `ottla.flush.before.ack`, `flush.messages` or `flush.ms`."""
        self.wants_sync = False
        self.is_syncing = False
        self.is_closed = False
        self.uncleanable_start = -1
        """Where the first segment began when compaction found an unreadable batch. Retried once that moves."""
        self.flush_timer: asyncio.TimerHandle | None = None


class LogMaintenance:
    """The background work of all logs of one directory."""

    def __init__(
        self,
        log_directory: LogDirectory,
        *,
        config: ReplicaConfig,
        clock: Clock,
        guard: ClockGuard,
        replicas: Callable[[], Iterator[Replica]],
        flushed: Callable[[Replica], None],
        failed: Callable[[Replica, str, bool], None],
        start_moved: Callable[[Replica], None],
    ) -> None:
        self._directory = log_directory
        self._config = config
        self._clock = clock
        self._guard = guard
        self._monotonic = log_directory.monotonic
        self._replicas = replicas
        self._flushed = flushed
        self._failed = failed
        self._start_moved = start_moved
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._changed: dict[Replica, None] = {}
        self._to_compact: dict[Replica, None] = {}
        self._compacting: tuple[Replica, CompactionPlan] | None = None
        self._checkpointing: asyncio.Future[None] | None = None
        """The checkpoint that is being written."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._removals: list[tuple[int, str]] = []
        """A heap of directories to remove: (when, in monotonic milliseconds; path)."""
        self._removing = False
        self._producers_checked_ms: int = 0
        self._running: set[asyncio.Future[Any]] = set()

    def reconfigure(self, config: ReplicaConfig) -> None:
        """Applies settings that were changed at run time; a running timer keeps its time."""
        self._config = config

    # -- life --

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._producers_checked_ms = self._monotonic()
        self._read_clock_file()
        self._arm("retention", self._config.log_retention_check_interval_ms, self._check_retention)
        for path in self._directory.leftovers:
            self._remove_at(self._monotonic(), path)
        self._arm_removal()
        for replica in self._replicas():
            if replica.upkeep.wants_sync:
                loop.call_soon(self._sync, replica)
        if self._changed:
            self._arm("checkpoint", self._config.replica_high_watermark_checkpoint_interval_ms, self._checkpoint)
        if self._to_compact:
            self._arm("compaction", self._config.log_cleaner_backoff_ms, self._compact_next)

    async def stop(self) -> None:
        """Ends the background work and waits for what runs. Then the directory can be closed."""
        self._stopping = True
        self._directory.begin_close()
        if self._compacting is not None:
            self._compacting[1].cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for replica in self._replicas():
            if replica.upkeep.flush_timer is not None:
                replica.upkeep.flush_timer.cancel()
        while self._running:
            await asyncio.wait(list(self._running))
        if self._loop is not None:
            self._save_clock()
            await asyncio.wait(list(self._running))

    def _arm(self, name: str, delay_ms: float, callback: Callable[[], None]) -> None:
        """Starts a timer, unless one of this name is already running."""
        if self._loop is None or self._stopping or name in self._timers:
            return

        def go_off() -> None:
            del self._timers[name]
            callback()

        self._timers[name] = self._loop.call_later(delay_ms / 1000, go_off)

    def _in_thread(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        assert self._loop is not None
        future = self._loop.run_in_executor(None, function, *args)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    # -- what the manager reports --

    def opened(self, replica: Replica) -> None:
        replica.upkeep = Upkeep()
        self.configured(replica)
        self.changed(replica)

    def configured(self, replica: Replica) -> None:
        config = replica.log.config
        replica.upkeep.flushes = (
            self._config.flush_before_ack or config.flush_messages < INT64_MAX or config.flush_ms < INT64_MAX
        )
        if config.compacts:
            self._look_for_compaction(replica)

    def closed(self, replica: Replica) -> None:
        """The replica's log is about to be closed: cancels its work and ignores the results of what still runs."""
        upkeep = replica.upkeep
        upkeep.is_closed = True
        if upkeep.flush_timer is not None:
            upkeep.flush_timer.cancel()
        self._changed.pop(replica, None)
        self._to_compact.pop(replica, None)
        if self._compacting is not None and self._compacting[0] is replica:
            self._compacting[1].cancel()

    def changed(self, replica: Replica) -> None:
        """The replica's offsets differ from the checkpoint files."""
        replica.upkeep.is_changed = True
        self._changed[replica] = None
        self._arm("checkpoint", self._config.replica_high_watermark_checkpoint_interval_ms, self._checkpoint)
        if replica.log.config.compacts:
            self._look_for_compaction(replica)

    # -- syncing: at most one in flight per log; appends in the meantime share the next one --

    def consider_flush(self, replica: Replica) -> None:
        """Syncs now or later, after an append to a log whose settings require syncs."""
        if self._config.flush_before_ack or replica.log.needs_flush(self._monotonic()):
            self._flush(replica)
        elif replica.upkeep.flush_timer is None and self._loop is not None and not self._stopping:
            delay_ms = replica.log.config.flush_ms
            if delay_ms < INT64_MAX:
                replica.upkeep.flush_timer = self._loop.call_later(delay_ms / 1000, self._flush_due, replica)

    def _flush_due(self, replica: Replica) -> None:
        replica.upkeep.flush_timer = None
        self._flush(replica)

    def _flush(self, replica: Replica) -> None:
        upkeep = replica.upkeep
        if upkeep.wants_sync or replica.storage_failure:
            return
        upkeep.wants_sync = True
        if not upkeep.is_syncing and self._loop is not None:
            # At the end of this turn of the loop, so that all appends of this turn share one sync.
            self._loop.call_soon(self._sync, replica)

    def _sync(self, replica: Replica) -> None:
        upkeep = replica.upkeep
        upkeep.wants_sync = False
        if upkeep.is_closed or upkeep.is_syncing or replica.storage_failure:
            return
        try:
            ticket = replica.log.unsynced()
        except KafkaError as error:
            self._failed(replica, str(error), False)
            return
        upkeep.is_syncing = True
        future = self._in_thread(ticket.sync, self._directory.disk)
        future.add_done_callback(functools.partial(self._synced, replica, ticket))

    def _synced(self, replica: Replica, ticket: FlushTicket, future: "asyncio.Future[None]") -> None:
        upkeep = replica.upkeep
        upkeep.is_syncing = False
        error = future.exception()
        if error is not None:
            replica.log.flush_failed(ticket)
            if not upkeep.is_closed:
                self._failed(replica, f"sync failed: {error}", True)
            return
        replica.log.flushed(ticket)
        if upkeep.is_closed:
            return
        if not upkeep.is_changed:
            self.changed(replica)  # Its recovery point moved.
        self._flushed(replica)
        if upkeep.wants_sync:
            self._sync(replica)

    # -- checkpoints --

    def _checkpoint(self) -> None:
        if self._checkpointing is not None:
            self._arm("checkpoint", self._config.replica_high_watermark_checkpoint_interval_ms, self._checkpoint)
            return
        changed = list(self._changed)
        self._changed.clear()
        for replica in changed:
            replica.upkeep.is_changed = False
            if replica.log.flushed_offset < replica.log.segments.active.base_offset:
                # Sync finished segments, so that recovery after a crash reads only the active one.
                self._flush(replica)
            if replica.log.config.compacts:
                # Appends since the last check were not reported: the log counted as changed already.
                self._look_for_compaction(replica)
        self._write_checkpoint(changed)

    def _write_checkpoint(self, replicas: list[Replica]) -> "asyncio.Future[None]":
        self._checkpointing = future = self._in_thread(
            self._directory.plan_checkpoint([replica.log for replica in replicas])
        )
        future.add_done_callback(self._checkpointed)
        return future

    async def checkpoint_now(self, replicas: list[Replica]) -> bool:
        """Writes the offsets of truncated logs. Returns whether they are on disk.

        The recovery point on disk may be beyond the new end of the log. Recovery trusts everything below it, so an
        append would have to wait for this.
        """
        while self._checkpointing is not None:
            await asyncio.wait([self._checkpointing])
        if self._stopping:
            return False
        future = self._write_checkpoint([replica for replica in replicas if not replica.upkeep.is_closed])
        await asyncio.wait([future])
        return future.exception() is None

    def _checkpointed(self, future: "asyncio.Future[None]") -> None:
        self._checkpointing = None
        error = future.exception()
        if error is not None:
            # Not fatal: checkpoints only speed up recovery, and are written again after the next change.
            log.warning(
                "%s: cannot write checkpoint files, will be retried after the next change: %s",
                self._directory.path,
                error,
            )

    # -- retention, rolling, idle producers --

    def _check_retention(self) -> None:
        self._arm("retention", self._config.log_retention_check_interval_ms, self._check_retention)
        monotonic_ms = self._monotonic()
        producers_due = (
            monotonic_ms - self._producers_checked_ms >= self._config.producer_id_expiration_check_interval_ms
        )
        if producers_due:
            self._producers_checked_ms = monotonic_ms
        self._check_some(list(self._replicas()), producers_due)
        self._save_clock()

    # -- the clock, compared across restarts --

    def _read_clock_file(self) -> None:
        try:
            self._guard.restore(self._directory.disk.read_file(f"{self._directory.path}/{CLOCK_FILE}"))
        except FileNotFoundError:
            pass  # The first start.
        except OSError as error:
            log.warning("%s: cannot be read: %s", CLOCK_FILE, error)

    def _save_clock(self) -> None:
        path = f"{self._directory.path}/{CLOCK_FILE}"
        saving = self._in_thread(self._directory.disk.write_file, path, self._guard.save())
        saving.add_done_callback(_clock_saved)

    def _check_some(self, replicas: list[Replica], producers_due: bool) -> None:
        if self._stopping:
            return
        # What expires by time uses the time without a jump of the clock.
        now, monotonic_ms = self._clock() - self._guard.held_ms(), self._monotonic()
        for replica in replicas[:RETENTION_CHUNK]:
            if replica.upkeep.is_closed:
                continue
            try:
                replica.log.roll_if_due()
                removed = enforce_retention(replica.log, now)
                if producers_due:
                    replica.log.expire_producers(monotonic_ms, self._config.producer_id_expiration_ms)
            except Exception as error:
                _report(replica, "retention failed, will be retried", error)
                continue
            if removed:
                log.info(
                    "partition %s: deleted %d segments, log now starts at offset %d",
                    replica.topic_partition,
                    removed,
                    replica.log.log_start_offset,
                )
                self.changed(replica)
                self._start_moved(replica)
            elif replica.log.config.compacts:
                self._look_for_compaction(replica)
        if len(replicas) > RETENTION_CHUNK and self._loop is not None:
            self._loop.call_soon(self._check_some, replicas[RETENTION_CHUNK:], producers_due)

    # -- compaction: one log at a time, in a thread --

    def _look_for_compaction(self, replica: Replica) -> None:
        if self._config.log_cleaner_enable and replica.upkeep.uncleanable_start != replica.log.segments[0].base_offset:
            self._to_compact[replica] = None
            if self._compacting is None:
                self._arm("compaction", self._config.log_cleaner_backoff_ms, self._compact_next)

    def _compact_next(self) -> None:
        while self._to_compact and not self._stopping:
            replica = next(iter(self._to_compact))
            del self._to_compact[replica]
            try:
                held_ms = self._guard.held_ms()
                plan = plan_compaction(replica.log, self._clock() - held_ms, held_ms)
            except Exception as error:
                _report(replica, "cannot plan compaction", error)
                continue
            if plan is not None:
                self._compacting = replica, plan
                future = self._in_thread(plan.run)
                future.add_done_callback(functools.partial(self._compacted, replica, plan))
                return

    def _compacted(self, replica: Replica, plan: CompactionPlan, future: "asyncio.Future[None]") -> None:
        others_wait = bool(self._to_compact)
        if not replica.upkeep.is_closed and not future.cancelled():
            try:
                future.result()
                apply_compaction(replica.log, plan)
                self.changed(replica)
            except CorruptBatch as error:
                replica.upkeep.uncleanable_start = replica.log.segments[0].base_offset
                log.error(
                    "partition %s: compaction failed, nothing was changed: %s. The log is not compacted until this "
                    "batch is deleted or the broker restarts",
                    replica.topic_partition,
                    error.detail,
                )
            except Exception as error:
                _report(replica, "compaction failed", error)
                if compaction_failed(replica.log, plan):
                    self._failed(replica, f"sync failed: {error}", True)
        elif not future.cancelled():
            future.exception()  # The log is closed or deleted: a failure is expected, and asyncio must not report it.
        self._compacting = None
        if self._to_compact:
            # The log just compacted may have more to do, but the other logs come first.
            self._arm("compaction", 0 if others_wait else self._config.log_cleaner_backoff_ms, self._compact_next)

    # -- removing what was deleted --

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Renames the directory of a partition that belongs to no topic to `-stray`: never loaded, never deleted.

        The topic may have been deleted while this broker was down. But if the metadata was lost instead, this is
        the last copy of the records.
        """
        try:
            path = self._directory.delete_log(topic_partition)
            aside = path.removesuffix("-delete") + "-stray"
            self._directory.disk.rename(path, aside)
        except OSError as error:
            log.error("partition %s: belongs to no topic, cannot rename its directory: %s", topic_partition, error)
            return
        log.warning("partition %s: belongs to no topic, moved its records to %s", topic_partition, aside)

    def delete(self, topic_partition: TopicPartition, delay_ms: int) -> None:
        """Renames the partition's directory now, so that the name is free, and removes it after the delay."""
        try:
            path = self._directory.delete_log(topic_partition)
        except OSError as error:
            log.error("partition %s: cannot rename its directory for deletion: %s", topic_partition, error)
            return
        self._remove_at(self._monotonic() + delay_ms, path)
        self._arm_removal()

    def _remove_at(self, when: int, path: str) -> None:
        heapq.heappush(self._removals, (when, path))
        if self._removals[0][1] is path and (timer := self._timers.pop("removal", None)) is not None:
            timer.cancel()  # It is set to a later time.

    def _arm_removal(self) -> None:
        if self._removals and not self._removing:
            self._arm("removal", max(0, self._removals[0][0] - self._monotonic()), self._remove_next)

    def _remove_next(self) -> None:
        """Removes the directories that are due, a few at a time and in one thread: the disk has other work too."""
        now = self._monotonic()
        paths: list[str] = []
        while self._removals and self._removals[0][0] <= now and len(paths) < REMOVED_TOGETHER:
            paths.append(heapq.heappop(self._removals)[1])
        if not paths:
            self._arm_removal()
            return
        self._removing = True
        self._in_thread(self._remove, paths).add_done_callback(self._removed)

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            if self._stopping:
                return  # The next start removes the rest.
            try:
                self._directory.disk.remove_tree(path)
            except OSError as error:
                log.warning("%s: cannot be removed, the next start retries: %s", path, error)

    def _removed(self, future: "asyncio.Future[None]") -> None:
        self._removing = False
        self._arm_removal()


def _report(replica: Replica, what: str, error: Exception) -> None:
    """Logs one partition's failure; work on the other logs continues."""
    expected = isinstance(error, (OSError, KafkaError))
    log.warning("partition %s: %s: %s", replica.topic_partition, what, error, exc_info=None if expected else error)


def _clock_saved(future: "asyncio.Future[None]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("%s: cannot be written: %s", CLOCK_FILE, error)
