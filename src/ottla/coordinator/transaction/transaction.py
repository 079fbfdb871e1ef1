"""One transactional id: its state table, and its stored form. Pure.

    Empty ──> Ongoing ──> PrepareCommit ──> CompleteCommit ──┐
      ^          │  └───> PrepareAbort  ──> CompleteAbort  ──┤
      └──────────┴─────────────────────────────────────<─────┘

The Prepare record decides a transaction: from then on any coordinator completes it, and it cannot be undone. The
markers follow, and the Complete record after the last marker.
"""

import enum
from typing import NamedTuple

from ottla.checks import moved
from ottla.protocol.framing import decode_versioned, encode_record_key, encode_versioned
from ottla.protocol.messages.transaction_records import TransactionLogKey, TransactionLogValue
from ottla.protocol.wire_values import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMEOUT_MS, PRODUCER_EPOCH_MAX
from ottla.types import TopicPartition, partitions_by_topic

LAST_CLIENT_EPOCH = PRODUCER_EPOCH_MAX - 1
"""The highest epoch a producer gets; the one above is reserved for fencing it."""
VALUE_VERSION = 1


class TransactionState(enum.IntEnum):
    """The number is the byte in the log; `str()` is the name DescribeTransactions shows."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    def __str__(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


class ProducerIdAndEpoch(NamedTuple):
    """What InitProducerId and EndTxn return."""

    producer_id: int
    producer_epoch: int
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_PRODUCER_EPOCH


S = TransactionState
TRANSITIONS: dict[TransactionState, set[TransactionState]] = {
    S.EMPTY: {S.EMPTY, S.ONGOING, S.DEAD, S.PREPARE_ABORT},  # PREPARE_ABORT: with epochs per transaction (KIP-890)
    S.ONGOING: {S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.PREPARE_EPOCH_FENCE},
    S.PREPARE_EPOCH_FENCE: {S.PREPARE_ABORT},
    S.PREPARE_COMMIT: {S.COMPLETE_COMMIT},  # no way back: markers may be out already
    S.PREPARE_ABORT: {S.COMPLETE_ABORT},
    S.COMPLETE_COMMIT: {S.ONGOING, S.EMPTY, S.DEAD, S.PREPARE_ABORT},
    S.COMPLETE_ABORT: {S.ONGOING, S.EMPTY, S.DEAD, S.PREPARE_ABORT},
    S.DEAD: set(),
}
PREPARED = {S.PREPARE_COMMIT, S.PREPARE_ABORT}
IDLE = {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}


class Transaction(NamedTuple):
    """What is stored for one transactional id. `change` creates a new one and checks it against the table."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    start_timestamp: int
    last_update_timestamp: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0
    """The transaction.version its client spoke: 2 and above get a new epoch with each transaction."""

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def can_time_out(self) -> bool:
        return self.state is S.ONGOING and not self.is_two_phase

    def time_left_ms(self, now: int) -> int:
        """How much of the timeout is left, by the stored start. If the clock was set in the meantime the start may be
        in the future or long ago: the result is never negative, nor more than the timeout."""
        return min(max(0, self.start_timestamp + self.timeout_ms - now), self.timeout_ms)

    def change(self, now: int, **fields: object) -> "Transaction":
        """The transaction after a step; asserts that the table allows it."""
        changed = self._replace(last_update_timestamp=now, **fields)  # type: ignore[arg-type]
        moved(TRANSITIONS, self.transactional_id, self.state, changed.state)
        return changed


def transaction_key(transactional_id: str) -> bytes:
    """
    >>> transaction_key("txn").hex()
    '0000000374786e'
    """
    return encode_record_key(TransactionLogKey(transactional_id=transactional_id))


def read_transaction_key(key: bytes) -> str | None:
    """The transactional id, or None for a kind of record this coordinator does not know."""
    if key[:2] != b"\0\0":
        return None
    return TransactionLogKey.decode(key, 0, 2).transactional_id


def transaction_value(transaction: Transaction, version: int = VALUE_VERSION) -> bytes:
    topics = partitions_by_topic(sorted(transaction.partitions))
    stored = [TransactionLogValue.PartitionsSchema(topic=t, partition_ids=p) for t, p in topics.items()]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is S.EMPTY else stored,
        transaction_last_update_timestamp_ms=transaction.last_update_timestamp,
        transaction_start_timestamp_ms=transaction.start_timestamp,
    )
    if version >= 1:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.next_producer_epoch = transaction.next_producer_epoch
        value.client_transaction_version = transaction.client_version
    return encode_versioned(value, version)


def read_transaction_value(transactional_id: str, data: bytes) -> Transaction:
    value = decode_versioned(TransactionLogValue, data)
    partitions = frozenset(
        TopicPartition(part.topic, partition)
        for part in value.transaction_partitions or ()
        for partition in part.partition_ids
    )
    return Transaction(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        TransactionState(value.transaction_status),
        partitions,
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
        value.client_transaction_version,
    )
