"""What a coordinator's rule decides: records to append, replies to send once they are committed. Pure."""

import heapq
from typing import Any, NamedTuple, Protocol

from ottla.metadata.image import ClusterImage


class Append(NamedTuple):
    """One record for the shard's partition. Without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    """The answer to one waiting request: a response message, or a KafkaError to raise where it waits."""

    request_id: int
    response: Any


class RequestInfo(NamedTuple):
    """What is known of a request beside its body."""

    api_version: int
    client_id: str
    client_host: str


class Effects:
    """The outcome of one step. The runtime appends the records, replays them, and sends the replies once all that
    was appended so far is committed; `events` go to the owners at the same moment."""

    __slots__ = ("events", "is_soft", "producer", "records", "replies")

    def __init__(
        self,
        records: list[Append] | None = None,
        replies: list[Reply] | None = None,
        *,
        producer: tuple[int, int] | None = None,
    ) -> None:
        self.records = records if records is not None else []
        self.replies = replies if replies is not None else []
        self.events: list[Any] = []
        self.producer = producer
        """(producer id, epoch): the records are one transactional batch of this producer."""
        self.is_soft = False
        """The step changed memory that its records stand for: if they cannot be appended, the shard is loaded anew."""

    def append(self, key: bytes, value: bytes | None) -> None:
        self.records.append(Append(key, value))

    def reply(self, request_id: int, response: Any) -> None:
        self.replies.append(Reply(request_id, response))

    def __repr__(self) -> str:
        return f"Effects(records={self.records!r}, replies={self.replies!r}, events={self.events!r})"


class Shard(Protocol):
    """One partition of a coordinator's topic as a state machine. Hard state changes in `replay` alone; soft state
    (deadlines, waiting requests) may change at once, since it is rebuilt after a load."""

    def replay(
        self,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        """Applies one record. With a producer id it belongs to that producer's open transaction."""

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """The producer's transaction on this partition ended."""

    def on_loaded(self, now: int) -> Effects:
        """All records are replayed: timers start, unfinished work goes on."""

    def on_unloaded(self) -> Effects:
        """This broker no longer coordinates: everyone who waits is told to look elsewhere."""

    def on_image(self, image: ClusterImage, now: int) -> Effects:
        """The cluster changed."""

    def tick(self, now: int) -> Effects:
        """Does what is due."""

    def next_deadline(self) -> int | None:
        """When `tick` is wanted next."""

    def on_clock_jump(self, jump_ms: int) -> None:
        """The clock was set, or the machine slept: what counts down towards somebody's end moves along."""


class Deadlines:
    """A heap of (time, what). Entries are checked when they fire, so that moving a deadline later costs nothing:
    whoever owns it keeps the true time, and an entry that fires early is put back."""

    __slots__ = ("_counter", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._counter = 0

    def add(self, when: int, what: Any) -> None:
        self._counter += 1
        heapq.heappush(self._heap, (when, self._counter, what))

    def next(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: int) -> list[tuple[int, Any]]:
        """Takes out what is due, as (time, what)."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            when, _, what = heapq.heappop(self._heap)
            found.append((when, what))
        return found

    def shift(self, milliseconds: int) -> None:
        """Moves every deadline."""
        self._heap = [(when + milliseconds, counter, what) for when, counter, what in self._heap]

    def __len__(self) -> int:
        return len(self._heap)
