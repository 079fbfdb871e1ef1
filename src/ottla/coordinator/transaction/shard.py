"""One partition of `__transaction_state` as a state machine: producers, their transactions, and how they end. Pure.

Each step returns the record of the changed transaction and the reply. The runtime holds the reply, and the event that
starts writing markers, until the record is committed: the decision is durable before it becomes visible.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from ottla.coordinator.effects import Deadlines, Effects
from ottla.coordinator.transaction import ending, starting
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.starting import ProducerInit
from ottla.coordinator.transaction.transaction import (
    IDLE,
    PREPARED,
    ProducerIdAndEpoch,
    Transaction,
    TransactionState,
    read_transaction_key,
    read_transaction_value,
    transaction_key,
    transaction_value,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import ClusterImage
from ottla.protocol.wire_values import NO_PRODUCER_EPOCH
from ottla.types import TopicPartition

S = TransactionState

Verdicts = dict[TopicPartition, ErrorCode]
"""For each partition NONE, or why it is not part of the transaction."""

_ABORT_TIMED_OUT = "abort timed out"
_REMOVE_EXPIRED = "remove expired"


class SendMarkers(NamedTuple):
    """Event: a decided transaction, whose marker must be written to every partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: frozenset[TopicPartition]
    transaction_version: int


class TransactionShard:
    """The transactional ids that hash to one partition."""

    def __init__(self, config: TransactionConfig) -> None:
        self._config = config
        self._abort_interval_ms = config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._remove_interval_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
        self.transactions: dict[str, Transaction] = {}
        self._unwritten: dict[str, set[TopicPartition]] = {}
        """For each decided transaction, the partitions whose marker is still to be written."""
        self._last_epochs: dict[str, int] = {}
        """The epoch before the last bump: it distinguishes a retry from a stale producer. Not stored, as in Kafka."""
        self._staged: dict[str, tuple[bytes, Transaction, int]] = {}
        """By transactional id, what the current step stores: the record, the transaction in it, and the last epoch. It
        takes effect once the record is in the log."""
        self._timeouts: dict[str, int] = {}
        """By transactional id, when its open transaction times out. Computed once, then moved when the clock jumps:
        the stored start is wall time, and meaningless after the clock was set."""
        self._is_loaded = False
        self._deadlines = Deadlines()

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
        staged = self._staged.pop(transactional_id, None)
        self._last_epochs.pop(transactional_id, None)
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._unwritten.pop(transactional_id, None)
            self._timeouts.pop(transactional_id, None)
            return
        if staged is not None and staged[0] is value:
            transaction, last_epoch = staged[1:]
            if last_epoch != NO_PRODUCER_EPOCH:
                self._last_epochs[transactional_id] = last_epoch
        else:
            transaction = read_transaction_value(transactional_id, value)
        self.transactions[transactional_id] = transaction
        if not transaction.can_time_out:
            self._timeouts.pop(transactional_id, None)
        elif self._is_loaded:
            self._timeouts.setdefault(transactional_id, timestamp + transaction.timeout_ms)
        if transaction.state in PREPARED:
            self._unwritten[transactional_id] = set(transaction.partitions)
        else:
            self._unwritten.pop(transactional_id, None)

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """Transactions never write to the coordinator's own topic."""

    def hard_state(self) -> dict[str, object]:
        """Every transaction as its record.

        Left out: which markers are still to be written (after a load all are written again), and the epoch before the
        last bump, which Kafka does not store either.
        """
        return {f"transaction {name}": transaction for name, transaction in self.transactions.items()}

    def on_loaded(self, now: int) -> Effects[None]:
        self._deadlines.add(now + self._abort_interval_ms, _ABORT_TIMED_OUT)
        self._deadlines.add(now + self._remove_interval_ms, _REMOVE_EXPIRED)
        effects: Effects[None] = Effects()
        self._is_loaded = True
        for transaction in self.transactions.values():
            if transaction.can_time_out:
                self._timeouts[transaction.transactional_id] = now + transaction.time_left_ms(now)
            if transaction.state in PREPARED:
                # Decided before the coordinator moved. Some markers may be written twice: they are idempotent.
                self._send_markers(transaction, effects)
        return effects

    def on_unloaded(self) -> Effects[None]:
        return Effects()

    def on_image(self, image: ClusterImage, now: int) -> Effects[None]:
        return Effects()

    def tick(self, now: int, held_ms: int = 0) -> Effects[None]:
        effects: Effects[None] = Effects()
        for _, due in self._deadlines.due(now):
            if due is _ABORT_TIMED_OUT:
                for transactional_id, timeout_at in self._timeouts.items():
                    if timeout_at < now:
                        timed_out = self.transactions[transactional_id]
                        self._decide(ending.fence_and_abort(timed_out, now), NO_PRODUCER_EPOCH, effects)
                self._deadlines.add(now + self._abort_interval_ms, due)
            else:
                self._remove_expired(now - held_ms, effects)
                self._deadlines.add(now + self._remove_interval_ms, due)
        return effects

    def next_deadline(self) -> int | None:
        return self._deadlines.next()

    def on_clock_jump(self, jump_ms: int) -> None:
        self._deadlines.shift(jump_ms)
        for transactional_id in self._timeouts:
            self._timeouts[transactional_id] += jump_ms

    def _remove_expired(self, now: int, effects: Effects[Any]) -> None:
        oldest = now - self._config.transactional_id_expiration_ms
        for transaction in self.transactions.values():
            if transaction.state in IDLE and transaction.last_update_timestamp <= oldest:
                effects.append(transaction_key(transaction.transactional_id), None)

    def _store(self, transaction: Transaction, effects: Effects[Any], last_epoch: int = NO_PRODUCER_EPOCH) -> None:
        value = transaction_value(transaction)
        self._staged[transaction.transactional_id] = (value, transaction, last_epoch)
        effects.append(transaction_key(transaction.transactional_id), value)

    # --- InitProducerId -----------------------------------------------------------------------------------

    def init_producer_id(
        self, init: ProducerInit, spare_producer_id: int, request_id: int, now: int
    ) -> Effects[ProducerIdAndEpoch]:
        """Replies with ProducerIdAndEpoch, or a KafkaError. `spare_producer_id` is used if a new id is needed."""
        effects: Effects[ProducerIdAndEpoch] = Effects()
        try:
            answer = self._init(starting.check(init, self._config), spare_producer_id, now, effects)
        except KafkaError as error:
            effects.reply(request_id, error)
        else:
            effects.reply(request_id, answer)
        return effects

    def _init(self, init: ProducerInit, spare_producer_id: int, now: int, effects: Effects[Any]) -> ProducerIdAndEpoch:
        transactional_id = init.transactional_id
        known = self.transactions.get(transactional_id)
        if known is None:
            start = starting.first(init, spare_producer_id, now)
        elif known.state in PREPARED:
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS, "the previous transaction is still being completed; retry"
            )
        elif init.expected is not None and not starting.may_continue(known, init.expected):
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f"a newer producer uses {transactional_id}")
        elif known.state is not S.ONGOING:
            last_epoch = self._last_epochs.get(transactional_id, NO_PRODUCER_EPOCH)
            start = starting.next_epoch(known, init, last_epoch, spare_producer_id, now)
        elif init.keep_prepared:
            start = starting.take_over_prepared(known, init, now)
        else:
            # The previous instance left a transaction open: fence it and abort the transaction first.
            self._decide(ending.fence_and_abort(known, now), NO_PRODUCER_EPOCH, effects)
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"{transactional_id}: the transaction of the previous producer is being aborted; retry",
            )
        self._store(start.transaction, effects, start.last_epoch)
        return start.answer

    # --- adding partitions --------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        request_id: int,
        now: int,
        *,
        client_version: int = 0,
    ) -> Effects[Verdicts]:
        """AddPartitionsToTxn, AddOffsetsToTxn, and the implicit add of KIP-890. Replies with NONE for every partition,
        or with a KafkaError."""
        effects: Effects[Verdicts] = Effects()
        try:
            known = self._workable(transactional_id, producer_id, producer_epoch)
            wanted = frozenset(partitions)
            if known.state is not S.ONGOING:
                begun = known.change(
                    now, state=S.ONGOING, partitions=wanted, start_timestamp=now, client_version=client_version
                )
                self._store(begun, effects, self._last_epochs.get(transactional_id, NO_PRODUCER_EPOCH))
            elif not wanted <= known.partitions:
                grown = known.change(
                    now,
                    partitions=known.partitions | wanted,
                    client_version=max(client_version, known.client_version),
                )
                self._store(grown, effects, self._last_epochs.get(transactional_id, NO_PRODUCER_EPOCH))
            effects.reply(request_id, dict.fromkeys(partitions, ErrorCode.NONE))
        except KafkaError as error:
            effects.reply(request_id, error)
        return effects

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Iterable[TopicPartition]
    ) -> Verdicts:
        """Which partitions are part of the producer's open transaction; only those may be written to (KIP-890)."""
        known = self._workable(transactional_id, producer_id, producer_epoch)
        added = known.partitions if known.state is S.ONGOING else frozenset()
        return {
            partition: ErrorCode.NONE if partition in added else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _workable(self, transactional_id: str, producer_id: int, producer_epoch: int) -> Transaction:
        """The transaction that a producer may add to: its own, and not decided yet."""
        known = self.transactions.get(transactional_id)
        known = ending.check_owner(known, transactional_id, producer_id, producer_epoch)
        if known.state in PREPARED:
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS, "the previous transaction is still being completed; retry"
            )
        return known

    # --- the end ------------------------------------------------------------------------------------------

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
    ) -> Effects[ProducerIdAndEpoch]:
        """Replies with ProducerIdAndEpoch for the next transaction, or a KafkaError."""
        effects: Effects[ProducerIdAndEpoch] = Effects()
        try:
            known = self.transactions.get(transactional_id)
            if known is None:
                raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"unknown transactional id {transactional_id}")
            if bumps_epoch:
                ended = ending.end_with_bump(known, producer_id, producer_epoch, commit, spare_producer_id, now)
            else:
                ended = ending.end(known, producer_id, producer_epoch, commit, now)
        except KafkaError as error:
            effects.reply(request_id, error)
            return effects
        if ended.prepared is not None:
            self._decide(ended.prepared, ended.last_epoch, effects)
        effects.reply(request_id, ended.answer)
        return effects

    def _decide(self, prepared: Transaction, last_epoch: int, effects: Effects[Any]) -> None:
        self._store(prepared, effects, last_epoch)
        self._send_markers(prepared, effects)

    @staticmethod
    def _send_markers(prepared: Transaction, effects: Effects[Any]) -> None:
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

    def markers_written(self, decided: SendMarkers, partitions: Iterable[TopicPartition], now: int) -> Effects[None]:
        """Markers are written; after the last one the transaction is complete.

        May be called again if the record of the completion could not be appended.
        """
        effects: Effects[None] = Effects()
        unwritten = self._unwritten_of(decided)
        if unwritten is None:
            return effects  # an earlier transaction
        unwritten.difference_update(partitions)
        if not unwritten:
            known = self.transactions[decided.transactional_id]
            last_epoch = self._last_epochs.get(decided.transactional_id, NO_PRODUCER_EPOCH)
            self._store(ending.complete(known, now), effects, last_epoch)
        return effects

    def still_unwritten(self, decided: SendMarkers, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Which of the markers are still to be written. Empty once the transaction is complete: a marker written then
        could end the next transaction."""
        unwritten = self._unwritten_of(decided)
        return [] if unwritten is None else sorted(unwritten.intersection(partitions))

    def _unwritten_of(self, decided: SendMarkers) -> set[TopicPartition] | None:
        known = self.transactions.get(decided.transactional_id)
        if known is None or known.state not in PREPARED:
            return None
        if (known.producer_id, known.producer_epoch) != (decided.producer_id, decided.producer_epoch):
            return None
        return self._unwritten[decided.transactional_id]

    def unwritten_markers(self, transactional_id: str) -> set[TopicPartition]:
        """Partitions of a decided transaction whose marker is still to be written."""
        return set(self._unwritten.get(transactional_id, ()))

    # --- looking ------------------------------------------------------------------------------------------

    def find(
        self,
        states: set[str],
        producer_ids: set[int],
        longer_than_ms: int,
        now: int,
    ) -> list[Transaction]:
        """Transactions that match every filter. As in Kafka, the duration counts from the start of the last
        transaction, even if it has ended."""
        return [
            transaction
            for transaction in self.transactions.values()
            if (not states or str(transaction.state) in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (longer_than_ms < 0 or now - transaction.start_timestamp > longer_than_ms)
        ]
