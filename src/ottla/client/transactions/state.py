"""Where a transactional producer is, and the calls of its user that are under way. Pure."""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from ottla.client.admin.group_model import CommittedOffset
from ottla.client.transactions.requests import GroupMetadata
from ottla.errors import KafkaError
from ottla.types import TopicPartition


class State(enum.Enum):
    """Where the producer is. What the user may call next follows from it."""

    NEW = "not initialized"
    INITIALIZING = "initializing"
    READY = "ready"
    OPEN = "in a transaction"
    PREPARING = "preparing"
    PREPARED = "in a prepared transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FAILED = "in a transaction that must be aborted"
    FATAL = "unusable"


WRITING = (State.OPEN, State.PREPARING, State.COMMITTING)
"""What was handed over goes out; from OPEN on nothing more is taken."""


class Operation:
    """A call of the user's that takes several requests."""

    __slots__ = ("error", "is_done", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.is_done = False
        self.error: KafkaError | None = None

    def finish(self, error: KafkaError | None = None) -> None:
        self.is_done, self.error = True, error


class PendingOffsets(NamedTuple):
    """Offsets of a group that wait to be sent in the transaction."""

    operation: Operation
    group: GroupMetadata
    offsets: Mapping[TopicPartition, CommittedOffset]


class Coordinators:
    """The brokers to ask, as far as is known: each group's by its id, the transactional id's own under None."""

    def __init__(self) -> None:
        self._nodes: dict[str | None, int] = {}

    def find(self, group_id: str | None = None) -> int | None:
        return self._nodes.get(group_id)

    def found(self, group_id: str | None, node_id: int) -> None:
        self._nodes[group_id] = node_id

    def forget(self, group_id: str | None) -> None:
        self._nodes.pop(group_id, None)

    def forget_node(self, node_id: int) -> None:
        """The broker is not in the cluster, or not yet: whatever it did, somebody else may do by now."""
        self._nodes = {group_id: known for group_id, known in self._nodes.items() if known != node_id}

    def of_groups(self) -> "Coordinators":
        """The same for another transactional id."""
        groups = Coordinators()
        groups._nodes = {group_id: node_id for group_id, node_id in self._nodes.items() if group_id is not None}
        return groups


HINTS = {
    State.NEW: "Call init_transactions() first.",
    State.READY: "Call begin_transaction() first.",
    State.PREPARED: "Commit or abort the prepared transaction first.",
    State.OPEN: "Commit or abort the transaction first.",
}
"""What a call in the wrong order is told."""
