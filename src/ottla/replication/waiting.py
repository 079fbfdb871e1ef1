"""Requests that wait on one partition: produce requests for a commit, fetches for bytes to read. Pure.

Waits are kept per partition, so an append checks only the waits of its own partition. The owner manages futures
and timers; here they are opaque.
"""

import enum
import heapq
from typing import Any

from ottla.errors import ErrorCode
from ottla.types import INT32_MAX


class CommitWait:
    """One request that waits until its appends, to one or several partitions, are committed."""

    __slots__ = ("codes", "pending", "queues", "reply", "timer")

    def __init__(self, count: int, reply: Any = None) -> None:
        self.codes: list[ErrorCode | None] = [None] * count
        """The error code for each partition; None while it is pending."""
        self.pending = count
        self.queues: list[CommitQueue | None] = [None] * count
        self.reply = reply
        self.timer: Any = None

    def wait_in(self, queue: "CommitQueue", next_offset: int, slot: int) -> None:
        """Waits until `next_offset` is committed in the partition of `slot`, whose queue is `queue`."""
        self.queues[slot] = queue
        queue.add(next_offset, self, slot)

    @property
    def is_over(self) -> bool:
        return self.pending == 0

    def settle(self, slot: int, code: ErrorCode) -> bool:
        """Records the error code of one partition. True if it was the last one pending."""
        if self.codes[slot] is not None:
            return False
        self.codes[slot] = code
        self.pending -= 1
        return self.pending == 0

    def time_out(self) -> None:
        """Ends the wait: pending partitions get REQUEST_TIMED_OUT."""
        late = [slot for slot, code in enumerate(self.codes) if code is None]
        self.pending = 0
        for slot in late:
            self.codes[slot] = ErrorCode.REQUEST_TIMED_OUT
            queue = self.queues[slot]
            if queue is not None:
                queue.abandon()


class CommitQueue:
    """The waits for one partition's high watermark, lowest offset first."""

    __slots__ = ("_abandoned", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, CommitWait, int]] = []
        self._sequence = 0
        self._abandoned = 0

    def __len__(self) -> int:
        return len(self._heap) - self._abandoned

    def add(self, next_offset: int, wait: CommitWait, slot: int) -> None:
        """Settles `slot` of `wait` when the high watermark reaches `next_offset`."""
        self._sequence += 1
        heapq.heappush(self._heap, (next_offset, self._sequence, wait, slot))

    def reached(self, high_watermark: int, code: ErrorCode = ErrorCode.NONE) -> list[CommitWait]:
        """The waits that are complete now that the high watermark is at `high_watermark`."""
        ended = []
        heap = self._heap
        while heap and heap[0][0] <= high_watermark:
            _, _, wait, slot = heapq.heappop(heap)
            if wait.is_over:
                self._abandoned -= 1
            elif wait.settle(slot, code):
                ended.append(wait)
        return ended

    def fail(self, code: ErrorCode) -> list[CommitWait]:
        """Settles every entry with `code` and returns the waits that are complete."""
        heap, self._heap, self._abandoned = self._heap, [], 0
        return [wait for _, _, wait, slot in sorted(heap) if not wait.is_over and wait.settle(slot, code)]

    def abandon(self) -> None:
        """One wait in this queue timed out. Its entry is removed at its turn, or when half of the queue is stale."""
        self._abandoned += 1
        if self._abandoned * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].is_over]
            heapq.heapify(self._heap)
            self._abandoned = 0


class Limit(enum.IntEnum):
    """The offset up to which a reader may read: consumers by isolation level, followers to the log end."""

    HIGH_WATERMARK = 0
    LAST_STABLE_OFFSET = 1
    LOG_END = 2


class FetchWait:
    """One fetch that waits for enough bytes, summed over its partitions."""

    __slots__ = ("missing_bytes", "places", "reply", "timer")

    def __init__(self, missing_bytes: int, reply: Any = None) -> None:
        self.missing_bytes = missing_bytes
        self.reply = reply
        self.timer: Any = None
        self.places: list[dict[FetchWait, None]] = []

    def leave(self) -> None:
        """Removes this wait from every partition."""
        for place in self.places:
            place.pop(self, None)
        self.places.clear()


class Watch:
    """The changed partitions of a follower's fetch session."""

    __slots__ = ("__weakref__", "changed", "wait")

    def __init__(self) -> None:
        self.changed: dict[Any, None] = {}
        """The partitions to include in the next response, as the session's own objects for them."""
        self.wait: FetchWait | None = None
        """The session's fetch that waits for bytes of any of them."""


class PartitionWaits:
    """All waits on one partition."""

    __slots__ = ("_committed", "_decided", "_fetches", "_written", "commits", "deletions", "watches")

    def __init__(self) -> None:
        self.commits = CommitQueue()
        self.deletions = CommitQueue()
        """Waits for the low watermark: DeleteRecords is answered when every live replica has deleted."""
        self._committed: dict[FetchWait, None] = {}
        self._decided: dict[FetchWait, None] = {}
        self._written: dict[FetchWait, None] = {}
        self._fetches = (self._committed, self._decided, self._written)
        self.watches: dict[Watch, Any] = {}
        """The sessions of followers that watch this partition, each with its own object for it."""

    def note(self, size_bytes: int) -> list[FetchWait]:
        """Something changed, and `size_bytes` were written. Returns the followers' fetches that now have enough."""
        satisfied = []
        for watch, partition in self.watches.items():
            watch.changed[partition] = None
            wait = watch.wait
            if wait is not None and size_bytes:
                wait.missing_bytes -= size_bytes
                if wait.missing_bytes <= 0:
                    watch.wait = None
                    satisfied.append(wait)
        return satisfied

    def __bool__(self) -> bool:
        """Whether there are any waits."""
        return bool(self._committed or self._decided or self._written or self.commits)

    def add_fetch(self, wait: FetchWait, limit: Limit) -> None:
        place = self._fetches[limit]
        if wait not in place:
            place[wait] = None
            wait.places.append(place)

    def has_fetches(self, limit: Limit) -> bool:
        return bool(self._fetches[limit])

    def grow(self, limit: Limit, size_bytes: int) -> list[FetchWait]:
        """`size_bytes` more can be read below `limit`. Removes and returns the fetches that now have enough."""
        satisfied = []
        for wait in self._fetches[limit]:
            wait.missing_bytes -= size_bytes
            if wait.missing_bytes <= 0:
                satisfied.append(wait)
        for wait in satisfied:
            wait.leave()
        return satisfied

    def end_fetches(self) -> list[FetchWait]:
        """Removes and returns all fetches: they must check the partition again (new leader, deleted topic)."""
        ended = list(dict.fromkeys(wait for place in self._fetches for wait in place))
        for wait in ended:
            wait.leave()
        return ended + self.note(INT32_MAX)
