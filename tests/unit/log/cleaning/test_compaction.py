"""Compaction keeps the last record of each key, offsets, producer sequences and open transactions."""

import errno
from pathlib import Path
from typing import Any

import pytest

from ottla.clock import MonotonicMs
from ottla.errors import KafkaError
from ottla.log.cleaning.compaction import Cleanable, CleanableSegment, choose_cleanable, group_segments
from ottla.log.config import TopicConfig
from ottla.log.disk import Disk
from ottla.log.partition_log import Origin
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.record_batch import Codec, read_records
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from ottla.types import INT32_MAX
from tests.support.worlds.log_world import NOON, FailingDisk, LogWorld, find_by_time

HOUR = 3_600_000
DAY = 24 * HOUR


def compacted(tmp_path: Path, **settings: Any) -> LogWorld:
    """A log that is compacted as soon as there is anything to compact."""
    defaults: dict[str, Any] = {
        "cleanup_policy": ("compact",),
        "min_cleanable_dirty_ratio": 0.0,
        "delete_retention_ms": DAY,
        "file_delete_delay_ms": 0,
    }
    return LogWorld(tmp_path, **(defaults | settings))


def roll(world: LogWorld) -> None:
    world.log.roll()


def compact_keys(world: LogWorld, max_keys: int) -> None:
    """One pass that has memory for so many keys, and may stop early."""
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    plan.max_keys = max_keys
    plan.run()
    assert world.log.apply_compaction(plan)


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
    assert chosen(first_dirty=30, min_cleanable_dirty_ratio=0.0) is None, "there is nothing dirty"


def test_segments_younger_than_the_minimum_lag_are_not_compacted() -> None:
    assert chosen(now=32 * HOUR, min_compaction_lag_ms=2 * HOUR, min_cleanable_dirty_ratio=0.1) == Cleanable(10, 20)
    assert chosen(now=22 * HOUR, min_compaction_lag_ms=2 * HOUR, min_cleanable_dirty_ratio=0.1) is None


def test_the_maximum_lag_overrides_the_dirty_ratio() -> None:
    assert chosen(now=120 * HOUR, max_compaction_lag_ms=100 * HOUR, min_cleanable_dirty_ratio=1.0) is None
    assert chosen(now=120 * HOUR + 1, max_compaction_lag_ms=100 * HOUR, min_cleanable_dirty_ratio=1.0) is not None


def test_nothing_past_the_last_stable_offset_is_compacted() -> None:
    assert chosen(stable=29, min_cleanable_dirty_ratio=0.1) == Cleanable(10, 20)
    assert chosen(stable=19, min_cleanable_dirty_ratio=0.1) is None


def test_small_adjacent_segments_are_merged_up_to_segment_bytes() -> None:
    segments = [CleanableSegment(n * 10, n * 10 + 10, size, -1, -1) for n, size in enumerate((300, 300, 500, 900, 50))]
    assert group_segments(segments, TopicConfig(segment_bytes=1000)) == [[0, 1], [2], [3, 4]]


def test_segments_too_far_apart_in_offsets_are_not_merged() -> None:
    segments = [CleanableSegment(0, 10, 1, -1, -1), CleanableSegment(10, INT32_MAX + 2, 1, -1, -1)]
    assert group_segments(segments, TopicConfig()) == [[0], [1]]


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


