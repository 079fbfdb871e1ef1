"""The fetcher: read-ahead, order, moving leaders, truncated logs, recreated topics."""

import pytest

from ottla.client.core.model import Node
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.protocol.messages.fetch import FetchResponse
from ottla.types import TopicPartition
from tests.support.worlds.consumer_world import ConsumerWorld, ModelLog

T0 = TopicPartition("t", 0)


def test_it_looks_up_the_initial_position_and_reads() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a", "b")
    world.exchange()  # ListOffsets
    assert world.position() == 0
    world.exchange()
    assert world.take() == ["a", "b"]
    assert world.position() == 2
    world.logs[T0].append("c")
    world.exchange(2)
    assert world.take() == ["c"]


def test_latest_starts_after_existing_records() -> None:
    world = ConsumerWorld(auto_offset_reset="latest")
    world.logs[T0].append("old")
    world.exchange()
    world.logs[T0].append("new")
    world.exchange()
    assert world.take() == ["new"]


def test_without_a_reset_policy_a_missing_position_is_an_error() -> None:
    world = ConsumerWorld(auto_offset_reset="none")
    world.exchange(3)
    assert world.positions.without_offset() == [T0]
    assert not world.asked


def test_the_next_fetch_is_sent_while_records_are_buffered() -> None:
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abcdef":
        world.logs[T0].append(value)
    world.exchange(10)
    assert len(world.asked) == 2, "READ_AHEAD is 2"
    assert world.take(1) == ["a"]
    world.exchange(10)
    assert len(world.asked) == 3
    assert world.asked[-1].topics[0].partitions[0].fetch_offset == 2


def test_a_completed_fetch_can_be_taken_whole() -> None:
    """It may then be read by another thread: the fetcher continues after it."""
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abc":
        world.logs[T0].append(value)
    world.exchange(10)
    fetched = world.fetcher.take_fetch()
    assert fetched is not None
    assert [record.value for record in fetched.take(10)] == [b"a"]
    assert world.position() == fetched.end_offset == 1
    world.positions.states[T0].is_paused = True
    assert world.fetcher.take_fetch() is None, "a paused partition keeps its records"
    world.positions.states[T0].is_paused = False
    world.exchange(10)
    assert world.take() == ["b", "c"]
    assert world.fetcher.take_fetch() is None


def test_nothing_is_fetched_beyond_the_end_of_a_range() -> None:
    """Otherwise the next range would have to wait for a long poll at the end of this one."""
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abcdef":
        world.logs[T0].append(value)
    world.exchange()
    world.positions.states[T0].fetch_until = 3
    world.exchange(10)
    assert world.take() == ["a", "b"]
    world.exchange(10)
    assert world.take() == ["c"]
    fetches = len(world.asked)
    world.exchange(10)
    assert world.take() == []
    assert len(world.asked) == fetches


def test_the_end_of_a_range_is_fetched_with_small_limits() -> None:
    world = ConsumerWorld(max_partition_fetch_bytes=4_000_000)
    world.logs[T0].append("a")
    world.exchange()
    for until, most in ((10_000, 4_000_000), (1000, 1_024_000), (5, 65_536)):
        world.positions.states[T0].move_to(0)
        world.positions.states[T0].fetch_until = until
        world.exchange()
        assert world.asked[-1].topics[0].partitions[0].partition_max_bytes == most


def test_one_fetch_per_leader_contains_all_its_partitions() -> None:
    world = ConsumerWorld(partitions=3)
    world.lead(2, 2, 1)
    world.show_leaders()
    world.exchange()
    world.poll()
    world.poll()
    asked = [sorted(p.partition for p in message.topics[0].partitions) for message in world.asked]
    assert asked == [[0, 1], [2]]


