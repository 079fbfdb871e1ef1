"""Records that a poll() of an iteration has returned and the iteration has not yielded yet. Pure."""

from collections import deque
from collections.abc import Container, Iterable, Iterator

from ottla.client.core.model import ConsumerRecord
from ottla.types import TopicPartition


class IterationBuffer:
    """Records to iterate over. When a for loop exits early, the next poll() or loop continues with the rest.

    Records of paused partitions are set aside until they are resumed, so everything in `ready` may be yielded.
    """

    def __init__(self) -> None:
        self.ready: deque[ConsumerRecord] = deque()
        self._held: list[ConsumerRecord] = []
        self._taken: list[ConsumerRecord] = []
        """What `take` returned last, until `confirm_taken`."""

    def __bool__(self) -> bool:
        """Whether there are records to yield."""
        return bool(self.ready)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """All remaining records, in order per partition."""
        # A copy: an iteration in another thread may remove records meanwhile.
        return iter(self._held + list(self.ready))

    def extend(self, records: Iterable[ConsumerRecord]) -> None:
        self.ready.extend(records)

    def take(self, max_records: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to `max_records` records, in the form that poll() returns."""
        self._taken = [self.ready.popleft() for _ in range(min(max_records, len(self.ready)))]
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        for record in self._taken:
            taken.setdefault(TopicPartition(*record[:2]), []).append(record)
        return taken

    def take_back(self) -> None:
        """Undoes the last `take`, unless it was confirmed."""
        self.ready.extendleft(reversed(self._taken))
        self.confirm_taken()

    def confirm_taken(self) -> None:
        """The records of the last `take` have reached the user."""
        self._taken = []

    def hold(self, partitions: Container[TopicPartition]) -> None:
        """Sets the records of these partitions aside until `release`."""
        self._held += [record for record in self.ready if record[:2] in partitions]
        self._keep([record for record in self.ready if record[:2] not in partitions])

    def release(self, partitions: Container[TopicPartition]) -> None:
        """Makes the records of these partitions ready again, before newer ones."""
        self.ready.extendleft(reversed([record for record in self._held if record[:2] in partitions]))
        self._held = [record for record in self._held if record[:2] not in partitions]

    def drop(self, partitions: Container[TopicPartition]) -> None:
        """Drops the records of these partitions: after a seek(), or because another member reads them now."""
        if self.ready:
            self._keep([record for record in self.ready if record[:2] not in partitions])
        if self._held:
            self._held = [record for record in self._held if record[:2] not in partitions]

    def clear(self) -> None:
        self.ready.clear()
        self._held.clear()

    def _keep(self, records: list[ConsumerRecord]) -> None:
        # Keep the same deque: an iteration may be running over it.
        self.ready.clear()
        self.ready.extend(records)