def test_more_keys_than_fit_in_memory_take_several_passes(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    for number in range(20):
        world.append((f"key-{number % 8}", f"value-{number}"))
    roll(world)
    world.append(("last", "x"))
    passes = 0
    while (plan := world.log.plan_compaction(world.now)) is not None:
        plan.max_keys = 3
        plan.run()
        assert world.log.apply_compaction(plan)
        passes += 1
        assert passes < 30
    assert passes > 3
    assert world.pairs() == [*((n, f"key-{n % 8}", f"value-{n}") for n in range(12, 20)), (20, "last", "x")]


def test_a_log_with_policy_delete_is_never_compacted(tmp_path: Path) -> None:
    world = compacted(tmp_path, cleanup_policy=("delete",))
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    assert world.log.plan_compaction(world.now) is None


def test_nothing_above_the_high_watermark_is_compacted(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"))
    world.append(("a", "2"), commit=False)
    roll(world)
    assert world.log.plan_compaction(world.now) is None


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


# --- transactions -----------------------------------------------------------------------------------------


def test_an_open_transaction_holds_back_compaction(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"))
    roll(world)
    world.produce(7, ("a", "2"), transactional=True)
    roll(world)
    world.append(("a", "3"))
    roll(world)
    world.compact()
    assert world.pairs() == [(0, "a", "1"), (1, "a", "2"), (2, "a", "3")]
    world.ends(7, abort=True)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(2, "a", "3")]


def test_an_aborted_record_does_not_displace_a_committed_one(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "good"))
    world.produce(7, ("a", "bad"), transactional=True)
    world.ends(7, abort=True)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(0, "a", "good")]


