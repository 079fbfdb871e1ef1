"""Compaction keeps the last record of each key, offsets, producer sequences and open transactions."""

from pathlib import Path

import pytest

from ottla.log.cleaning.compaction import Cleanable, CleanableSegment, choose_cleanable, group_segments
from ottla.log.cleaning.log_cleaning import apply_compaction, plan_compaction
from ottla.log.config import TopicConfig
from ottla.protocol.records.record_batch import Codec
from ottla.types import INT32_MAX
from tests.support.worlds.compacted_log import DAY, HOUR, compact_keys, compacted, roll
from tests.support.worlds.log_world import NOON

# --- when (pure) ------------------------------------------------------------------------------------------


def chosen(*, first_dirty: int = 10, stable: int = 99, now: int = 100 * HOUR, **settings: object) -> Cleanable | None:
    """Three finished segments of ten records and a thousand bytes: one clean, two dirty."""
    segments = [
        CleanableSegment(0, 10, 1000, 10 * HOUR, 11 * HOUR),
        CleanableSegment(10, 20, 1000, 20 * HOUR, 21 * HOUR),
        CleanableSegment(20, 30, 1000, 30 * HOUR, 31 * HOUR),
    ]
    config = TopicConfig(cleanup_policy=("compact",), **settings)  # type: ignore[arg-type]
    return choose_cleanable(segments, config, first_dirty, stable, now)


def test_a_log_is_compacted_when_enough_of_it_is_dirty() -> None:
    assert chosen(min_cleanable_dirty_ratio=0.5) == Cleanable(10, 30)
    assert chosen(min_cleanable_dirty_ratio=0.7) is None
    assert chosen(first_dirty=20, min_cleanable_dirty_ratio=0.5) is None
    assert chosen(first_dirty=20, min_cleanable_dirty_ratio=1 / 3) is None, "it must be more than the ratio"
    assert chosen(first_dirty=0, min_cleanable_dirty_ratio=0.9999) == Cleanable(0, 30), "all of it is dirty"
    assert chosen(first_dirty=30, min_cleanable_dirty_ratio=0.0) is None, "there is nothing dirty"


def test_segments_younger_than_the_minimum_lag_are_not_compacted() -> None:
    assert chosen(now=32 * HOUR, min_compaction_lag_ms=2 * HOUR, min_cleanable_dirty_ratio=0.1) == Cleanable(10, 20)
    assert chosen(now=22 * HOUR, min_compaction_lag_ms=2 * HOUR, min_cleanable_dirty_ratio=0.1) is None
    assert chosen(now=31 * HOUR, min_compaction_lag_ms=1, min_cleanable_dirty_ratio=0.1) == Cleanable(10, 20)
    assert chosen(now=33 * HOUR, min_compaction_lag_ms=2 * HOUR, min_cleanable_dirty_ratio=0.1) == Cleanable(10, 30)


def test_timestamps_in_the_future_do_not_matter_without_a_minimum_lag() -> None:
    assert chosen(now=15 * HOUR, min_cleanable_dirty_ratio=0.1) == Cleanable(10, 30)


def test_the_maximum_lag_overrides_the_dirty_ratio() -> None:
    assert chosen(now=120 * HOUR, max_compaction_lag_ms=100 * HOUR, min_cleanable_dirty_ratio=1.0) is None
    assert chosen(now=120 * HOUR + 1, max_compaction_lag_ms=100 * HOUR, min_cleanable_dirty_ratio=1.0) is not None


def test_records_without_a_timestamp_have_no_age() -> None:
    config = TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=HOUR, min_cleanable_dirty_ratio=1.0)
    for first_timestamp, expected in ((-1, None), (0, Cleanable(0, 10))):
        segments = [CleanableSegment(0, 10, 1000, first_timestamp, first_timestamp)]
        assert choose_cleanable(segments, config, 0, 10, 2 * HOUR) == expected


def test_nothing_past_the_last_stable_offset_is_compacted() -> None:
    assert chosen(stable=29, min_cleanable_dirty_ratio=0.1) == Cleanable(10, 20)
    assert chosen(stable=19, min_cleanable_dirty_ratio=0.1) is None


def test_small_adjacent_segments_are_merged_up_to_segment_bytes() -> None:
    segments = [CleanableSegment(n * 10, n * 10 + 10, size, -1, -1) for n, size in enumerate((300, 300, 500, 900, 50))]
    assert group_segments(segments, TopicConfig(segment_bytes=1000)) == [[0, 1], [2], [3, 4]]
    assert group_segments(segments, TopicConfig(segment_bytes=1100)) == [[0, 1, 2], [3, 4]]


def test_segments_too_far_apart_in_offsets_are_not_merged() -> None:
    segments = [CleanableSegment(0, 10, 1, -1, -1), CleanableSegment(10, INT32_MAX + 2, 1, -1, -1)]
    assert group_segments(segments, TopicConfig()) == [[0], [1]]
    segments = [CleanableSegment(0, 10, 1, -1, -1), CleanableSegment(10, INT32_MAX, 1, -1, -1)]
    assert group_segments(segments, TopicConfig()) == [[0, 1]]
    far = [CleanableSegment(base, base + 10, 1, -1, -1) for base in (INT32_MAX, INT32_MAX + 10)]
    assert group_segments(far, TopicConfig()) == [[0, 1]]


