"""When a new segment is started (pure rules)."""

from typing import Any

from ottla.log.config import TopicConfig
from ottla.log.segments.rolling import RollRules
from ottla.types import INT32_MAX, TopicPartition

HOUR = 3_600_000


def rules(partition: int = 0, **settings: Any) -> RollRules:
    made = RollRules(TopicPartition("t", partition), TopicConfig(**settings))
    made.begin(100, 10 * HOUR)
    return made


def is_full(made: RollRules, **changes: int) -> bool:
    facts = {"size": 1100, "index_entries": 1, "last_offset": 200, "max_timestamp": 10 * HOUR}
    return made.is_full(**{**facts, **changes})


def test_a_segment_is_full_when_the_next_batch_would_exceed_segment_bytes() -> None:
    assert not is_full(rules(segment_bytes=1100))
    assert is_full(rules(segment_bytes=1099))


def test_a_record_more_than_segment_ms_after_the_first_starts_a_new_segment() -> None:
    made = rules(segment_ms=HOUR)
    assert not is_full(made, max_timestamp=11 * HOUR)
    assert is_full(made, max_timestamp=11 * HOUR + 1)


def test_records_without_timestamps_do_not_age_a_segment() -> None:
    made = rules(segment_ms=HOUR)
    made.begin(100, -1)
    assert not is_full(made, max_timestamp=10**15)
    assert not is_full(rules(segment_ms=HOUR), max_timestamp=-1)
    made.begin(100, 0)
    assert is_full(made, max_timestamp=HOUR + 1), "0 is a timestamp"


def test_an_idle_segment_is_due_by_the_brokers_clock() -> None:
    made = rules(segment_ms=HOUR)
    assert not made.is_due(100, 5 * HOUR, 6 * HOUR)
    assert made.is_due(100, 5 * HOUR, 6 * HOUR + 1)


def test_compacted_topics_roll_after_the_maximum_compaction_lag() -> None:
    assert rules(segment_ms=9 * HOUR, max_compaction_lag_ms=HOUR, cleanup_policy=("compact",)).is_due(
        100, 5 * HOUR, 7 * HOUR
    )
    assert not rules(segment_ms=9 * HOUR, max_compaction_lag_ms=HOUR).is_due(100, 5 * HOUR, 7 * HOUR)


def test_a_full_index_rolls_the_segment() -> None:
    assert is_full(rules(segment_index_bytes=120), index_entries=10)
    assert not is_full(rules(segment_index_bytes=120), index_entries=9)


def test_a_relative_offset_overflow_rolls_the_segment() -> None:
    assert not is_full(rules(), last_offset=100 + INT32_MAX)
    assert is_full(rules(), last_offset=101 + INT32_MAX)


def test_jitter_differs_between_partitions_and_is_reproducible() -> None:
    def first_due(partition: int) -> int:
        made = rules(partition, segment_ms=1000, segment_jitter_ms=500)
        return next(now for now in range(1100) if made.is_due(100, 0, now))

    due = [first_due(partition) for partition in range(20)]
    assert due == [first_due(partition) for partition in range(20)]
    assert all(500 < now <= 1001 for now in due)
    assert len(set(due)) > 10
