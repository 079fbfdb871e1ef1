"""The sparse indexes of a segment, in Kafka's file formats: offset -> position, and timestamp -> offset. Pure.

Each is held in flat arrays (8 and 12 bytes per entry, as in the file), so that loading, saving and searching run at C
speed. `from_bytes` validates everything read from a file.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import le, lt
from typing import NamedTuple, Self

_SWAP = sys.byteorder == "little"
assert array("i").itemsize == 4
assert array("q").itemsize == 8


class CorruptIndex(ValueError):
    """An index file with invalid content; it must be rebuilt from the log."""


class OffsetIndex:
    """Relative offset of a batch's last record -> position of the batch in the file. 8 bytes per entry."""

    __slots__ = ("offsets", "positions")

    ENTRY_SIZE = 8

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def entry_at_or_before_offset(self, relative_offset: int) -> int:
        """The entry number to start scanning from for `relative_offset`; -1 means the start of the file."""
        return bisect_right(self.offsets, relative_offset) - 1

    def entry_at_or_before_position(self, position: int) -> int:
        return bisect_right(self.positions, position) - 1

    def truncate(self, position: int) -> None:
        """Drops the entries of batches that start at or after `position`."""
        count = bisect_left(self.positions, position)
        del self.offsets[count:]
        del self.positions[count:]

    def to_bytes(self, first: int = 0) -> bytes:
        """The file's bytes from entry number `first` on."""
        entries = array("i", bytes(8 * (len(self.offsets) - first)))
        entries[0::2] = self.offsets[first:]
        entries[1::2] = self.positions[first:]
        if _SWAP:
            entries.byteswap()
        return entries.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, log_size: int) -> Self:
        """The index in `data`, or CorruptIndex if its entries are out of order or point outside the log."""
        if len(data) % 8:
            raise CorruptIndex(f"{len(data)} bytes are not a multiple of the entry size")
        entries = array("i")
        entries.frombytes(data)
        if _SWAP:
            entries.byteswap()
        index = cls()
        index.offsets, index.positions = entries[0::2], entries[1::2]
        for column in (index.offsets, index.positions):
            if column and (column[0] < 0 or not all(map(lt, column, islice(column, 1, None)))):
                raise CorruptIndex("entries are not in order")
        if index.positions and index.positions[-1] >= log_size:
            raise CorruptIndex(f"position {index.positions[-1]} is outside of the log ({log_size} bytes)")
        return index


class TimestampOffset(NamedTuple):
    """A timestamp and the relative offset of the first batch that reached it."""

    timestamp: int
    offset: int


class TimeIndex:
    """The largest timestamp so far -> relative offset of the batch that has it. 12 bytes per entry."""

    __slots__ = ("offsets", "timestamps")

    ENTRY_SIZE = 12

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def last(self) -> TimestampOffset | None:
        return TimestampOffset(self.timestamps[-1], self.offsets[-1]) if self.timestamps else None

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Adds an entry if `timestamp` is larger than the last one."""
        if not self.timestamps or timestamp > self.timestamps[-1]:
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def find_before(self, timestamp: int) -> int:
        """A relative offset such that no earlier batch reaches `timestamp`."""
        entry = bisect_right(self.timestamps, timestamp) - 1
        return self.offsets[entry] if entry >= 0 else 0

    def truncate(self, relative_offset: int) -> None:
        """Drops the entries whose batch ends at or after `relative_offset`."""
        count = bisect_left(self.offsets, relative_offset)
        del self.timestamps[count:]
        del self.offsets[count:]

    def to_bytes(self, first: int = 0) -> bytes:
        count = len(self.timestamps) - first
        times = self.timestamps[first:]
        offsets = self.offsets[first:]
        if _SWAP:
            times.byteswap()
            offsets.byteswap()
        halves = array("i")
        halves.frombytes(times.tobytes())
        words = array("i", bytes(12 * count))
        words[0::3], words[1::3], words[2::3] = halves[0::2], halves[1::2], offsets
        return words.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        if len(data) % 12:
            raise CorruptIndex(f"{len(data)} bytes are not a multiple of the entry size")
        words = array("i")
        words.frombytes(data)
        halves = array("i", bytes(8 * (len(words) // 3)))
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
        index = cls()
        index.timestamps.frombytes(halves.tobytes())
        index.offsets = words[2::3]
        if _SWAP:
            index.timestamps.byteswap()
            index.offsets.byteswap()
        offsets = index.offsets
        if offsets and (offsets[0] < 0 or not all(map(le, offsets, islice(offsets, 1, None)))):
            raise CorruptIndex("offsets are not in order")
        if not all(map(le, index.timestamps, islice(index.timestamps, 1, None))):
            raise CorruptIndex("timestamps are not in order")
        return index
