"""Sequences, epochs and transactions of the producers of a partition. Spec: D3, D4."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.log.producers.producer_state import BatchMetadata, ProducerStateManager
from ottla.protocol.records.record_batch import BatchHeader
from ottla.types import INT32_MAX

DAY = 86_400_000


def rejected(code: ErrorCode, act: Callable[[], Any]) -> None:
    with pytest.raises(KafkaError) as caught:
        act()
    assert caught.value.code is code


class World:
    """A partition's producers and its log end offset."""

    def __init__(self) -> None:
        self.producers = ProducerStateManager()
        self.end = 0

    def header(self, sequence: int, count: int = 1, *, epoch: int = 0, txn: bool = False) -> BatchHeader:
        return BatchHeader(0, 100, 0, 2, 0, 0x10 if txn else 0, count - 1, 5, 5, 7, epoch, sequence, count)

    def writes(self, sequence: int, count: int = 1, *, checks: bool = True, **details: Any) -> BatchMetadata | None:
        """Checks a batch of producer 7 and, unless it is a duplicate, appends it."""
        header = self.header(sequence, count, **details)
        duplicate = self.producers.check(header, check_sequence=checks)
        if duplicate is None:
            self.producers.update(header, self.end, monotonic_ms=0)
            self.end += count
        return duplicate

    def ends(
        self, *, abort: bool = False, epoch: int = 0, coordinator_epoch: int = 0, version: int = 0
    ) -> tuple[int, int] | None:
        """Appends a marker for producer 7. Returns the offsets of the transaction that it ended."""
        self.producers.check_marker(7, epoch, coordinator_epoch, transaction_version=version)
        completed = self.producers.update_marker(
            self.header(-1, epoch=epoch, txn=True), self.end, 0, aborted=abort, coordinator_epoch=coordinator_epoch
        )
        self.end += 1
        return None if completed is None else (completed.first_offset, completed.last_offset)


def test_consecutive_sequences_are_accepted() -> None:
    world = World()
    assert [world.writes(0, 3), world.writes(3), world.writes(4, 2)] == [None, None, None]
    assert world.end == 6


def test_a_sequence_gap_is_rejected_and_changes_nothing() -> None:
    world = World()
    world.writes(0)
    rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: world.writes(2))
    assert world.writes(1) is None


def test_a_duplicate_of_any_of_the_last_five_batches_returns_its_offset() -> None:
    world = World()
    for sequence in range(0, 12, 2):
        world.writes(sequence, 2)
    for sequence in range(2, 12, 2):
        duplicate = world.writes(sequence, 2)
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (sequence, sequence + 1)
    assert world.end == 12
    rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: world.writes(0, 2))


def test_an_overlapping_batch_is_not_a_duplicate() -> None:
    world = World()
    world.writes(0, 3)
    rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: world.writes(0, 2))
    rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: world.writes(1, 2))


def test_sequences_wrap_to_zero() -> None:
    world = World()
    world.writes(INT32_MAX - 1, 2)
    assert world.writes(0) is None


def test_a_duplicate_across_the_sequence_wrap_is_recognised() -> None:
    world = World()
    world.writes(INT32_MAX - 1, 4)
    duplicate = world.writes(INT32_MAX - 1, 4)
    assert duplicate is not None
    assert duplicate.last_sequence == 1
    assert duplicate.first_sequence == INT32_MAX - 1
    assert world.writes(2) is None


def test_a_new_epoch_starts_at_sequence_zero() -> None:
    world = World()
    world.writes(0, 3)
    rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: world.writes(3, epoch=1))
    assert world.writes(0, epoch=1) is None
    assert world.end == 4


def test_an_old_epoch_is_rejected() -> None:
    world = World()
    world.writes(0, epoch=3)
    rejected(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: world.writes(1, epoch=2))


def test_the_same_sequence_in_a_new_epoch_is_not_a_duplicate() -> None:
    world = World()
    world.writes(0, 3)
    assert world.writes(0, 3, epoch=1) is None
    assert world.end == 6


def test_an_unknown_producer_can_start_at_any_sequence_except_in_a_version_2_transaction() -> None:
    world = World()
    header = world.header(17, txn=True)
    assert world.producers.check(header) is None
    rejected(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: world.producers.check(header, require_known_start=True))
    assert world.producers.check(world.header(0, txn=True), require_known_start=True) is None


def test_coordinators_append_without_sequences() -> None:
    world = World()
    assert world.writes(-1, txn=True, checks=False) is None
    assert world.writes(-1, txn=True, checks=False) is None
    assert world.end == 2


def test_a_producer_with_an_open_transaction_must_send_transactional_batches() -> None:
    world = World()
    world.writes(0, txn=True)
    rejected(ErrorCode.INVALID_TXN_STATE, lambda: world.writes(1))
    assert world.writes(1, txn=True) is None


def test_the_first_open_transaction_is_the_first_unstable_offset() -> None:
    world = World()
    world.writes(0)
    assert world.producers.first_unstable_offset is None
    world.writes(1, 3, txn=True)
    world.writes(4, txn=True)
    assert world.producers.first_unstable_offset == 1
    assert world.ends() == (1, 5)


def test_a_completed_transaction_is_unstable_until_its_marker_is_committed() -> None:
    world = World()
    world.writes(0, 2, txn=True)
    world.ends()
    world.producers.on_high_watermark(2)
    assert world.producers.first_unstable_offset == 0
    world.producers.on_high_watermark(3)
    assert world.producers.first_unstable_offset is None


def test_a_marker_without_records_is_never_unstable() -> None:
    world = World()
    assert world.ends() is None
    assert world.producers.first_unstable_offset is None


