"""Which segments retention deletes (pure rules)."""

from ottla.log.cleaning.retention import SegmentFacts, segments_to_delete
from ottla.log.config import TopicConfig

HOUR = 3_600_000
NOW = 100 * HOUR
# Ten records and a thousand bytes each, written at 10, 20 and 30 o'clock; the last is the active one.
SEGMENTS = [
    SegmentFacts(0, 10, 1000, 10 * HOUR),
    SegmentFacts(10, 20, 1000, 20 * HOUR),
    SegmentFacts(20, 30, 1000, 30 * HOUR),
]


def count(
    segments: list[SegmentFacts] = SEGMENTS,
    *,
    high_watermark: int = 30,
    log_start_offset: int = 0,
    **settings: object,
) -> int:
    config = TopicConfig(**settings)  # type: ignore[arg-type]
    return segments_to_delete(
        segments, config, now=NOW, high_watermark=high_watermark, log_start_offset=log_start_offset
    )


def test_segments_are_deleted_when_their_newest_record_is_too_old() -> None:
    assert count(retention_ms=85 * HOUR) == 1
    assert count(retention_ms=75 * HOUR) == 2
    assert count(retention_ms=90 * HOUR) == 0, "just old enough is not too old"
    assert count(retention_ms=0) == 3, "0 keeps nothing from before"


def test_the_active_segment_is_deleted_too_when_it_is_too_old() -> None:
    assert count(retention_ms=HOUR) == 3


def test_an_empty_active_segment_is_kept() -> None:
    assert count([*SEGMENTS, SegmentFacts(30, 30, 0, 0)], retention_ms=HOUR) == 3


def test_segments_after_a_young_one_are_kept() -> None:
    shuffled = [SEGMENTS[0], SegmentFacts(10, 20, 1000, NOW), SEGMENTS[2]]
    assert count(shuffled, retention_ms=HOUR) == 1


def test_minus_one_disables_retention() -> None:
    assert count(retention_ms=-1) == 0
    assert count(retention_ms=-1, retention_bytes=-1) == 0


def test_segments_are_deleted_while_the_log_stays_above_retention_bytes() -> None:
    assert count(retention_ms=-1, retention_bytes=2000) == 1
    assert count(retention_ms=-1, retention_bytes=2001) == 0
    assert count(retention_ms=-1, retention_bytes=999) == 2
    assert count(retention_ms=-1, retention_bytes=0) == 3


def test_an_empty_segment_is_deleted_only_with_a_log_that_is_too_large() -> None:
    with_empty = [SegmentFacts(0, 10, 0, 10 * HOUR), *SEGMENTS[1:]]
    assert count(with_empty, retention_ms=-1, retention_bytes=2000) == 0
    assert count(with_empty, retention_ms=-1, retention_bytes=1999) == 1


def test_nothing_at_or_above_the_high_watermark_is_deleted() -> None:
    assert count(retention_ms=HOUR, high_watermark=29) == 2
    assert count(retention_ms=HOUR, high_watermark=15) == 1
    assert count(retention_ms=HOUR, high_watermark=9) == 0


def test_segments_below_the_log_start_are_deleted_with_any_policy() -> None:
    assert count(cleanup_policy=("compact",), retention_ms=HOUR, log_start_offset=20) == 2
    assert count(cleanup_policy=("compact",), retention_ms=HOUR, log_start_offset=19) == 1
    assert count(retention_ms=-1, log_start_offset=30) == 2, "never the active one"


def test_policy_compact_deletes_nothing_by_age_or_size() -> None:
    assert count(cleanup_policy=("compact",), retention_ms=HOUR, retention_bytes=0) == 0
    assert count(cleanup_policy=("compact", "delete"), retention_ms=75 * HOUR) == 2
