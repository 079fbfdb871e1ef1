"""Lag in records and in time. Spec: F3."""

import pytest

from ottla.client.core.lag import record_lag, time_lag_ms, total_record_lag
from ottla.types import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.mark.parametrize(
    ("position", "end", "lag"),
    [(5, 8, 3), (8, 8, 0), (9, 8, 0), (None, 8, 8)],
    ids=["behind", "at the end", "beyond the end", "unread"],
)
def test_the_lag_counts_offsets_that_can_still_be_read(position: int | None, end: int, lag: int) -> None:
    assert record_lag(position, end) == lag


def test_the_total_covers_partitions_that_were_never_read() -> None:
    assert total_record_lag({FIRST: 5}, {FIRST: 8, SECOND: 2}) == 5
    assert total_record_lag({FIRST: 8}, {FIRST: 8}) == 0


def test_the_lag_is_unknown_without_ends() -> None:
    assert total_record_lag({FIRST: 5}, {}) is None


def test_the_time_lag_is_the_age_of_the_first_unread_record() -> None:
    assert time_lag_ms(3, 400, 1000) == 600
    assert time_lag_ms(0, 400, 1000) == 0, "nothing is unread"
    assert time_lag_ms(3, 1200, 1000) == 0, "clocks differ"
    assert time_lag_ms(3, None, 1000) is None
    assert time_lag_ms(3, -1, 1000) is None, "the record has no timestamp"
