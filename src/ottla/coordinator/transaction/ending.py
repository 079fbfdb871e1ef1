"""How a transaction ends: EndTxn by its producer, an abort by the coordinator, completion after the markers. Pure."""

from typing import Any, NamedTuple

from ottla.coordinator.transaction.transaction import (
    LAST_CLIENT_EPOCH,
    PREPARED,
    ProducerIdAndEpoch,
    Transaction,
    TransactionState,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.wire_values import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, PRODUCER_EPOCH_MAX, TRANSACTION_V2

S = TransactionState
COMPLETE = {S.COMPLETE_COMMIT, S.COMPLETE_ABORT}


class Ended(NamedTuple):
    """The decided transaction (None if it was decided before), and the reply to the producer."""

    prepared: Transaction | None
    answer: ProducerIdAndEpoch
    last_epoch: int = NO_PRODUCER_EPOCH


def check_owner(known: Transaction | None, transactional_id: str, producer_id: int, producer_epoch: int) -> Transaction:
    """The transaction, if it belongs to this producer. Raises PRODUCER_FENCED or INVALID_PRODUCER_ID_MAPPING."""
    if known is None or known.producer_id != producer_id:
        raise _wrong_producer(transactional_id, producer_id)
    if known.next_producer_epoch != NO_PRODUCER_EPOCH:
        # A new instance has taken over and has yet to decide the transaction that it found prepared (KIP-939).
        if producer_epoch == known.next_producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"{transactional_id}: commit or abort the prepared transaction first"
            )
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f"a newer producer has taken over {transactional_id}")
    if known.producer_epoch != producer_epoch:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED, f"{transactional_id} is at epoch {known.producer_epoch}, not {producer_epoch}"
        )
    return known


def _wrong_producer(transactional_id: str, producer_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{producer_id} is not the current producer id of {transactional_id}"
    )


def end(known: Transaction, producer_id: int, producer_epoch: int, commit: bool, now: int) -> Ended:
    """EndTxn up to v4: a producer keeps its epoch from one transaction to the next."""
    if _decides_kept(known, producer_id, producer_epoch):
        # The markers carry the epoch of the new instance, which fences the old one in every partition.
        moved_on = {
            "producer_epoch": producer_epoch,
            "next_producer_id": NO_PRODUCER_ID,
            "next_producer_epoch": NO_PRODUCER_EPOCH,
        }
    else:
        check_owner(known, known.transactional_id, producer_id, producer_epoch)
        moved_on = {}
    answer = ProducerIdAndEpoch(producer_id, producer_epoch)
    if known.state is S.ONGOING:
        # Whatever version its batches were written with, this end bumps no epoch, and its markers must not claim one.
        prepared = known.change(now, state=_prepare(commit), client_version=0, **moved_on)
        return Ended(prepared, answer)
    if known.state is not (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT):
        _refuse(known, commit)
    return Ended(None, answer)


def end_with_bump(
    known: Transaction, producer_id: int, producer_epoch: int, commit: bool, spare_producer_id: int, now: int
) -> Ended:
    """EndTxn v5: each transaction gets a new epoch, so a delayed request cannot affect the next one (KIP-890)."""
    epoch = known.producer_epoch
    overflow_retry = producer_id == known.previous_producer_id and producer_epoch == LAST_CLIENT_EPOCH and epoch == 0
    if producer_id != known.producer_id and not overflow_retry:
        raise _wrong_producer(known.transactional_id, producer_id)
    is_retry = overflow_retry or producer_epoch == epoch - 1
    if known.state in PREPARED:
        if is_retry:
            _refuse(known, commit)
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{known.transactional_id} is at epoch {epoch}")
    if known.state in COMPLETE and is_retry:
        if (known.state is S.COMPLETE_COMMIT) != commit:
            _refuse(known, commit)
        if epoch == PRODUCER_EPOCH_MAX:
            # The coordinator's abort used the last epoch, which no producer may have: the producer must reinitialize.
            raise KafkaError(
                ErrorCode.PRODUCER_FENCED, f"{known.transactional_id}: producer id {producer_id} has no epoch left"
            )
        return Ended(None, ProducerIdAndEpoch(known.producer_id, epoch))
    if overflow_retry:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED, f"{known.transactional_id} has a new producer id instead of {producer_id}"
        )
    if not _decides_kept(known, producer_id, producer_epoch):
        check_owner(known, known.transactional_id, producer_id, producer_epoch)
    if known.state is not S.ONGOING and commit:
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, f"{known.transactional_id}: no transaction is open, it is {known.state}"
        )
    return _prepare_with_bump(known, commit, spare_producer_id, now)


def _prepare(commit: bool) -> TransactionState:
    return S.PREPARE_COMMIT if commit else S.PREPARE_ABORT


def _prepare_with_bump(known: Transaction, commit: bool, spare_producer_id: int, now: int) -> Ended:
    epoch = max(known.producer_epoch, known.next_producer_epoch)
    changes: dict[str, Any] = {
        "state": _prepare(commit),
        "client_version": TRANSACTION_V2,
        "next_producer_epoch": NO_PRODUCER_EPOCH,
    }
    if known.state is not S.ONGOING:
        changes |= {"partitions": frozenset(), "start_timestamp": now}
    if epoch >= LAST_CLIENT_EPOCH:
        # The markers use the last epoch; on completion the producer gets a new id.
        prepared = known.change(now, producer_epoch=PRODUCER_EPOCH_MAX, next_producer_id=spare_producer_id, **changes)
        return Ended(prepared, ProducerIdAndEpoch(spare_producer_id, 0), epoch)
    prepared = known.change(
        now,
        producer_epoch=epoch + 1,
        previous_producer_id=known.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        **changes,
    )
    return Ended(prepared, ProducerIdAndEpoch(known.producer_id, epoch + 1), epoch)


def _decides_kept(known: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether this is the instance that took over a prepared transaction and now decides it under its own epoch."""
    return (
        known.state is S.ONGOING
        and known.next_producer_epoch != NO_PRODUCER_EPOCH
        and (producer_id, producer_epoch) == (known.next_producer_id, known.next_producer_epoch)
    )


def _refuse(known: Transaction, commit: bool) -> None:
    if known.state is _prepare(commit):
        raise KafkaError(
            ErrorCode.CONCURRENT_TRANSACTIONS, f"{known.transactional_id}: the transaction is being completed; retry"
        )
    wanted = "commit" if commit else "abort"
    raise KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"{known.transactional_id}: cannot {wanted}, the transaction is {known.state}"
    )


def fence_and_abort(known: Transaction, now: int) -> Transaction:
    """Aborts the transaction of another producer and fences it: the epoch is bumped before the markers are written."""
    epoch = max(known.producer_epoch, known.next_producer_epoch)
    return known.change(
        now,
        state=S.PREPARE_ABORT,
        producer_epoch=min(epoch + 1, PRODUCER_EPOCH_MAX),
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
    )


def complete(known: Transaction, now: int) -> Transaction:
    """Every marker is written."""
    moved_on: dict[str, Any] = {}
    if known.next_producer_id != NO_PRODUCER_ID:
        # Its epochs are used up.
        moved_on = {
            "producer_id": known.next_producer_id,
            "producer_epoch": 0,
            "previous_producer_id": known.producer_id,
        }
    state = S.COMPLETE_COMMIT if known.state is S.PREPARE_COMMIT else S.COMPLETE_ABORT
    return known.change(
        now,
        state=state,
        partitions=frozenset(),
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        **moved_on,
    )