def test_no_fetch_is_sent_while_a_partition_of_the_leader_is_fully_buffered() -> None:
    """Otherwise the fetch might wait for records of the other partitions while this one's buffer runs empty."""
    world = ConsumerWorld(partitions=2, max_partition_fetch_bytes=1)
    for value in "abcdef":
        world.logs[T0].append(value)
    world.exchange(10)
    fetches = len(world.asked)
    world.exchange(3)
    assert len(world.asked) == fetches
    world.take(1)
    world.exchange(1)
    assert sorted(p.partition for p in world.asked[-1].topics[0].partitions) == [0, 1]


def test_a_fetch_waits_only_briefly_while_a_position_is_looked_up() -> None:
    """Only one fetch per leader is in flight: a partition that is not in it has to wait for it."""
    world = ConsumerWorld(partitions=2, fetch_max_wait_ms=500)
    world.positions.states[T0].move_to(0)
    world.exchange(1)
    (ahead,) = world.asked
    assert [p.partition for p in ahead.topics[0].partitions] == [0]
    assert ahead.max_wait_ms == 20
    world.exchange(2)
    both = world.asked[-1]
    assert sorted(p.partition for p in both.topics[0].partitions) == [0, 1]
    assert both.max_wait_ms == 500


def test_partitions_rotate_in_the_request() -> None:
    world = ConsumerWorld(partitions=3)
    world.exchange(7)
    first = {message.topics[0].partitions[0].partition for message in world.asked}
    assert first == {0, 1, 2}


def test_in_a_session_only_changes_are_sent() -> None:
    world = ConsumerWorld(partitions=2)
    world.session_id = 7
    world.logs[T0].append("a")
    world.exchange(2)
    world.take()
    world.exchange()
    message = world.asked[-1]
    assert (message.session_id, message.session_epoch) == (7, 1)
    assert [p.partition for p in message.topics[0].partitions] == [0]


def test_a_lost_session_is_replaced_at_once() -> None:
    world = ConsumerWorld(partitions=2)
    world.session_id = 7
    world.exchange(2)
    world.poll()
    request, _ = world.on_the_wire.popleft()
    request.on_response(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), 12, world.now)
    world.exchange()
    message = world.asked[-1]
    assert (message.session_id, message.session_epoch) == (0, 0)
    assert len(message.topics[0].partitions) == 2


def test_the_high_watermark_is_requested_until_it_is_known() -> None:
    """In a session a broker sends it only once, and that response may be stale because of a seek."""
    world = ConsumerWorld()
    world.session_id = 7
    world.exchange()
    world.poll()
    world.positions.state(T0).move_to(0)  # a listener seeks while the first fetch is in flight
    world.answer_next()
    assert world.positions.state(T0).high_watermark == -1
    world.exchange()
    assert (world.asked[-1].session_epoch, len(world.asked[-1].topics)) == (0, 1)
    assert world.positions.state(T0).high_watermark == 0
    world.exchange()
    assert (world.asked[-1].session_epoch, len(world.asked[-1].topics)) == (1, 0)


# Seeking, pausing, assigning


def test_a_seek_drops_buffered_records() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a", "b", "c")
    world.exchange(3)
    world.positions.state(T0).move_to(2)
    assert world.take() == []
    world.exchange()
    assert world.take() == ["c"]


def test_a_response_to_a_fetch_from_before_a_seek_is_ignored() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a", "b", "c")
    world.exchange()
    world.poll()
    world.positions.state(T0).move_to(2)
    world.answer_next()
    assert world.take() == []
    assert world.position() == 2
    world.exchange()
    assert world.take() == ["c"]


def rebalance(world: ConsumerWorld) -> None:
    """The partition is revoked and assigned again; the topic stays subscribed."""
    world.positions.pinned_topics = frozenset({"t"})
    world.positions.assign([], world.now)
    world.positions.assign([T0], world.now)


