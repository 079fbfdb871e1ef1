"""One member's way through a classic group: join, sync, heartbeat, rejoin, leave; leading it when it falls to us. Pure.

Everything that touches the user's partitions (revoking, assigning, losing them) happens inside the user's own poll():
the stages LOST, PREPARING and ASSIGNED wait for it, the others go on by themselves.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from ottla.assignors.base import Assignment, Assignor, Subscription
from ottla.assignors.choosing import left_over, run_assignor, shared_protocol
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.model import error_of
from ottla.client.core.polling import Poll, Request
from ottla.client.core.settings import ConsumerConfig
from ottla.client.group.membership_stage import ALLOWED, FOR_THE_USER, Stage
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
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.protocol.primitives import ProtocolError
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")

NO_GENERATION = -1
REBALANCE_LANE = "rebalance"
"""JoinGroup and SyncGroup wait for all the others; nothing of ours may wait behind them."""
METADATA_PATIENCE_MS = 5_000
"""How long a leader waits to learn of the group's topics before it assigns what it knows."""


class Membership:
    """Decides what a member says next. The consumer asks `stage`, does the user's part and reports back."""

    def __init__(
        self,
        config: ConsumerConfig,
        view: ClusterView,
        coordinator: CoordinatorFinder,
        assignors: list[Assignor],
        *,
        pin_topics: Callable[[frozenset[str], int], None],
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.stage = Stage.OUT
        self.generation = NO_GENERATION
        self.member_id = ""
        self.last_identity = (NO_GENERATION, "")
        """Generation and member id as of the last join: by these a coordinator recognises whoever was put out."""
        self.is_leader = False
        self.assignors = {assignor.name: assignor for assignor in assignors}
        self.is_cooperative = shared_protocol(assignors) == "COOPERATIVE"
        self.protocol: str | None = None
        self.topics: tuple[str, ...] = ()
        """What this member wants now; `_joined_topics` is what the group knows of it."""
        self.owned: list[TopicPartition] = []
        """What the user's poll() reads from, as of the last report."""
        self.assignment = Assignment([])
        """In stage ASSIGNED: what the group gave us, not yet taken."""
        self.errors: list[Exception] = []
        """What poll() has to raise to the user."""
        self.is_polling = False
        self.rejoin_reason = ""
        self._config = config
        self._view = view
        self._coordinator = coordinator
        self._pin_topics = pin_topics
        self._backoff = backoff
        self._jitter = jitter
        self._turn = 0
        """Counts departures; an answer from before one is of no use."""
        self._in_flight = False
        self._heartbeat_in_flight = False
        self._retry_at = 0
        self._failures = 0
        self._heartbeat_at = 0
        self._polled_at = 0
        self._rejoin_wanted = False
        self._rested_generation = NO_GENERATION
        """In which a heartbeat was answered after we had taken our share."""
        self._joined_topics: tuple[str, ...] = ()
        self._subscriptions: dict[str, Subscription] = {}
        """As the leader: what every member wants."""
        self._skips_assignment = False
        self._counts: dict[str, int | None] = {}
        """As the leader: the partitions of each topic as of the last assignment."""
        self._synced_since: int | None = None

    # --- what the user does -------------------------------------------------------------------------------

    @property
    def needs_user(self) -> bool:
        """Whether poll() has something to do before the group can go on."""
        return self.stage in FOR_THE_USER or bool(self.errors)

    @property
    def has_generation(self) -> bool:
        """Whether commits can count: we are, as far as we know, a member."""
        return self.generation != NO_GENERATION and self.stage not in (Stage.OUT, Stage.LOST, Stage.FENCED)

    @property
    def is_settled(self) -> bool:
        """Whether the group has shared out all that we want, and no other rebalance is known to follow.

        A newcomer to a cooperative group gets nothing at first: the others have yet to give up what it will have, and
        join again at once. So there an empty share counts only when a heartbeat has found the group at rest since.
        """
        if self.stage is not Stage.STABLE:
            return False
        if self.owned:
            return True
        is_at_rest = not self.is_cooperative or self._rested_generation == self.generation
        return is_at_rest and bool(self.topics) and all(topic in self._view.topics for topic in self.topics)

    def want(self, topics: Iterable[str], now: int) -> None:
        """Wants these topics from now on; joins, or joins again if they differ from what the group knows."""
        self.topics = tuple(sorted(topics))
        self._pin(now)
        if self.stage is Stage.OUT:
            self._polled_at = now
            self.rejoin_reason = "it subscribed"
            self._move(Stage.PREPARING)

    def enter_poll(self, now: int) -> None:
        self.is_polling = True

    def leave_poll(self, now: int) -> None:
        self.is_polling = False
        self._polled_at = now

    def prepared(self, owned: Iterable[TopicPartition], now: int) -> None:
        """The user has given up what had to be given up; `owned` is what is kept."""
        self.owned = sorted(owned)
        self._retry_at = 0
        self._move(Stage.JOINING)

    def taken(self, owned: Iterable[TopicPartition], *, has_revoked: bool, now: int) -> None:
        """The user has taken the assignment. Whoever had to revoke something joins again, so that it is given out."""
        self.owned = sorted(owned)
        self._move(Stage.STABLE)
        if has_revoked:
            self.request_rejoin("it revoked partitions that move")
        elif self._rejoin_wanted:
            self.request_rejoin(self.rejoin_reason)

    def request_rejoin(self, reason: str) -> None:
        """Joins again as soon as that makes sense."""
        self.rejoin_reason = reason
        if self.stage is Stage.STABLE:
            log.info("member %s rejoins group %s: %s", self.member_id, self._config.group_id, reason)
            self._rejoin_wanted = False
            self._move(Stage.PREPARING)
        elif self.stage in (Stage.JOINING, Stage.SYNCING, Stage.ASSIGNED):
            self._rejoin_wanted = True

    def depart(self) -> Callable[[int], Any] | None:
        """Is out at once. What to tell the coordinator, if it has to be told: static members just go."""
        member_id, self.topics = self.member_id, ()
        self._forget(keeps_member_id=self._config.group_instance_id is not None)
        self.stage = Stage.OUT
        if not member_id or self._config.group_instance_id is not None:
            return None
        return leave_request(self._config, member_id, "the consumer is being closed or has unsubscribed")

    def note_fenced(self, error: ErrorCode, generation: int) -> None:
        """A commit of `generation` was refused: what that says of our membership."""
        if generation != self.generation or self.stage not in (Stage.PREPARING, Stage.ASSIGNED, Stage.STABLE):
            return  # while we join, a new generation may be on its way to us
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self._heartbeat_at = 0  # which tells whether we have to join again, or are just not in sync yet
        else:
            self._lose(error, f"a commit was refused: {error.name}")

    # --- polling ------------------------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        if self.stage in (Stage.OUT, Stage.LOST, Stage.FENCED):
            return poll
        self._watch_user(now, poll)
        if self.stage is Stage.JOINING:
            self._join(now, poll)
        elif self.stage is Stage.SYNCING:
            self._sync(now, poll)
        elif self.stage is not Stage.LOST:
            self._heartbeat(now, poll)
        if self.stage is Stage.STABLE:
            self._watch_topics()
        return poll

    def _watch_user(self, now: int, poll: Poll) -> None:
        """Leaves the group when the user has stopped polling: somebody else shall have the partitions."""
        if self.is_polling:
            return
        leave_at = self._polled_at + self._config.max_poll_interval_ms
        if now <= leave_at:
            poll.wake_by(leave_at + 1)
            return
        log.warning(
            "consumer poll timeout has expired: more than max.poll.interval.ms = %d passed between two calls of "
            "poll(), so member %s leaves group %s. Process faster, lower max.poll.records, or raise the interval.",
            self._config.max_poll_interval_ms,
            self.member_id or "(new)",
            self._config.group_id,
        )
        node_id = self._coordinator.find()
        if self.member_id and node_id is not None and self._config.group_instance_id is None:
            build = leave_request(self._config, self.member_id, "consumer poll timeout has expired")
            poll.requests.append(Request(node_id, ApiKey.LEAVE_GROUP, build, lambda *_: None, lambda *_: None))
        self._lose(ErrorCode.UNKNOWN_MEMBER_ID, "max.poll.interval.ms passed without a poll()")

    def _watch_topics(self) -> None:
        """Topics that came, went or grew make a new assignment necessary (MISSION B6)."""
        if self.topics != self._joined_topics:
            self.request_rejoin("the topics it wants have changed")
        elif self.is_leader and self._counts != self._current_counts():
            self.request_rejoin("the group's topics have changed")

    # --- joining ------------------------------------------------------------------------------------------

    def _join(self, now: int, poll: Poll) -> None:
        if self._in_flight:
            return
        if now < self._retry_at:
            poll.wake_by(self._retry_at)
            return
        node_id = self._coordinator.find()
        if node_id is None:
            return
        topics = self.topics
        try:
            subscriptions = [
                (assignor.name, assignor.subscription(list(topics))) for assignor in self.assignors.values()
            ]
        except Exception as error:
            self._user_error(OttlaError(f"an assignor's subscription() failed: {type(error).__name__}: {error}"), now)
            return
        build = join_request(
            self._config, self.member_id, self.generation, self.owned, subscriptions, self.rejoin_reason
        )
        self._joined_topics = topics
        self._rejoin_wanted = False
        poll.requests.append(self._parked(node_id, ApiKey.JOIN_GROUP, build, self._on_join))

    def _parked(
        self,
        node_id: int,
        api_key: int,
        build: Callable[[int], Any],
        on_response: Callable[[Any, int, int], None],
    ) -> Request:
        """JoinGroup or SyncGroup: answered only when the others are there too."""
        self._in_flight = True
        turn = self._turn

        def answered(response: Any, version: int, now: int) -> None:
            if turn == self._turn:
                self._in_flight = False
                error = error_of(response.error_code)
                self._coordinator.note(error, node_id)
                if error == ErrorCode.NONE:
                    self._failures = 0
                    on_response(response, version, now)
                elif error == ErrorCode.MEMBER_ID_REQUIRED:
                    self.member_id = response.member_id
                else:
                    self._on_refused(KafkaError(error, f"joining group {self._config.group_id}"), now)

        def failed(error: KafkaError, now: int) -> None:
            if turn == self._turn:
                self._in_flight = False
                if error.retriable:
                    self._coordinator.note(ErrorCode.NETWORK_EXCEPTION, node_id)
                self._on_refused(error, now)

        patience_ms = max(self._config.request_timeout_ms, self._config.max_poll_interval_ms + 5_000)
        return Request(node_id, api_key, build, answered, failed, lane=REBALANCE_LANE, timeout_ms=patience_ms)

    def _on_join(self, response: Any, version: int, now: int) -> None:
        self.generation = response.generation_id
        self.member_id = response.member_id
        self.last_identity = (self.generation, self.member_id)
        self.protocol = response.protocol_name
        self.is_leader = response.leader == response.member_id
        self._skips_assignment = bool(response.skip_assignment)
        self._synced_since = now
        self._heartbeat_at = now + self._config.heartbeat_interval_ms
        try:
            self._subscriptions = read_subscriptions(response.members)
        except ProtocolError as error:
            self._move(Stage.SYNCING)
            self._user_error(OttlaError(f"a member's subscription cannot be read: {error}"), now)
            return
        self._pin(now)
        self._move(Stage.SYNCING)

    # --- syncing ------------------------------------------------------------------------------------------

    def _sync(self, now: int, poll: Poll) -> None:
        if self._in_flight:
            return
        node_id = self._coordinator.find()
        if node_id is None:
            # The answer to the join is lost on whoever coordinates now.
            self._move(Stage.JOINING)
            return
        shares: dict[str, Assignment] = {}
        if self.is_leader and self._subscriptions:
            assert self._synced_since is not None
            wait_until = self._synced_since + METADATA_PATIENCE_MS
            if not self._knows_topics() and now < wait_until:
                poll.wake_by(wait_until)
                return
            self._counts = self._current_counts()
            if not self._skips_assignment:
                try:
                    shares = self._share_out()
                except OttlaError as error:
                    self._user_error(error, now)
                    return
        build = sync_request(self._config, self.member_id, self.generation, self.protocol, shares)
        poll.requests.append(self._parked(node_id, ApiKey.SYNC_GROUP, build, self._on_sync))

    def _share_out(self) -> dict[str, Assignment]:
        """As the leader: who gets what."""
        assignor = self._assignor()
        cluster = cluster_metadata(self._view, self._group_topics())
        shares = run_assignor(assignor, cluster, self._subscriptions)
        rest = left_over(cluster, self._subscriptions, shares)
        if rest and not self.is_cooperative:
            names = ", ".join(map(str, rest[:10]))
            log.warning("assignor %s gave nobody %d partitions: %s", assignor.name, len(rest), names)
        return shares

    def _assignor(self) -> Assignor:
        assignor = self.assignors.get(self.protocol or "")
        if assignor is None:
            raise OttlaError(f"the group picked the assignor {self.protocol}, which this consumer does not have")
        return assignor

    def _on_sync(self, response: Any, version: int, now: int) -> None:
        try:
            self.assignment = read_assignment(response.assignment)
        except ProtocolError as error:
            self._user_error(OttlaError(f"the leader's assignment cannot be read: {error}"), now)
            return
        self._heartbeat_at = now + self._config.heartbeat_interval_ms
        self._move(Stage.ASSIGNED)

    def accept(self) -> Assignment:
        """In stage ASSIGNED: tells the assignor of the assignment and gives it to the consumer."""
        self._assignor().on_assignment(self.assignment, self.generation)
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
        turn, generation, was = self._turn, self.generation, self.stage
        build = heartbeat_request(self._config, self.member_id, generation)

        def answered(response: Any, version: int, now: int) -> None:
            if turn == self._turn:
                self._heartbeat_in_flight = False
                self._heartbeat_at = now + self._config.heartbeat_interval_ms
                # While we join, the group may be a generation ahead of what we know: the join will tell.
                if generation == self.generation and self.stage not in (Stage.JOINING, Stage.SYNCING):
                    error = error_of(response.error_code)
                    if error == ErrorCode.NONE and was is Stage.STABLE:
                        self._rested_generation = generation
                    self._on_heartbeat(error, node_id, now)

        def failed(error: KafkaError, now: int) -> None:
            if turn == self._turn:
                self._heartbeat_in_flight = False
                self._heartbeat_at = now + self._backoff.delay_ms(1, self._jitter())
                if error.retriable:
                    self._coordinator.note(ErrorCode.NETWORK_EXCEPTION, node_id)
                elif not self.errors:
                    self.errors.append(error)

        patience_ms = min(self._config.request_timeout_ms, self._config.session_timeout_ms)
        poll.requests.append(Request(node_id, ApiKey.HEARTBEAT, build, answered, failed, timeout_ms=patience_ms))

    def _on_heartbeat(self, error: ErrorCode, node_id: int, now: int) -> None:
        if error == ErrorCode.NONE:
            return
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin("the group is rebalancing")
        elif error in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._lose(error, f"a heartbeat was refused: {error.name}")
        elif error.retriable:
            self._coordinator.note(error, node_id)
            self._heartbeat_at = now + self._backoff.delay_ms(1, self._jitter())
        elif not self.errors:
            self.errors.append(KafkaError(error, f"heartbeat of group {self._config.group_id}"))

    # --- setbacks -----------------------------------------------------------------------------------------

    def _on_refused(self, error: KafkaError, now: int) -> None:
        """JoinGroup or SyncGroup came to nothing."""
        code = error.code
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
            self._lose(code, f"joining was refused: {code.name}")
            return
        if self.stage is Stage.SYNCING:
            self._move(Stage.JOINING)
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                return
        self._failures += 1
        self._retry_at = now + self._backoff.delay_ms(self._failures, self._jitter())
        if not error.retriable and code != ErrorCode.REBALANCE_IN_PROGRESS and not self.errors:
            self.errors.append(error)

    def _user_error(self, error: OttlaError, now: int) -> None:
        """Code of the user failed. It is tried once more with the poll() after the one that raises this."""
        if not self.errors:
            self.errors.append(error)
        if self.stage is Stage.SYNCING:
            self._move(Stage.PREPARING)
        else:
            self._retry_at = now + self._backoff.max_ms

    def _lose(self, error: ErrorCode, reason: str) -> None:
        """Out of the group against our will: whatever we had may be somebody else's."""
        log.info("member %s is out of group %s: %s", self.member_id or "(new)", self._config.group_id, reason)
        self.rejoin_reason = reason
        self._forget(keeps_member_id=error == ErrorCode.ILLEGAL_GENERATION)
        if error == ErrorCode.FENCED_INSTANCE_ID:
            self._move(Stage.FENCED)
        else:
            self._move(Stage.LOST)

    def given_up(self) -> None:
        """In stage LOST: the user knows."""
        self.owned = []
        self._move(Stage.JOINING)

    def fenced_error(self) -> KafkaError:
        detail = f"another consumer of group {self._config.group_id} has group.instance.id "
        return KafkaError(ErrorCode.FENCED_INSTANCE_ID, f"{detail}{self._config.group_instance_id}")

    def _forget(self, *, keeps_member_id: bool) -> None:
        self._turn += 1
        self._in_flight = self._heartbeat_in_flight = False
        self.generation = NO_GENERATION
        self._rested_generation = NO_GENERATION
        self.is_leader = False
        self._subscriptions = {}
        self._counts = {}
        self._rejoin_wanted = False
        self._retry_at = self._failures = 0
        if not keeps_member_id:
            self.member_id = ""

    def _move(self, stage: Stage) -> None:
        if stage is not self.stage:
            assert stage in ALLOWED[self.stage], f"{self.stage} -> {stage}"
            self.stage = stage

    # --- topics -------------------------------------------------------------------------------------------

    def _group_topics(self) -> frozenset[str]:
        topics = set(self.topics)
        for subscription in self._subscriptions.values():
            topics.update(filter(None, subscription.topics))  # nobody can be asked about a topic without a name
        return frozenset(topics)

    def _pin(self, now: int) -> None:
        """A leader needs to know of everybody's topics."""
        self._pin_topics(self._group_topics(), now)

    def _knows_topics(self) -> bool:
        return all(topic in self._view.topics or topic in self._view.topic_errors for topic in self._group_topics())

    def _current_counts(self) -> dict[str, int | None]:
        return {topic: self._view.find_partition_count(topic) for topic in self._group_topics()}
