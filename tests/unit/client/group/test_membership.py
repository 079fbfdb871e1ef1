"""The classic group protocol of a member, with scripted responses and a manual clock: no broker, no network."""

from collections import deque
from typing import Any

import pytest

from ottla.assignors import Assignment, Assignor, ClusterMetadata, Subscription
from ottla.assignors.choosing import choose_assignors
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.polling import Request
from ottla.client.core.settings import ConsumerConfig, build
from ottla.client.group.member_state import TRANSITIONS, MemberState
from ottla.client.group.membership import Membership
from ottla.client.group.protocol import join_request, read_assignment, read_subscriptions
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import API, ApiKey
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupResponse
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse
from ottla.types import TopicPartition

P0, P1, P2 = (TopicPartition("t", i) for i in range(3))


class MemberWorld:
    """One member, with a scripted coordinator and a manual clock."""

    def __init__(self, strategy: Any = "range", partitions: int = 3, **settings: Any) -> None:
        self.now = 1_000_000
        settings = {"group_id": "g", **settings}
        self.config = build(ConsumerConfig, None, settings)
        self.view = ClusterView(max_age_ms=10**9, backoff=Backoff(100, 1_000))
        self.coordinator = CoordinatorFinder("g", self.view, backoff=Backoff(100, 1_000))
        self.pinned: frozenset[str] = frozenset()
        self.member = Membership(
            self.config,
            self.view,
            self.coordinator,
            choose_assignors(strategy),
            pin_topics=self.pin,
            backoff=Backoff(100, 1_000),
        )
        self.sent: deque[tuple[Request, Any]] = deque()
        self.wake_at: int | None = None
        self.show_topics(t=partitions)
        self.member.want(["t"], self.now)

    def pin(self, topics: frozenset[str], now: int) -> None:
        self.pinned = topics
        for topic in topics:
            self.view.want(topic, now)

    def show_topics(self, **counts: int) -> None:
        """Metadata arrives."""
        for topic in counts:
            self.view.want(topic, self.now)
        partition = MetadataResponse.MetadataResponsePartition
        self.view.on_response(
            list(counts),
            MetadataResponse(
                brokers=[MetadataResponse.MetadataResponseBroker(node_id=i, host="h", port=i) for i in (1, 2)],
                topics=[
                    MetadataResponse.MetadataResponseTopic(
                        name=topic, partitions=[partition(partition_index=i, leader_id=1) for i in range(count)]
                    )
                    for topic, count in counts.items()
                ],
            ),
            self.now,
        )

    def poll(self) -> list[int]:
        """Polls the member and the coordinator lookup; returns the APIs of their requests."""
        asked = []
        self.wake_at = None
        for decider in (self.member, self.coordinator):
            poll = decider.poll(self.now)
            if poll.wake_at is not None:
                self.wake_at = min(poll.wake_at, self.wake_at or poll.wake_at)
            for request in poll.requests:
                message = request.build(API[request.api_key].max_version)
                self.sent.append((request, message))
                asked.append(request.api_key)
        return asked

    def take(self, api_key: int) -> tuple[Request, Any]:
        """The oldest unanswered request, which must be of this API."""
        request, message = self.sent.popleft()
        assert request.api_key == api_key, f"API {request.api_key} was asked, not {api_key}"
        return request, message

    def answer(self, api_key: int, response: Any) -> Any:
        request, message = self.take(api_key)
        request.on_response(response, API[api_key].max_version, self.now)
        return message

    def fail(self, api_key: int, error: ErrorCode = ErrorCode.NETWORK_EXCEPTION) -> None:
        request, _ = self.take(api_key)
        request.on_failure(KafkaError(error), self.now)

    def find_coordinator(self, node_id: int = 1) -> None:
        assert self.poll() == [ApiKey.FIND_COORDINATOR]
        found = FindCoordinatorResponse.Coordinator(key="g", node_id=node_id, host="h", port=1)
        self.answer(ApiKey.FIND_COORDINATOR, FindCoordinatorResponse(coordinators=[found]))

    def answer_join(self, *, generation: int = 1, leader: str = "me", members: Any = None, error: int = 0) -> Any:
        if members is None and leader == "me":
            members = {"me": Subscription(["t"])}
        protocol = next(iter(self.member.assignors))
        listed = [
            JoinGroupResponse.JoinGroupResponseMember(member_id=name, metadata=encode(self.config, told))
            for name, told in (members or {}).items()
        ]
        return self.answer(
            ApiKey.JOIN_GROUP,
            JoinGroupResponse(
                error_code=error, generation_id=generation, protocol_name=protocol, leader=leader, member_id="me",
                members=listed,
            ),
        )  # fmt: skip

    def answer_sync(self, blob: bytes = b"", error: int = 0) -> Any:
        return self.answer(ApiKey.SYNC_GROUP, SyncGroupResponse(error_code=error, assignment=blob))

    def state(self) -> MemberState:
        return self.member.state

    def stable(self) -> "MemberWorld":
        """Goes through the first generation as the only member and leader."""
        self.member.prepared([])
        self.find_coordinator()
        assert self.poll() == [ApiKey.JOIN_GROUP]
        self.answer_join()
        assert self.poll() == [ApiKey.SYNC_GROUP]
        _, message = self.sent[0]
        self.answer_sync(message.assignments[0].assignment)
        self.member.taken(self.member.accept().partitions, has_revoked=False)
        assert self.member.state is MemberState.STABLE
        return self

    def heartbeat(self, error: int = 0) -> Any:
        self.now += self.config.heartbeat_interval_ms
        self.member.leave_poll(self.now)
        assert self.poll() == [ApiKey.HEARTBEAT]
        return self.answer(ApiKey.HEARTBEAT, HeartbeatResponse(error_code=error))


