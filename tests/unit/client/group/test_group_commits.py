"""Commits (order, retries, fencing) and the lookup of committed offsets, with scripted responses."""

# ruff: noqa: SLF001  (sets up or checks internal state)

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.consumer.positions import FetchState, Positions
from ottla.client.consumer.subscription import TopicWatch, check_pattern
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.model import EARLIEST, CommittedOffset, Node
from ottla.client.core.settings import ConsumerConfig, build
from ottla.client.group.commits import Commits, CommittedLookup
from ottla.errors import ConfigError, ErrorCode, KafkaError, OttlaError
from ottla.net.backoff import Backoff
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.messages.offset_commit import OffsetCommitResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchResponse
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.client.core.polling import Request

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class CommitWorld:
    """Commits and lookups of one group, with a scripted coordinator and a manual clock."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000
        self.config = build(ConsumerConfig, None, {"group_id": "g", "auto_offset_reset": "earliest", **settings})
        self.view = view = ClusterView(max_age_ms=10**9, backoff=Backoff(100, 1_000))
        view.brokers = {1: Node(1, "h", 1)}
        self.coordinator = CoordinatorFinder("g", view, backoff=Backoff(100, 1_000))
        self.coordinator._node_id = 1
        self.fenced: list[tuple[ErrorCode, int]] = []
        self.commits = Commits(
            self.config,
            view,
            self.coordinator,
            on_fenced=lambda error, generation: self.fenced.append((error, generation)),
            backoff=Backoff(100, 1_000),
        )
        self.positions = Positions(self.config, view, backoff=Backoff(100, 1_000))
        self.lookup = CommittedLookup(self.config, self.positions, self.coordinator, backoff=Backoff(100, 1_000))
        self.sent: deque[tuple[Request, Any]] = deque()
        self.done: list[tuple[dict[TopicPartition, CommittedOffset], KafkaError | None]] = []

    def commit(self, offsets: dict[TopicPartition, int], *, waits: bool = True, generation: int = 3) -> None:
        self.commits.add(
            {p: CommittedOffset(at) for p, at in offsets.items()},
            generation=generation,
            member_id="me",
            now=self.now,
            timeout_ms=5_000,
            on_done=(lambda stored, error: self.done.append((stored, error))) if waits else None,
        )

    def poll(self) -> int:
        asked = [r for decider in (self.commits, self.lookup) for r in decider.poll(self.now).requests]
        self.sent.extend((request, request.build(9)) for request in asked)
        return len(asked)

    def answer_commit(self, **errors: ErrorCode) -> Any:
        request, message = self.sent.popleft()
        partition = OffsetCommitResponse.OffsetCommitResponsePartition
        answers = [
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    partition(partition_index=p.partition_index, error_code=errors.get(f"p{p.partition_index}", 0))
                    for p in topic.partitions
                ],
            )
            for topic in message.topics
        ]
        request.on_response(OffsetCommitResponse(topics=answers), 9, self.now)
        return message

    def answer_fetch(self, offsets: dict[int, int], error: int = 0, **errors: ErrorCode) -> Any:
        request, message = self.sent.popleft()
        partition = OffsetFetchResponse.OffsetFetchResponsePartitions
        parts = [
            partition(partition_index=i, committed_offset=at, metadata="", error_code=errors.get(f"p{i}", 0))
            for i, at in offsets.items()
        ]
        topic = OffsetFetchResponse.OffsetFetchResponseTopics(name="t", partitions=parts)
        group = OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", topics=[topic], error_code=error)
        request.on_response(OffsetFetchResponse(groups=[group]), 9, self.now)
        return message

    def begin(self, *partitions: TopicPartition) -> None:
        self.positions.assign(partitions, self.now)
        for partition in partitions:
            self.lookup.begin(partition)


def test_commits_are_sent_one_after_the_other() -> None:
    """An older commit that overtakes a newer one would move the group back."""
    world = CommitWorld()
    world.commit({P0: 1})
    world.commit({P0: 2})
    assert world.poll() == 1
    assert world.poll() == 0
    first = world.answer_commit()
    assert (first.generation_id_or_member_epoch, first.member_id) == (3, "me")
    assert world.poll() == 1
    world.answer_commit()
    assert [(stored[P0].offset, error) for stored, error in world.done] == [(1, None), (2, None)]
    assert world.commits.committed == {P0: 2}
    assert world.commits.is_idle


def test_queued_commits_without_a_callback_are_merged() -> None:
    world = CommitWorld()
    for at in range(100):
        world.commit({P0: at, P1: at + 1}, waits=False)
    assert len(world.commits._queue) == 1
    world.poll()
    world.commit({P0: 500}, waits=False)  # the one in flight is not changed
    message = world.answer_commit()
    assert [p.committed_offset for p in message.topics[0].partitions] == [99, 100]
    world.poll()
    world.answer_commit()
    assert world.commits.committed == {P0: 500, P1: 100}


def test_a_retriable_error_is_retried_for_the_remaining_partitions() -> None:
    world = CommitWorld()
    world.commit({P0: 1, P1: 2})
    world.poll()
    world.answer_commit(p1=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert world.poll() == 0
    assert not world.done
    world.now += 200
    assert world.poll() == 1
    again = world.answer_commit()
    assert [p.partition_index for p in again.topics[0].partitions] == [1]
    assert world.done == [({P0: CommittedOffset(1), P1: CommittedOffset(2)}, None)]


def test_a_commit_times_out() -> None:
    world = CommitWorld()
    world.commit({P0: 1})
    for _ in range(60):
        if world.poll():
            world.answer_commit(p0=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        world.now += 100
    ((_, error),) = world.done
    assert error is not None
    assert error.code == ErrorCode.REQUEST_TIMED_OUT
    assert "the last attempt failed with COORDINATOR_LOAD_IN_PROGRESS" in str(error)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ],
)
def test_a_fenced_commit_fails_at_once_and_is_reported_to_the_membership(error: ErrorCode) -> None:
    """Spec: C2. Commits are fenced by generation and member."""
    world = CommitWorld()
    world.commit({P0: 1})
    world.poll()
    world.answer_commit(p0=error)
    assert [e.code for _, e in world.done if e] == [error]
    assert world.fenced == [(error, 3)]
    assert world.commits.is_idle


def test_a_coordinator_that_moved_is_looked_up_again() -> None:
    world = CommitWorld()
    world.commit({P0: 1})
    world.poll()
    world.answer_commit(p0=ErrorCode.NOT_COORDINATOR)
    world.now += 200
    assert world.poll() == 0
    assert world.coordinator.find() is None


def test_a_coordinator_that_left_the_cluster_is_looked_up_again() -> None:
    """There is no error: the broker is no longer in the metadata, so nothing is sent to it that could fail."""
    world = CommitWorld()
    del world.view.brokers[1]
    world.commit({P0: 1})
    assert world.poll() == 0
    (asked,) = world.coordinator.poll(world.now).requests
    answer = FindCoordinatorResponse.Coordinator(key="g", node_id=2, host="h", port=2)
    asked.on_response(FindCoordinatorResponse(coordinators=[answer]), 4, world.now)
    world.view.brokers = {2: Node(2, "h", 2)}
    world.now += 200
    assert world.poll() == 1
    assert world.sent[0][0].destination == 2


def test_auto_commit_skips_unchanged_positions() -> None:
    world = CommitWorld(auto_commit_interval_ms=1_000)
    assert not world.commits.is_auto_due(world.now)
    assert not world.commits.is_auto_due(world.now + 999)
    assert world.commits.is_auto_due(world.now + 1_000)
    assert not world.commits.is_auto_due(world.now + 1_001)
    world.commits.committed = {P0: 5}
    assert world.commits.changed({P0: CommittedOffset(5), P1: CommittedOffset(6)}) == {P1: CommittedOffset(6)}
    world.commits.forget([P0])
    assert set(world.commits.changed({P0: CommittedOffset(5)})) == {P0}


def test_changed_positions_are_compared_with_queued_commits_too() -> None:
    world = CommitWorld()
    world.commits.committed = {P0: 5}
    back_at_five = {P0: CommittedOffset(5)}
    world.commit({P0: 9})
    world.poll()
    assert world.commits.changed(back_at_five) == back_at_five, "9 is in flight"
    world.commit({P0: 5})
    assert world.commits.changed(back_at_five) == {}


def test_after_a_failed_commit_the_committed_offset_is_unknown() -> None:
    world = CommitWorld()
    world.commits.committed = {P0: 5}
    world.commit({P0: 9})
    world.poll()
    world.now += 10_000
    request, _ = world.sent.popleft()
    request.on_failure(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"), world.now)
    world.poll()
    assert [e.code for _, e in world.done if e] == [ErrorCode.REQUEST_TIMED_OUT]
    assert set(world.commits.changed({P0: CommittedOffset(5)})) == {P0}, "9 may have been stored"


def test_a_commit_for_a_deleted_topic_is_not_retried_but_for_an_unknown_one_it_is() -> None:
    world = CommitWorld()
    world.commit({P0: 1})
    world.commit({P1: 1})
    world.poll()
    world.answer_commit(p0=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not world.done, "the coordinator's metadata may be stale"
    world.view.topic_errors["t"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.now += 200
    world.poll()
    world.answer_commit(p0=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert [e.code for _, e in world.done if e] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.poll() == 1, "the next commit is sent"


def test_a_partition_starts_at_the_committed_offset_or_by_the_reset_policy() -> None:
    """Spec: B7."""
    world = CommitWorld()
    world.begin(P0, P1)
    assert world.positions.poll(world.now).requests == [], "no other lookup meanwhile"
    world.poll()
    asked = world.answer_fetch({0: 42, 1: -1})
    assert not asked.require_stable
    assert world.positions.states[P0].position == 42
    assert world.positions.states[P1].reset_to == EARLIEST


def test_partitions_missing_in_an_offset_fetch_response_are_requested_again_with_backoff() -> None:
    world = CommitWorld()
    world.positions.assign([P0, P1], world.now)
    for partition in (P0, P1):
        world.lookup.begin(partition)
    world.poll()
    world.answer_fetch({0: 7})
    assert world.positions.states[P0].position == 7
    (error,) = world.positions.errors
    assert "t-1" in str(error)
    assert world.poll() == 0
    world.now += 1_000
    assert world.poll() == 1
    world.answer_fetch({1: 9})
    assert world.positions.states[P1].position == 9


def test_a_commit_missing_in_the_response_is_an_error() -> None:
    world = CommitWorld()
    world.commit({P0: 7, P1: 9})
    world.poll()
    request, _ = world.sent.popleft()
    partition = OffsetCommitResponse.OffsetCommitResponsePartition
    stored = partition(partition_index=0)
    stray = partition(partition_index=5, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    topic = OffsetCommitResponse.OffsetCommitResponseTopic(name="t", partitions=[stored, stray])
    request.on_response(OffsetCommitResponse(topics=[topic]), 9, world.now)
    ((_, error),) = world.done
    assert error is not None
    assert "t-1" in str(error)
    assert world.commits.committed == {P0: 7}


def test_read_committed_waits_for_pending_offsets_of_open_transactions() -> None:
    world = CommitWorld(isolation_level="read_committed")
    world.begin(P0)
    world.poll()
    assert world.answer_fetch({0: -1}, p0=ErrorCode.UNSTABLE_OFFSET_COMMIT).require_stable
    assert world.positions.states[P0].fetch_state is FetchState.AWAIT_COMMITTED
    assert world.poll() == 0
    world.now += 200
    assert world.poll() == 1
    world.answer_fetch({0: 9})
    assert world.positions.states[P0].position == 9


def test_a_seek_overrides_the_committed_offset() -> None:
    world = CommitWorld()
    world.begin(P0)
    world.poll()
    world.positions.states[P0].move_to(7)
    world.answer_fetch({0: 42})
    assert world.positions.states[P0].position == 7


def test_without_a_committed_offset_and_a_reset_policy_an_error_is_raised() -> None:
    world = CommitWorld(auto_offset_reset="none")
    world.begin(P0)
    world.poll()
    world.answer_fetch({0: -1})
    assert "auto.offset.reset is none" in str(world.positions.errors[0])


def test_a_seek_clears_the_error_about_a_missing_offset() -> None:
    world = CommitWorld(auto_offset_reset="none")
    world.begin(P0, P1)
    world.poll()
    world.answer_fetch({0: -1, 1: -1})
    world.positions.hold(P0)
    (left,) = world.positions.errors
    assert str(P1) in str(left)


# --- settings and patterns --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_id": " "}, r"group\.id must not be blank"),
        ({"group_instance_id": "one"}, r"group\.instance\.id needs a group\.id"),
        ({"enable_auto_commit": True}, r"enable\.auto\.commit cannot be set to true without a group\.id"),
        (
            {"group_id": "g", "session_timeout_ms": 9_000, "heartbeat_interval_ms": 3_001},
            r"heartbeat\.interval\.ms must be at most a third of session\.timeout\.ms",
        ),
    ],
)
def test_contradicting_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    """Spec: B8."""
    with pytest.raises(ConfigError, match=message):
        build(ConsumerConfig, None, settings)


def test_missing_settings_are_derived() -> None:
    """Spec: A5, B8. The defaults are those of current Kafka."""
    assert build(ConsumerConfig, None, {"group_id": "g", "session_timeout_ms": 6_000}).heartbeat_interval_ms == 2_000
    assert not build(ConsumerConfig, None, {}).enable_auto_commit
    config = build(ConsumerConfig, None, {"group_id": "g"})
    assert config.enable_auto_commit
    assert config.partition_assignment_strategy == ("range", "cooperative-sticky")
    assert (config.session_timeout_ms, config.heartbeat_interval_ms, config.max_poll_interval_ms) == (
        45_000, 3_000, 300_000,
    )  # fmt: skip


@pytest.mark.parametrize("pattern", ["", "(", 7, b"x"])
def test_an_invalid_pattern_is_refused(pattern: Any) -> None:
    with pytest.raises(OttlaError, match="pattern"):
        check_pattern(pattern)


def test_a_pattern_matches_whole_names_and_excludes_internal_topics() -> None:
    """Spec: B6. And is compared again when metadata.max.age.ms has passed."""
    seen: list[tuple[str, ...]] = []
    watch = TopicWatch(
        max_age_ms=1_000,
        exclude_internal=True,
        on_topics=lambda topics, now: seen.append(topics),
        backoff=Backoff(100, 1_000),
    )
    assert watch.poll(0).requests == []
    watch.watch(check_pattern("a.*|__.*"))
    (request,) = watch.poll(0).requests
    topic = MetadataResponse.MetadataResponseTopic
    names = [("ab", False, 0), ("xab", False, 0), ("__offsets", True, 0), ("a-broken", False, 5)]
    listed = [topic(name=n, is_internal=internal, error_code=e) for n, internal, e in names]
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=1)
    request.on_response(MetadataResponse(brokers=[broker], topics=listed), 12, 10)
    assert seen == [("ab",)]
    assert watch.poll(1_009).requests == []
    assert len(watch.poll(1_010).requests) == 1


def test_an_empty_metadata_response_does_not_unsubscribe_a_pattern() -> None:
    """A broker that has just started knows no topics. Otherwise every member would give up all partitions."""
    seen: list[tuple[str, ...]] = []
    watch = TopicWatch(
        max_age_ms=1_000,
        exclude_internal=True,
        on_topics=lambda topics, now: seen.append(topics),
        backoff=Backoff(100, 1_000),
    )
    watch.watch(check_pattern("a.*"))
    (request,) = watch.poll(0).requests
    request.on_response(MetadataResponse(), 12, 10)
    assert seen == []
    assert watch.poll(10).requests == []
    assert len(watch.poll(1_010).requests) == 1
