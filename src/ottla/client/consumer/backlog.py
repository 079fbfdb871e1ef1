"""Records of a poll() that an iteration has not given out yet. Pure."""

from collections import deque
from collections.abc import Container, Iterable, Iterator

from ottla.client.core.model import ConsumerRecord
from ottla.types import TopicPartition


class Backlog:
    """What was taken to be iterated over. An iteration that is broken off leaves some of it to whoever reads next.

    The records of paused partitions stand apart until they are resumed: so `ready` may be given out as it is.
    """

    def __init__(self) -> None:
        self.ready: deque[ConsumerRecord] = deque()
        self._held: list[ConsumerRecord] = []
        self._taken: list[ConsumerRecord] = []
        """What `take` gave last, until it is known to have reached the user."""

    def __bool__(self) -> bool:
        """Whether there is anything to give out."""
        return bool(self.ready)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """All that is left, in the order of each partition."""
        # A copy: whoever iterates in another thread takes records off meanwhile.
        return iter(self._held + list(self.ready))

    def extend(self, records: Iterable[ConsumerRecord]) -> None:
        self.ready.extend(records)

    def take(self, max_records: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to so many records, as poll() gives them."""
        self._taken = [self.ready.popleft() for _ in range(min(max_records, len(self.ready)))]
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        for record in self._taken:
            taken.setdefault(TopicPartition(*record[:2]), []).append(record)
        return taken

    def take_back(self) -> None:
        """Undoes the last taking, unless it has reached the user."""
        self.ready.extendleft(reversed(self._taken))
        self.given_out()

    def given_out(self) -> None:
        self._taken = []

    def hold(self, partitions: Container[TopicPartition]) -> None:
        """Gives out nothing of these until they are released."""
        self._held += [record for record in self.ready if record[:2] in partitions]
        self._keep([record for record in self.ready if record[:2] not in partitions])

    def release(self, partitions: Container[TopicPartition]) -> None:
        """Gives these out again, before all that came since."""
        self.ready.extendleft(reversed([record for record in self._held if record[:2] in partitions]))
        self._held = [record for record in self._held if record[:2] not in partitions]

    def drop(self, partitions: Container[TopicPartition]) -> None:
        """Lets go of what is left of these: they are read from elsewhere, or by somebody else."""
        if self.ready:
            self._keep([record for record in self.ready if record[:2] not in partitions])
        if self._held:
            self._held = [record for record in self._held if record[:2] not in partitions]

    def clear(self) -> None:
        self.ready.clear()
        self._held.clear()

    def _keep(self, records: list[ConsumerRecord]) -> None:
        # The same deque: whoever iterates over it goes on with what stays.
        self.ready.clear()
        self.ready.extend(records)