def encode(config: ConsumerConfig, subscription: Subscription) -> bytes:
    generation, owned = subscription.generation_id, subscription.owned_partitions
    request = join_request(config, "", generation, owned, [("x", subscription)], "")(9)
    metadata: bytes = request.protocols[0].metadata
    return metadata


def test_a_member_finds_its_coordinator_joins_leads_and_is_assigned() -> None:
    """Spec: B2, B5."""
    world = MemberWorld()
    assert world.poll() == []
    assert world.state() is MemberState.PREPARING, "it waits for the user's poll()"
    world.member.prepared([])
    world.find_coordinator()
    world.poll()
    join = world.answer_join()
    assert (join.group_id, join.member_id, join.session_timeout_ms, join.rebalance_timeout_ms) == (
        "g", "", 45_000, 300_000,
    )  # fmt: skip
    world.poll()
    request, sync = world.sent[0]
    assert request.timeout_ms is not None
    assert request.timeout_ms > 300_000, "the others may take as long as max.poll.interval.ms"
    assert (sync.generation_id, sync.member_id, sync.protocol_name) == (1, "me", "range")
    world.answer_sync(sync.assignments[0].assignment)
    assert world.state() is MemberState.ASSIGNED
    assert world.member.assignment == Assignment([P0, P1, P2])


def test_the_first_join_returns_only_a_member_id() -> None:
    """Spec: B3. The second join follows at once with that id (KIP-394)."""
    world = MemberWorld()
    world.member.prepared([])
    world.find_coordinator()
    world.poll()
    refused = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me-1")
    world.answer(ApiKey.JOIN_GROUP, refused)
    assert world.poll() == [ApiKey.JOIN_GROUP]
    assert world.sent[0][1].member_id == "me-1"


def test_heartbeats_are_sent_at_their_interval_and_not_while_joining() -> None:
    """Spec: B7, B8."""
    world = MemberWorld(heartbeat_interval_ms=2_000).stable()
    for _ in range(3):
        assert world.poll() == []
        assert world.wake_at == world.now + 2_000
        world.heartbeat()
    world.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert world.state() is MemberState.PREPARING
    world.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)  # heartbeats continue while the user revokes partitions
    world.member.prepared([])
    assert world.poll() == [ApiKey.JOIN_GROUP]
    world.now += 10_000
    assert world.poll() == [], "a member that waits in JoinGroup counts as alive"