def test_the_last_stable_offset_after_an_abort_is_the_start_of_the_next_open_transaction() -> None:
    world = World()
    world.writes(0, txn=True)
    other = world.header(0, txn=True)._replace(producer_id=8)
    world.producers.update(other, 1, monotonic_ms=0)
    world.end = 2
    completed = world.producers.update_marker(world.header(-1, txn=True), 2, 0, aborted=True, coordinator_epoch=0)
    assert completed is not None
    assert world.producers.last_stable_offset_after(completed) == 1
    last = world.producers.update_marker(other, 3, 0, aborted=True, coordinator_epoch=0)
    assert last is not None
    assert world.producers.last_stable_offset_after(last) == 4


def test_a_marker_raises_the_epoch_and_fences_the_old_one() -> None:
    world = World()
    world.writes(0, txn=True)
    world.ends(abort=True, epoch=1)
    rejected(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: world.writes(1, txn=True))
    assert world.writes(0, txn=True, epoch=1) is None


def test_a_marker_of_an_old_epoch_is_rejected() -> None:
    world = World()
    world.writes(0, epoch=2, txn=True)
    rejected(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: world.ends(epoch=1))


def test_a_marker_of_the_current_epoch_ends_a_version_1_but_not_a_version_2_transaction() -> None:
    world = World()
    world.writes(0, txn=True)
    rejected(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: world.ends(version=2))
    assert world.ends(version=2, epoch=1) == (0, 1)
    assert world.ends(version=2, epoch=1) is None, "a repeated marker is accepted when no transaction is open"
    world.writes(0, epoch=1, txn=True)
    assert world.ends(version=1, epoch=1) == (3, 4)


def test_a_marker_from_a_stale_coordinator_is_rejected() -> None:
    world = World()
    world.writes(0, txn=True)
    world.ends(coordinator_epoch=5)
    rejected(ErrorCode.TRANSACTION_COORDINATOR_FENCED, lambda: world.ends(coordinator_epoch=4))
    assert world.ends(coordinator_epoch=5) is None


def test_a_marker_invalidates_an_earlier_verification() -> None:
    world = World()
    guard = world.producers.verification_guard(7, 0)
    world.ends(epoch=1)
    assert world.producers.verification_guard(7, 0) != guard


def test_an_open_transaction_needs_no_verification() -> None:
    world = World()
    assert not world.producers.has_open_transaction(7, 0)
    world.writes(0, txn=True)
    assert world.producers.has_open_transaction(7, 0)
    assert not world.producers.has_open_transaction(7, 1)
    world.ends()
    assert not world.producers.has_open_transaction(7, 0)


def test_idle_producers_expire_unless_a_transaction_is_open() -> None:
    world = World()
    world.writes(0)
    assert world.producers.expire(DAY - 1, DAY) == 0
    assert world.producers.expire(DAY, DAY) == 1
    assert world.writes(41, txn=True) is None, "the producer is unknown again: any sequence is accepted"
    assert world.producers.expire(10 * DAY, DAY) == 0
    late = World()
    late.producers.update(late.header(0), 0, monotonic_ms=DAY)
    assert late.producers.expire(2 * DAY - 1, DAY) == 0


def test_a_producer_that_only_ended_a_transaction_has_no_sequence() -> None:
    """-1 stands for none, as in DescribeProducers."""
    world = World()
    world.writes(0, txn=True)
    world.ends(epoch=1, coordinator_epoch=3)
    entry = world.producers.find(7)
    assert entry is not None
    assert (entry.last_sequence, entry.last_data_offset, entry.coordinator_epoch) == (-1, -1, 3)
    new = World()
    new.writes(0)
    entry = new.producers.find(7)
    assert entry is not None
    assert (entry.last_sequence, entry.last_data_offset, entry.coordinator_epoch) == (0, 0, -1)


def test_a_new_epoch_starts_at_sequence_0_and_forgets_the_old_batches() -> None:
    world = World()
    world.writes(0, 3)
    world.writes(0, epoch=1)
    entry = world.producers.find(7)
    assert entry is not None
    assert (entry.producer_epoch, entry.next_sequence, len(entry.batches)) == (1, 1, 1)
    rejected(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: world.writes(3))


def test_a_guard_taken_before_the_first_batch_is_valid_until_a_marker() -> None:
    """KIP-890: another batch of the producer does not make it invalid."""
    world = World()
    guard = world.producers.verification_guard(7, 0)
    world.writes(0)
    assert world.producers.check(world.header(1, txn=True), guard=guard) is None
    world.ends()
    rejected(ErrorCode.INVALID_TXN_STATE, lambda: world.producers.check(world.header(1, txn=True), guard=guard))
    now = world.producers.verification_guard(7, 0)
    assert world.producers.check(world.header(1, txn=True), guard=now) is None


def test_a_snapshot_replaces_all_that_was_known() -> None:
    world, other = World(), World()
    world.writes(0, txn=True)
    other.writes(0)
    world.producers.load(other.producers.entries())
    assert (world.producers.first_unstable_offset, len(world.producers)) == (None, 1)
    other.writes(1, txn=True)
    world.producers.load(other.producers.entries())
    assert world.producers.first_unstable_offset == 1
    world.producers.clear()
    assert world.producers.find(7) is None


def test_a_retry_is_recognised_where_sequences_begin_and_where_they_wrap() -> None:
    world = World()
    first = BatchMetadata(last_sequence=2, last_offset=2, offset_delta=2, timestamp=5)
    assert first.first_sequence == 0
    world.producers.update(world.header(INT32_MAX - 1, 1), 0, monotonic_ms=0)
    world.end = 1
    assert world.writes(INT32_MAX, 2) is None
    again = world.writes(INT32_MAX, 2)
    assert again is not None
    assert (again.first_sequence, again.last_sequence, again.first_offset) == (INT32_MAX, 0, 1)
