"""Helpers for tests of one partition's log: append, read, restart, crash, and a disk that fails."""

import errno
from collections.abc import Sequence
from typing import Any, ClassVar

from ottla.clock import MonotonicMs
from ottla.log.cleaning.log_cleaning import apply_compaction, plan_compaction
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.opening import open_log
from ottla.log.partition_log import Appended, Origin, PartitionLog
from ottla.log.segments.time_search import LargeBatch, OffsetAndTimestamp
from ottla.protocol.records.record_batch import (
    BatchHeader,
    Record,
    build_batch,
    control_batch,
    iter_batches,
    read_records,
)
from ottla.types import TopicPartition

NOON = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)


class FailingDisk(Disk):
    """A real disk that can be made to fail, to be full, or to tear a write."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.torn_bytes: int | None = None
        self.calls: list[str] = []

    def fails(self, operation: str, error: int = errno.ENOSPC) -> None:
        """Every call of `operation` fails from now on, until `works`."""
        self.failing[operation] = error

    def works(self) -> None:
        self.failing.clear()
        self.torn_bytes = None

    def _try(self, operation: str) -> None:
        self.calls.append(operation)
        if operation in self.failing:
            raise OSError(self.failing[operation], f"{operation} fails in this test")

    def append(self, handle: int, buffers: Sequence[Any]) -> int:
        if self.torn_bytes is not None:
            super().append(handle, [b"".join(buffers)[: self.torn_bytes]])
        self._try("append")
        return super().append(handle, buffers)

    def open(self, path: str, *, create: bool = False) -> int:
        self._try("create" if create else "open")
        return super().open(path, create=create)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._try("pread")
        return super().pread(handle, size, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._try("truncate")
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._try("sync")
        super().sync(handle)

    def sync_directory(self, path: str) -> None:
        self._try("sync_directory")
        super().sync_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._try("rename")
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._try("remove")
        super().remove(path)

    def write_file(self, path: str, data: bytes) -> None:
        self._try("write_file")
        super().write_file(path, data)

    def read_file(self, path: str) -> bytes:
        self._try("read_file")
        return super().read_file(path)


def find_by_time(log: PartitionLog, timestamp: int | None, *, upper_bound: int) -> OffsetAndTimestamp | None:
    """The first record with at least a timestamp, or the one with the largest, however long the search takes."""
    search = log.time_search(timestamp)
    while True:
        try:
            return log.search(search, upper_bound)
        except LargeBatch as large:
            large.search()


class LogWorld:
    """A log on a disk, with a clock that moves only when a test says so.

    After each test in tests/unit/log, its files are loaded again and compared with the live log, unless the test
    sets `checks_reload` to False because it damages the files on purpose.
    """

    instances: ClassVar[list["LogWorld"]] = []
    """The worlds of the running test."""

    def __init__(self, directory: Any, *, disk: Disk | None = None, **settings: Any) -> None:
        self.instances.append(self)
        self.checks_reload = True
        self.now = NOON
        """Monotonic time, and the wall time while the clock is right."""
        self.wall_ahead_ms = 0
        self.directory = f"{directory}/{ORDERS}"
        self.disk = disk or Disk()
        self.config = TopicConfig(**settings)
        self.leader_epoch = 0
        self.sequences: dict[tuple[int, int], int] = {}
        self.open()

    def clock(self) -> int:
        return self.now + self.wall_ahead_ms

    def monotonic(self) -> MonotonicMs:
        return MonotonicMs(self.now)

    def open(self, *, clean: bool = True, **known: Any) -> PartitionLog:
        self.log = open_log(
            self.directory,
            ORDERS,
            bytes(range(16)),
            self.config,
            disk=self.disk,
            clock=self.clock,
            monotonic=self.monotonic,
            clean_shutdown=clean,
            **known,
        )
        return self.log

    def restart(self) -> PartitionLog:
        """Closes cleanly and opens again, with the offsets that the checkpoint files would have."""
        self.log.close()
        return self.open(**self._known())

    def crash(self, recovery_point: int | None = None) -> PartitionLog:
        """The process is killed: written bytes are kept, everything in memory is lost."""
        known = self._known()
        known["recovery_point"] = self.log.flushed_offset if recovery_point is None else recovery_point
        self.log.store.close()
        return self.open(clean=False, **known)

    def _known(self) -> dict[str, Any]:
        return {
            "log_start_offset": self.log.log_start_offset,
            "high_watermark": self.log.high_watermark,
            "recovery_point": self.log.log_end_offset,
            "first_dirty_offset": self.log.first_dirty_offset,
        }

    def append(
        self,
        *values: str | tuple[str | None, str | None],
        timestamp: int | None = None,
        commit: bool = True,
        **details: Any,
    ) -> Appended:
        """Appends a batch of values, or of (key, value) pairs, and commits it unless `commit` is False."""
        extra = {name: details.pop(name) for name in ("produce_version", "origin") if name in details}
        batch = self.batch(*values, timestamp=timestamp, **details)
        appended = self.log.append(batch, leader_epoch=self.leader_epoch, **extra)
        if commit:
            self.commit()
        return appended

    def batch(
        self, *values: str | tuple[str | None, str | None], timestamp: int | None = None, **details: Any
    ) -> bytes:
        rows = []
        for item in values:
            key, value = (None, item) if isinstance(item, str) else item
            rows.append((self.now if timestamp is None else timestamp, _bytes(key), _bytes(value), ()))
        return build_batch(rows, **details)

    def produce(self, producer_id: int, *values: Any, epoch: int = 0, **details: Any) -> Appended:
        """Appends as an idempotent producer that counts its sequences."""
        sequence = self.sequences.get((producer_id, epoch), 0)
        appended = self.append(
            *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **details
        )
        self.sequences[producer_id, epoch] = sequence + len(values)
        return appended

    def ends(self, producer_id: int, *, abort: bool, epoch: int = 0, commit: bool = True, **details: Any) -> Appended:
        """Appends a transaction marker."""
        coordinator_epoch = details.pop("coordinator_epoch", 0)
        marker = control_batch(
            commit=not abort,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self.now,
        )
        appended = self.log.append(marker, leader_epoch=self.leader_epoch, origin=Origin.COORDINATOR, **details)
        if commit:
            self.commit()
        return appended

    def commit(self) -> None:
        self.log.advance_high_watermark(self.log.log_end_offset)

    def compact(self, held_ms: int = 0) -> bool:
        """Compacts the log if it is due. Returns whether it was."""
        plan = plan_compaction(self.log, self.now, held_ms)
        if plan is None:
            return False
        plan.run()
        return apply_compaction(self.log, plan)

    def read_batches(self, offset: int | None = None, max_bytes: int = 1 << 20) -> list[tuple[BatchHeader, bytes]]:
        """Every batch from `offset` on, read in several fetches like a consumer."""
        found = []
        position = self.log.log_start_offset if offset is None else offset
        while position < self.log.log_end_offset:
            data = self.log.read(position, max_bytes, upper_bound=self.log.log_end_offset)
            if not data:
                break
            for at, header in iter_batches(data):
                found.append((header, data[at : at + header.size_bytes]))
                position = header.next_offset
        return found

    def records(self, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
        """Every data record from `offset` on."""
        start = self.log.log_start_offset if offset is None else offset
        return [
            record
            for header, batch in self.read_batches(start, max_bytes)
            if not header.is_control
            for record in read_records(batch, 0, header)
            if record.offset >= start
        ]

    def values(self, offset: int | None = None) -> list[str | None]:
        return [None if record.value is None else record.value.decode() for record in self.records(offset)]

    def pairs(self) -> list[tuple[int, str | None, str | None]]:
        """(offset, key, value) of every data record."""
        return [(record.offset, _text(record.key), _text(record.value)) for record in self.records()]

    def names(self, suffix: str = "") -> list[str]:
        return [name for name in Disk().list(self.directory) if name.endswith(suffix)]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
