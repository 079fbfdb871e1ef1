"""Sequence numbers of an idempotent producer: who may send, and what a failed batch means for the ones after it."""

from typing import Any

from ottla.client.producer.accumulator import ProducerBatch
from ottla.client.producer.idempotence import SEQUENCE_LIMIT, Idempotence
from ottla.protocol.wire_values import PRODUCER_EPOCH_MAX
from ottla.types import TopicPartition

PLACE = TopicPartition("t", 0)


def producer(epoch: int = 0) -> Idempotence:
    idempotence = Idempotence()
    idempotence.set_producer_id(70, epoch)
    return idempotence


def batch(records: int = 1) -> ProducerBatch:
    made = ProducerBatch(PLACE, (0,))
    row: Any = (0, None, b"v", ())
    made.records.extend([row] * records)
    return made


def sent(idempotence: Idempotence, *sizes: int) -> list[ProducerBatch]:
    """Batches in flight, after one of a single record that the broker has stored."""
    first = batch()
    idempotence.sending(first)
    idempotence.succeeded(first)
    batches = [batch(size) for size in sizes]
    for each in batches:
        assert idempotence.can_send(each)
        idempotence.sending(each)
    return batches


def numbers(batches: list[ProducerBatch]) -> list[tuple[int, int]]:
    return [(each.producer_epoch, each.base_sequence) for each in batches]


def test_batches_are_numbered_by_their_records() -> None:
    assert numbers(sent(producer(), 2, 3, 1)) == [(0, 1), (0, 3), (0, 6)]


def test_the_first_batch_goes_alone_and_then_five_at_a_time() -> None:
    idempotence = producer()
    first = batch()
    assert idempotence.can_send(first)
    idempotence.sending(first)
    assert not idempotence.can_send(batch()), "a broker without state would accept any sequence"
    idempotence.succeeded(first)
    for _ in range(5):
        more = batch()
        assert idempotence.can_send(more)
        idempotence.sending(more)
    assert not idempotence.can_send(batch())


def test_a_batch_that_was_not_stored_closes_the_gap() -> None:
    idempotence = producer()
    first, second, third = sent(idempotence, 2, 3, 1)
    idempotence.refused(first)
    assert numbers([second, third]) == [(0, 1), (0, 4)]
    assert not idempotence.is_first(second), "it is on its way under its old number"
    idempotence.will_retry(second)
    idempotence.will_retry(third)
    assert idempotence.can_send(second)
    assert not idempotence.can_send(third), "retries go one by one"
    idempotence.sending(second)
    assert idempotence.is_first(second)


def test_a_retry_that_runs_out_of_time_closes_the_gap_too() -> None:
    idempotence = producer()
    first, second = sent(idempotence, 2, 3)
    idempotence.will_retry(first)
    idempotence.will_retry(second)
    idempotence.gave_up_waiting(first)
    assert numbers([second]) == [(0, 1)]
    assert idempotence.can_send(second), "it is the first one now"
    idempotence.sending(second)
    idempotence.succeeded(second)
    idempotence.sending(last := batch())
    assert numbers([last]) == [(0, 4)]
    assert idempotence.unresolved() == []


def test_a_batch_that_may_be_stored_leaves_the_next_number_unknown() -> None:
    idempotence = producer()
    first, second = sent(idempotence, 2, 3)
    first.maybe_appended = True
    idempotence.will_retry(first)
    idempotence.gave_up_waiting(first)
    assert idempotence.unresolved() == [], "another batch is still in flight"
    idempotence.will_retry(second)
    assert idempotence.unresolved() == [PLACE]
    assert not idempotence.can_send(second)
    assert idempotence.restart_partition(PLACE) == [], "the other one was not stored"
    assert idempotence.producer_epoch == 1
    assert idempotence.can_send(second)
    idempotence.sending(second)
    assert numbers([second]) == [(1, 0)]


def test_a_restart_fails_only_batches_that_may_be_stored() -> None:
    idempotence = producer()
    first, second, third = sent(idempotence, 1, 1, 1)
    idempotence.lost(first)
    second.maybe_appended = True
    idempotence.will_retry(second)
    idempotence.will_retry(third)
    assert idempotence.restart_partition(PLACE) == [second]
    assert third.base_sequence < 0


def test_epochs_that_are_used_up_need_a_new_producer_id() -> None:
    for epoch, expected in ((PRODUCER_EPOCH_MAX - 1, (70, PRODUCER_EPOCH_MAX)), (PRODUCER_EPOCH_MAX, (-1, -1))):
        idempotence = producer(epoch)
        (only,) = sent(idempotence, 1)
        idempotence.lost(only)
        idempotence.restart_partition(PLACE)
        assert (idempotence.producer_id, idempotence.producer_epoch) == expected
        assert idempotence.has_producer_id is (expected[0] >= 0)


def test_a_new_producer_id_starts_every_partition_again() -> None:
    idempotence = producer()
    (only,) = sent(idempotence, 4)
    idempotence.lost(only)
    assert idempotence.unresolved() == [PLACE]
    idempotence.restart(70, 5)
    assert idempotence.unresolved() == []
    after = batch()
    assert idempotence.can_send(after)
    idempotence.sending(after)
    assert numbers([after]) == [(5, 0)]
    assert not idempotence.can_send(batch()), "the broker does not know this epoch yet"


def test_halves_take_the_numbers_of_the_batch_that_was_too_large() -> None:
    idempotence = producer()
    large, later = sent(idempotence, 5, 1)
    halves = [batch(2), batch(3)]
    idempotence.replaced(large, halves)
    assert numbers([*halves, later]) == [(0, 1), (0, 3), (0, 6)]
    assert not idempotence.can_send(halves[1])
    assert idempotence.can_send(halves[0])


def test_a_renumbered_batch_that_was_stored_under_its_old_number_is_unresolved() -> None:
    idempotence = producer()
    first, second = sent(idempotence, 1, 1)
    idempotence.refused(first)
    idempotence.succeeded(second)
    assert idempotence.unresolved() == [PLACE]


def test_sequences_wrap_around_to_zero() -> None:
    idempotence = producer()
    (_,) = sent(idempotence, 1)
    state = idempotence._partitions[PLACE]  # noqa: SLF001 - two billion records would take a while
    state.next_sequence = SEQUENCE_LIMIT - 1
    ends = batch(2)
    idempotence.sending(ends)
    idempotence.sending(after := batch())
    assert numbers([ends, after]) == [(0, SEQUENCE_LIMIT - 1), (0, 1)]
    idempotence.refused(ends)
    assert numbers([after]) == [(0, SEQUENCE_LIMIT - 1)]
