"""The numbers that make retries harmless: a producer id, and a sequence for every partition. Pure.

A broker takes a batch only if it continues the partition's sequence, and recognises one it already has. So
batches of a partition must be numbered in order and, after trouble, sent again in order.
"""

from dataclasses import dataclass, field

from ottla.client.core.settings import IN_FLIGHT_MAX_IDEMPOTENT
from ottla.client.producer.accumulator import ProducerBatch
from ottla.types import TopicPartition

SEQUENCE_LIMIT = 2**31
"""Sequences count to 2147483647 and go on with 0."""
EPOCH_MAX = 32_767


@dataclass(slots=True)
class _PartitionSequence:
    producer_id: int = -1
    producer_epoch: int = -1
    next_sequence: int = 0
    outstanding: list[ProducerBatch] = field(default_factory=list)
    """Batches that have a number and no outcome yet, in the order of their numbers."""
    on_the_wire: int = 0
    is_known: bool = False
    """The broker has stored something under these numbers, so from now on it notices a gap."""


class Idempotence:
    """Numbers the batches of one producer.

    >>> numbers.can_send(batch)         # may it go now, or must an earlier one be settled first?
    >>> numbers.sending(batch)          # it goes: it has its numbers now
    >>> numbers.succeeded(batch)        # or refused(batch), gave_up(batch), will_retry(batch)
    """

    def __init__(self) -> None:
        self.producer_id = -1
        self.producer_epoch = -1
        self._partitions: dict[TopicPartition, _PartitionSequence] = {}
        self._unresolved: dict[TopicPartition, None] = {}
        """Where a batch was given up although the broker may have it: the next number is anybody's guess."""

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch

    def restart(self, producer_id: int, producer_epoch: int) -> None:
        """Begins every partition at 0 under a new id or epoch. Nothing may be outstanding under the old ones."""
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
            # A new batch waits while an earlier one is to be sent again, and while old numbers are settled.
            # The very first goes alone: a broker that has nothing of this producer takes any number, so it
            # would store the second batch if it refused the first.
            if not state.outstanding:
                return True
            if not self._is_current(state) or not state.is_known:
                return False
            if state.outstanding[0].maybe_appended:
                return False  # four may stand behind it already: after more, the broker would not recognise it
            return state.on_the_wire == len(state.outstanding) < IN_FLIGHT_MAX_IDEMPOTENT
        # Sent again one by one: a broker recognises only its last five batches, and halves of a split one
        # may make them more.
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
        state.on_the_wire += 1

    def _is_current(self, state: _PartitionSequence) -> bool:
        return (state.producer_id, state.producer_epoch) == (self.producer_id, self.producer_epoch)

    # --- outcomes -----------------------------------------------------------------------------------------

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether a batch was, for all we know, sent under the very number that the broker expects next."""
        state = self._partitions[batch.partition]
        if batch.partition in self._unresolved:
            return False
        return state.outstanding[0] is batch and batch.sent_sequence == batch.base_sequence

    def succeeded(self, batch: ProducerBatch) -> None:
        state = self._partitions[batch.partition]
        state.on_the_wire -= 1
        state.outstanding.remove(batch)
        state.is_known = True
        if batch.sent_sequence != batch.base_sequence:
            # It moved up, and yet was stored under the number it was sent with: the broker had forgotten this
            # producer, or has the batch before it after all. It expects another number next than we would give.
            self._unresolved[batch.partition] = None

    def will_retry(self, batch: ProducerBatch) -> None:
        self._partitions[batch.partition].on_the_wire -= 1

    def refused(self, batch: ProducerBatch) -> None:
        """The broker certainly did not store it, so the batches behind it move up."""
        state = self._partitions[batch.partition]
        state.on_the_wire -= 1
        self._remove(state, batch)

    def gave_up_waiting(self, batch: ProducerBatch) -> None:
        """A batch that was to be retried will not be."""
        state = self._partitions[batch.partition]
        if batch.maybe_appended:
            state.outstanding.remove(batch)
            self._unresolved[batch.partition] = None
        else:
            self._remove(state, batch)

    def lost(self, batch: ProducerBatch) -> None:
        """It came back without an answer and will not be retried: nobody knows whether it was stored."""
        state = self._partitions[batch.partition]
        state.on_the_wire -= 1
        state.outstanding.remove(batch)
        self._unresolved[batch.partition] = None

    def replaced(self, batch: ProducerBatch, halves: list[ProducerBatch]) -> None:
        """Two halves take the place, and together the numbers, of a batch that was refused as too large."""
        state = self._partitions[batch.partition]
        state.on_the_wire -= 1
        position = state.outstanding.index(batch)
        sequence = batch.base_sequence
        for half in halves:
            half.number(batch.producer_id, batch.producer_epoch, sequence)
            sequence = (sequence + half.record_count) % SEQUENCE_LIMIT
        state.outstanding[position : position + 1] = halves

    def _remove(self, state: _PartitionSequence, batch: ProducerBatch) -> None:
        position = state.outstanding.index(batch)
        behind = state.outstanding[position + 1 :]
        del state.outstanding[position]
        for later in behind:
            sequence = (later.base_sequence - batch.record_count) % SEQUENCE_LIMIT
            later.number(later.producer_id, later.producer_epoch, sequence)
        state.next_sequence = (state.next_sequence - batch.record_count) % SEQUENCE_LIMIT

    # --- starting afresh ----------------------------------------------------------------------------------

    def unresolved(self) -> list[TopicPartition]:
        """Partitions that need a fresh start and have nothing on the wire any more."""
        return [partition for partition in self._unresolved if not self._partitions[partition].on_the_wire]

    def start_afresh(self, partition: TopicPartition) -> list[ProducerBatch]:
        """Begins a partition again at 0 under a new epoch.

        Gives back the batches that must fail: the broker may have stored them, and under new numbers it
        could not tell. The others, certainly not stored, lose their numbers and are sent as new.
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
        if self.producer_epoch < EPOCH_MAX:
            self.producer_epoch += 1
        else:
            self.producer_id = self.producer_epoch = -1  # used up: ask for a new producer id
