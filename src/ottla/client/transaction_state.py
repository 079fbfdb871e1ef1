"""Where a transactional producer is, and the calls of its user that are under way. Pure."""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.client.transaction_requests import GroupMetadata
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
    offsets: Mapping[TopicPartition, Any]


HINTS = {
    State.NEW: "Call init_transactions() first.",
    State.READY: "Call begin_transaction() first.",
    State.PREPARED: "Commit or abort the prepared transaction first.",
    State.OPEN: "Commit or abort the transaction first.",
}
"""What a call in the wrong order is told."""
