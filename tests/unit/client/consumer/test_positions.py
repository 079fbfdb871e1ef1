"""Where a consumer begins: lookups of initial positions, their retries and errors; and positions with leader epochs."""

from typing import Any

import pytest

from ottla.client.consumer.positions import FetchState, NoOffsetForPartitionError, PartitionState, Positions
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.polling import Request
from ottla.client.core.settings import ConsumerConfig
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.net.backoff import Backoff
from ottla.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = 1_000_000
EARLIEST, LATEST = -2, -1


def known_to(view: ClusterView, *, leader: int = 1, error: ErrorCode = ErrorCode.NONE) -> None:
    """Answers a metadata request: one topic with two partitions."""
    (request,) = view.poll(NOW).requests
    partition = MetadataResponse.MetadataResponsePartition
    topic = MetadataResponse.MetadataResponseTopic(
        name="t",
        topic_id=b"t" * 16,
        error_code=error,
        partitions=[partition(partition_index=i, leader_id=leader, leader_epoch=3) for i in (0, 1)],
    )
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9000)
    request.on_response(MetadataResponse(brokers=[broker], topics=[topic]), 12, NOW)


def consumer(
    *partitions: TopicPartition, learn: bool = True, left: list[set[TopicPartition]] | None = None, **settings: Any
) -> tuple[Positions, ClusterView]:
    view = ClusterView(max_age_ms=300_000, backoff=Backoff(100, 1000))
    config = ConsumerConfig(**{"auto_offset_reset": "earliest", **settings})
    on_left = (lambda _: None) if left is None else left.append
    positions = Positions(config, view, backoff=Backoff(100, 1000), clock=lambda: 7_200_000, on_left=on_left)
    positions.assign(partitions, NOW)
    if learn:
        known_to(view)
    return positions, view


def lookup(positions: Positions, now: int = NOW) -> Request:
    (request,) = positions.poll(now).requests
    return request


def asked_for(request: Request) -> dict[int, int]:
    message = request.build(11)
    assert isinstance(message, ListOffsetsRequest)
    return {each.partition_index: each.timestamp for topic in message.topics for each in topic.partitions}


def found(*offsets: tuple[int, int, ErrorCode]) -> ListOffsetsResponse:
    """A response with (partition, offset, error)."""
    answer = ListOffsetsResponse.ListOffsetsPartitionResponse
    partitions = [
        answer(partition_index=index, offset=offset, timestamp=-1, leader_epoch=3, error_code=error)
        for index, offset, error in offsets
    ]
    return ListOffsetsResponse(topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=partitions)])


OK = ErrorCode.NONE


# --- looking up -------------------------------------------------------------------------------------------


def test_partitions_of_one_leader_are_looked_up_together_and_once() -> None:
    positions, _ = consumer(A, B)
    request = lookup(positions)
    assert request.destination == 1
    assert asked_for(request) == {0: EARLIEST, 1: EARLIEST}
    assert not positions.poll(NOW).requests, "it is on its way"
    request.on_response(found((0, 5, OK), (1, 9, OK)), 11, NOW)
    assert [positions.states[p].position for p in (A, B)] == [5, 9]
    assert not positions.poll(NOW).requests


def test_an_empty_answer_begins_at_offset_zero() -> None:
    positions, _ = consumer(A)
    lookup(positions).on_response(found((0, -1, OK)), 11, NOW)
    assert positions.states[A].position == 0


@pytest.mark.parametrize(("hours", "timestamp"), [(1, 3_600_000), (3, 0)])
def test_a_duration_counts_back_from_now_and_falls_back_to_the_end(hours: int, timestamp: int) -> None:
    positions, _ = consumer(A, auto_offset_reset=f"by_duration:PT{hours}H")
    request = lookup(positions)
    assert asked_for(request) == {0: timestamp}
    request.on_response(found((0, -1, OK)), 11, NOW)
    assert positions.states[A].position is None, "all records are older"
    assert asked_for(lookup(positions)) == {0: LATEST}


