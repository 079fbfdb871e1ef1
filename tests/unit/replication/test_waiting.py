"""Who is released by what: requests waiting for a commit, fetches waiting for bytes."""

from ottla.errors import ErrorCode
from ottla.replication.waiting import CommitQueue, CommitWait, FetchWait, Limit, PartitionWaits


def waiting(queue: CommitQueue, next_offset: int) -> CommitWait:
    wait = CommitWait(1)
    wait.wait_in(queue, next_offset, 0)
    return wait


def test_a_commit_is_released_when_the_high_watermark_reaches_it_and_not_before() -> None:
    queue = CommitQueue()
    early, late = waiting(queue, 5), waiting(queue, 9)
    assert queue.reached(4) == []
    assert queue.reached(5) == [early]
    assert early.codes == [ErrorCode.NONE]
    assert queue.reached(100) == [late]
    assert len(queue) == 0


def test_a_duplicate_waits_for_its_first_writing_which_lies_before_the_others() -> None:
    queue = CommitQueue()
    newer = waiting(queue, 9)
    duplicate = waiting(queue, 4)
    assert queue.reached(4) == [duplicate]
    assert queue.reached(9) == [newer]


def test_a_request_over_two_partitions_ends_with_the_slower_one() -> None:
    first, second = CommitQueue(), CommitQueue()
    wait = CommitWait(2)
    wait.wait_in(first, 3, 0)
    wait.wait_in(second, 7, 1)
    assert first.reached(3) == []
    assert second.reached(7) == [wait]
    assert wait.codes == [ErrorCode.NONE, ErrorCode.NONE]


def test_losing_the_lead_fails_everyone_who_waits_there() -> None:
    first, second = CommitQueue(), CommitQueue()
    both = CommitWait(2)
    both.wait_in(first, 3, 0)
    both.wait_in(second, 7, 1)
    alone = waiting(first, 9)
    assert first.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER) == [alone]
    assert alone.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert second.reached(7) == [both]
    assert both.codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]


def test_a_timeout_tells_the_uncommitted_partitions_from_the_committed() -> None:
    first, second = CommitQueue(), CommitQueue()
    wait = CommitWait(2)
    wait.wait_in(first, 3, 0)
    wait.wait_in(second, 7, 1)
    first.reached(3)
    wait.time_out()
    assert wait.is_over
    assert wait.codes == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]
    assert second.reached(7) == [], "it is answered already"


def test_a_partition_that_never_commits_does_not_collect_its_timed_out_requests() -> None:
    queue = CommitQueue()
    patient = waiting(queue, 10)
    for offset in range(11, 1_011):
        wait = waiting(queue, offset)
        wait.time_out()
    assert len(queue) == 1
    assert len(queue._heap) < 10  # noqa: SLF001 (the memory it uses)
    assert queue.reached(10_000) == [patient]


def test_a_fetch_is_released_by_the_bytes_it_still_misses() -> None:
    waits = PartitionWaits()
    fetch = FetchWait(missing_bytes=100)
    waits.add_fetch(fetch, Limit.HIGH_WATERMARK)
    assert waits.grow(Limit.HIGH_WATERMARK, 60) == []
    assert waits.grow(Limit.HIGH_WATERMARK, 40) == [fetch]
    assert waits.grow(Limit.HIGH_WATERMARK, 1_000) == [], "it waits no longer"


def test_bytes_of_several_partitions_add_up_and_the_fetch_leaves_them_all() -> None:
    first, second = PartitionWaits(), PartitionWaits()
    fetch = FetchWait(missing_bytes=100)
    for waits in (first, second):
        waits.add_fetch(fetch, Limit.HIGH_WATERMARK)
    assert first.grow(Limit.HIGH_WATERMARK, 70) == []
    assert second.grow(Limit.HIGH_WATERMARK, 70) == [fetch]
    assert first.fetch_count == second.fetch_count == 0


def test_readers_wait_for_the_limit_they_may_read_to() -> None:
    waits = PartitionWaits()
    follower, uncommitted, committed = FetchWait(1), FetchWait(1), FetchWait(1)
    waits.add_fetch(follower, Limit.LOG_END)
    waits.add_fetch(uncommitted, Limit.HIGH_WATERMARK)
    waits.add_fetch(committed, Limit.LAST_STABLE_OFFSET)
    assert waits.grow(Limit.LOG_END, 10) == [follower]
    assert waits.grow(Limit.HIGH_WATERMARK, 10) == [uncommitted]
    assert waits.has_fetches(Limit.LAST_STABLE_OFFSET)
    assert waits.grow(Limit.LAST_STABLE_OFFSET, 10) == [committed]


def test_a_partition_asked_for_twice_by_one_fetch_counts_once() -> None:
    waits = PartitionWaits()
    fetch = FetchWait(missing_bytes=20)
    waits.add_fetch(fetch, Limit.HIGH_WATERMARK)
    waits.add_fetch(fetch, Limit.HIGH_WATERMARK)
    assert waits.grow(Limit.HIGH_WATERMARK, 10) == []
    assert fetch.missing_bytes == 10


def test_a_new_leader_sends_every_waiting_fetch_to_look_again() -> None:
    waits, elsewhere = PartitionWaits(), PartitionWaits()
    one, two = FetchWait(1), FetchWait(1)
    waits.add_fetch(one, Limit.HIGH_WATERMARK)
    waits.add_fetch(two, Limit.LAST_STABLE_OFFSET)
    elsewhere.add_fetch(two, Limit.LAST_STABLE_OFFSET)
    assert waits.end_fetches() == [one, two]
    assert waits.fetch_count == elsewhere.fetch_count == 0


def test_a_fetch_that_gave_up_leaves_no_trace() -> None:
    waits = PartitionWaits()
    fetch = FetchWait(1)
    waits.add_fetch(fetch, Limit.LOG_END)
    fetch.leave()
    assert waits.fetch_count == 0
    assert waits.grow(Limit.LOG_END, 9) == []
