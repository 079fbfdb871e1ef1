"""The classic group protocol for one member: join, sync, heartbeat, leave, and assigning as the leader. Pure.

Partitions are revoked, assigned or lost only inside the user's poll(): the states LOST, PREPARING and ASSIGNED wait for
it. The other states proceed in the background (KIP-62).
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from ottla.assignors.base import Assignment, Assignor, Subscription
from ottla.assignors.checking import announce, run_assignor, subscription_of
from ottla.assignors.choosing import left_over, shared_protocol
from ottla.checks import moved
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.polling import Poll, Request
from ottla.client.core.settings import ConsumerConfig
from ottla.client.group.member_state import TRANSITIONS, WAITING_FOR_POLL, MemberState
from ottla.client.group.protocol import (
    cluster_metadata,
    heartbeat_request,
    join_request,
    leave_request,
    read_assignment,
    read_subscriptions,
    sync_request,
)
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.net.backoff import Backoff, Retry
from ottla.protocol.api import ApiKey
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.wire_values import NO_GENERATION
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")

REBALANCE_LANE = "rebalance"
"""JoinGroup and SyncGroup are answered when all members have joined, so they use a separate connection."""
OTHER_PROTOCOL_HINT = "Do members of another client library use this group id? Give them a group id of their own."
METADATA_TIMEOUT_MS = 5_000
"""How long a leader waits for the metadata of the group's topics before it assigns without the missing ones."""