def test_an_abort_marker_is_removed_one_horizon_after_its_records(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.produce(7, ("a", "bad"), transactional=True)
    world.ends(7, abort=True)
    world.produce(7, ("z", "1"))
    markers = []
    for _ in range(4):
        world.append(("b", "1"))
        roll(world)
        assert world.compact()
        markers.append([h.has_delete_horizon for h, _ in world.read_batches() if h.is_control])
        assert world.log.aborted_transactions(0, 99) in ([], [AbortedTransaction(7, 0, 1, 2)])
        world.now += DAY
    assert markers == [[False], [True], [], []]
    assert world.log.aborted_transactions(0, 99) == []
    world.restart()
    assert world.log.aborted_transactions(0, 99) == []


def test_a_commit_marker_is_kept_while_a_record_of_its_transaction_is(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"), transactional=True)
    world.ends(7, abort=False)
    world.produce(7, ("z", "1"))
    for _ in range(3):
        world.append(("b", "1"))
        roll(world)
        assert world.compact()
        world.now += 2 * DAY
    assert [header.has_delete_horizon for header, _ in world.read_batches() if header.is_control] == [False]
    world.append(("a", "2"))
    for _ in range(3):
        world.append(("b", "1"))
        roll(world)
        assert world.compact()
        world.now += 2 * DAY
    assert not any(header.is_control for header, _ in world.read_batches())


def test_the_marker_with_an_active_producers_epoch_is_kept_without_records(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"), transactional=True)
    world.ends(7, abort=True, epoch=1)
    for _ in range(4):
        world.append(("b", "1"))
        roll(world)
        world.compact()
        world.now += 2 * DAY
    shells = [(header.producer_epoch, header.record_count) for header, _ in world.read_batches() if header.is_control]
    assert shells == [(1, 0)]
    world.crash()
    entry = world.log.producers.find(7)
    assert entry is not None
    assert entry.producer_epoch == 1, "a zombie of epoch 0 is still fenced"


def test_a_transaction_that_ends_in_a_later_segment_is_not_lost(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "good"))
    world.produce(7, ("a", "bad"), ("b", "bad"), transactional=True)
    roll(world)
    world.ends(7, abort=True)
    world.append(("c", "1"))
    assert world.compact()
    assert world.pairs() == [(0, "a", "good"), (4, "c", "1")]
    assert world.log.aborted_transactions(0, 99) == [AbortedTransaction(7, 1, 3, 4)]
    for _ in range(2):
        # One pass removes the empty aborted batch, the next finds the marker without records.
        world.produce(7, ("d", "1"))
        roll(world)
        assert world.compact()
    assert world.log.aborted_transactions(0, 99) == []


def test_an_abort_before_the_dirty_part_does_not_hide_later_commits(tmp_path: Path) -> None:
    """The tombstone is read as committed, so it removes the value; else the key would reappear without it."""
    world = compacted(tmp_path)
    world.produce(7, ("k", "value"), transactional=True)
    world.ends(7, abort=False)
    world.produce(7, ("other", "x"), transactional=True)
    world.ends(7, abort=True)
    roll(world)
    assert world.compact()
    world.produce(7, ("k", None), transactional=True)
    world.ends(7, abort=False)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(4, "k", None)]
    world.now += DAY
    world.produce(7, ("z", "1"))
    roll(world)
    assert world.compact()
    assert world.pairs() == [(6, "z", "1")]


def test_a_transaction_that_began_before_the_dirty_part_is_still_aborted(tmp_path: Path) -> None:
    """A pass that runs out of memory may stop in the middle of a transaction."""
    world = compacted(tmp_path)
    world.append(("a", "good"), ("b", "good"))
    world.produce(7, ("c", "bad"), transactional=True)
    world.append(("d", "good"))
    world.produce(7, ("a", "bad"), ("b", "bad"), transactional=True)
    world.ends(7, abort=True)
    world.produce(7, ("b", "better"), transactional=True)
    world.ends(7, abort=False)
    roll(world)
    compact_keys(world, 3)
    assert world.log.first_dirty_offset == 4, "in the middle of the transaction"
    assert world.compact()
    assert world.pairs() == [(0, "a", "good"), (3, "d", "good"), (7, "b", "better")]


def test_a_snapshot_from_inside_a_transaction_does_not_outlive_its_marker(tmp_path: Path) -> None:
    """Recovery from the snapshot would not see the transaction end, and readers would wait for it forever."""
    world = compacted(tmp_path)
    world.produce(7, ("a", "1"), transactional=True)
    roll(world)
    world.ends(7, abort=False)
    world.log.delete_records_before(1)
    world.log.enforce_retention(world.now)
    assert world.log.segments.bases == [1], "the snapshot at its start knows an open transaction"
    world.log.expire_producers(MonotonicMs(world.now + 2 * DAY))
    for _ in range(2):
        world.append(("b", "1"))
        roll(world)
        assert world.compact()
        world.now += 2 * DAY
    assert not any(header.is_control for header, _ in world.read_batches())
    world.crash(recovery_point=0)
    assert world.log.last_stable_offset == world.log.log_end_offset


def test_coordinator_records_are_compacted_like_others(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    for number in range(3):
        world.append(("group", str(number)), origin=Origin.COORDINATOR)
    roll(world)
    assert world.compact()
    assert world.pairs() == [(2, "group", "2")]


# --- beside other work ------------------------------------------------------------------------------------


def test_the_log_is_written_and_read_while_it_is_compacted(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    world.append(("a", "3"))
    assert world.values() == ["1", "2", "3"]
    plan.run()
    world.append(("a", "4"))
    assert world.log.apply_compaction(plan)
    assert world.values() == ["2", "3", "4"]


def test_a_compaction_is_discarded_if_the_log_changed(tmp_path: Path) -> None:
    world = compacted(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=HOUR)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    world.append(("a", "3"), timestamp=NOON + HOUR)
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    plan.run()
    world.log.enforce_retention(NOON + HOUR + 1)
    assert not world.log.apply_compaction(plan)
    assert world.values() == ["3"]
    assert world.names(".cleaned") == []


def test_a_compaction_is_discarded_if_its_last_segment_is_written_again(tmp_path: Path) -> None:
    """A follower truncates the segments after it, and continues in a segment that was read as a finished one."""
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    world.append(("b", "1"), commit=False)
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    plan.run()
    world.log.truncate_to(2)
    world.append(("c", "1"))
    assert not world.log.apply_compaction(plan)
    assert world.values() == ["1", "2", "1"]


def test_a_cancelled_compaction_leaves_no_files(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    plan.cancel()
    plan.run()
    assert not world.log.apply_compaction(plan)
    assert world.names(".cleaned") == []
    assert world.values() == ["1", "2"]


def test_corrupt_batches_are_not_copied(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.checks_reload = False
    world.append(("a", "1"), ("a", "2"))
    path = Path(world.log.segments.active.path(".log"))
    roll(world)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    with pytest.raises(KafkaError):
        plan.run()
    assert world.names(".cleaned") == []


def test_a_full_disk_stops_only_the_compaction(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = compacted(tmp_path, disk=disk)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    disk.fails("append")
    with pytest.raises(OSError, match="append fails in this test"):
        plan.run()
    assert not world.log.compaction_failed(plan)
    disk.works()
    assert world.names(".cleaned") == []
    assert world.append(("b", "1")).base_offset == 2
    assert world.compact()
    assert world.values() == ["2", "1"]


def test_a_segment_without_remaining_records_keeps_an_empty_last_batch(tmp_path: Path) -> None:
    """Recovery takes a segment that ends before the next one starts for a truncated one."""
    world = compacted(tmp_path, cleanup_policy=("compact", "delete"), retention_ms=9 * DAY, segment_bytes=200)
    world.append(("a", "1" * 100))
    roll(world)
    world.append(("b", "1" * 100))
    roll(world)
    world.append(("a", "2"), ("b", "2"))
    roll(world)
    assert world.compact()
    for reopen in (world.restart, world.crash, lambda: world.crash(recovery_point=0)):
        assert [(h.base_offset, h.last_offset, h.record_count) for h, _ in world.read_batches()] == [
            (0, 0, 0),
            (1, 1, 0),
            (2, 3, 2),
        ]
        assert world.pairs() == [(2, "a", "2"), (3, "b", "2")]
        reopen()
    assert world.log.enforce_retention(world.now + 10 * DAY) >= 3
    assert world.pairs() == []


# --- crashes ----------------------------------------------------------------------------------------------


class DyingDisk(Disk):
    """Fails from the n-th rename or removal on, like a killed process."""

    def __init__(self) -> None:
        self.left: int | None = None

    def _live(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise OSError("the process is dead")
            self.left -= 1

    def rename(self, old: str, new: str) -> None:
        self._live()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._live()
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._live()
        super().sync_directory(path)


def test_a_crash_at_any_step_of_the_swap_leaves_a_complete_log(tmp_path: Path) -> None:
    """Either the old segments or the new ones: no lost key, no duplicate offset, no corrupt index."""
    finished = False
    for steps in range(100):
        disk = DyingDisk()
        world = compacted(tmp_path / str(steps), disk=disk, segment_bytes=900, index_interval_bytes=50)
        for number in range(30):
            world.append((f"key-{number % 3}", f"value-{number}"))
            if number % 5 == 4:
                roll(world)
            if number == 19:
                world.produce(7, ("t", "bad"), transactional=True)
                world.ends(7, abort=True)
        plan = world.log.plan_compaction(world.now)
        assert plan is not None
        plan.run()
        disk.left = steps
        try:
            world.log.apply_compaction(plan)
            finished = True
        except KafkaError:
            pass
        disk.left = None
        end = world.log.log_end_offset
        world.crash(recovery_point=end)
        pairs = world.pairs()
        assert {key: value for _, key, value in pairs if key != "t"} == {
            f"key-{n % 3}": f"value-{n}" for n in range(27, 30)
        }
        assert [offset for offset, *_ in pairs] == sorted({offset for offset, *_ in pairs})
        assert world.log.log_end_offset == end
        bad = [record for record in pairs if record[1] == "t"]
        assert not bad or world.log.aborted_transactions(0, end) != []
        assert not [name for name in world.names() if name.endswith((".swap", ".cleaned", ".deleted"))]
        for offset in range(end):
            world.log.read(offset, 100, upper_bound=end)
        assert world.append(("key-0", "again")).base_offset == end
        if finished:
            break
    assert finished
    assert steps > 20


@pytest.mark.parametrize("seed", range(5))
def test_what_a_pass_relied_on_survives_a_power_loss(seed: int) -> None:
    """The marker that aborts, and the later batch of a producer, are synced before the earlier batches are removed."""
    platter = SimPlatter(SimLoop(seed))
    disk = platter.disk()
    world = compacted(Path("/data"), disk=disk)
    world.produce(7, ("a", "1"))
    world.produce(8, ("b", "bad"), transactional=True)
    world.append(("a", "2"))
    roll(world)
    world.produce(7, ("c", "1"))
    world.ends(8, abort=True, epoch=1)
    assert world.compact()
    assert world.pairs() == [(2, "a", "2"), (3, "c", "1")]
    disk.detach()
    platter.power_loss()
    world.disk = platter.disk()
    world.open(clean=False)
    assert world.log.log_end_offset == 5
    world.commit()
    assert world.log.last_stable_offset == 5
    assert world.append(("c", "1"), producer_id=7, producer_epoch=0, base_sequence=1).duplicate
    with pytest.raises(KafkaError, match="epoch 0 is older than 1"):
        world.append(("z", "1"), producer_id=8, producer_epoch=0, base_sequence=1, transactional=True)


def test_a_failed_sync_in_a_compaction_ends_all_writes(tmp_path: Path) -> None:
    """As after a failed flush: the kernel may have dropped records that were accepted."""
    disk = FailingDisk()
    world = compacted(tmp_path, disk=disk)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    world.append(("b", "1"))
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    disk.fails("sync_directory", errno.EIO)
    with pytest.raises(OSError, match="sync_directory fails"):
        plan.run()
    disk.works()
    assert world.log.compaction_failed(plan)
    assert world.names(".cleaned") == []
    with pytest.raises(KafkaError, match="restart the broker"):
        world.append(("b", "2"))
    assert world.values() == ["1", "2", "1"], "reads continue"


def test_incomplete_cleaned_files_are_removed_at_the_next_start(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    plan = world.log.plan_compaction(world.now)
    assert plan is not None
    plan.run()
    assert world.names(".log.cleaned")
    world.crash()
    assert world.names(".cleaned") == []
    assert world.values() == ["1", "2"]


def test_the_first_dirty_offset_survives_a_restart(tmp_path: Path) -> None:
    world = compacted(tmp_path)
    world.append(("a", "1"), ("a", "2"))
    roll(world)
    world.append(("b", "1"))
    assert world.compact()
    world.restart()
    assert world.log.first_dirty_offset == 2
    assert not world.compact()


def test_timestamps_are_found_after_compaction(tmp_path: Path) -> None:
    world = compacted(tmp_path, segment_bytes=400, index_interval_bytes=50)
    for number in range(30):
        world.append((f"key-{number % 7}", "v"), timestamp=NOON + number * 10)
    world.compact()
    kept = world.records()
    for time in range(-5, 305, 5):
        expected = next((record.offset for record in kept if record.timestamp >= NOON + time), None)
        found = find_by_time(world.log, NOON + time, upper_bound=30)
        assert (found.offset if found else None) == expected


def test_a_follower_can_copy_a_compacted_log(tmp_path: Path) -> None:
    world = compacted(tmp_path / "leader", segment_bytes=400)
    for number in range(30):
        world.produce(7, (f"key-{number % 3}", f"value-{number}"))
    assert world.compact()
    follower = compacted(tmp_path / "follower", segment_bytes=400)
    end = world.log.log_end_offset
    while follower.log.log_end_offset < end:
        data = world.log.read(follower.log.log_end_offset, 500, upper_bound=end)
        follower.log.append_replicated(data)
    assert follower.pairs() == world.pairs()
    assert all(read_records(batch) is not None for _, batch in follower.read_batches())
