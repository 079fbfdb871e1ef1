"""The start offset of each leader epoch: how replicas find where their logs diverge (KIP-101). Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class EpochEndOffset(NamedTuple):
    """The result of OffsetForLeaderEpoch: an epoch and the offset after its last record; (-1, -1) if unknown."""

    leader_epoch: int
    end_offset: int


UNKNOWN = EpochEndOffset(-1, -1)


class LeaderEpochCache:
    """The epochs of one log, oldest first, each with the offset of its first record."""

    __slots__ = ("_epochs", "_saved", "_starts", "has_file", "is_dirty", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start_offset in entries:
            self._epochs.append(epoch)
            self._starts.append(start_offset)
        self.latest = self._epochs[-1] if self._epochs else -1
        """The newest epoch, -1 if none is known. A plain attribute because every append reads it."""
        self.is_dirty = False
        """Whether the checkpoint file is out of date."""
        self.has_file = False
        """Whether there is a checkpoint file, of any content."""
        self._saved = self.entries()

    def __repr__(self) -> str:
        return f"LeaderEpochCache({self.entries()})"

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def to_save(self, log_end_offset: int) -> list[tuple[int, int]] | None:
        """What the checkpoint file should contain; None if it is up to date.

        A new epoch without records is not written: the next start begins a newer epoch anyway, and otherwise every
        restart would write a file for each partition.
        """
        if not self.is_dirty:
            return None
        entries = self.entries()
        if entries and entries[-1][1] >= log_end_offset and entries[:-1] == self._saved:
            return None
        return entries

    def saved(self) -> None:
        """The file contains every entry, or is about to."""
        self._saved = self.entries()
        self.is_dirty = False
        self.has_file = True

    def assign(self, epoch: int, start_offset: int) -> None:
        """Epoch `epoch` starts at `start_offset`. A known epoch keeps its start offset.

        Known epochs that start at or after that offset have no records and are removed.
        """
        if epoch <= self.latest or epoch < 0:
            return
        keep = bisect_left(self._starts, start_offset)
        del self._epochs[keep:], self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.latest = epoch
        self.is_dirty = True

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch of the record at `offset`, -1 if it is before the first known epoch."""
        entry = bisect_right(self._starts, offset) - 1
        return self._epochs[entry] if entry >= 0 else -1

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """The largest known epoch up to `epoch`, and its end offset.

        >>> cache = LeaderEpochCache([(2, 0), (5, 100)])
        >>> cache.end_offset_for(5, 170), cache.end_offset_for(4, 170), cache.end_offset_for(6, 170)
        (EpochEndOffset(leader_epoch=5, end_offset=170), EpochEndOffset(leader_epoch=2, end_offset=100), \
EpochEndOffset(leader_epoch=-1, end_offset=-1))
        """
        if epoch < 0 or not self._epochs or epoch > self.latest:
            return UNKNOWN
        if epoch == self.latest:
            return EpochEndOffset(epoch, log_end_offset)
        above = bisect_right(self._epochs, epoch)
        if above == 0:
            # Older than everything left in the log: it ended where the first known epoch started.
            return EpochEndOffset(epoch, self._starts[0])
        return EpochEndOffset(self._epochs[above - 1], self._starts[above])

    def truncate_from_end(self, end_offset: int) -> None:
        """The log was truncated to `end_offset`: removes epochs that start there or later."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self.latest = self._epochs[-1] if self._epochs else -1
            self.is_dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: removes epochs that ended before; the current one starts there."""
        first = bisect_right(self._starts, start_offset) - 1
        if first > 0 or (first == 0 and self._starts[0] < start_offset):
            del self._epochs[:first], self._starts[:first]
            self._starts[0] = start_offset
            self.is_dirty = True

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._starts.clear()
            self.latest = -1
            self.is_dirty = True
