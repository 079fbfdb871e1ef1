"""Appending to, reading from and truncating one partition's log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.log.cleaning.log_cleaning import enforce_retention
from ottla.log.disk import Disk
from ottla.log.opening import open_log
from ottla.log.partition_log import Appended
from ottla.log.segments.transaction_index import AbortedTransaction
from ottla.protocol.records.record_batch import build_batch, iter_batches, read_header, stamp
from ottla.types import INT32_MAX
from tests.support.worlds.log_world import NOON, LogWorld

SMALL: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 150}
HOUR = 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> LogWorld:
    return LogWorld(tmp_path, **SMALL)


def rejected(code: ErrorCode, act: Callable[[], Any]) -> None:
    with pytest.raises(KafkaError) as caught:
        act()
    assert caught.value.code is code


def offsets(data: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_batches(data)]


# --- appending --------------------------------------------------------------------------------------------


def test_offsets_are_assigned_without_gaps(world: LogWorld) -> None:
    assert world.append("a", "b") == Appended(0, 1, -1, 0, False)
    assert world.append("c") == Appended(2, 2, -1, 0, False)
    assert [(record.offset, record.value) for record in world.records()] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_the_leader_epoch_is_written_into_every_batch(world: LogWorld) -> None:
    world.append("a")
    world.leader_epoch = 4
    world.append("b")
    assert [header.partition_leader_epoch for header, _ in world.read_batches()] == [0, 4]
    assert world.log.leader_epochs.entries() == [(0, 0), (4, 1)]


def test_the_clients_buffer_is_not_modified(world: LogWorld) -> None:
    batch = bytearray(world.batch("a"))
    before = bytes(batch)
    world.append("first")
    world.log.append(memoryview(batch), leader_epoch=9)
    assert bytes(batch) == before


def test_a_duplicate_is_not_written_twice_and_gets_the_first_offset(world: LogWorld) -> None:
    """Spec: D3."""
    world.append("before")
    first = world.produce(7, "a", "b")
    size = world.log.size_bytes
    again = world.append("a", "b", producer_id=7, producer_epoch=0, base_sequence=0)
    assert again == first._replace(duplicate=True)
    assert world.log.size_bytes == size


def test_two_sends_of_equal_content_are_two_records(world: LogWorld) -> None:
    """Spec: D4."""
    world.produce(7, "same")
    world.produce(7, "same")
    assert world.values() == ["same", "same"]


def test_a_rejected_batch_changes_nothing(world: LogWorld) -> None:
    world.produce(7, "a")
    before = (world.log.size_bytes, world.log.log_end_offset, world.log.leader_epochs.entries())
    world.leader_epoch = 3
    rejected(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        lambda: world.append("c", producer_id=7, producer_epoch=0, base_sequence=5),
    )
    assert (world.log.size_bytes, world.log.log_end_offset, world.log.leader_epochs.entries()) == before


# --- segments ---------------------------------------------------------------------------------------------


def test_a_full_segment_is_rolled_and_reads_cross_segments(world: LogWorld) -> None:
    expected = []
    for number in range(60):
        world.append(f"value-{number}")
        expected.append(f"value-{number}")
    assert len(world.names(".log")) > 4
    assert world.values() == expected
    assert world.values(37) == expected[37:]


def test_a_segment_is_named_after_its_first_offset(world: LogWorld) -> None:
    for number in range(20):
        world.append(f"value-{number}")
    bases = [segment.base_offset for segment in world.log.segments]
    assert world.names(".log") == [f"{base:020d}.log" for base in bases]
    assert [read_header(Disk().read_file(f"{world.directory}/{base:020d}.log")).base_offset for base in bases] == bases


def test_an_idle_segment_is_rolled_after_segment_ms(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_ms=HOUR)
    world.append("a")
    world.now += HOUR
    assert not world.log.roll_if_due()
    world.now += 1
    assert world.log.roll_if_due()
    world.now += 9 * HOUR
    assert not world.log.roll_if_due(), "an empty segment has no age"
    assert [segment.base_offset for segment in world.log.segments] == [0, 1]


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_segments_are_rolled_after_segment_ms_even_if_the_clock_was_set_back(tmp_path: Path, restarts: bool) -> None:
    world = LogWorld(tmp_path, segment_ms=HOUR)
    world.append("a")
    world.wall_ahead_ms = -24 * HOUR
    if restarts:
        world.restart()
    assert not world.log.roll_if_due(), "its first record is in the future: the age counts from the start"
    world.now += HOUR + 1
    assert world.log.roll_if_due()


def test_the_age_of_a_segment_from_before_a_restart_is_the_age_of_its_first_record(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_ms=HOUR)
    world.append("a")
    world.now += HOUR // 2
    world.restart()
    assert not world.log.roll_if_due()
    world.now += HOUR // 2
    assert not world.log.roll_if_due()
    world.now += 1
    assert world.log.roll_if_due()


def test_a_clock_that_is_set_forward_does_not_age_a_segment(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_ms=HOUR)
    world.append("a")
    world.wall_ahead_ms = 24 * HOUR
    assert not world.log.roll_if_due()


def test_after_a_truncation_the_age_of_the_earlier_segment_counts(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_ms=HOUR)
    world.append("a", commit=False)
    world.now += 2 * HOUR
    world.append("b", commit=False)
    assert [segment.base_offset for segment in world.log.segments] == [0, 1]
    world.log.truncate_to(1)
    assert [segment.base_offset for segment in world.log.segments] == [0]
    world.append("c")
    assert [segment.base_offset for segment in world.log.segments] == [0, 1]


def test_old_timestamps_do_not_age_a_new_segment(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_ms=HOUR)
    world.append("from last year", timestamp=NOON - 9000 * HOUR)
    world.now += 1
    assert not world.log.roll_if_due()


def test_records_more_than_segment_ms_apart_are_in_different_segments(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_ms=HOUR)
    for hours in (0, 0.5, 1.1, 1.2):
        world.append("a", timestamp=NOON - 9 * HOUR + int(hours * HOUR))
    assert [segment.base_offset for segment in world.log.segments] == [0, 2]


def test_a_full_index_starts_a_new_segment(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, index_interval_bytes=0, segment_index_bytes=36)
    for _ in range(10):
        world.append("a")
    assert [segment.base_offset for segment in world.log.segments] == [0, 4, 8]


def test_a_relative_offset_overflow_starts_a_new_segment(tmp_path: Path) -> None:
    """On a follower whose leader compacted nearly everything."""
    world = LogWorld(tmp_path)
    far = 2 * INT32_MAX
    for offset in (0, 5, far, far + 1):
        batch = bytearray(world.batch("a"))
        stamp(batch, offset, 0)
        world.log.append_replicated(batch)
    assert [segment.base_offset for segment in world.log.segments] == [0, far]
    assert [record.offset for record in world.records()] == [0, 5, far, far + 1]
    world.restart()
    assert [record.offset for record in world.records(3)] == [5, far, far + 1]
    world.crash(recovery_point=0)
    assert [record.offset for record in world.records(3)] == [5, far, far + 1]


def test_a_followers_new_segment_starts_where_the_last_one_ends(tmp_path: Path) -> None:
    """Even if the leader compacted the offsets in between: recovery takes a gap for a truncated segment."""
    world = LogWorld(tmp_path, segment_bytes=150)
    for offset in (0, 5, 10):
        batch = bytearray(world.batch("a" * 40))
        stamp(batch, offset, 0)
        world.log.append_replicated(batch)
    assert [segment.base_offset for segment in world.log.segments] == [0, 1, 6]
    world.crash(recovery_point=0)
    assert [record.offset for record in world.records()] == [0, 5, 10]


def test_a_first_batch_far_ahead_of_an_empty_log_is_stored(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    batch = bytearray(world.batch("a"))
    stamp(batch, 2**33, 0)
    world.log.append_replicated(batch)
    assert [record.offset for record in world.records()] == [2**33]
    assert world.crash().log_end_offset == 2**33 + 1


# --- reading ----------------------------------------------------------------------------------------------


def test_a_read_starts_with_the_batch_that_contains_the_offset(world: LogWorld) -> None:
    """Spec: R4. A fetch offset can be inside a batch."""
    world.append("a", "b", "c")
    world.append("d", "e")
    assert offsets(world.log.read(1, 10_000, upper_bound=5)) == [0, 3]
    assert offsets(world.log.read(4, 10_000, upper_bound=5)) == [3]


def test_a_read_returns_complete_batches_within_max_bytes(world: LogWorld) -> None:
    for _ in range(6):
        world.append("a" * 30)
    size = len(world.log.read(0, 1, upper_bound=6))
    assert offsets(world.log.read(0, 3 * size - 1, upper_bound=6)) == [0, 1]
    assert offsets(world.log.read(0, 3 * size, upper_bound=6)) == [0, 1, 2]


def test_minimum_one_batch_overrides_max_bytes(world: LogWorld) -> None:
    world.append("a" * 300)
    assert offsets(world.log.read(0, 1, upper_bound=1)) == [0]
    assert world.log.find_records(0, 1, upper_bound=1, minimum_one_batch=False) == b""


def test_a_read_stops_at_the_upper_bound(world: LogWorld) -> None:
    for number in range(30):
        world.append(f"value-{number}")
    for bound in range(31):
        read: list[int] = []
        while len(read) < bound and (data := world.log.read(len(read), 10_000, upper_bound=bound)):
            read += offsets(data)
        assert read == list(range(bound))


def test_a_batch_that_starts_below_the_upper_bound_is_returned_complete(world: LogWorld) -> None:
    world.append("a", "b", "c")
    world.append("d")
    assert offsets(world.log.read(0, 10_000, upper_bound=2)) == [0]


def test_a_read_at_the_end_is_empty_and_beyond_is_out_of_range(world: LogWorld) -> None:
    world.append("a")
    assert world.log.read(1, 1000, upper_bound=1) == b""
    rejected(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: world.log.read(2, 1000, upper_bound=9))
    world.log.delete_records_before(1)
    rejected(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: world.log.read(0, 1000, upper_bound=9))


def test_every_offset_is_found_regardless_of_earlier_reads(world: LogWorld) -> None:
    for number in range(50):
        world.append(*[f"v{number}"] * (number % 3 + 1))
    end = world.log.log_end_offset
    for step in (1, 7, 13):
        for offset in range(0, end, step):
            data = world.log.read(offset, 200, upper_bound=end)
            first = read_header(data)
            assert first.base_offset <= offset <= first.last_offset
            assert offsets(data) == sorted(offsets(data))


def test_a_tail_read_needs_one_pread(tmp_path: Path) -> None:
    class CountingDisk(Disk):
        reads = 0

        def pread(self, handle: int, size: int, offset: int) -> bytes:
            self.reads += 1
            return super().pread(handle, size, offset)

    disk = CountingDisk()
    world = LogWorld(tmp_path, disk=disk)
    for number in range(20):
        world.append(f"value-{number}")
        disk.reads = 0
        world.log.read(number, 1 << 20, upper_bound=number + 1)
    assert disk.reads == 1


# --- the follower's side ----------------------------------------------------------------------------------


def test_a_follower_copies_the_leaders_log(tmp_path: Path) -> None:
    leader, follower = LogWorld(tmp_path / "leader", **SMALL), LogWorld(tmp_path / "follower", **SMALL)
    for number in range(30):
        leader.leader_epoch = number // 10
        leader.produce(7, f"value-{number}", transactional=number % 2 == 1, commit=False)
        if number % 2:
            leader.ends(7, abort=number % 4 == 1, commit=False)
    end = leader.log.log_end_offset
    while follower.log.log_end_offset < end:
        follower.log.append_replicated(leader.log.read(follower.log.log_end_offset, 700, upper_bound=end))
    assert follower.read_batches() == leader.read_batches()
    assert follower.log.leader_epochs.entries() == leader.log.leader_epochs.entries() == [(0, 0), (1, 15), (2, 30)]
    assert follower.log.aborted_transactions(0, end) == leader.log.aborted_transactions(0, end) != []
    follower.commit()
    again = follower.append("value-29", producer_id=7, producer_epoch=0, base_sequence=29, transactional=True)
    assert again.duplicate, "failover keeps deduplication"


def test_a_follower_rejects_known_offsets_and_corrupt_batches(world: LogWorld) -> None:
    world.append("a")
    copy = world.log.read(0, 1000, upper_bound=1)
    rejected(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: world.log.append_replicated(copy))
    good, bad = bytearray(world.batch("b")), bytearray(world.batch("c"))
    stamp(good, 1, 0)
    stamp(bad, 2, 0)
    bad[-1] ^= 1
    rejected(ErrorCode.CORRUPT_MESSAGE, lambda: world.log.append_replicated(good + bad))
    assert world.values() == ["a"]


def test_an_incomplete_batch_is_left_for_the_next_fetch(world: LogWorld) -> None:
    first, second = bytearray(world.batch("a")), bytearray(world.batch("b"))
    stamp(second, 1, 0)
    world.log.append_replicated(bytes(first + second)[:-5])
    assert world.values() == ["a"]


def test_a_new_follower_starts_inside_a_batch_where_the_leaders_log_starts(tmp_path: Path) -> None:
    """KAFKA-6975: DeleteRecords moves a log's start into the middle of a batch, but batches are sent whole."""
    leader, follower = LogWorld(tmp_path / "leader"), LogWorld(tmp_path / "follower")
    for values in (["a"], ["b", "c", "d"], ["e"]):
        leader.append(*values)
    leader.log.delete_records_before(2)
    follower.log.truncate_fully(2)
    follower.log.append_replicated(leader.log.read(2, 10_000, upper_bound=5))
    follower.commit()
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (2, 5)
    assert follower.log.read(2, 10_000, upper_bound=5) == leader.log.read(2, 10_000, upper_bound=5)
    assert follower.log.leader_epochs.entries() == leader.log.leader_epochs.entries()