# --- keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_the_last_record_of_each_key_is_kept_at_its_offset(tmp_path: Path, codec: Codec) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("b", "1"), ("a", "2"), codec=codec)
    world.append(("c", "1"), ("b", "2"), codec=codec)
    roll(world)
    world.append(("c", "2"), codec=codec)
    assert world.compact()
    assert world.pairs() == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2"), (5, "c", "2")]
    assert world.log.first_dirty_offset == 5
    assert not world.compact(), "the active segment is never compacted"
    assert [header.codec for header, _ in world.read_batches()] == [codec] * 3


def test_offsets_are_kept_and_reads_skip_the_gaps(tmp_path: Path) -> None:
    world = compacted(tmp_path, segment_bytes=400, index_interval_bytes=50)
    for number in range(60):
        world.append((f"key-{number % 5}", f"value-{number}"))
    world.append(("last", "x"))
    end = world.log.log_end_offset
    assert world.compact()
    expected = [(number, f"key-{number % 5}", f"value-{number}") for number in range(60)]
    dirty_from = world.log.first_dirty_offset
    kept = [record for record in world.pairs() if record[0] < dirty_from]
    assert [record[0] for record in kept] == sorted({max(n for n in range(dirty_from) if n % 5 == k) for k in range(5)})
    assert set(kept) <= set(expected)
    assert world.log.log_start_offset == 0
    assert world.log.log_end_offset == end
    for offset in range(end):
        assert [r.offset for r in world.records(offset)] == [o for o, *_ in world.pairs() if o >= offset]