def test_a_failed_lookup_is_repeated_with_a_growing_wait() -> None:
    positions, view = consumer(A)
    now, waits = NOW, []
    for _ in range(5):
        lookup(positions, now).on_failure(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"), now)
        poll = positions.poll(now)
        assert not poll.requests
        assert poll.wake_at is not None
        assert not positions.poll(poll.wake_at - 1).requests
        waits.append(poll.wake_at - now)
        now = poll.wake_at
    assert waits == [100, 200, 400, 800, 1000]
    assert positions.errors == [], "a retry may help"
    assert not view.poll(NOW + 1000).requests, "and the leader is still known"


def test_a_position_ends_the_retries() -> None:
    positions, _ = consumer(A)
    lookup(positions).on_failure(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"), NOW)
    state = positions.states[A]
    assert (state.failures, state.retry_at) == (1, NOW + 100)
    positions.reset(state)
    assert (state.failures, state.retry_at) == (0, 0)
    assert asked_for(lookup(positions)) == {0: EARLIEST}


def test_an_error_of_stale_metadata_asks_for_the_leader_again() -> None:
    positions, view = consumer(A)
    lookup(positions).on_response(found((0, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER)), 11, NOW)
    assert view.poll(NOW + 1000).requests
    assert positions.errors == []
    assert positions.states[A].fetch_state is FetchState.AWAIT_RESET


def test_a_permanent_error_is_raised_once_and_retried() -> None:
    positions, view = consumer(A, B)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    lookup(positions).on_response(found((0, -1, denied), (1, -1, denied)), 11, NOW)
    (error,) = positions.errors
    assert isinstance(error, KafkaError)
    assert error.code == denied
    assert not view.poll(NOW + 1000).requests
    assert asked_for(lookup(positions, NOW + 100)) == {0: EARLIEST, 1: EARLIEST}


def test_a_partition_that_the_response_leaves_out_is_an_error() -> None:
    positions, _ = consumer(A, B)
    lookup(positions).on_response(found((0, 5, OK)), 11, NOW)
    assert positions.states[A].position == 5
    (error,) = positions.errors
    assert str(B) in str(error)
    assert asked_for(lookup(positions, NOW + 100)) == {1: EARLIEST}


def test_a_response_to_an_earlier_lookup_is_ignored() -> None:
    positions, _ = consumer(A, B)
    request = lookup(positions)
    positions.states[A].move_to(42)
    positions.assign([A], NOW)
    request.on_response(found((0, 5, OK), (1, 5, OK)), 11, NOW)
    assert positions.states[A].position == 42
    request.on_failure(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "late"), NOW)
    assert positions.errors == []


# --- without a leader -------------------------------------------------------------------------------------


def test_without_a_leader_the_metadata_is_refreshed() -> None:
    positions, view = consumer(A, learn=False)
    known_to(view, leader=-1)
    poll = positions.poll(NOW)
    assert not poll.requests
    assert poll.wake_at == NOW + 100
    assert view.poll(NOW + 100).requests
    assert positions.errors == []


def test_a_topic_that_cannot_be_read_is_an_error() -> None:
    positions, view = consumer(A, learn=False)
    known_to(view, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert positions.poll(NOW).wake_at == NOW + 100
    (error,) = positions.errors
    assert "topic t" in str(error)
    positions.errors.clear()
    assert positions.poll(NOW + 100).wake_at == NOW + 300, "the wait grows"
    assert len(positions.errors) == 1, "again, while it lasts"


# --- assigning --------------------------------------------------------------------------------------------


def test_a_partition_that_stays_keeps_its_position() -> None:
    left: list[set[TopicPartition]] = []
    positions, _ = consumer(A, B, left=left)
    positions.states[A].move_to(7)
    positions.errors.append(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "of B"))
    positions.assign([A], NOW)
    assert (positions.states[A].position, left, positions.errors) == (7, [{B}], [])
    positions.assign([A], NOW)
    assert left == [{B}], "nothing left"


def test_an_unassigned_partition_has_no_state() -> None:
    positions, _ = consumer(A)
    with pytest.raises(OttlaError, match="not assigned"):
        positions.state(B)


def test_an_error_about_one_position_is_dropped_when_the_partition_gets_another() -> None:
    positions, _ = consumer(A, B)
    gone, other = (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name) for name in ("of A", "of B"))
    positions.report(A, gone)
    positions.report(B, other)
    positions.clear_errors({A})
    assert positions.take_error() is other
    positions.report(B, gone)
    assert positions.errors == [gone], "one that was raised is not kept"


def test_a_held_partition_is_not_looked_up_and_its_missing_offset_is_forgotten() -> None:
    positions, _ = consumer(A, B)
    other = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "stays")
    for partition in (A, B):
        positions.report(partition, NoOffsetForPartitionError(partition, "none"))
    positions.errors.append(other)
    positions.hold(A)
    assert [getattr(error, "partition", None) for error in positions.errors] == [B, None]
    assert asked_for(lookup(positions)) == {1: EARLIEST}


def test_without_a_reset_policy_the_missing_position_is_raised_unless_another_error_is() -> None:
    positions, _ = consumer(A, B, auto_offset_reset="none")
    positions.states[B].move_to(0)
    assert positions.without_offset() == [A]
    with pytest.raises(OttlaError, match="no position for t-0"):
        positions.raise_if_without_offset()
    positions.report(A, NoOffsetForPartitionError(A, "no committed offset"))
    positions.raise_if_without_offset()


# --- one partition ----------------------------------------------------------------------------------------


def test_nothing_is_known_about_a_new_partition() -> None:
    state = PartitionState()
    assert (state.position, state.fetch_offset, state.last_epoch, state.epochs) == (None, -1, -1, [])
    assert (state.high_watermark, state.last_stable_offset, state.log_start_offset) == (-1, -1, -1)
    assert (state.read_replica, state.read_replica_until, state.fetch_state) == (-1, 0, FetchState.NO_OFFSET)


def test_a_position_has_the_epoch_of_the_record_before_it() -> None:
    state = PartitionState()
    state.move_to(10, epoch=0)
    assert (state.position, state.fetch_offset, state.last_epoch) == (10, 10, 0)
    assert (state.epoch_before(10), state.epoch_before(9)) == (0, -1)
    state.note_epochs([(10, 0), (12, 2), (13, 2)])
    assert state.epochs == [(9, 0), (12, 2)]
    assert [state.epoch_before(offset) for offset in (12, 13, 20)] == [0, 2, 2]
    state.go_back_to(13)
    assert (state.position, state.last_epoch) == (13, 2)
    state.await_committed()
    assert (state.position, state.fetch_offset, state.last_epoch, state.epochs) == (None, -1, -1, [])