def test_a_response_from_before_a_partition_was_reassigned_is_ignored() -> None:
    """After a rebalance the partition starts at the last commit again, so records read beyond it must come again."""
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abcd":
        world.logs[T0].append(value)
    world.exchange(2)
    assert world.take(1) == ["a"], "and nothing is committed"
    world.poll()
    (behind,) = world.on_the_wire
    world.on_the_wire.clear()
    rebalance(world)
    world.exchange()
    assert world.position() == 0
    world.on_the_wire.append(behind)
    world.answer_next()
    world.exchange(10)
    assert world.take(1) == ["a"]


def test_a_buffered_fetch_from_before_a_partition_was_reassigned_is_dropped() -> None:
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abcd":
        world.logs[T0].append(value)
    world.exchange(3)
    assert world.take(1) == ["a"]
    assert world.fetcher.has_records
    rebalance(world)
    world.exchange(10)
    assert world.take(1) == ["a"]


def test_a_seek_overrides_a_position_that_is_being_looked_up() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a", "b", "c")
    world.poll()
    world.positions.state(T0).move_to(2)
    world.answer_next()
    assert world.position() == 2
    world.exchange()
    assert world.take() == ["c"]


def test_repeated_seeks_do_not_stop_fetching() -> None:
    """Fetches from before a seek must not count as read-ahead."""
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abc":
        world.logs[T0].append(value)
    for _ in range(5):
        world.positions.state(T0).move_to(0)
        world.exchange(3)
    assert world.fetcher.has_records
    assert world.take(1) == ["a"]


def test_a_paused_partition_keeps_its_records_and_is_not_fetched() -> None:
    world = ConsumerWorld(partitions=2)
    world.logs[T0].append("a")
    world.logs[TopicPartition("t", 1)].append("b")
    world.exchange(2)
    world.positions.state(T0).is_paused = True
    assert world.take() == ["b"]
    assert not world.fetcher.has_records
    world.exchange()
    assert [p.partition for p in world.asked[-1].topics[0].partitions] == [1]
    world.positions.state(T0).is_paused = False
    assert world.take() == ["a"]


def test_an_unassigned_partition_returns_nothing_more() -> None:
    world = ConsumerWorld(partitions=2)
    world.logs[T0].append("a")
    world.logs[TopicPartition("t", 1)].append("b")
    world.exchange(2)
    world.positions.assign([TopicPartition("t", 1)], world.now)
    assert world.take() == ["b"]
    with pytest.raises(OttlaError, match="t-0 is not assigned"):
        world.positions.state(T0)


def test_partitions_that_stay_assigned_keep_their_positions() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a", "b")
    world.exchange(2)
    assert world.take(1) == ["a"]
    world.positions.assign([T0], world.now)
    assert world.take() == ["b"]


# Errors


@pytest.mark.parametrize(
    "error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
)
def test_reading_continues_after_the_leader_has_moved(error: ErrorCode) -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a")
    world.exchange()
    world.errors[T0].append(error)
    world.exchange()
    world.now += 200
    assert world.view.poll(world.now).requests, "it requests metadata"
    world.lead(0, 2, 5)
    world.show_leaders()
    world.now += 1_000
    world.exchange()
    assert world.asked[-1].topics[0].partitions[0].current_leader_epoch == 5
    assert world.take() == ["a"]


@pytest.mark.parametrize("first", ["old leader", "new leader"])
def test_records_that_the_old_and_the_new_leader_return_are_taken_once(first: str) -> None:
    """A leader that hung answers after its successor: both fetches were in flight. Found by `ottla verify`."""
    world = ConsumerWorld()
    world.logs[T0].append("a", "b")
    world.exchange()
    world.poll()
    (hanging,) = world.on_the_wire
    world.on_the_wire.clear()
    world.lead(0, 2, 5)
    world.show_leaders()
    world.poll()
    (fresh,) = world.on_the_wire
    world.on_the_wire.clear()
    assert (hanging[0].destination, fresh[0].destination) == (1, 2)
    world.on_the_wire.extend([hanging, fresh] if first == "old leader" else [fresh, hanging])
    world.answer_next()
    world.answer_next()
    assert world.take() == ["a", "b"]
    world.logs[T0].append("c")
    world.exchange(2)
    assert world.take() == ["c"]


