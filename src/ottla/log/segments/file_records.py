"""Batches that are still in a segment's file: a large fetch response reads them piece by piece while it is sent.

The range is exact and consists of complete batches. Nothing is held open for it: the file is reopened if it was
closed in the meantime, and a segment that retention or compaction has removed stays readable until its file is deleted.
"""

from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.log.segments.segment import Segment


class FileRecords:
    """`len()` bytes of a segment, from a position on. Reading fails once the segment has lost bytes."""

    __slots__ = ("_generation", "_segment", "_size", "_start", "next_offset")

    def __init__(self, segment: "Segment", start: int, size: int, next_offset: int) -> None:
        self._segment = segment
        self._start = start
        self._size = size
        self._generation = segment.generation
        self.next_offset = next_offset
        """No batch of the range has this offset or a later one."""

    def __len__(self) -> int:
        return self._size

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from position `at` of the range on. KafkaError if they are no longer in the file."""
        segment = self._segment
        if segment.generation != self._generation:
            raise self._gone("was truncated, closed or deleted")
        try:
            data = segment.disk.pread(segment.file.handle(), size, self._start + at)
        except OSError as error:
            raise self._gone(str(error)) from error
        if len(data) != size:
            raise self._gone(f"read {len(data)} of {size} bytes at position {self._start + at}")
        return data

    def _gone(self, why: str) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._segment.path('.log')}: {why}")