def test_a_later_pass_compacts_what_an_earlier_one_kept(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    for number in range(4):
        world.append(("a", str(number)), (f"only-{number}", "x"))
        roll(world)
        assert world.compact()
    assert world.pairs() == [
        (1, "only-0", "x"),
        (3, "only-1", "x"),
        (5, "only-2", "x"),
        (6, "a", "3"),
        (7, "only-3", "x"),
    ]


def test_segments_that_shrank_are_merged_by_the_next_pass(tmp_path: Path) -> None:
    world = compacted(tmp_path, segment_bytes=300)
    for number in range(40):
        world.append(("same", f"value-{number}"))
    segments = len(world.log.segments)
    assert world.compact()
    assert len(world.log.segments) == segments, "segments are grouped by their size before compaction"
    for number in range(4):
        world.append(("same", f"more-{number}"))
    assert world.compact()
    assert len(world.log.segments) < segments / 2
    assert len(world.names(".log")) == len(world.log.segments)
    snapshots = [int(name[:20]) for name in world.names(".snapshot")]
    bases = world.log.segments.bases
    assert {*snapshots[:-1]} <= {*bases}, "none from before the merge, except the latest"
    assert {*bases[1:]} <= {*snapshots}, "each segment has one for its start"


def test_more_keys_than_fit_in_memory_take_several_passes(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    for number in range(20):
        world.append((f"key-{number % 8}", f"value-{number}"))
    roll(world)
    world.append(("last", "x"))
    passes = 0
    while (plan := plan_compaction(world.log, world.now)) is not None:
        plan.max_keys = 3
        plan.run()
        assert apply_compaction(world.log, plan)
        passes += 1
        assert passes < 30
    assert passes > 3
    assert world.pairs() == [*((n, f"key-{n % 8}", f"value-{n}") for n in range(12, 20)), (20, "last", "x")]


def test_a_log_with_policy_delete_is_never_compacted(tmp_path: Path) -> None:
    world = compacted(tmp_path, cleanup_policy=("delete",))
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    assert plan_compaction(world.log, world.now) is None


def test_nothing_above_the_high_watermark_is_compacted(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"))
    world.append(("a", "2"), commit=False)
    roll(world)
    assert plan_compaction(world.log, world.now) is None


# --- tombstones -------------------------------------------------------------------------------------------


def test_a_tombstone_is_removed_after_delete_retention_ms(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("b", "1"))
    world.append(("a", None))
    roll(world)
    assert world.compact()
    assert world.pairs() == [(1, "b", "1"), (2, "a", None)]
    horizon = [header.base_timestamp for header, _ in world.read_batches() if header.has_delete_horizon]
    assert horizon == [NOON + DAY]
    world.now += DAY - 1
    world.append(("c", "1"))
    roll(world)
    assert world.compact()
    assert (2, "a", None) in world.pairs()
    world.now += 1
    world.append(("d", "1"))
    roll(world)
    assert world.compact()
    assert world.pairs() == [(1, "b", "1"), (3, "c", "1"), (4, "d", "1")]


def test_while_a_jump_of_the_clock_is_held_tombstones_live_by_the_old_time_and_long_enough_by_the_new_one(
    tmp_path: Path,
) -> None:
    world = compacted(tmp_path)
    world.append(("a", None))
    roll(world)
    assert world.compact()
    # The clock jumps ahead by nine days. The first tombstone's day is not over, by the old time.
    world.append(("b", None))
    roll(world)
    assert world.compact(held_ms=9 * DAY)
    horizons = [header.base_timestamp for header, _ in world.read_batches() if header.has_delete_horizon]
    assert horizons == [NOON + DAY, NOON + 10 * DAY]
    # The jump is accepted: the second tombstone still has its day.
    world.now += 9 * DAY
    world.append(("c", "1"))
    roll(world)
    assert world.compact()
    assert [key for _, key, _ in world.pairs()] == ["b", "c"]


def test_records_keep_their_timestamps_when_a_delete_horizon_is_set(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("b", None), timestamp=NOON - 5 * HOUR)
    roll(world)
    assert world.compact()
    assert [record.timestamp for record in world.records()] == [NOON - 5 * HOUR] * 2


def test_the_retention_of_a_tombstone_begins_when_its_values_are_removed(tmp_path: Path) -> None:
    """A pass that stops before a tombstone leaves the value for readers, who must still find the tombstone later."""
    world = compacted(tmp_path)
    world.append(("a", "1"), ("b", "1"))
    world.append(("a", None))
    roll(world)
    compact_keys(world, 2)
    assert world.log.first_dirty_offset == 2
    assert world.pairs() == [(0, "a", "1"), (1, "b", "1"), (2, "a", None)]
    world.now += DAY
    assert world.compact()
    assert world.pairs() == [(1, "b", "1"), (2, "a", None)]
    world.now += DAY
    world.append(("c", "1"))
    roll(world)
    assert world.compact()
    assert world.pairs() == [(1, "b", "1"), (3, "c", "1")]


def test_records_below_the_log_start_are_removed(tmp_path: Path) -> None:
    """If only the tombstone were removed, its value could reappear: a crash may move the log start back."""
    world = compacted(tmp_path, delete_retention_ms=0)
    world.append(("a", "1"), ("b", "1"))
    world.append(("a", None), ("c", "1"))
    world.append(("d", "1"))
    roll(world)
    world.log.delete_records_before(3)
    assert world.compact()
    world.log.store.close()
    world.open(clean=False)
    assert world.log.log_start_offset == 0, "DeleteRecords was not in a checkpoint yet"
    assert world.pairs() == [(3, "c", "1"), (4, "d", "1")]
    world.commit()


# --- producers --------------------------------------------------------------------------------------------


def test_the_last_sequence_of_an_active_producer_survives_its_records(tmp_path: Path) -> None:
    """Spec: D3. Compaction keeps an empty batch, so that a retry is still recognised after a restart."""
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"))
    world.produce(7, ("a", "2"))
    world.append(("a", "3"))
    roll(world)
    assert world.compact()
    assert world.pairs() == [(2, "a", "3")]
    assert [(h.base_offset, h.record_count, h.base_sequence) for h, _ in world.read_batches()] == [
        (1, 0, 1),
        (2, 1, -1),
    ]
    world.crash()
    assert world.append(("a", "2"), producer_id=7, producer_epoch=0, base_sequence=1).duplicate
    assert world.produce(7, ("a", "4")).base_offset == 3


@pytest.mark.parametrize("producer_id", [0, 7])
def test_the_first_batch_of_a_log_can_be_the_last_of_its_producer(tmp_path: Path, producer_id: int) -> None:
    world = compacted(tmp_path)
    world.produce(producer_id, ("a", "1"))
    world.append(("a", "2"))
    roll(world)
    assert world.compact()
    assert [(h.base_offset, h.record_count) for h, _ in world.read_batches()] == [(0, 0), (1, 1)]
    world.crash(recovery_point=0)
    assert world.append(("a", "1"), producer_id=producer_id, producer_epoch=0, base_sequence=0).duplicate


def test_the_last_sequence_survives_without_a_snapshot(tmp_path: Path) -> None:
    """A snapshot that cannot be written or read must not matter."""
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"))
    world.append(("a", "2"))
    roll(world)
    for name in world.names(".snapshot"):
        world.disk.remove(f"{world.directory}/{name}")
    assert world.compact()
    assert [(h.base_offset, h.record_count) for h, _ in world.read_batches()] == [(0, 0), (1, 1)]


def test_a_producer_that_expires_after_the_segment_leaves_no_batch(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"))
    world.append(("a", "2"))
    roll(world)
    world.log.expire_producers(NOON + 2 * DAY)
    assert world.compact()
    assert [header.base_offset for header, _ in world.read_batches()] == [1]
    world.checks_reload = False  # The snapshot at the end of the segment still has the producer.


def test_the_empty_batch_is_removed_when_the_producer_expires(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"))
    world.append(("a", "2"))
    roll(world)
    world.compact()
    world.log.expire_producers(NOON + 2 * DAY)
    world.append(("b", "1"))
    roll(world)
    assert world.compact()
    assert [header.base_offset for header, _ in world.read_batches()] == [1, 2]