@pytest.mark.parametrize(
    ("error", "state", "member_id"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, MemberState.PREPARING, "me"),
        (ErrorCode.ILLEGAL_GENERATION, MemberState.LOST, "me"),
        (ErrorCode.UNKNOWN_MEMBER_ID, MemberState.LOST, ""),
        (ErrorCode.FENCED_INSTANCE_ID, MemberState.FENCED, ""),
        (ErrorCode.NOT_COORDINATOR, MemberState.STABLE, "me"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, MemberState.STABLE, "me"),
    ],
)
def test_each_heartbeat_error_has_its_own_reaction(error: ErrorCode, state: MemberState, member_id: str) -> None:
    """Spec: B6."""
    world = MemberWorld().stable()
    world.heartbeat(error)
    assert (world.member.state, world.member.member_id) == (state, member_id)
    if state is MemberState.LOST:
        assert world.member.generation == -1
        assert not world.member.has_generation


def test_a_member_survives_a_coordinator_change() -> None:
    """Spec: B10."""
    world = MemberWorld().stable()
    world.heartbeat(ErrorCode.NOT_COORDINATOR)
    world.now += 200
    world.find_coordinator(node_id=2)
    assert world.poll() == [ApiKey.HEARTBEAT]
    assert world.sent[0][0].destination == 2
    assert world.sent[0][1].generation_id == 1


def test_a_lost_connection_during_a_join_keeps_the_member_id() -> None:
    world = MemberWorld().stable()
    world.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    world.member.prepared([])
    world.poll()
    world.fail(ApiKey.JOIN_GROUP)
    world.now += 200
    world.find_coordinator()
    assert world.poll() == [ApiKey.JOIN_GROUP]
    assert world.sent[0][1].member_id == "me"


