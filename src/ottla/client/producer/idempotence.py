"""Producer id, epoch and sequence numbers of an idempotent producer (KIP-98). Pure.

A broker accepts a batch only if its sequence number follows the last one of the partition, and it recognises the last
five batches as duplicates. So the batches of a partition must be numbered in order and retried in that order. Up to
five requests may be in flight (KAFKA-5494).
"""

from dataclasses import dataclass, field

from ottla.client.core.settings import IN_FLIGHT_MAX_IDEMPOTENT
from ottla.client.producer.accumulator import ProducerBatch
from ottla.protocol.wire_values import PRODUCER_EPOCH_MAX
from ottla.types import TopicPartition

SEQUENCE_LIMIT = 2**31
"""After 2147483647 a sequence wraps around to 0."""


@dataclass(slots=True)
class _PartitionSequence:
    producer_id: int = -1
    producer_epoch: int = -1
    next_sequence: int = 0
    outstanding: list[ProducerBatch] = field(default_factory=list)
    """Batches with a sequence number and no outcome yet, in sequence order."""
    in_flight: int = 0
    is_known: bool = False
    """The broker has stored a batch of this producer id and epoch, so it detects gaps from now on."""


class Idempotence:
    """Assigns sequence numbers to the batches of one producer.

    >>> idempotence.can_send(batch)     # or does it have to wait for an earlier batch?
    >>> idempotence.sending(batch)      # assigns the sequence number
    >>> idempotence.succeeded(batch)    # or refused(batch), lost(batch), will_retry(batch)
    """

    def __init__(self) -> None:
        self.producer_id = -1
        self.producer_epoch = -1
        self._partitions: dict[TopicPartition, _PartitionSequence] = {}
        self._unresolved: dict[TopicPartition, None] = {}
        """Partitions where a batch failed although the broker may have stored it: the next sequence is unknown."""

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch

    def restart(self, producer_id: int, producer_epoch: int) -> None:
        """Restarts every partition at sequence 0 with a new id or epoch. No batch may be outstanding."""
        assert not any(state.outstanding for state in self._partitions.values())
        self._partitions.clear()
        self._unresolved.clear()
        self.set_producer_id(producer_id, producer_epoch)

    # --- sending ------------------------------------------------------------------------------------------

    def can_send(self, batch: ProducerBatch) -> bool:
        state = self._partitions.get(batch.partition)
        if state is None:
            return True
        if batch.partition in self._unresolved:
            return False
        if batch.base_sequence < 0:
            # A new batch waits while an earlier one is to be retried, and while batches of an older epoch are
            # outstanding. The very first batch goes alone: a broker without state of this producer accepts any
            # sequence, so it would store the second batch after rejecting the first.
            if not state.outstanding:
                return True
            if not self._is_current(state) or not state.is_known:
                return False
            if state.outstanding[0].maybe_appended:
                return False  # up to four may follow it already; after five the broker no longer recognises it
            return state.in_flight == len(state.outstanding) < IN_FLIGHT_MAX_IDEMPOTENT
        # Retries go one by one: the broker recognises only its last five batches, and splitting may have made more.
        return state.outstanding[0] is batch

    def sending(self, batch: ProducerBatch) -> None:
        state = self._partitions.setdefault(batch.partition, _PartitionSequence())
        if batch.base_sequence < 0:
            if not self._is_current(state):
                assert not state.outstanding
                state.producer_id, state.producer_epoch = self.producer_id, self.producer_epoch
                state.next_sequence = 0
                state.is_known = False
            batch.number(state.producer_id, state.producer_epoch, state.next_sequence)
            state.next_sequence = (state.next_sequence + batch.record_count) % SEQUENCE_LIMIT
            state.outstanding.append(batch)
        batch.sent_sequence = batch.base_sequence
        state.in_flight += 1

    def _is_current(self, state: _PartitionSequence) -> bool:
        return (state.producer_id, state.producer_epoch) == (self.producer_id, self.producer_epoch)

    # --- outcomes -----------------------------------------------------------------------------------------

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether the batch was sent with the sequence number that, as far as we know, the broker expects next."""
        state = self._partitions[batch.partition]
        if batch.partition in self._unresolved:
            return False
        return state.outstanding[0] is batch and batch.sent_sequence == batch.base_sequence

    def succeeded(self, batch: ProducerBatch) -> None:
        state = self._partitions[batch.partition]
        state.in_flight -= 1
        state.outstanding.remove(batch)
        state.is_known = True
        if batch.sent_sequence != batch.base_sequence:
            # It was renumbered while in flight, yet stored under the old number: either the broker had lost its
            # state of this producer, or it has the earlier batch after all. It expects a different next sequence.
            self._unresolved[batch.partition] = None

    def will_retry(self, batch: ProducerBatch) -> None:
        self._partitions[batch.partition].in_flight -= 1

    def refused(self, batch: ProducerBatch) -> None:
        """The broker did not store it, so the batches after it are renumbered to close the gap."""
        state = self._partitions[batch.partition]
        state.in_flight -= 1
        self._remove(state, batch)

    def gave_up_waiting(self, batch: ProducerBatch) -> None:
        """A batch that waited for a retry fails instead."""
        state = self._partitions[batch.partition]
        if batch.maybe_appended:
            state.outstanding.remove(batch)
            self._unresolved[batch.partition] = None
        else:
            self._remove(state, batch)

    def lost(self, batch: ProducerBatch) -> None:
        """It fails without an answer from the broker, which may have stored it."""
        state = self._partitions[batch.partition]
        state.in_flight -= 1
        state.outstanding.remove(batch)
        self._unresolved[batch.partition] = None

    def replaced(self, batch: ProducerBatch, halves: list[ProducerBatch]) -> None:
        """Two halves take over the place and the sequence numbers of a batch that was too large (KIP-126)."""
        state = self._partitions[batch.partition]
        state.in_flight -= 1
        position = state.outstanding.index(batch)
        sequence = batch.base_sequence
        for half in halves:
            half.number(batch.producer_id, batch.producer_epoch, sequence)
            sequence = (sequence + half.record_count) % SEQUENCE_LIMIT
        state.outstanding[position : position + 1] = halves

    def _remove(self, state: _PartitionSequence, batch: ProducerBatch) -> None:
        position = state.outstanding.index(batch)
        after = state.outstanding[position + 1 :]
        del state.outstanding[position]
        for later in after:
            sequence = (later.base_sequence - batch.record_count) % SEQUENCE_LIMIT
            later.number(later.producer_id, later.producer_epoch, sequence)
        state.next_sequence = (state.next_sequence - batch.record_count) % SEQUENCE_LIMIT

    # --- restarting a sequence ----------------------------------------------------------------------------

    def unresolved(self) -> list[TopicPartition]:
        """Partitions whose sequence must be restarted and that have nothing in flight any more."""
        return [partition for partition in self._unresolved if not self._partitions[partition].in_flight]

    def restart_partition(self, partition: TopicPartition) -> list[ProducerBatch]:
        """Restarts a partition at sequence 0 under a new epoch, bumped by the client itself (KIP-360).

        Returns the batches that must fail: the broker may have stored them, and would not recognise them as
        duplicates under the new epoch. The others were not stored; they are numbered again and sent as new.
        """
        state = self._partitions[partition]
        doubtful = [batch for batch in state.outstanding if batch.maybe_appended]
        for batch in state.outstanding:
            if not batch.maybe_appended:
                batch.number(-1, -1, -1)
        state.outstanding = []
        self._unresolved.pop(partition, None)
        if self._is_current(state):
            self._bump_epoch()
        return doubtful

    def _bump_epoch(self) -> None:
        if self.producer_epoch < PRODUCER_EPOCH_MAX:
            self.producer_epoch += 1
        else:
            self.producer_id = self.producer_epoch = -1  # epochs are used up: ask for a new producer id
