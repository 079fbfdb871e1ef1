"""InitProducerId: which id and epoch a producer gets, and what happens to an open transaction. Pure."""

from typing import NamedTuple

from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.transaction import (
    LAST_CLIENT_EPOCH,
    ProducerIdAndEpoch,
    Transaction,
    TransactionState,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.wire_values import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMEOUT_MS

S = TransactionState


class ProducerInit(NamedTuple):
    """What a producer requests."""

    transactional_id: str
    timeout_ms: int
    expected: tuple[int, int] | None = None
    """The producer id and epoch that it already has (KIP-360)."""
    two_phase: bool = False
    keep_prepared: bool = False


class Start(NamedTuple):
    """The new state of the transactional id, the reply to the producer, and the epoch that a retry would name."""

    transaction: Transaction
    answer: ProducerIdAndEpoch
    last_epoch: int = NO_PRODUCER_EPOCH


def check(init: ProducerInit, config: TransactionConfig) -> ProducerInit:
    """Raises KafkaError for what is never allowed; returns the request with the timeout to store."""
    if init.two_phase and not config.transaction_two_phase_commit_enable:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "two-phase commit is disabled; set transaction.two.phase.commit.enable=true on the brokers",
        )
    if init.keep_prepared and not init.two_phase:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "keepPreparedTxn requires enable2Pc")
    if init.two_phase:
        return init._replace(timeout_ms=NO_TIMEOUT_MS)
    if not 0 < init.timeout_ms <= config.transaction_max_timeout_ms:
        raise KafkaError(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"transaction.timeout.ms={init.timeout_ms} must be between 1 and the broker's transaction.max.timeout.ms "
            f"({config.transaction_max_timeout_ms})",
        )
    return init


def first(init: ProducerInit, producer_id: int, now: int) -> Start:
    """A transactional id that is new, or has expired."""
    fresh = Transaction(init.transactional_id, producer_id, 0, init.timeout_ms, S.EMPTY, frozenset(), -1, now)
    return Start(fresh, ProducerIdAndEpoch(producer_id, 0))


def may_continue(known: Transaction, expected: tuple[int, int]) -> bool:
    """Whether a producer that names its id and epoch owned this transactional id (KIP-360)."""
    producer_id, producer_epoch = expected
    if known.state is S.ONGOING:
        # Only the current owner: a stale producer that tries to bump its epoch must not abort its successor.
        return producer_id == known.producer_id and producer_epoch in (known.producer_epoch, known.next_producer_epoch)
    if producer_id == known.producer_id:
        return True
    return producer_id == known.previous_producer_id and producer_epoch >= LAST_CLIENT_EPOCH


def next_epoch(known: Transaction, init: ProducerInit, last_epoch: int, spare_producer_id: int, now: int) -> Start:
    """No transaction is open: the producer gets the next epoch, or a new id if the epochs are used up.

    `last_epoch` is the epoch before the last bump: a producer that names it retries a request whose answer was lost.
    """
    epoch, expected = known.producer_epoch, init.expected
    reset = {
        "state": S.EMPTY,
        "partitions": frozenset(),
        "start_timestamp": -1,
        "timeout_ms": init.timeout_ms,
        "next_producer_id": NO_PRODUCER_ID,
        "next_producer_epoch": NO_PRODUCER_EPOCH,
        "client_version": 0,
    }
    if epoch >= LAST_CLIENT_EPOCH and (expected is None or expected[1] == epoch):
        changed = known.change(
            now, producer_id=spare_producer_id, producer_epoch=0, previous_producer_id=known.producer_id, **reset
        )
        last_epoch = epoch
    elif expected is None:
        changed = known.change(now, producer_epoch=epoch + 1, previous_producer_id=NO_PRODUCER_ID, **reset)
        last_epoch = NO_PRODUCER_EPOCH
    elif expected == (known.producer_id, epoch):
        changed = known.change(now, producer_epoch=epoch + 1, previous_producer_id=NO_PRODUCER_ID, **reset)
        last_epoch = epoch
    elif expected[1] == last_epoch:
        # A retry, because the response to its first request was lost: it gets the same one.
        changed = known.change(now, **reset)
    else:
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{known.transactional_id} is at epoch {epoch}")
    return Start(changed, ProducerIdAndEpoch(changed.producer_id, changed.producer_epoch), last_epoch)


def take_over_prepared(known: Transaction, init: ProducerInit, now: int) -> Start:
    """A new instance keeps the prepared transaction, which stays under the old epoch, and continues under the next one.
    The old instance is fenced; the transaction is not touched (KIP-939)."""
    epoch = max(known.producer_epoch, known.next_producer_epoch) + 1
    if epoch > LAST_CLIENT_EPOCH:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE,
            f"{known.transactional_id}: commit or abort the prepared transaction first, its epochs are used up",
        )
    changed = known.change(
        now, next_producer_id=known.producer_id, next_producer_epoch=epoch, timeout_ms=init.timeout_ms
    )
    return Start(
        changed,
        ProducerIdAndEpoch(known.producer_id, epoch, known.producer_id, known.producer_epoch),
        NO_PRODUCER_EPOCH,
    )
