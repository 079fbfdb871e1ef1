"""What one step of a coordinator results in: records to append, replies to send once they are committed. Pure."""

import heapq
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.errors import KafkaError
from ottla.metadata.image import ClusterImage

R = TypeVar("R")
"""The reply to the request whose step this is."""


class Append(NamedTuple):
    """One record for the shard's partition. Without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    """The reply to one waiting request. A KafkaError is raised where the request waits."""

    request_id: int
    response: Any


class RequestInfo(NamedTuple):
    """What is known about a request besides its body."""

    api_version: int
    client_id: str
    client_host: str


class Effects(Generic[R]):
    """The result of one step. The runtime appends the records and replays them. Once everything appended so far is
    committed it sends the replies and passes `events` to their owners.

    `R` is the type of the reply to the request that ran the step; `runtime.submit` returns it. A step may also answer
    other requests that were waiting: those go through helpers that take `Effects[Any]`. A step that no request waits
    for (a timer, a load) returns `Effects[None]`.
    """

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
        """The step already changed memory to match its records: if the append fails, the shard is reloaded."""

    def append(self, key: bytes, value: bytes | None) -> None:
        self.records.append(Append(key, value))

    def reply(self, request_id: int, response: R | KafkaError) -> None:
        self.replies.append(Reply(request_id, response))

    def __repr__(self) -> str:
        return f"Effects(records={self.records!r}, replies={self.replies!r}, events={self.events!r})"


class Shard(Protocol):
    """One partition of a coordinator's topic as a state machine.

    Hard state is what the log says; it changes in `replay` (the package docstring lists the exceptions). Soft state
    (deadlines, waiting requests) may change at once: it is rebuilt after a load.
    """

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

    def hard_state(self) -> dict[str, object]:
        """Everything that a fresh load of the log must restore, by name. Two shards that replayed the same log have
        equal hard states, whatever else happened to them; tests compare the live shard with a fresh load."""

    def on_loaded(self, now: int) -> Effects[None]:
        """All records are replayed: start timers, continue unfinished work."""

    def on_unloaded(self) -> Effects[None]:
        """This broker no longer coordinates the partition: answer every waiting request with NOT_COORDINATOR."""

    def on_image(self, image: ClusterImage, now: int) -> Effects[None]:
        """The cluster changed."""

    def tick(self, now: int, held_ms: int = 0) -> Effects[None]:
        """Does what is due at `now`. If the clock has jumped forward by `held_ms`, data expires by the old time."""

    def next_deadline(self) -> int | None:
        """When `tick` must be called next; None for never."""

    def on_clock_jump(self, jump_ms: int) -> None:
        """The clock was set or the machine slept: move every deadline, so that nothing expires because of it."""


class Deadlines:
    """A heap of (time, what). Moving a deadline to a later time costs nothing: the owner keeps the true time, checks it
    when an entry fires, and re-adds an entry that fired early."""

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
        """Removes the entries that are due, as (time, what)."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            when, _, what = heapq.heappop(self._heap)
            found.append((when, what))
        return found

    def shift(self, milliseconds: int) -> None:
        """Moves every deadline."""
        self._heap = [(when + milliseconds, counter, what) for when, counter, what in self._heap]

    def keep(self, is_needed: Callable[[int, Any], bool]) -> None:
        """Drops the entries that are not needed anymore."""
        self._heap = [entry for entry in self._heap if is_needed(entry[0], entry[2])]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)