@pytest.mark.parametrize("error", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_a_late_sync_rejoins(error: ErrorCode) -> None:
    world = MemberWorld()
    world.member.prepared([])
    world.find_coordinator()
    world.poll()
    world.answer_join()
    world.poll()
    world.answer_sync(error=error)
    assert world.state() is MemberState.JOINING


def test_a_response_from_before_leaving_is_ignored() -> None:
    world = MemberWorld()
    world.member.prepared([])
    world.find_coordinator()
    world.poll()
    world.member.depart()
    world.answer_join(generation=9)
    assert world.state() is MemberState.UNSUBSCRIBED
    assert world.member.generation == -1


def test_a_heartbeat_response_during_a_join_is_ignored() -> None:
    """The two use different connections: the group may be in a later generation than the member knows."""
    world = MemberWorld().stable()
    world.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    world.now += world.config.heartbeat_interval_ms
    assert world.poll() == [ApiKey.HEARTBEAT]
    world.member.prepared([])
    assert world.poll() == [ApiKey.JOIN_GROUP]
    world.answer(ApiKey.HEARTBEAT, HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
    assert world.state() is MemberState.JOINING


def test_a_member_that_stops_polling_leaves_the_group_and_loses_its_partitions() -> None:
    """Spec: B6. `max.poll.interval.ms` is exceeded."""
    world = MemberWorld(max_poll_interval_ms=10_000).stable()
    world.member.leave_poll(world.now)
    polled_at = world.now
    while world.now < polled_at + 9_000:
        world.now += 3_000
        assert world.poll() == [ApiKey.HEARTBEAT]
        world.answer(ApiKey.HEARTBEAT, HeartbeatResponse())
    world.now = polled_at + 10_001
    assert world.poll() == [ApiKey.LEAVE_GROUP]
    leave = world.answer(ApiKey.LEAVE_GROUP, LeaveGroupResponse())
    assert leave.members[0].member_id == "me"
    assert world.state() is MemberState.LOST
    assert world.poll() == []
    world.member.enter_poll()
    world.member.given_up()
    assert world.poll() == [ApiKey.JOIN_GROUP]
    assert world.sent[0][1].member_id == ""


def test_a_member_blocked_in_poll_is_not_idle() -> None:
    world = MemberWorld(max_poll_interval_ms=10_000).stable()
    world.member.enter_poll()
    world.now += 60_000
    assert world.poll() == [ApiKey.HEARTBEAT]


def test_the_poll_interval_counts_from_the_end_of_the_last_poll() -> None:
    world = MemberWorld(max_poll_interval_ms=10_000).stable()
    for _ in range(5):
        world.heartbeat()  # 3 s after the last one, with a poll
    assert world.state() is MemberState.STABLE


def test_a_rejoin_requested_while_joining_follows_the_current_rebalance_once() -> None:
    world = MemberWorld()

    def complete(generation: int) -> None:
        assert world.poll() == [ApiKey.JOIN_GROUP]
        if generation == 1:
            world.member.request_rejoin("the subscription changed")
            assert world.state() is MemberState.JOINING
        world.answer_join(generation=generation)
        assert world.poll() == [ApiKey.SYNC_GROUP]
        world.answer_sync(world.sent[0][1].assignments[0].assignment)
        world.member.taken(world.member.accept().partitions, has_revoked=False)

    world.member.prepared([])
    world.find_coordinator()
    complete(1)
    assert world.state() is MemberState.PREPARING
    world.member.prepared([P0, P1, P2])
    complete(2)
    assert world.state() is MemberState.STABLE


def test_a_static_member_keeps_its_member_id_when_it_departs() -> None:
    for instance_id, kept in (("one", "me"), (None, "")):
        world = MemberWorld(group_instance_id=instance_id).stable()
        world.member.depart()
        assert world.member.member_id == kept


def test_a_static_member_does_not_send_leave_group() -> None:
    """Its session may outlive a restart (KIP-345)."""
    world = MemberWorld(group_instance_id="one").stable()
    assert world.member.depart() is None
    dynamic = MemberWorld().stable()
    goodbye = dynamic.member.depart()
    assert goodbye is not None
    assert goodbye(5).members[0].member_id == "me"


def test_only_the_leader_rejoins_when_a_topic_gets_more_partitions() -> None:
    """Spec: B6."""
    leader = MemberWorld().stable()
    leader.show_topics(t=5)
    leader.poll()
    assert leader.state() is MemberState.PREPARING
    follower = MemberWorld().stable()
    follower.member.is_leader = False
    follower.show_topics(t=5)
    follower.poll()
    assert follower.state() is MemberState.STABLE


def test_a_member_that_changes_its_subscription_rejoins() -> None:
    """Spec: B6. A pattern that matches more."""
    world = MemberWorld().stable()
    world.member.want(["t", "u"], world.now)
    world.poll()
    assert world.state() is MemberState.PREPARING
    assert world.pinned == {"t", "u"}


def test_the_leader_waits_for_the_metadata_of_all_members_topics() -> None:
    world = MemberWorld()
    world.member.prepared([])
    world.find_coordinator()
    world.poll()
    world.answer_join(members={"me": Subscription(["t"]), "other": Subscription(["u"])})
    assert world.poll() == []
    assert world.pinned == {"t", "u"}
    world.show_topics(t=3, u=2)
    assert world.poll() == [ApiKey.SYNC_GROUP]
    shares = {a.member_id: read_assignment(a.assignment).partitions for a in world.sent[0][1].assignments}
    assert shares == {"me": [P0, P1, P2], "other": [TopicPartition("u", 0), TopicPartition("u", 1)]}


def test_a_cooperative_member_keeps_its_partitions_and_reports_them() -> None:
    """Spec: A4. It rejoins at once, so that what it revoked can be assigned to others (KIP-429)."""
    world = MemberWorld("cooperative-sticky").stable()
    assert world.member.is_cooperative
    world.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    world.member.prepared(world.member.owned)
    world.poll()
    (protocol,) = world.sent[0][1].protocols
    member = JoinGroupResponse.JoinGroupResponseMember(member_id="me", metadata=protocol.metadata)
    told = read_subscriptions([member])["me"]
    assert (told.owned_partitions, told.generation_id) == ([P0, P1, P2], 1)
    others = {"me": told, "you": Subscription(["t"])}
    world.answer_join(generation=2, members=others)
    world.poll()
    mine = next(a.assignment for a in world.sent[0][1].assignments if a.member_id == "me")
    assert len(read_assignment(mine).partitions) == 2
    world.answer_sync(mine)
    world.member.taken(world.member.accept().partitions, has_revoked=True)
    assert world.state() is MemberState.PREPARING, "so that the third partition goes to the other one"


class Broken(Assignor):
    name = "broken"

    def assign(self, cluster: ClusterMetadata, subscriptions: Any) -> dict[str, Assignment]:
        raise ZeroDivisionError("by zero")


def test_a_failing_assignor_raises_in_poll_and_is_retried_with_the_next_one() -> None:
    world = MemberWorld(Broken)
    world.member.prepared([])
    world.find_coordinator()
    world.poll()
    world.answer_join()
    assert world.poll() == []
    assert world.state() is MemberState.PREPARING
    assert world.member.needs_user
    with pytest.raises(OttlaError, match="assignor broken failed: ZeroDivisionError: by zero"):
        raise world.member.errors[0]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ],
)
def test_a_non_retriable_join_error_is_raised_to_the_user(error: ErrorCode) -> None:
    world = MemberWorld()
    world.member.prepared([])
    world.find_coordinator()
    world.poll()
    world.answer_join(error=error)
    assert [e.code for e in world.member.errors] == [error]  # type: ignore[attr-defined]
    assert world.poll() == [], "it backs off"
    world.now += 2_000
    assert world.poll() == [ApiKey.JOIN_GROUP]