def test_a_log_with_records_does_not_start_inside_a_batch(world: LogWorld) -> None:
    world.append("a")
    overlapping = bytearray(world.batch("a", "b"))
    rejected(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: world.log.append_replicated(overlapping))
    assert world.values() == ["a"]


def test_truncation_removes_an_epoch_without_records(world: LogWorld) -> None:
    """KAFKA-10706: a leader that appended nothing in its epoch must forget it, or it never agrees with the next."""
    world.append("a", "b")
    world.log.begin_leader_epoch(7)
    assert world.log.leader_epochs.entries() == [(0, 0), (7, 2)]
    world.log.truncate_to(2)
    assert world.log.leader_epochs.entries() == [(0, 0)]
    assert world.values() == ["a", "b"]


# --- watermarks and transactions --------------------------------------------------------------------------


def test_the_high_watermark_only_increases_up_to_the_log_end(world: LogWorld) -> None:
    world.append("a", "b", commit=False)
    assert world.log.high_watermark == 0
    assert world.log.advance_high_watermark(1)
    assert not world.log.advance_high_watermark(1)
    assert not world.log.advance_high_watermark(0)
    assert world.log.advance_high_watermark(99)
    assert world.log.high_watermark == 2


def test_an_open_transaction_holds_back_the_last_stable_offset(world: LogWorld) -> None:
    """Spec: E8."""
    world.append("a")
    world.produce(7, "b", transactional=True)
    world.append("c")
    assert (world.log.high_watermark, world.log.last_stable_offset) == (3, 1)
    world.ends(7, abort=False, commit=False)
    assert world.log.last_stable_offset == 1, "decided, but not yet committed"
    world.commit()
    assert world.log.last_stable_offset == 4
    assert world.log.first_unstable_offset is None


