"""One partition of `__transaction_state` as a state machine: producers, their transactions, and how they end. Pure.

Each step returns the record of the changed transaction and the reply; the runtime holds the reply, and the order to
write markers, until the record is committed: the decision is durable before anyone hears of it.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from ottla.coordinator.effects import Deadlines, Effects
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.transaction import (
    EPOCH_MAX,
    IDLE,
    LAST_CLIENT_EPOCH,
    NEVER_MS,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    Transaction,
    TransactionState,
    read_transaction_key,
    read_transaction_value,
    transaction_key,
    transaction_value,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import ClusterImage
from ottla.types import TopicPartition

S = TransactionState

_ABORT_TIMED_OUT = "abort timed out"
_REMOVE_EXPIRED = "remove expired"


class SendMarkers(NamedTuple):
    """A decided transaction: write its marker to every partition, and say when each is done."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int


class Step(NamedTuple):
    """One moment in the life of a transaction, for its timeline."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    what: str
    at: int
    partitions: list[str]


class ProducerIdAndEpoch(NamedTuple):
    """What InitProducerId and EndTxn hand out."""

    producer_id: int
    producer_epoch: int
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_EPOCH


class TransactionShard:
    """The transactional ids that hash to one partition."""

    def __init__(self, config: TransactionConfig) -> None:
        self._config = config
        self.transactions: dict[str, Transaction] = {}
        self._unwritten: dict[str, set[TopicPartition]] = {}
        """Partitions whose marker is still to be written, of each transaction that is being completed."""
        self._last_epochs: dict[str, int] = {}
        """The epoch before the last bump: it tells a repeated request from a zombie's. Not stored, as in Kafka."""
        self._deadlines = Deadlines()
        self._is_loaded = False

    # --- the log ------------------------------------------------------------------------------------------

    def replay(
        self,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        transactional_id = None if key is None else read_transaction_key(key)
        if transactional_id is None:
            return
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._last_epochs.pop(transactional_id, None)
            self._unwritten.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = read_transaction_value(transactional_id, value)

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """No transaction ever writes to the coordinator's own topic."""

    def on_loaded(self, now: int) -> Effects:
        self._is_loaded = True
        self._deadlines.add(now + self._config.abort_timed_out_interval_ms, _ABORT_TIMED_OUT)
        self._deadlines.add(now + self._config.remove_expired_interval_ms, _REMOVE_EXPIRED)
        effects = Effects()
        for transaction in self.transactions.values():
            if transaction.state in PREPARED:
                # Decided before the coordinator moved; a marker written twice does no harm.
                self._send_markers(transaction, effects)
        return effects

    def on_unloaded(self) -> Effects:
        return Effects()

    def on_image(self, image: ClusterImage, now: int) -> Effects:
        return Effects()

    def tick(self, now: int) -> Effects:
        effects = Effects()
        for _, due in self._deadlines.due(now):
            if due is _ABORT_TIMED_OUT:
                for transaction in list(self.transactions.values()):
                    if transaction.is_timed_out(now):
                        self._abort_for(transaction, "timed out", now, effects)
                self._deadlines.add(now + self._config.abort_timed_out_interval_ms, due)
            else:
                self._remove_expired(now, effects)
                self._deadlines.add(now + self._config.remove_expired_interval_ms, due)
        return effects

    def next_deadline(self) -> int | None:
        return self._deadlines.next()

    def _remove_expired(self, now: int, effects: Effects) -> None:
        oldest = now - self._config.transactional_id_expiration_ms
        for transaction in self.transactions.values():
            if transaction.state in IDLE and transaction.last_update_timestamp <= oldest:
                effects.append(transaction_key(transaction.transactional_id), None)

    def _store(self, transaction: Transaction, what: str, effects: Effects) -> None:
        version = 1 if self._config.transaction_version >= 1 else 0
        effects.append(transaction_key(transaction.transactional_id), transaction_value(transaction, version))
        effects.events.append(
            Step(
                transaction.transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                str(transaction.state),
                what,
                transaction.last_update_timestamp,
                sorted(map(str, transaction.partitions)),
            )
        )

    # --- InitProducerId -----------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        spare_producer_id: int,
        request_id: int,
        now: int,
        *,
        two_phase: bool = False,
        keep_prepared: bool = False,
        client_version: int = 0,
    ) -> Effects:
        """Replies with ProducerIdAndEpoch, or a KafkaError. `spare_producer_id` is used where a new id is needed."""
        effects = Effects()
        try:
            if two_phase and not self._config.two_phase_commit_enable:
                raise KafkaError(
                    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "two-phase commit is off: set transaction.two.phase.commit.enable=true on the brokers",
                )
            if keep_prepared and not two_phase:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "keepPreparedTxn needs enable2Pc")
            if two_phase:
                timeout_ms = NEVER_MS
            elif not 0 < timeout_ms <= self._config.max_timeout_ms:
                raise KafkaError(
                    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                    f"{timeout_ms} ms is not within 1 and transaction.max.timeout.ms ({self._config.max_timeout_ms})",
                )
            answer = self._init(
                transactional_id, timeout_ms, expected, spare_producer_id, keep_prepared, client_version, now, effects
            )
        except KafkaError as error:
            effects.reply(request_id, error)
        else:
            effects.reply(request_id, answer)
        return effects

    def _init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        spare_producer_id: int,
        keep_prepared: bool,
        client_version: int,
        now: int,
        effects: Effects,
    ) -> ProducerIdAndEpoch:
        known = self.transactions.get(transactional_id)
        if known is None:
            fresh = Transaction(
                transactional_id, spare_producer_id, 0, timeout_ms, S.EMPTY, frozenset(), -1, now,
                client_version=client_version,
            )  # fmt: skip
            self._store(fresh, "first seen", effects)
            return ProducerIdAndEpoch(spare_producer_id, 0)
        if known.state in PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is being completed")
        if expected is not None and not self._may_continue(known, *expected):
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{transactional_id} belongs to a newer producer")
        if known.state is S.ONGOING:
            if keep_prepared:
                return self._take_over_prepared(known, timeout_ms, now, effects)
            # The last instance left a transaction open: it is fenced and its transaction aborted first.
            self._abort_for(known, "abandoned: a new producer began", now, effects)
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last producer's transaction is being aborted")
        return self._next_epoch(known, timeout_ms, expected, spare_producer_id, client_version, now, effects)

    def _next_epoch(
        self,
        known: Transaction,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        spare_producer_id: int,
        client_version: int,
        now: int,
        effects: Effects,
    ) -> ProducerIdAndEpoch:
        transactional_id, epoch = known.transactional_id, known.producer_epoch
        last_epoch = self._last_epochs.get(transactional_id, NO_EPOCH)
        reset = {
            "state": S.EMPTY,
            "partitions": frozenset(),
            "start_timestamp": -1,
            "timeout_ms": timeout_ms,
            "next_producer_id": NO_PRODUCER_ID,
            "next_producer_epoch": NO_EPOCH,
            "client_version": client_version,
        }
        if epoch >= LAST_CLIENT_EPOCH and (expected is None or expected[1] == epoch):
            changed = known.change(
                now, producer_id=spare_producer_id, producer_epoch=0, previous_producer_id=known.producer_id, **reset
            )
            self._last_epochs[transactional_id] = epoch
        elif expected is None:
            changed = known.change(now, producer_epoch=epoch + 1, previous_producer_id=NO_PRODUCER_ID, **reset)
            self._last_epochs.pop(transactional_id, None)
        elif expected[1] == epoch and expected[0] == known.producer_id:
            changed = known.change(now, producer_epoch=epoch + 1, previous_producer_id=NO_PRODUCER_ID, **reset)
            self._last_epochs[transactional_id] = epoch
        elif expected[1] == last_epoch:
            # The answer to its first request got lost: it gets the same again.
            changed = known.change(now, **reset)
        else:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{transactional_id} is at epoch {epoch}")
        self._store(changed, "producer started", effects)
        return ProducerIdAndEpoch(changed.producer_id, changed.producer_epoch)

    @staticmethod
    def _may_continue(known: Transaction, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer that names the id and epoch it had is the one this id belongs to (KIP-360)."""
        if producer_id == known.producer_id:
            return True
        return producer_id == known.previous_producer_id and producer_epoch >= LAST_CLIENT_EPOCH

    def _take_over_prepared(
        self, known: Transaction, timeout_ms: int, now: int, effects: Effects
    ) -> ProducerIdAndEpoch:
        """A new instance finds its prepared transaction as it was, under the old epoch, and works on under the next:
        the old instance is fenced, the transaction is not touched (KIP-939)."""
        next_epoch = max(known.producer_epoch, known.next_producer_epoch) + 1
        if next_epoch > LAST_CLIENT_EPOCH:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, "decide the prepared transaction first: its epochs are used up"
            )
        changed = known.change(
            now, next_producer_id=known.producer_id, next_producer_epoch=next_epoch, timeout_ms=timeout_ms
        )
        self._store(changed, "prepared transaction kept", effects)
        return ProducerIdAndEpoch(known.producer_id, next_epoch, known.producer_id, known.producer_epoch)

    # --- adding partitions --------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        request_id: int,
        now: int,
        *,
        client_version: int = 0,
    ) -> Effects:
        """Replies with ErrorCode.NONE or a KafkaError: AddPartitionsToTxn, AddOffsetsToTxn, and the implicit add."""
        effects = Effects()
        try:
            known = self._owned(transactional_id, producer_id, producer_epoch)
            if known.state in PREPARED:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is being completed")
            wanted = frozenset(partitions)
            if known.state is S.ONGOING and wanted <= known.partitions:
                effects.reply(request_id, ErrorCode.NONE)
                return effects
            began = known.state is not S.ONGOING
            changed = known.change(
                now,
                state=S.ONGOING,
                partitions=wanted if began else known.partitions | wanted,
                start_timestamp=now if began else known.start_timestamp,
                client_version=max(client_version, 0 if began else known.client_version),
            )
            self._store(changed, "begun" if began else "partitions added", effects)
            effects.reply(request_id, ErrorCode.NONE)
        except KafkaError as error:
            effects.reply(request_id, error)
        return effects

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Which of the partitions the producer's open transaction has (KIP-890): no append without."""
        known = self._owned(transactional_id, producer_id, producer_epoch)
        if known.state in PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the last transaction is being completed")
        return {
            partition: ErrorCode.NONE
            if known.state is S.ONGOING and partition in known.partitions
            else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _owned(self, transactional_id: str, producer_id: int, producer_epoch: int) -> Transaction:
        known = self.transactions.get(transactional_id)
        if known is None or known.producer_id != producer_id:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"{transactional_id} has another producer id")
        if known.next_producer_epoch != NO_EPOCH:
            # A new instance holds this id and has yet to decide the transaction it found prepared.
            if producer_epoch == known.next_producer_epoch:
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, "decide the prepared transaction first")
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{transactional_id} was taken over")
        if known.producer_epoch != producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{transactional_id} is at epoch {known.producer_epoch}")
        return known

    # --- EndTxn -------------------------------------------------------------------------------------------

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        spare_producer_id: int,
        request_id: int,
        now: int,
        *,
        bumps_epoch: bool,
    ) -> Effects:
        """Replies with ProducerIdAndEpoch for the next transaction, or a KafkaError."""
        effects = Effects()
        try:
            known = self.transactions.get(transactional_id)
            if known is None:
                raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"nobody knows {transactional_id}")
            decide = self._end_with_bump if bumps_epoch else self._end
            effects.reply(
                request_id, decide(known, producer_id, producer_epoch, commit, spare_producer_id, now, effects)
            )
        except KafkaError as error:
            effects.reply(request_id, error)
        return effects

    def _end(
        self,
        known: Transaction,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        spare_producer_id: int,
        now: int,
        effects: Effects,
    ) -> ProducerIdAndEpoch:
        """With the protocol up to v4 a producer keeps its epoch from one transaction to the next."""
        kept = self._decides_kept(known, producer_id, producer_epoch)
        if not kept:
            self._owned(known.transactional_id, producer_id, producer_epoch)
        if known.state is S.ONGOING:
            prepared = known.change(now, state=S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
            self._decide(prepared, effects)
        elif known.state is not (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT):
            self._refuse_end(known, commit)
        return ProducerIdAndEpoch(known.producer_id, known.producer_epoch)

    @staticmethod
    def _decides_kept(known: Transaction, producer_id: int, producer_epoch: int) -> bool:
        """Whether this is the instance that took a prepared transaction over, deciding it under its own epoch."""
        return (
            known.state is S.ONGOING
            and known.next_producer_epoch != NO_EPOCH
            and (producer_id, producer_epoch) == (known.next_producer_id, known.next_producer_epoch)
        )

    def _end_with_bump(
        self,
        known: Transaction,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        spare_producer_id: int,
        now: int,
        effects: Effects,
    ) -> ProducerIdAndEpoch:
        """Each transaction gets a new epoch, so a request delayed in the network cannot hit the next one (KIP-890)."""
        epoch = known.producer_epoch
        is_retry = (producer_id == known.producer_id and producer_epoch == epoch - 1) or (
            producer_id == known.previous_producer_id and producer_epoch == LAST_CLIENT_EPOCH and epoch == 0
        )
        if known.state in PREPARED:
            if is_retry and (known.state is S.PREPARE_COMMIT) == commit:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction is being completed")
            if is_retry:
                self._refuse_end(known, commit)
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{known.transactional_id} is at epoch {epoch}")
        if known.state in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT) and is_retry:
            if (known.state is S.COMPLETE_COMMIT) != commit:
                self._refuse_end(known, commit)
            return ProducerIdAndEpoch(known.producer_id, epoch)
        if not self._decides_kept(known, producer_id, producer_epoch):
            self._owned(known.transactional_id, producer_id, producer_epoch)
        if known.state is not S.ONGOING and commit:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "there is nothing to commit")
        return self._prepare_with_bump(known, commit, spare_producer_id, now, effects)

    def _prepare_with_bump(
        self, known: Transaction, commit: bool, spare_producer_id: int, now: int, effects: Effects
    ) -> ProducerIdAndEpoch:
        state = S.PREPARE_COMMIT if commit else S.PREPARE_ABORT
        epoch = max(known.producer_epoch, known.next_producer_epoch)
        self._last_epochs[known.transactional_id] = known.producer_epoch
        began = {"partitions": frozenset(), "start_timestamp": now} if known.state is not S.ONGOING else {}
        if epoch >= LAST_CLIENT_EPOCH:
            # The markers use the last epoch there is; with the completion the producer gets a new id.
            prepared = known.change(
                now,
                state=state,
                producer_epoch=EPOCH_MAX,
                next_producer_id=spare_producer_id,
                next_producer_epoch=NO_EPOCH,
                client_version=2,
                **began,
            )
            answer = ProducerIdAndEpoch(spare_producer_id, 0)
        else:
            prepared = known.change(
                now,
                state=state,
                producer_epoch=epoch + 1,
                next_producer_id=NO_PRODUCER_ID,
                next_producer_epoch=NO_EPOCH,
                previous_producer_id=known.producer_id,
                client_version=2,
                **began,
            )
            answer = ProducerIdAndEpoch(known.producer_id, epoch + 1)
        self._decide(prepared, effects)
        return answer

    @staticmethod
    def _refuse_end(known: Transaction, commit: bool) -> None:
        same = known.state is (S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
        if same:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction is being completed")
        wanted = "commit" if commit else "abort"
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"cannot {wanted}: the transaction is {known.state}")

    def _abort_for(self, known: Transaction, why: str, now: int, effects: Effects) -> None:
        """Aborts another's transaction and fences it: the epoch moves on before the markers do."""
        epoch = max(known.producer_epoch, known.next_producer_epoch)
        prepared = known.change(
            now,
            state=S.PREPARE_ABORT,
            producer_epoch=min(epoch + 1, EPOCH_MAX),
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_EPOCH,
        )
        self._last_epochs.pop(known.transactional_id, None)
        self._decide(prepared, effects, why)

    def _decide(self, prepared: Transaction, effects: Effects, why: str = "") -> None:
        self._store(prepared, why or "decided", effects)
        self._send_markers(prepared, effects)

    def _send_markers(self, prepared: Transaction, effects: Effects) -> None:
        self._unwritten[prepared.transactional_id] = set(prepared.partitions)
        effects.events.append(
            SendMarkers(
                prepared.transactional_id,
                prepared.producer_id,
                prepared.producer_epoch,
                prepared.state is S.PREPARE_COMMIT,
                prepared.partitions,
                prepared.client_version,
            )
        )

    # --- completion ---------------------------------------------------------------------------------------

    def markers_written(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        now: int,
    ) -> Effects:
        """Markers are in; after the last one the transaction is complete. Replies to nobody."""
        effects = Effects()
        known = self.transactions.get(transactional_id)
        if known is None or known.state not in PREPARED:
            return effects
        if (known.producer_id, known.producer_epoch) != (producer_id, producer_epoch):
            return effects  # of an earlier transaction
        unwritten = self._unwritten.setdefault(transactional_id, set(known.partitions))
        unwritten.difference_update(partitions)
        if unwritten:
            return effects
        del self._unwritten[transactional_id]
        state = S.COMPLETE_COMMIT if known.state is S.PREPARE_COMMIT else S.COMPLETE_ABORT
        moved_on: dict[str, Any] = {}
        if known.next_producer_id != NO_PRODUCER_ID and known.producer_epoch == EPOCH_MAX:
            moved_on = {
                "producer_id": known.next_producer_id,
                "producer_epoch": 0,
                "previous_producer_id": known.producer_id,
            }
        elif known.next_producer_epoch != NO_EPOCH:
            # Somebody took the prepared transaction over: from here on it is the producer.
            moved_on = {"producer_epoch": known.next_producer_epoch}
        complete = known.change(
            now, state=state, partitions=frozenset(), next_producer_id=NO_PRODUCER_ID, next_producer_epoch=NO_EPOCH,
            **moved_on,
        )  # fmt: skip
        self._store(complete, "completed", effects)
        return effects

    def unwritten_markers(self, transactional_id: str) -> set[TopicPartition]:
        """Partitions a decided transaction still waits for."""
        return set(self._unwritten.get(transactional_id, ()))

    # --- looking ------------------------------------------------------------------------------------------

    def find(
        self, states: set[str], producer_ids: set[int], longer_than_ms: int, pattern: str | None, now: int
    ) -> list[Transaction]:
        """Transactions that pass every filter that was given."""
        try:
            matches = re.compile(pattern).fullmatch if pattern else None
        except re.error as error:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r}: {error}") from None
        return [
            transaction
            for transaction in self.transactions.values()
            if (not states or str(transaction.state) in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (longer_than_ms < 0 or self._has_run_for(transaction, now, longer_than_ms))
            and (matches is None or matches(transaction.transactional_id))
        ]

    @staticmethod
    def _has_run_for(transaction: Transaction, now: int, milliseconds: int) -> bool:
        return (
            transaction.start_timestamp >= 0
            and transaction.state not in IDLE
            and (now - transaction.start_timestamp > milliseconds)
        )
