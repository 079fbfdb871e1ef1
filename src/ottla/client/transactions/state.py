"""The states of a transactional producer, and the user's calls in progress. Pure."""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from ottla.client.core.model import CommittedOffset
from ottla.client.transactions.requests import GroupMetadata
from ottla.errors import ErrorCode, KafkaError
from ottla.types import TopicPartition


class State(enum.Enum):
    """The state of the producer, named as in Kafka. The value completes "while the producer is ..."."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    PREPARING = "preparing"
    PREPARED = "in a prepared transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that must be aborted"
    FATAL_ERROR = "unusable"


TRANSITIONS: dict[State, set[State]] = {
    State.UNINITIALIZED: {State.INITIALIZING, State.IN_TRANSACTION},  # IN_TRANSACTION: adopts a prepared one
    State.INITIALIZING: {State.READY, State.PREPARED, State.FATAL_ERROR},  # PREPARED: found one (KIP-939)
    State.READY: {State.IN_TRANSACTION},
    State.IN_TRANSACTION: {
        State.PREPARING,
        State.COMMITTING,
        State.ABORTING,
        State.ABORTABLE_ERROR,
        State.FATAL_ERROR,
    },
    State.PREPARING: {State.PREPARED, State.ABORTABLE_ERROR, State.FATAL_ERROR},
    State.PREPARED: {State.COMMITTING, State.ABORTING},
    State.COMMITTING: {State.READY, State.ABORTABLE_ERROR, State.FATAL_ERROR},
    State.ABORTING: {State.READY, State.FATAL_ERROR},  # an abort that fails leaves nothing to abort
    State.ABORTABLE_ERROR: {State.ABORTING, State.FATAL_ERROR},
    State.FATAL_ERROR: set(),
}
"""Transitions."""

WRITING = (State.IN_TRANSACTION, State.PREPARING, State.COMMITTING)
"""States in which queued records are sent. New records are accepted only in IN_TRANSACTION."""


class Operation:
    """A call of the user that takes several requests."""

    __slots__ = ("error", "is_done", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.is_done = False
        self.error: KafkaError | None = None

    def finish(self, error: KafkaError | None = None) -> None:
        self.is_done, self.error = True, error


class OpenTime:
    """How long a transaction has been open, to tell a timeout from other reasons why it was ended.

    The coordinator aborts a transaction that is open for longer than transaction.timeout.ms, and raises the epoch. What
    the producer then gets depends on its next request: INVALID_TXN_STATE, PRODUCER_FENCED or INVALID_PRODUCER_EPOCH.
    """

    ENDED = frozenset(
        {
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.TRANSACTION_ABORTABLE,
        }
    )

    def __init__(self, timeout_ms: int | None) -> None:
        """`timeout_ms` is None if transactions never time out."""
        self._timeout_ms = timeout_ms
        self._started_at: int | None = None
        self._now = 0

    def note(self, now: int, *, is_started: bool) -> None:
        self._now = now
        if not is_started:
            self._started_at = None
        elif self._started_at is None:
            self._started_at = now

    def may_explain(self, code: ErrorCode) -> bool:
        """Whether the timeout may be the reason for this error."""
        if self._timeout_ms is None or self._started_at is None or code not in self.ENDED:
            return False
        return self._now - self._started_at >= self._timeout_ms

    def explain(self, error: KafkaError) -> KafkaError:
        """The error, with the timeout if that may be its reason."""
        if not self.may_explain(error.code):
            return error
        assert self._started_at is not None
        why = (
            f"the transaction was open for {self._now - self._started_at} ms, and the coordinator aborts it after "
            f"transaction.timeout.ms ({self._timeout_ms} ms)"
        )
        return KafkaError(error.code, f"{error.detail}: {why}" if error.detail else why)


class PendingOffsets(NamedTuple):
    """Offsets of a group to commit in the transaction."""

    operation: Operation
    group: GroupMetadata
    offsets: Mapping[TopicPartition, CommittedOffset]


class Coordinators:
    """The known coordinators: of each group by its id, and of the transactional id under None."""

    def __init__(self) -> None:
        self._nodes: dict[str | None, int] = {}

    def find(self, group_id: str | None = None) -> int | None:
        return self._nodes.get(group_id)

    def found(self, group_id: str | None, node_id: int) -> None:
        self._nodes[group_id] = node_id

    def forget(self, group_id: str | None) -> None:
        self._nodes.pop(group_id, None)

    def forget_node(self, node_id: int) -> None:
        """The broker is not in our metadata: it has left the cluster or just joined, so look its roles up again."""
        self._nodes = {group_id: known for group_id, known in self._nodes.items() if known != node_id}

    def of_groups(self) -> "Coordinators":
        """A copy for another transactional id, which shares only the groups."""
        groups = Coordinators()
        groups._nodes = {group_id: node_id for group_id, node_id in self._nodes.items() if group_id is not None}
        return groups


HINTS = {
    State.UNINITIALIZED: "Call init_transactions() first.",
    State.READY: "Call begin_transaction() first.",
    State.PREPARED: "Commit or abort the prepared transaction first.",
    State.IN_TRANSACTION: "Commit or abort the transaction first.",
}
"""Hints for calls in the wrong order, by state."""