def test_readers_get_the_aborted_transactions_in_their_range(world: LogWorld) -> None:
    world.produce(7, "a", transactional=True)
    world.produce(8, "b", transactional=True)
    world.ends(7, abort=True)
    world.ends(8, abort=False)
    world.produce(7, "c", transactional=True)
    world.ends(7, abort=True)
    first, second = AbortedTransaction(7, 0, 2, 1), AbortedTransaction(7, 4, 5, 6)
    assert world.log.aborted_transactions(0, 6) == [first, second]
    assert world.log.aborted_transactions(3, 6) == [second]
    assert world.log.aborted_transactions(0, 1) == [first]


def test_an_aborted_transaction_is_found_when_its_marker_is_segments_later(world: LogWorld) -> None:
    world.produce(7, "doomed", transactional=True)
    for number in range(40):
        world.append(f"value-{number}")
    world.ends(7, abort=True)
    assert len(world.log.segments) > 3
    expected = [AbortedTransaction(7, 0, 41, 42)]
    assert world.log.aborted_transactions(0, 1) == expected
    world.restart()
    assert world.log.aborted_transactions(0, 1) == expected


def test_a_marker_without_records_does_not_hold_back_the_last_stable_offset(world: LogWorld) -> None:
    world.append("a")
    world.ends(7, abort=True)
    assert world.log.last_stable_offset == 2
    assert world.log.aborted_transactions(0, 2) == []


