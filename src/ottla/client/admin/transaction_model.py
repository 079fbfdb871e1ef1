"""Values about transactions: what the admin returns, and what `__transaction_state` stores. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.protocol.framing import decode_versioned
from ottla.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from ottla.protocol.wire_values import NO_TIMEOUT_MS
from ottla.types import TopicPartition

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
_STORED_STATES = (*STATES, "PrepareEpochFence")


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id of a list."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id as its coordinator knows it. `start_ms` is -1 before its first transaction."""

    transactional_id: str
    coordinator_id: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction. Pass it to the admin in any process to commit or abort the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_empty: bool = False
    """Nothing was sent in it, so the coordinator does not know it."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    """One producer as a partition's leader knows it. `transaction_start_offset` is -1 without an open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The new producer id and epoch of a transactional id. Producers with an older epoch are fenced."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """An open transaction in a partition that no coordinator will ever end. It blocks read_committed consumers."""

    partition: TopicPartition
    producer: ProducerState
    transactional_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has written to a partition and has not ended."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    """None if no coordinator knows the producer: the transaction hangs."""
    first_offset: int
    last_timestamp: int
    """When the producer last wrote to the partition."""


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A value of `__transaction_state`."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]
    start_ms: int
    update_ms: int
    previous_producer_id: int
    next_producer_id: int
    next_producer_epoch: int
    client_version: int


def read_key(key: bytes) -> str | None:
    """The transactional id, or None for an unknown kind of record. Raises ProtocolError if the key is corrupt."""
    return TransactionLogKey.decode(key, 0, 2).transactional_id if key[:2] == b"\0\0" else None


def read_value(transactional_id: str, value: bytes) -> StoredTransaction:
    stored = decode_versioned(TransactionLogValue, value)
    status = stored.transaction_status
    return StoredTransaction(
        transactional_id,
        _STORED_STATES[status] if 0 <= status < len(_STORED_STATES) else f"state {status}",
        stored.producer_id,
        stored.producer_epoch,
        stored.transaction_timeout_ms,
        tuple(
            sorted(
                TopicPartition(part.topic, index)
                for part in stored.transaction_partitions or ()
                for index in part.partition_ids
            )
        ),
        stored.transaction_start_timestamp_ms,
        stored.transaction_last_update_timestamp_ms,
        stored.previous_producer_id,
        stored.next_producer_id,
        stored.next_producer_epoch,
        stored.client_transaction_version,
    )


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One step in the history of a transactional id."""

    at_ms: int
    what: str
    state: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    """The partitions that were added, or all partitions of a commit or abort."""
    gap_ms: int | None
    """The time since the step before; None for the first."""


def history_of(steps: Iterable[tuple[int, StoredTransaction | None]]) -> list[HistoryStep]:
    """The history of one transactional id, from its records with their timestamps, oldest first."""
    history: list[HistoryStep] = []
    before: StoredTransaction | None = None
    for timestamp, now in steps:
        at = timestamp if now is None else now.update_ms
        gap = at - history[-1].at_ms if history else None
        if now is None:
            last = (-1, -1) if before is None else (before.producer_id, before.producer_epoch)
            history.append(HistoryStep(at, "expired: not used any more", "gone", *last, (), gap))
        else:
            what, partitions = _step(before, now)
            history.append(HistoryStep(at, what, now.state, now.producer_id, now.producer_epoch, partitions, gap))
        before = now
    return history


def _step(before: StoredTransaction | None, now: StoredTransaction) -> tuple[str, tuple[TopicPartition, ...]]:
    """What a record means after the one before it, and the partitions it is about."""
    if now.state == "Empty":
        return ("first seen" if before is None else "a producer started", ())
    if now.state == "Ongoing":
        if before is None or before.state != "Ongoing":
            return "begun", now.partitions
        if now.next_producer_epoch >= 0 and now.next_producer_epoch != before.next_producer_epoch:
            return f"taken over by epoch {now.next_producer_epoch}, kept as prepared", ()
        return "partitions added", tuple(p for p in now.partitions if p not in before.partitions)
    if now.state == "PrepareCommit":
        return "commit decided", now.partitions
    if now.state == "PrepareAbort":
        by_coordinator = (
            before is not None
            and now.producer_epoch > before.producer_epoch
            and now.client_version == before.client_version == 0
        )
        timed_out = (
            before is not None
            and before.state == "Ongoing"
            and before.timeout_ms != NO_TIMEOUT_MS
            and now.update_ms > before.start_ms + before.timeout_ms
        )
        why = " after its timeout" if timed_out else ", its producer fenced" if by_coordinator else ""
        return f"abort decided{why}", now.partitions
    if now.state in ("CompleteCommit", "CompleteAbort"):
        renewed = before is not None and before.producer_id != now.producer_id
        return "completed" + (f", continues as producer {now.producer_id}" if renewed else ""), ()
    return now.state, now.partitions
