"""Remembers, byte for byte, what any broker of a simulated cluster has ever treated as committed.

A record below a high watermark has been shown to readers or acknowledged. From then on every replica must have the same
bytes at that offset, and the partition must never end below it. The check runs at the moment a high watermark advances,
on every broker, so that a violation is found where it happens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ottla.log.partition_log import PartitionLog
from ottla.protocol.records.record_batch import iter_batches

if TYPE_CHECKING:
    from ottla.types import TopicPartition

SLICE_BYTES = 1 << 20


def batches_between(log: PartitionLog, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """(base offset, next offset, bytes) of each stored batch that has an offset in [start, end)."""
    offset = max(start, log.log_start_offset)
    while offset < end:
        # Not with `end` as the bound: it can lie inside a batch, and the log expects the end of one.
        data = log.read(offset, SLICE_BYTES, upper_bound=log.log_end_offset)
        if not data:
            return
        for position, header in iter_batches(data):
            if header.base_offset >= end:
                return
            size = header.size_bytes
            yield header.base_offset, header.next_offset, bytes(data[position : position + size])
            offset = header.next_offset


@dataclass
class CommittedLog:
    """One partition of one topic id."""

    end: int = 0
    batches: dict[int, bytes] = field(default_factory=dict)
    """By base offset."""


class Ledger:
    """All partitions. `problems` is empty as long as nothing committed was lost or changed."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[TopicPartition, bytes], CommittedLog] = {}
        self.problems: list[str] = []
        self.now: Callable[[], float] = lambda: 0.0
        self.loss_allowed: set[str] = set()
        """Topics that may lose committed records: those that allow unclean elections."""

    def advanced(self, log: PartitionLog, before: int) -> None:
        known = self.partitions.setdefault((log.topic_partition, log.topic_id), CommittedLog())
        lossy = log.topic_partition.topic in self.loss_allowed
        for base_offset, next_offset, data in batches_between(log, before, log.high_watermark):
            if next_offset > log.high_watermark and base_offset < log.high_watermark:
                continue  # compared when it is committed as a whole
            seen = known.batches.get(base_offset)
            if seen is None and base_offset < known.end and not lossy:
                # Committed before this ledger saw it, or deleted since: only the same boundaries can be compared.
                if not log.config.compacts and min(known.batches, default=0) < base_offset:
                    self._report(
                        log, f"no batch was committed at offset {base_offset}, the committed end is {known.end}"
                    )
            elif seen is not None and seen != data and not lossy:
                self._report(log, f"offsets {base_offset} to {next_offset - 1} were committed with other records")
            known.batches[base_offset] = data
            known.end = max(known.end, next_offset)

    def shown(self, topic: str, partition: int, offset: int) -> None:
        """A reader was given a record."""
        ends = [known.end for (place, _), known in self.partitions.items() if place == (topic, partition)]
        if offset >= max(ends, default=0):
            self.problems.append(f"{self.now():.3f} {topic}-{partition}: {offset} was read, committed is {ends}")

    def _report(self, log: PartitionLog, problem: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(f"{self.now():.3f} {log.topic_partition} in {log.directory}: {problem}")

    def check_end(self, log: PartitionLog) -> None:
        """At the end of a story, on every replica: nothing that was committed is missing."""
        known = self.partitions.get((log.topic_partition, log.topic_id))
        if known is None or log.topic_partition.topic in self.loss_allowed or log.config.compacts:
            return
        if log.high_watermark < known.end:
            self._report(log, f"the high watermark is {log.high_watermark}, {known.end} was committed")
        stored = {base: data for base, _, data in batches_between(log, log.log_start_offset, log.high_watermark)}
        for base_offset, data in known.batches.items():
            if base_offset >= log.log_start_offset and stored.get(base_offset) != data:
                self._report(log, f"the batch that was committed at offset {base_offset} is missing or changed")


@contextmanager
def watching() -> Iterator[Ledger]:
    """Every high watermark that advances inside is checked."""
    ledger = Ledger()
    advance = PartitionLog.advance_high_watermark

    def watched(self: PartitionLog, offset: int) -> bool:
        before = self.high_watermark
        moved = advance(self, offset)
        if moved:
            ledger.advanced(self, before)
        return moved

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "advance_high_watermark", watched)
        yield ledger