class Membership:
    """Decides what a member sends next. ConsumerCoordinator does the steps that belong to poll() and reports back."""

    def __init__(
        self,
        config: ConsumerConfig,
        view: ClusterView,
        coordinator: CoordinatorFinder,
        assignors: list[Assignor],
        *,
        pin_topics: Callable[[frozenset[str], int], None],
        knows_latest_topics: Callable[[int], bool] = lambda now: True,
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.state = MemberState.UNSUBSCRIBED
        self.generation = NO_GENERATION
        self.member_id = ""
        self.last_identity = (NO_GENERATION, "")
        """Generation and member id of the last join, kept after the member was removed. See `GroupMetadata`."""
        self.is_leader = False
        self.assignors = {assignor.name: assignor for assignor in assignors}
        self.is_cooperative = shared_protocol(assignors) == "COOPERATIVE"
        self.protocol: str | None = None
        self.topics: tuple[str, ...] = ()
        """The topics of this member's subscription; `_joined_topics` are those of its last JoinGroup."""
        self.owned: list[TopicPartition] = []
        """The partitions that poll() reads from, as of the last report."""
        self.assignment = Assignment([])
        """In state ASSIGNED: the new assignment, not yet taken over."""
        self.errors: list[Exception] = []
        """Errors for poll() to raise."""
        self.is_polling = False
        self.rebalances = 0
        """How many assignments were taken over, for the metrics."""
        self.rejoin_reason = ""
        self._config = config
        self._view = view
        self._coordinator = coordinator
        self._pin_topics = pin_topics
        self._knows_latest_topics = knows_latest_topics
        self._backoff = backoff
        self._jitter = jitter
        self._membership_id = 0
        """Changes when the member leaves or is removed. A response to an earlier request is then stale."""
        self._in_flight = False
        self._heartbeat_in_flight = False
        self._retry = Retry(backoff, jitter)
        self._heartbeat_at = 0
        self._polled_at = 0
        self._rejoin_wanted = False
        self._quiet_generation = NO_GENERATION
        """The generation in which a heartbeat succeeded after the assignment was taken over."""
        self._joined_topics: tuple[str, ...] = ()
        self._subscriptions: dict[str, Subscription] = {}
        """As the leader: the subscription of every member."""
        self._skips_assignment = False
        self._counts: dict[str, int | None] = {}
        """As the leader: the partition count of each topic at the last assignment."""
        self._joined_at: int | None = None

    # --- called from poll() and subscribe() ---------------------------------------------------------------

    @property
    def needs_user(self) -> bool:
        """Whether poll() has something to do before the member can proceed."""
        return self.state in WAITING_FOR_POLL or bool(self.errors)

    @property
    def has_generation(self) -> bool:
        """Whether, as far as we know, this is a member of the current generation, so that commits are accepted."""
        return self.generation != NO_GENERATION and self.state not in (
            MemberState.UNSUBSCRIBED,
            MemberState.LOST,
            MemberState.FENCED,
        )

    @property
    def is_settled(self) -> bool:
        """Whether the assignment is complete and no further rebalance is known to follow.

        A new member of a cooperative group gets no partitions in its first rebalance: the others revoke some and rejoin
        immediately (KIP-429). So an empty assignment counts only after a heartbeat without REBALANCE_IN_PROGRESS.
        """
        if self.state is not MemberState.STABLE:
            return False
        is_quiet = not self.is_cooperative or self._quiet_generation == self.generation
        knows_topics = bool(self.topics) and all(topic in self._view.topics for topic in self.topics)
        return bool(self.owned) or (is_quiet and knows_topics)

    def want(self, topics: Iterable[str], now: int) -> None:
        """Subscribes to these topics: joins, or rejoins if they differ from those of the last JoinGroup."""
        self.topics = tuple(sorted(topics))
        self._pin(now)
        if self.state is MemberState.UNSUBSCRIBED:
            self._polled_at = now
            self.rejoin_reason = "the consumer subscribed"
            self._move(MemberState.PREPARING)

    def enter_poll(self) -> None:
        self.is_polling = True

    def leave_poll(self, now: int) -> None:
        self.is_polling = False
        self._polled_at = now

    def prepared(self, owned: Iterable[TopicPartition]) -> None:
        """poll() has revoked what had to be revoked; `owned` is what it keeps."""
        self.owned = sorted(owned)
        self._retry.at = 0
        self._move(MemberState.JOINING)

    def taken(self, owned: Iterable[TopicPartition], *, has_revoked: bool) -> None:
        """poll() has taken over the assignment. A member that revoked partitions rejoins to free them (KIP-429)."""
        self.owned = sorted(owned)
        self.rebalances += 1
        self._move(MemberState.STABLE)
        if has_revoked:
            self.request_rejoin("the member revoked partitions that move to another one")
        elif self._rejoin_wanted:
            self.request_rejoin(self.rejoin_reason)

    def request_rejoin(self, reason: str) -> None:
        """Rejoins immediately if the member is stable, otherwise after the current rebalance."""
        self.rejoin_reason = reason
        if self.state is MemberState.STABLE:
            log.info("member %s is rejoining group %s: %s", self.member_id, self._config.group_id, reason)
            self._rejoin_wanted = False
            self._move(MemberState.PREPARING)
        elif self.state in (MemberState.JOINING, MemberState.SYNCING, MemberState.ASSIGNED):
            self._rejoin_wanted = True

    def depart(self) -> Callable[[int], Any] | None:
        """Ends the membership. Returns the LeaveGroup request; None for a static member: it may come back (KIP-345)."""
        member_id, self.topics = self.member_id, ()
        self._forget(keeps_member_id=self._config.group_instance_id is not None)
        self.state = MemberState.UNSUBSCRIBED
        if not member_id or self._config.group_instance_id is not None:
            return None
        return leave_request(self._config, member_id, "the consumer is being closed or has unsubscribed")

    def note_fenced(self, error: ErrorCode, generation: int) -> None:
        """A commit of `generation` was rejected: checks what that means for the membership."""
        is_joining = self.state not in (MemberState.PREPARING, MemberState.ASSIGNED, MemberState.STABLE)
        if is_joining or generation != self.generation:
            return  # the next generation may have begun already
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._heartbeat_at = 0  # a heartbeat shows whether to rejoin, or whether SyncGroup is just not done yet
        else:
            self._lose(error, f"a commit was rejected: {error.name}")

    # --- polling ------------------------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        if self.state in (MemberState.UNSUBSCRIBED, MemberState.LOST, MemberState.FENCED):
            return poll
        if self._has_stopped_polling(now, poll):
            return poll
        if self.state is MemberState.JOINING:
            self._join(now, poll)
        elif self.state is MemberState.SYNCING:
            self._sync(now, poll)
        else:
            self._heartbeat(now, poll)
        if self.state is MemberState.STABLE:
            self._watch_topics()
        return poll

    def _has_stopped_polling(self, now: int, poll: Poll) -> bool:
        """Leaves the group if the user has stopped polling, so that another member gets the partitions (KIP-62)."""
        if self.is_polling:
            return False
        leave_at = self._polled_at + self._config.max_poll_interval_ms
        if now <= leave_at:
            poll.wake_by(leave_at + 1)
            return False
        log.warning(
            "consumer poll timeout has expired: more than max.poll.interval.ms = %d passed between two calls of "
            "poll(), so member %s leaves group %s. Process faster, decrease max.poll.records or increase the interval.",
            self._config.max_poll_interval_ms,
            self.member_id or "(new)",
            self._config.group_id,
        )
        node_id = self._coordinator.find()
        if self.member_id and node_id is not None and self._config.group_instance_id is None:
            build = leave_request(self._config, self.member_id, "consumer poll timeout has expired")
            poll.requests.append(Request(node_id, ApiKey.LEAVE_GROUP, build, lambda *_: None, lambda *_: None))
        self._lose(ErrorCode.UNKNOWN_MEMBER_ID, "max.poll.interval.ms passed without a poll()")
        return True

    def _watch_topics(self) -> None:
        """Rejoins when topics were created, deleted or got more partitions, or when the subscription changed."""
        if self.topics != self._joined_topics:
            self.request_rejoin("the subscription has changed")
        elif self.is_leader and self._counts != self._current_counts():
            self.request_rejoin("the group's topics have changed")

    # --- joining ------------------------------------------------------------------------------------------

    def _join(self, now: int, poll: Poll) -> None:
        if self._in_flight:
            return
        if not self._retry.is_due(now):
            poll.wake_by(self._retry.at)
            return
        node_id = self._coordinator.find()
        if node_id is None or not self._knows_latest_topics(now):
            return
        topics = self.topics
        try:
            subscriptions = [
                (assignor.name, subscription_of(assignor, list(topics))) for assignor in self.assignors.values()
            ]
        except OttlaError as error:
            self._user_error(error, now)
            return
        build = join_request(
            self._config, self.member_id, self.generation, self.owned, subscriptions, self.rejoin_reason
        )
        self._joined_topics = topics
        self._rejoin_wanted = False
        poll.requests.append(self._rebalance_request(node_id, ApiKey.JOIN_GROUP, build, self._on_join))

    def _rebalance_request(
        self,
        node_id: int,
        api_key: int,
        build: Callable[[int], Any],
        on_response: Callable[[Any, int, int], None],
    ) -> Request:
        """JoinGroup or SyncGroup: answered only when the other members have joined, so with a long timeout."""
        self._in_flight = True
        membership_id = self._membership_id

        def answered(response: Any, version: int, now: int) -> None:
            if membership_id == self._membership_id:
                self._in_flight = False
                error = ErrorCode(response.error_code)
                self._coordinator.note(error, node_id)
                if error == ErrorCode.NONE:
                    self._retry.succeeded()
                    on_response(response, version, now)
                elif error == ErrorCode.MEMBER_ID_REQUIRED:
                    self.member_id = response.member_id  # join again with this id (KIP-394)
                else:
                    self._on_refused(KafkaError(error, f"joining group {self._config.group_id}"), now)

        def failed(error: KafkaError, now: int) -> None:
            if membership_id == self._membership_id:
                self._in_flight = False
                self._coordinator.note_failure(error, node_id)
                self._on_refused(error, now)

        timeout_ms = max(self._config.request_timeout_ms, self._config.max_poll_interval_ms + 5_000)
        return Request(node_id, api_key, build, answered, failed, lane=REBALANCE_LANE, timeout_ms=timeout_ms)

    def _on_join(self, response: Any, version: int, now: int) -> None:
        self.generation = response.generation_id
        self.member_id = response.member_id
        self.last_identity = (self.generation, self.member_id)
        self.protocol = response.protocol_name
        self.is_leader = response.leader == response.member_id
        # A static leader that restarts must not assign, as no member rejoined; it still watches the topics (KIP-814).
        self._skips_assignment = bool(response.skip_assignment)
        self._joined_at = now
        self._heartbeat_at = now + self._config.heartbeat_interval_ms
        self._move(MemberState.SYNCING)
        try:
            self._subscriptions = read_subscriptions(response.members)
        except ProtocolError as error:
            problem = f"the subscription of a member of group {self._config.group_id} cannot be decoded: {error}"
            self._user_error(OttlaError(problem, OTHER_PROTOCOL_HINT), now)
            return
        self._pin(now)

    # --- syncing ------------------------------------------------------------------------------------------

    def _sync(self, now: int, poll: Poll) -> None:
        if self._in_flight:
            return
        node_id = self._coordinator.find()
        if node_id is None:
            # The coordinator has moved; the new one does not wait for a SyncGroup of this generation.
            self._move(MemberState.JOINING)
            return
        shares: dict[str, Assignment] = {}
        if self.is_leader and self._subscriptions:
            assert self._joined_at is not None
            wait_until = self._joined_at + METADATA_TIMEOUT_MS
            if not self._knows_topics() and now < wait_until:
                poll.wake_by(wait_until)
                return
            self._counts = self._current_counts()
            if not self._skips_assignment:
                try:
                    shares = self._assign()
                except OttlaError as error:
                    self._user_error(error, now)
                    return
        build = sync_request(self._config, self.member_id, self.generation, self.protocol, shares)
        poll.requests.append(self._rebalance_request(node_id, ApiKey.SYNC_GROUP, build, self._on_sync))

    def _assign(self) -> dict[str, Assignment]:
        """As the leader: runs the assignor."""
        assignor = self._assignor()
        cluster = cluster_metadata(self._view, self._group_topics())
        shares = run_assignor(assignor, cluster, self._subscriptions)
        rest = left_over(cluster, self._subscriptions, shares)
        if rest and not self.is_cooperative:
            names = ", ".join(map(str, rest[:10]))
            log.warning("assignor %s left %d partitions unassigned: %s", assignor.name, len(rest), names)
        return shares

    def _assignor(self) -> Assignor:
        assignor = self.assignors.get(self.protocol or "")
        if assignor is None:
            raise OttlaError(
                f"the group chose the assignor {self.protocol}, which this consumer does not have",
                "Add it to partition.assignment.strategy.",
            )
        return assignor

    def _on_sync(self, response: Any, version: int, now: int) -> None:
        try:
            self.assignment = read_assignment(response.assignment)
        except ProtocolError as error:
            problem = f"the assignment from the leader of group {self._config.group_id} cannot be decoded: {error}"
            self._user_error(OttlaError(problem, OTHER_PROTOCOL_HINT), now)
            return
        self._heartbeat_at = now + self._config.heartbeat_interval_ms
        self._move(MemberState.ASSIGNED)

    def accept(self) -> Assignment:
        """In state ASSIGNED: passes the assignment to the assignor and returns it."""
        announce(self._assignor(), self.assignment, self.generation)
        return self.assignment

    # --- heartbeats ---------------------------------------------------------------------------------------

    def _heartbeat(self, now: int, poll: Poll) -> None:
        if self._heartbeat_in_flight or self.generation == NO_GENERATION:
            return
        if now < self._heartbeat_at:
            poll.wake_by(self._heartbeat_at)
            return
        node_id = self._coordinator.find()
        if node_id is None:
            return
        self._heartbeat_in_flight = True
        membership_id, generation, was = self._membership_id, self.generation, self.state
        build = heartbeat_request(self._config, self.member_id, generation)

        def answered(response: Any, version: int, now: int) -> None:
            if membership_id == self._membership_id:
                self._heartbeat_in_flight = False
                self._heartbeat_at = now + self._config.heartbeat_interval_ms
                # While joining, the group may already be in the next generation: the JoinGroup response decides.
                if generation == self.generation and self.state not in (MemberState.JOINING, MemberState.SYNCING):
                    error = ErrorCode(response.error_code)
                    if error == ErrorCode.NONE and was is MemberState.STABLE:
                        self._quiet_generation = generation
                    self._on_heartbeat(error, node_id, now)

        def failed(error: KafkaError, now: int) -> None:
            if membership_id == self._membership_id:
                self._heartbeat_in_flight = False
                self._heartbeat_at = now + self._backoff.delay_ms(1, self._jitter())
                if error.retriable:
                    self._coordinator.note(ErrorCode.NETWORK_EXCEPTION, node_id)
                elif not self.errors:
                    self.errors.append(error)

        timeout_ms = min(self._config.request_timeout_ms, self._config.session_timeout_ms)
        poll.requests.append(Request(node_id, ApiKey.HEARTBEAT, build, answered, failed, timeout_ms=timeout_ms))

    def _on_heartbeat(self, error: ErrorCode, node_id: int, now: int) -> None:
        if error == ErrorCode.NONE:
            return
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing")
        elif error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._lose(error, f"a heartbeat was rejected: {error.name}")
        elif error.retriable:
            self._coordinator.note(error, node_id)
            self._heartbeat_at = now + self._backoff.delay_ms(1, self._jitter())
        elif not self.errors:
            self.errors.append(KafkaError(error, f"heartbeat of group {self._config.group_id}"))

    # --- errors -------------------------------------------------------------------------------------------

    def _on_refused(self, error: KafkaError, now: int) -> None:
        """JoinGroup or SyncGroup failed."""
        code = error.code
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
            self._lose(code, f"joining was rejected: {code.name}")
            return
        if self.state is MemberState.SYNCING:
            self._move(MemberState.JOINING)
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                return
        self._retry.failed(now)
        if not error.retriable and code != ErrorCode.REBALANCE_IN_PROGRESS and not self.errors:
            self.errors.append(error)

    def _user_error(self, error: OttlaError, now: int) -> None:
        """User code failed. It runs again in the poll() after the one that raises this error."""
        if not self.errors:
            self.errors.append(error)
        if self.state is MemberState.SYNCING:
            self._move(MemberState.PREPARING)
        else:
            self._retry.at = now + self._backoff.max_ms

    def _lose(self, error: ErrorCode, reason: str) -> None:
        """The member was removed from the group: its partitions may belong to others already."""
        log.info("member %s was removed from group %s: %s", self.member_id or "(new)", self._config.group_id, reason)
        self.rejoin_reason = reason
        self._forget(keeps_member_id=error == ErrorCode.ILLEGAL_GENERATION)
        self._move(MemberState.FENCED if error == ErrorCode.FENCED_INSTANCE_ID else MemberState.LOST)

    def given_up(self) -> None:
        """In state LOST: on_partitions_lost has been called."""
        self.owned = []
        self._move(MemberState.JOINING)

    def fenced_error(self) -> KafkaError:
        instance_id = self._config.group_instance_id
        detail = f"another consumer of group {self._config.group_id} uses the same group.instance.id {instance_id}"
        return KafkaError(ErrorCode.FENCED_INSTANCE_ID, detail)

    def _forget(self, *, keeps_member_id: bool) -> None:
        self._membership_id += 1
        self._in_flight = self._heartbeat_in_flight = False
        self.generation = NO_GENERATION
        self._quiet_generation = NO_GENERATION
        self.is_leader = False
        self._subscriptions = {}
        self._counts = {}
        self._rejoin_wanted = False
        self._retry.reset()
        if not keeps_member_id:
            self.member_id = ""

    def _move(self, state: MemberState) -> None:
        if state is not self.state:
            self.state = moved(TRANSITIONS, "a group member", self.state, state)

    # --- topics -------------------------------------------------------------------------------------------

    def _group_topics(self) -> frozenset[str]:
        topics = set(self.topics)
        for subscription in self._subscriptions.values():
            topics.update(filter(None, subscription.topics))  # ignore empty names, they cannot be looked up
        return frozenset(topics)

    def _pin(self, now: int) -> None:
        """Keeps the metadata of all members' topics up to date, which the leader needs."""
        self._pin_topics(self._group_topics(), now)

    def _knows_topics(self) -> bool:
        return all(topic in self._view.topics or topic in self._view.topic_errors for topic in self._group_topics())

    def _current_counts(self) -> dict[str, int | None]:
        return {topic: self._view.find_partition_count(topic) for topic in self._group_topics()}
