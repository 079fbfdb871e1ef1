"""OWNER of the task that loads shards: replays their logs, a slice per turn of the event loop.

After a failover many shards are loaded at once. Those that clients wait for come first, short logs before long ones: a
slice of the most urgent one is replayed, then the next choice is made.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ottla.clock import monotonic
from ottla.coordinator.hosted import HostedShard, ShardState
from ottla.coordinator.replaying import replay_slice
from ottla.log.partition_log import PartitionLog

log = logging.getLogger("ottla.coordinator")

SLICE_BYTES = 1 << 18
"""How much of a log is replayed before other tasks get their turn: a few milliseconds of work."""


class _Load:
    """A shard that is being loaded, and its progress."""

    __slots__ = ("hosted", "is_wanted", "log", "offset", "records", "started_s")

    def __init__(self, hosted: HostedShard[Any], partition_log: PartitionLog) -> None:
        self.hosted = hosted
        self.log = partition_log
        self.offset = partition_log.log_start_offset
        self.records = 0
        self.started_s = monotonic()
        self.is_wanted = False

    @property
    def urgency(self) -> tuple[bool, int]:
        """The smallest is the most urgent."""
        return not self.is_wanted, self.log.log_end_offset - self.offset


class ShardLoader:
    """Loads shards, and reports each that is loaded or cannot be."""

    def __init__(
        self,
        on_loaded: Callable[[HostedShard[Any]], None],
        on_failed: Callable[[HostedShard[Any], Exception], None],
    ) -> None:
        self._on_loaded = on_loaded
        self._on_failed = on_failed
        self._loads: dict[HostedShard[Any], _Load] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, hosted: HostedShard[Any], partition_log: PartitionLog) -> None:
        self._loads[hosted] = _Load(hosted, partition_log)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def want(self, hosted: HostedShard[Any]) -> None:
        """A client waits for this shard: it becomes urgent."""
        load = self._loads.get(hosted)
        if load is not None:
            load.is_wanted = True

    def forget(self, hosted: HostedShard[Any]) -> None:
        """The shard is no longer needed."""
        self._loads.pop(hosted, None)

    def stop(self) -> None:
        self._loads.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._loads:
                load = min(self._loads.values(), key=lambda load: load.urgency)
                try:
                    is_loaded = self._replay_slice(load)
                except Exception as error:
                    self.forget(load.hosted)
                    self._on_failed(load.hosted, error)
                else:
                    if is_loaded:
                        self.forget(load.hosted)
                        self._loaded(load)
                await asyncio.sleep(0)
        finally:
            self._task = None

    def _replay_slice(self, load: _Load) -> bool:
        """True if the shard has everything in the log."""
        partition_log = load.log
        end = partition_log.log_end_offset
        if load.offset < end:
            data = partition_log.read(load.offset, SLICE_BYTES, upper_bound=end)
            if data:
                load.offset, count = replay_slice(load.hosted.shard, data, load.offset)
                load.records += count
                return load.offset >= partition_log.log_end_offset
        return True

    def _loaded(self, load: _Load) -> None:
        load.hosted.end_offset = load.log.log_end_offset
        self._on_loaded(load.hosted)
        if load.hosted.state is ShardState.ACTIVE:
            took_ms = (monotonic() - load.started_s) * 1000
            log.info("%s: loaded %d records in %.0f ms", load.hosted.name, load.records, took_ms)