def test_a_fenced_commit_ends_only_the_membership_of_its_generation() -> None:
    world = MemberWorld().stable()
    world.member.note_fenced(ErrorCode.ILLEGAL_GENERATION, generation=0)
    assert world.state() is MemberState.STABLE
    world.member.note_fenced(ErrorCode.UNKNOWN_MEMBER_ID, generation=1)
    assert world.state() is MemberState.LOST


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_is_settled_when_its_assignment_is_complete(strategy: str) -> None:
    world = MemberWorld(strategy)
    assert not world.member.is_settled
    assert world.stable().member.is_settled
    world.heartbeat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert not world.member.is_settled
    world.member.prepared([])
    assert world.poll() == [ApiKey.JOIN_GROUP]
    world.answer_join(generation=2, leader="other")
    assert world.poll() == [ApiKey.SYNC_GROUP]
    world.answer_sync()
    world.member.accept()
    world.member.taken([], has_revoked=False)
    # Cooperative members get nothing at first, until others have revoked something.
    assert world.member.is_settled == (strategy == "range")
    world.heartbeat()
    assert world.member.is_settled


def test_the_state_table_is_complete() -> None:
    assert TRANSITIONS.keys() == set(MemberState)
    assert not TRANSITIONS[MemberState.FENCED]


def test_an_invalid_topic_name_of_another_member_does_not_block_the_group() -> None:
    """Its metadata cannot be requested, so the leader would rejoin endlessly, and the others with it."""
    world = MemberWorld()
    world.member.prepared([])
    world.find_coordinator()
    world.poll()
    world.answer_join(members={"me": Subscription(["t"]), "other": Subscription(["", "t"])})
    assert world.poll() == [ApiKey.SYNC_GROUP]
    shares = {a.member_id: read_assignment(a.assignment).partitions for a in world.sent[0][1].assignments}
    assert shares == {"me": [P0, P1], "other": [P2]}
