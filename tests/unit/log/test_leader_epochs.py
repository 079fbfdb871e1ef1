"""Start and end offsets of leader epochs (OffsetForLeaderEpoch, KIP-101)."""

from operator import methodcaller

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.checkpoints import decode_epochs, encode_epochs
from ottla.log.leader_epochs import UNKNOWN, EpochEndOffset, LeaderEpochCache


def cache() -> LeaderEpochCache:
    return LeaderEpochCache([(2, 0), (5, 100), (7, 150)])


def test_the_current_epoch_ends_at_the_log_end_offset() -> None:
    assert cache().end_offset_for(7, 200) == EpochEndOffset(7, 200)


def test_an_old_epoch_ends_where_the_next_one_starts() -> None:
    assert cache().end_offset_for(5, 200) == EpochEndOffset(5, 150)


def test_an_epoch_without_records_returns_the_previous_one() -> None:
    assert cache().end_offset_for(6, 200) == EpochEndOffset(5, 150)
    assert cache().end_offset_for(4, 200) == EpochEndOffset(2, 100)


def test_an_epoch_older_than_the_log_ends_at_the_log_start() -> None:
    assert cache().end_offset_for(1, 200) == EpochEndOffset(1, 0)


def test_a_newer_epoch_and_no_epoch_are_unknown() -> None:
    assert cache().end_offset_for(8, 200) == UNKNOWN == cache().end_offset_for(-1, 200)
    assert LeaderEpochCache().end_offset_for(0, 200) == UNKNOWN


def test_an_epoch_keeps_its_start_offset() -> None:
    epochs = cache()
    epochs.assign(7, 180)
    epochs.assign(6, 180)
    assert epochs.entries() == [(2, 0), (5, 100), (7, 150)]
    assert not epochs.is_dirty


def test_an_epoch_without_records_is_replaced_by_the_next() -> None:
    epochs = cache()
    epochs.assign(8, 200)
    epochs.assign(9, 200)
    assert epochs.entries() == [(2, 0), (5, 100), (7, 150), (9, 200)]
    assert epochs.latest == 9
    assert epochs.is_dirty


def test_truncation_removes_epochs_that_start_after_the_new_end() -> None:
    epochs = cache()
    epochs.truncate_from_end(150)
    assert epochs.entries() == [(2, 0), (5, 100)]
    assert epochs.latest == 5
    epochs.truncate_from_end(101)
    assert epochs.entries() == [(2, 0), (5, 100)]


def test_moving_the_log_start_moves_the_first_epoch() -> None:
    epochs = cache()
    epochs.truncate_from_start(120)
    assert epochs.entries() == [(5, 120), (7, 150)]
    epochs.truncate_from_start(150)
    assert epochs.entries() == [(7, 150)]


@pytest.mark.parametrize(
    ("call", "changes"),
    [
        (methodcaller("truncate_from_end", 150), True),
        (methodcaller("truncate_from_end", 151), False),
        (methodcaller("truncate_from_start", 120), True),
        (methodcaller("truncate_from_start", 50), True),
        (methodcaller("truncate_from_start", 0), False),
        (methodcaller("clear"), True),
    ],
)
def test_a_change_must_be_written_to_the_file(call: methodcaller, changes: bool) -> None:
    epochs = cache()
    before = epochs.entries()
    call(epochs)
    assert epochs.is_dirty == (epochs.entries() != before) == changes


def test_an_epoch_before_the_log_is_not_moved_to_its_start() -> None:
    epochs = LeaderEpochCache([(5, 100), (7, 150)])
    epochs.truncate_from_start(60)
    assert epochs.entries() == [(5, 100), (7, 150)]


def test_the_epoch_of_an_offset() -> None:
    assert [cache().epoch_for_offset(offset) for offset in (0, 99, 100, 149, 150, 999)] == [2, 2, 5, 5, 7, 7]
    assert LeaderEpochCache([(3, 10)]).epoch_for_offset(9) == -1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=20))
def test_epochs_stay_in_order_and_round_trip_through_the_file(steps: list[tuple[int, int]]) -> None:
    epochs, offset = LeaderEpochCache(), 0
    for epoch, count in steps:
        epochs.assign(epoch, offset)
        offset += count
    entries = epochs.entries()
    assert entries == sorted(entries)
    assert len({start for _, start in entries}) == len(entries)
    assert decode_epochs(encode_epochs(entries)) == entries


def test_an_epoch_is_not_saved_before_its_first_record() -> None:
    """A restart of a broker with a thousand partitions must not write a thousand files."""
    epochs = LeaderEpochCache([(2, 0)])
    assert epochs.to_save(100) is None
    epochs.assign(3, 100)
    assert epochs.to_save(100) is None
    assert epochs.to_save(101) == [(2, 0), (3, 100)]
    epochs.saved()
    assert epochs.to_save(101) is None
    epochs.truncate_from_end(100)
    assert epochs.to_save(100) == [(2, 0)]