def test_an_append_verified_before_a_marker_is_rejected_after_it(world: LogWorld) -> None:
    """KIP-890: the verification guard ties the check to the append."""
    guard = world.log.producers.verification_guard(7, 0)
    world.ends(7, abort=True, epoch=0)
    batch = world.batch("late", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    rejected(
        ErrorCode.INVALID_TXN_STATE,
        lambda: world.log.append(batch, leader_epoch=0, verification_guard=guard),
    )
    fresh = world.log.producers.verification_guard(7, 0)
    assert world.log.append(batch, leader_epoch=0, verification_guard=fresh).base_offset == 1


def test_an_append_verified_in_an_earlier_leader_epoch_is_rejected(world: LogWorld) -> None:
    guard = world.log.producers.verification_guard(7, 0)
    batch = world.batch("late", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    rejected(
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        lambda: world.log.append(batch, leader_epoch=1, verification_guard=guard),
    )


def test_a_version_2_transaction_must_start_at_sequence_0(world: LogWorld) -> None:
    batch = world.batch("x", producer_id=7, producer_epoch=0, base_sequence=4, transactional=True)
    rejected(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: world.log.append(batch, leader_epoch=0, produce_version=12)
    )
    assert world.log.append(batch, leader_epoch=0, produce_version=11).base_offset == 0


# --- cutting ----------------------------------------------------------------------------------------------


def test_delete_records_moves_the_start_and_retention_deletes_the_files(world: LogWorld) -> None:
    for number in range(40):
        world.append(f"value-{number}")
    world.log.delete_records_before(25)
    assert world.values()[0] == "value-25"
    segments = len(world.log.segments)
    removed = enforce_retention(world.log, NOON)
    assert 0 < removed < segments
    assert world.log.segments[0].base_offset <= 25 < world.log.segments[1].base_offset
    assert world.log.log_start_offset == 25
    assert world.restart().log_start_offset == 25


def test_records_above_the_high_watermark_cannot_be_deleted(world: LogWorld) -> None:
    world.append("a", "b")
    world.append("c", commit=False)
    rejected(ErrorCode.OFFSET_OUT_OF_RANGE, lambda: world.log.delete_records_before(3))
    world.log.delete_records_before(2)
    world.log.delete_records_before(1)
    assert world.log.log_start_offset == 2


def test_truncation_covers_segments_epochs_producers_and_transactions(world: LogWorld) -> None:
    for number in range(12):
        world.leader_epoch = number // 4
        world.produce(7, f"value-{number}")
    world.produce(9, "open", transactional=True)
    for number in range(12):
        world.append(f"more-{number}", commit=False)
    world.leader_epoch = 5
    world.ends(9, abort=True, commit=False)
    assert world.log.aborted_transactions(0, 99) != []
    world.log.truncate_to(10)
    assert world.log.log_end_offset == world.log.high_watermark == 10
    assert world.values() == [f"value-{number}" for number in range(10)]
    assert world.log.leader_epochs.entries() == [(0, 0), (1, 4), (2, 8)]
    assert world.log.aborted_transactions(0, 99) == []
    assert world.log.first_unstable_offset is None
    assert world.append("value-10", producer_id=7, producer_epoch=0, base_sequence=10).base_offset == 10
    assert world.restart().log_end_offset == 11


def test_truncating_a_marker_reopens_its_transaction(world: LogWorld) -> None:
    world.produce(9, "open", transactional=True)
    world.ends(9, abort=True)
    world.log.truncate_to(1)
    assert world.log.first_unstable_offset == 0
    assert world.log.aborted_transactions(0, 9) == []


def test_truncation_inside_a_batch_removes_the_whole_batch(world: LogWorld) -> None:
    world.append("a")
    world.append("b", "c", "d")
    world.log.truncate_to(2)
    assert world.log.log_end_offset == 1
    assert world.values() == ["a"]


def test_truncation_beyond_the_end_does_nothing(world: LogWorld) -> None:
    world.append("a")
    world.log.truncate_to(1)
    world.log.truncate_to(5)
    assert world.values() == ["a"]


@pytest.mark.parametrize("start", [0, 3, 100])
def test_a_fully_truncated_log_can_start_at_any_offset(world: LogWorld, start: int) -> None:
    for number in range(20):
        world.produce(7, f"value-{number}")
    world.log.truncate_fully(start)
    assert world.log.log_start_offset == world.log.log_end_offset == world.log.high_watermark == start
    assert world.names(".log") == [f"{start:020d}.log"]
    assert world.names(".snapshot") == []
    assert world.append("new").base_offset == start
    assert world.restart().log_end_offset == start + 1
    assert world.values() == ["new"]


# --- retention --------------------------------------------------------------------------------------------


def test_old_segments_are_removed_and_their_files_deleted_later(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, **SMALL, retention_ms=HOUR, file_delete_delay_ms=60_000)
    for number in range(20):
        world.append(f"value-{number}", timestamp=NOON - 2 * HOUR)
    world.append("young")
    assert enforce_retention(world.log, NOON) > 0
    assert world.log.log_start_offset == world.log.segments[0].base_offset > 0
    assert world.values()[-1] == "young"
    assert world.names(".deleted") != []
    world.wall_ahead_ms = -24 * HOUR
    world.now += 59_999
    enforce_retention(world.log, world.clock())
    assert world.names(".deleted") != []
    world.now += 1
    enforce_retention(world.log, world.clock())
    assert world.names(".deleted") == []


def test_a_log_with_only_old_records_becomes_empty_and_keeps_its_end_offset(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, retention_ms=HOUR, file_delete_delay_ms=0)
    world.append("a", "b")
    world.now += 2 * HOUR
    assert enforce_retention(world.log, world.now) == 1
    assert (world.log.log_start_offset, world.log.log_end_offset, world.values()) == (2, 2, [])
    assert world.append("c").base_offset == 2
    assert world.restart().log_start_offset == 2


def test_records_without_timestamps_are_as_old_as_their_segment(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, retention_ms=HOUR)
    world.append("a", timestamp=-1)
    assert enforce_retention(world.log, NOON + HOUR) == 0
    assert enforce_retention(world.log, NOON + HOUR + 1) == 1


def test_idle_producers_expire_by_monotonic_time_not_by_record_timestamps(world: LogWorld) -> None:
    world.checks_reload = False  # A load restores the expired producer from its batches.
    world.wall_ahead_ms = 9000 * HOUR
    world.produce(7, "a", timestamp=NOON - 9000 * HOUR)
    assert world.log.expire_producers(NOON + HOUR, 2 * HOUR) == 0
    assert world.log.expire_producers(NOON + 2 * HOUR, 2 * HOUR) == 1


# --- deleting ---------------------------------------------------------------------------------------------


def test_deleting_a_log_frees_its_directory_name_immediately(world: LogWorld) -> None:
    world.append("a")
    path = world.log.rename_for_deletion()
    assert path.startswith(f"{world.directory}.")
    assert path.endswith("-delete")
    assert not Path(world.directory).exists()
    assert Path(path).exists()
    world.open()
    assert world.log.log_end_offset == 0


def test_settings_can_change_while_the_log_is_open(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.append("a")
    world.config = LogWorld(tmp_path / "other", segment_bytes=200, max_message_bytes=150).config
    world.log.update_config(world.config)
    rejected(ErrorCode.MESSAGE_TOO_LARGE, lambda: world.append("x" * 200))
    for _ in range(3):
        world.append("b" * 50)
    assert len(world.log.segments) == 3


def test_the_size_between_two_offsets(world: LogWorld) -> None:
    sizes = [len(build_batch([(NOON, None, b"x" * number, ())])) for number in range(30)]
    for number in range(30):
        world.append("x" * number)
    for start, end in ((0, 30), (0, 1), (3, 4), (5, 29), (29, 30)):
        assert world.log.size_between(start, end) == sum(sizes[start:end])
    assert world.log.size_between(30, 30) == 0 == world.log.size_between(5, 5)


def test_an_empty_directory_starts_at_the_given_offset(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.log.close()
    fresh = open_log(
        f"{tmp_path}/fresh",
        world.log.topic_partition,
        bytes(16),
        world.config,
        disk=Disk(),
        clock=world.clock,
        monotonic=world.monotonic,
        clean_shutdown=True,
        log_start_offset=17,
    )
    assert (fresh.log_start_offset, fresh.log_end_offset, fresh.high_watermark) == (17, 17, 17)
