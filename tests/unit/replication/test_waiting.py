"""Requests that wait for a commit, and fetches that wait for bytes."""

from ottla.errors import ErrorCode
from ottla.replication.waiting import CommitQueue, CommitWait, FetchWait, Limit, PartitionWaits
from tests.support.worlds.data_world import fetch_count


def waiting(queue: CommitQueue, next_offset: int) -> CommitWait:
    wait = CommitWait(1)
    wait.wait_in(queue, next_offset, 0)
    return wait


def test_a_commit_wait_ends_when_the_high_watermark_reaches_its_offset() -> None:
    queue = CommitQueue()
    early, late = waiting(queue, 5), waiting(queue, 9)
    assert queue.reached(4) == []
    assert queue.reached(5) == [early]
    assert early.codes == [ErrorCode.NONE]
    assert queue.reached(100) == [late]
    assert len(queue) == 0


def test_a_duplicate_waits_for_the_offset_of_the_original() -> None:
    queue = CommitQueue()
    newer = waiting(queue, 9)
    duplicate = waiting(queue, 4)
    assert queue.reached(4) == [duplicate]
    assert queue.reached(9) == [newer]


def test_after_timeouts_the_remaining_waits_still_end_in_the_order_of_their_offsets() -> None:
    queue = CommitQueue()
    waits = {offset: waiting(queue, offset) for offset in (1, 20, 2, 21, 22, 3, 4)}
    for offset in (1, 2, 20, 21):
        waits[offset].time_out()
    assert len(queue) == 3
    assert queue.reached(3) == [waits[3]]
    assert queue.reached(4) == [waits[4]]
    assert len(queue) == 1
    assert queue.reached(22) == [waits[22]]
    assert len(queue) == 0


def test_a_wait_that_timed_out_is_not_counted_when_its_turn_comes() -> None:
    queue = CommitQueue()
    early, *others = [waiting(queue, offset) for offset in (1, 2, 3)]
    early.time_out()
    assert len(queue) == 2
    assert queue.reached(1) == []
    assert len(queue) == 2
    assert queue.reached(3) == others


def test_a_request_for_two_partitions_waits_for_the_slower_one() -> None:
    first, second = CommitQueue(), CommitQueue()
    wait = CommitWait(2)
    wait.wait_in(first, 3, 0)
    wait.wait_in(second, 7, 1)
    assert first.reached(3) == []
    assert second.reached(7) == [wait]
    assert wait.codes == [ErrorCode.NONE, ErrorCode.NONE]


def test_losing_leadership_fails_all_waits() -> None:
    first, second = CommitQueue(), CommitQueue()
    both = CommitWait(2)
    both.wait_in(first, 3, 0)
    both.wait_in(second, 7, 1)
    alone = waiting(first, 9)
    assert first.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER) == [alone]
    assert alone.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert second.reached(7) == [both]
    assert both.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]


def test_a_timeout_reports_only_the_uncommitted_partitions() -> None:
    first, second = CommitQueue(), CommitQueue()
    wait = CommitWait(2)
    wait.wait_in(first, 3, 0)
    wait.wait_in(second, 7, 1)
    first.reached(3)
    wait.time_out()
    assert wait.is_over
    assert wait.codes == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]
    assert second.reached(7) == [], "it was answered already"


def test_timed_out_waits_do_not_accumulate() -> None:
    queue = CommitQueue()
    patient = waiting(queue, 10)
    for offset in range(11, 1_011):
        wait = waiting(queue, offset)
        wait.time_out()
    assert len(queue) == 1
    assert len(queue._heap) < 10  # noqa: SLF001 (the memory it uses)
    assert queue.reached(10_000) == [patient]


def test_a_fetch_wait_ends_when_enough_bytes_are_readable() -> None:
    waits = PartitionWaits()
    fetch = FetchWait(missing_bytes=100)
    waits.add_fetch(fetch, Limit.HIGH_WATERMARK)
    assert waits.grow(Limit.HIGH_WATERMARK, 60) == []
    assert waits.grow(Limit.HIGH_WATERMARK, 40) == [fetch]
    assert waits.grow(Limit.HIGH_WATERMARK, 1_000) == [], "it no longer waits"


def test_bytes_of_several_partitions_add_up_for_one_fetch() -> None:
    first, second = PartitionWaits(), PartitionWaits()
    fetch = FetchWait(missing_bytes=100)
    for waits in (first, second):
        waits.add_fetch(fetch, Limit.HIGH_WATERMARK)
    assert first.grow(Limit.HIGH_WATERMARK, 70) == []
    assert second.grow(Limit.HIGH_WATERMARK, 70) == [fetch]
    assert fetch_count(first) == fetch_count(second) == 0


def test_readers_wait_for_the_limit_of_their_isolation_level() -> None:
    waits = PartitionWaits()
    follower, uncommitted, committed = FetchWait(1), FetchWait(1), FetchWait(1)
    waits.add_fetch(follower, Limit.LOG_END)
    waits.add_fetch(uncommitted, Limit.HIGH_WATERMARK)
    waits.add_fetch(committed, Limit.LAST_STABLE_OFFSET)
    assert waits.grow(Limit.LOG_END, 10) == [follower]
    assert waits.grow(Limit.HIGH_WATERMARK, 10) == [uncommitted]
    assert waits.has_fetches(Limit.LAST_STABLE_OFFSET)
    assert waits.grow(Limit.LAST_STABLE_OFFSET, 10) == [committed]


def test_a_partition_named_twice_in_a_fetch_counts_once() -> None:
    waits = PartitionWaits()
    fetch = FetchWait(missing_bytes=20)
    waits.add_fetch(fetch, Limit.HIGH_WATERMARK)
    waits.add_fetch(fetch, Limit.HIGH_WATERMARK)
    assert waits.grow(Limit.HIGH_WATERMARK, 10) == []
    assert fetch.missing_bytes == 10


def test_a_new_leader_ends_all_waiting_fetches() -> None:
    waits, elsewhere = PartitionWaits(), PartitionWaits()
    one, two = FetchWait(1), FetchWait(1)
    waits.add_fetch(one, Limit.HIGH_WATERMARK)
    waits.add_fetch(two, Limit.LAST_STABLE_OFFSET)
    elsewhere.add_fetch(two, Limit.LAST_STABLE_OFFSET)
    assert waits.end_fetches() == [one, two]
    assert fetch_count(waits) == fetch_count(elsewhere) == 0


def test_a_cancelled_fetch_is_removed() -> None:
    waits = PartitionWaits()
    fetch = FetchWait(1)
    waits.add_fetch(fetch, Limit.LOG_END)
    fetch.leave()
    assert fetch_count(waits) == 0
    assert waits.grow(Limit.LOG_END, 9) == []
