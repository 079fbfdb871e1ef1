"""One shard on this broker and its life cycle: which states it can be in, and how it moves between them. Pure.

The states are those of Kafka's CoordinatorRuntime. A shard never returns to an earlier state: to reload a
partition, the runtime closes the shard and hosts a new one.
"""

import enum
import logging
from typing import Generic, TypeVar

from ottla.checks import moved
from ottla.coordinator.effects import Shard

log = logging.getLogger("ottla.coordinator")

S = TypeVar("S", bound=Shard)


class ShardState(enum.Enum):
    INITIAL = "initial"
    """Created; nothing has been read yet."""
    LOADING = "loading"
    """The log is being replayed. Requests are answered with COORDINATOR_LOAD_IN_PROGRESS."""
    ACTIVE = "active"
    """Serves requests and timers."""
    FAILED = "failed"
    """The log could not be replayed. Requests are answered with NOT_COORDINATOR until another epoch begins."""
    CLOSED = "closed"
    """Unloaded: another broker leads the partition, it is reloaded as a new shard, or the broker stops."""


TRANSITIONS: dict[ShardState, frozenset[ShardState]] = {
    ShardState.INITIAL: frozenset({ShardState.LOADING, ShardState.CLOSED}),
    ShardState.LOADING: frozenset({ShardState.ACTIVE, ShardState.FAILED, ShardState.CLOSED}),
    # The first step after a load may fail; loading again at once would fail again, forever.
    ShardState.ACTIVE: frozenset({ShardState.FAILED, ShardState.CLOSED}),
    ShardState.FAILED: frozenset({ShardState.CLOSED}),
    ShardState.CLOSED: frozenset(),
}
"""The states that may follow each state."""


class HostedShard(Generic[S]):
    """A shard that this broker hosts, with what the runtime knows about it."""

    __slots__ = ("end_offset", "epoch", "failure", "name", "partition", "shard", "state", "topic_id")

    def __init__(self, topic: str, partition: int, epoch: int, topic_id: bytes, shard: S) -> None:
        self.name = f"{topic}-{partition}"
        self.partition = partition
        self.epoch = epoch
        """The leader epoch of the partition, which is also the coordinator's epoch."""
        self.topic_id = topic_id
        self.shard = shard
        self.state = ShardState.INITIAL
        """Read it anywhere; change it with `move`."""
        self.failure = ""
        """Why it failed."""
        self.end_offset = 0
        """Everything the shard has replayed lies below this offset; a reply waits until all of it is committed."""

    def move(self, state: ShardState) -> None:
        """Changes the state. Raises AssertionError for a transition that is not in the table."""
        before, self.state = self.state, moved(TRANSITIONS, self.name, self.state, state)
        log.debug("%s (epoch %d): %s -> %s", self.name, self.epoch, before.name, state.name)

    def fail(self, why: str) -> None:
        self.move(ShardState.FAILED)
        self.failure = why

    def may_continue(self, epoch: int, topic_id: bytes) -> bool:
        """Whether this shard can stay in use when the partition has this epoch and topic id.

        If the epoch grew by two or more, another broker may have led the partition in between. Another topic id means
        another log. A failed shard is retried in the next epoch.
        """
        if topic_id != self.topic_id or epoch > self.epoch + 1:
            return False
        return self.state is not ShardState.FAILED or epoch == self.epoch