def test_an_error_of_the_old_leader_that_arrives_late_does_not_stop_reading() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a")
    world.exchange()
    world.poll()
    hanging = world.on_the_wire.popleft()
    world.lead(0, 2, 5)
    world.show_leaders()
    world.exchange()
    assert world.take() == ["a"]
    world.errors[T0].append(ErrorCode.OFFSET_OUT_OF_RANGE)
    world.on_the_wire.append(hanging)
    world.answer_next()
    assert world.position() == 1, "not reset to the beginning"


def test_an_error_is_not_retried_in_a_tight_loop() -> None:
    world = ConsumerWorld()
    world.exchange()
    world.errors[T0].extend([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100)
    world.exchange()
    asked = len(world.asked)
    for _ in range(10):
        world.exchange()
    assert len(world.asked) == asked
    wake_at = world.poll()
    assert wake_at is not None
    assert wake_at > world.now


def test_a_fetch_is_retried_after_a_lost_connection() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a")
    world.exchange()
    world.poll()
    world.answer_next(lose=True)
    world.now += 1_000
    world.exchange()
    assert world.take() == ["a"]


def test_looking_up_the_initial_position_is_retried() -> None:
    world = ConsumerWorld()
    world.errors[T0].append(ErrorCode.LEADER_NOT_AVAILABLE)
    world.exchange()
    assert world.position() is None
    world.now += 1_000
    world.exchange()
    assert world.position() == 0


def test_an_offset_out_of_range_is_reset_by_the_policy() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a", "b")
    world.exchange()
    world.positions.state(T0).move_to(50)
    world.exchange(3)
    assert world.take() == ["a", "b"]


def test_an_offset_out_of_range_without_a_policy_is_an_error() -> None:
    world = ConsumerWorld(auto_offset_reset="none")
    world.positions.state(T0).move_to(50)
    world.exchange()
    (error,) = world.positions.errors
    assert isinstance(error, KafkaError)
    assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert "t-0 at offset 50" in error.detail


def test_an_error_about_an_offset_is_raised_once_and_not_after_a_seek() -> None:
    """While the user looks for another position, the fetch is retried and fails again."""
    world = ConsumerWorld(auto_offset_reset="none")
    world.logs[T0].append("a", "b")
    world.positions.state(T0).move_to(50)
    for _ in range(3):
        world.exchange()
        world.now += 5_000
    assert len(world.asked) == 3
    (error,) = world.positions.errors
    assert "t-0 at offset 50" in str(error)
    world.positions.state(T0).move_to(0)
    world.positions.clear_errors({T0})
    assert world.positions.errors == []
    world.exchange()
    assert world.take() == ["a", "b"]


def test_records_fetched_before_an_error_are_returned_first() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a")
    world.exchange(2)
    world.errors[T0].append(ErrorCode.OFFSET_OUT_OF_RANGE)
    world.exchange()
    assert world.take() == ["a"]
    assert world.position() == 1, "the position must not skip unread records"


def test_a_truncated_log_is_detected() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a", "b", epoch=3)
    world.exchange(2)
    assert world.take() == ["a", "b"]
    world.extra[T0] = {"diverging_epoch": FetchResponse.EpochEndOffset(epoch=2, end_offset=1), "records": None}
    world.exchange()
    assert world.asked[-1].topics[0].partitions[0].last_fetched_epoch == 3
    assert world.position() == 1


def test_a_truncated_log_is_an_error_without_a_policy() -> None:
    world = ConsumerWorld(auto_offset_reset="none")
    world.logs[T0].append("a", "b", epoch=3)
    world.positions.state(T0).move_to(0)
    world.exchange()
    world.take()
    world.extra[T0] = {"diverging_epoch": FetchResponse.EpochEndOffset(epoch=2, end_offset=1), "records": None}
    world.exchange()
    (error,) = world.positions.errors
    assert "truncated to offset 1, below the position 2" in str(error)


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    """All of its records are new, whatever the old position and the policy are."""
    world = ConsumerWorld(auto_offset_reset="latest")
    world.show_leaders(topic_id=b"1" * 16)
    world.exchange()
    world.logs[T0].append("old")
    world.exchange()
    world.logs[T0] = ModelLog()
    world.logs[T0].append("new", "newer")
    world.show_leaders(topic_id=b"2" * 16)
    world.exchange()
    assert world.take() == ["old"], "records fetched from the old topic are not lost"
    assert world.poll() == world.now, "Positions must be polled again at once"
    world.exchange(3)
    assert world.take() == ["new", "newer"]


def test_a_recreated_topic_is_an_error_without_a_policy() -> None:
    """A user who ignores the error and polls again must not miss the beginning of the new topic."""
    world = ConsumerWorld(auto_offset_reset="none")
    world.state().move_to(0)
    world.show_leaders(topic_id=b"1" * 16)
    world.logs[T0].append("old")
    world.exchange()
    assert world.take() == ["old"]
    world.logs[T0] = ModelLog()
    world.logs[T0].append("new", "newer")
    world.show_leaders(topic_id=b"2" * 16)
    world.exchange()
    assert "deleted and recreated" in str(world.positions.errors.pop())
    world.now += 5_000
    world.exchange(3)
    assert world.take() == []
    with pytest.raises(OttlaError, match="no position for t-0"):
        world.positions.raise_if_without_offset()
    world.state().move_to(0)
    world.exchange(2)
    assert world.take() == ["new", "newer"]


def test_the_preferred_read_replica_is_used_until_it_fails() -> None:
    world = ConsumerWorld(client_rack="a")
    world.logs[T0].append("a")
    world.exchange()
    world.extra[T0] = {"preferred_read_replica": 2, "records": None}
    world.exchange()
    world.poll()
    request, _ = world.on_the_wire[0]
    assert request.destination == 2
    world.errors[T0].append(ErrorCode.OFFSET_OUT_OF_RANGE)
    world.answer_next()
    world.now += 1_000
    world.poll()
    assert world.on_the_wire[0][0].destination == 1
    world.answer_next()
    assert world.take() == ["a"]


def test_an_unknown_read_replica_triggers_a_metadata_update_with_backoff() -> None:
    """Our metadata is older than the replica. Without an update it would stay unknown for minutes."""
    world = ConsumerWorld(client_rack="a")
    world.logs[T0].append("a")
    world.exchange()
    world.now += 1_000
    world.view.poll(world.now)
    world.show_leaders()
    assert not world.view.poll(world.now + 1_000).requests
    world.extra[T0] = {"preferred_read_replica": 3, "records": None}
    world.exchange()
    assert len(world.view.poll(world.now + 1_000).requests) == 1, "it looks for node 3"
    wake_at = world.poll()
    assert not world.on_the_wire
    assert wake_at is not None
    assert wake_at > world.now
    world.view.brokers[3] = Node(3, "h", 3)
    world.now += 1_000
    world.extra[T0] = {"preferred_read_replica": 3, "records": None}
    world.exchange()
    world.poll()
    assert [request.destination for request, _ in world.on_the_wire] == [3]


def test_corrupt_records_raise_an_error_and_are_not_skipped() -> None:
    world = ConsumerWorld()
    world.logs[T0].append("a")
    world.logs[T0].append("b")
    broken = bytearray(world.logs[T0].batches[1])
    broken[-1] ^= 1
    world.logs[T0].batches[1] = bytes(broken)
    world.exchange(2)
    assert world.take(1) == ["a"]
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        world.take()
    assert world.position() == 1


def test_a_non_retriable_error_is_raised_to_the_user() -> None:
    world = ConsumerWorld()
    world.exchange()
    world.errors[T0].append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    world.exchange()
    (error,) = world.positions.errors
    assert isinstance(error, KafkaError)
    assert error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
