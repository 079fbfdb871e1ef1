"""The segments of one log in order: lookup by offset, the active segment, and deletion of old ones."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from ottla.log.cleaning.compaction import CleanableSegment
from ottla.log.cleaning.retention import SegmentFacts
from ottla.log.disk import Disk
from ottla.log.segments.segment import Segment


class Segments:
    """At least one segment, ordered by base offset; the last is the active one.

    A removed segment's files are renamed now and deleted later, so that deleting a large file does not delay appends
    or disturb readers.
    """

    __slots__ = ("_bases", "_doomed", "_segments", "active", "disk")

    def __init__(self, disk: Disk, segments: Sequence[Segment]) -> None:
        self.disk = disk
        self._doomed: list[tuple[int, Segment]] = []
        """When to delete, in monotonic time."""
        self._set(list(segments))

    def _set(self, segments: list[Segment]) -> None:
        assert segments
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    def __contains__(self, segment: object) -> bool:
        return any(segment is mine for mine in self._segments)

    @property
    def bases(self) -> list[int]:
        return self._bases

    def number_of(self, offset: int) -> int:
        """The index of the segment that contains `offset`; 0 for an offset before the first segment."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def end_of(self, number: int, log_end_offset: int) -> int:
        """Where a segment's range ends: at the next segment's base offset, or at the end of the log."""
        return self._bases[number + 1] if number + 1 < len(self._bases) else log_end_offset

    def end_position(self, number: int, upper_bound: int, log_end_offset: int) -> int:
        """The position in a segment after its last batch with a base offset below `upper_bound`."""
        segment = self._segments[number]
        if upper_bound >= self.end_of(number, log_end_offset):
            return segment.size
        return segment.end_position(upper_bound)

    def between(self, start: int, end: int) -> list[Segment]:
        """The segments that overlap [start, end)."""
        return self._segments[self.number_of(start) : bisect_left(self._bases, end)]

    def retention_facts(self, log_end_offset: int, opened_ms: int) -> list[SegmentFacts]:
        """The input of retention. A segment whose records have no timestamps is dated by its creation, if known."""
        facts = []
        for number, segment in enumerate(self._segments):
            latest = segment.max_timestamp if segment.size else 0
            if latest < 0:
                latest = opened_ms if segment.created_ms is None else segment.created_ms
            end = self.end_of(number, log_end_offset)
            facts.append(SegmentFacts(segment.base_offset, end, segment.size, latest))
        return facts

    def cleanable_facts(self) -> list[CleanableSegment]:
        """The input of compaction, for the finished segments."""
        return [
            CleanableSegment(
                segment.base_offset,
                next_offset,
                segment.size,
                segment.find_first_timestamp(),
                segment.max_timestamp if segment.size else -1,
            )
            for segment, next_offset in zip(self._segments[:-1], self._bases[1:], strict=True)
        ]

    def add(self, segment: Segment) -> None:
        assert segment.base_offset > self._bases[-1]
        self._set([*self._segments, segment])

    def remove_oldest(self, count: int, delete_at_monotonic_ms: int) -> None:
        """Removes the oldest `count` segments one by one; their files are deleted at `delete_at_monotonic_ms`."""
        for segment in self._segments[:count]:
            self.schedule_deletion([segment], delete_at_monotonic_ms)
            self._set(self._segments[1:])

    def truncate_after(self, offset: int) -> None:
        """Removes and deletes the segments that start at or after `offset`, except the first one."""
        keep = max(1, bisect_left(self._bases, offset))
        gone = self._segments[keep:]
        self._set(self._segments[:keep])
        for segment in reversed(gone):
            segment.remove()

    def replace_all(self, create: Callable[[], Segment]) -> None:
        """Replaces all segments by the one that `create` returns, which may have the name of an old one."""
        gone = self._segments
        self.schedule_deletion(reversed(gone), 0)
        self._set([create()])
        self.purge()

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replaces the adjacent segments `old` by `new`. The caller deletes their files."""
        first = self._segments.index(old[0])
        self._set([*self._segments[:first], new, *self._segments[first + len(old) :]])

    def schedule_deletion(self, segments: Iterable[Segment], delete_at_monotonic_ms: int) -> None:
        """Renames the files of removed segments, for deletion at `delete_at_monotonic_ms`."""
        for segment in segments:
            segment.file.close()
            segment.mark_deleted()
            self._doomed.append((delete_at_monotonic_ms, segment))

    def close(self) -> None:
        """Closes the files permanently, those of removed segments too."""
        for segment in self._segments:
            segment.close()
        for _, segment in self._doomed:
            segment.close()

    def purge(self, monotonic_ms: int | None = None) -> None:
        """Deletes the files of removed segments that are due; all of them if `monotonic_ms` is None."""
        waiting = []
        for delete_at, segment in self._doomed:
            if monotonic_ms is None or monotonic_ms >= delete_at:
                segment.remove()
            else:
                waiting.append((delete_at, segment))
        self._doomed = waiting
