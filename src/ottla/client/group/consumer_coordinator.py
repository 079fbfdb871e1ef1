"""The group part of a consumer, driven from its poll(): rebalances, listener calls, commits, leaving. OWNER."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.assignors.base import Assignor
from ottla.client.admin.limits import with_limits
from ottla.client.consumer.positions import Positions
from ottla.client.consumer.subscription import Subscription, TopicWatch
from ottla.client.core.cluster_view import topic_failure
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.model import CommittedOffset
from ottla.client.core.network import Network
from ottla.client.core.settings import ConsumerConfig
from ottla.client.group.commits import Commits, CommittedLookup
from ottla.client.group.member_state import MemberState
from ottla.client.group.membership import Membership
from ottla.client.group.rebalance_listener import has_own_lost, notify
from ottla.client.transactions.requests import GroupMetadata
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.wire_values import NO_GENERATION
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")

LEAVE_TIMEOUT_MS = 5_000
"""How long to wait for the response to LeaveGroup. Without it the session times out."""
TOPICS_TIMEOUT_MS = 1_000
"""How long a member with a pattern waits for the list of topics before it prepares to rejoin."""
COMMITS_TIMEOUT_MS = 5_000
"""How long a rebalance waits for asynchronous commits."""

CommitCallback = Callable[[dict[TopicPartition, CommittedOffset], "KafkaError | None"], Any]


class ConsumerCoordinator:
    """Membership, commits and committed offsets of one consumer. Named after Kafka's class; the broker that coordinates
    the group is `coordinator`."""

    def __init__(
        self,
        config: ConsumerConfig,
        assignors: list[Assignor],
        network: Network,
        positions: Positions,
        subscription: Subscription,
        consumed: Callable[[], dict[TopicPartition, int]],
    ) -> None:
        assert config.group_id is not None
        self.config = config
        self.listener: Any = None
        self._network = network
        self._positions = positions
        self._subscription = subscription
        self._consumed = consumed
        parts: dict[str, Any] = {"backoff": network.backoff, "jitter": network.jitter}
        self.coordinator = CoordinatorFinder(config.group_id, network.view, **parts)
        self.membership = Membership(
            config,
            network.view,
            self.coordinator,
            assignors,
            pin_topics=self._pin_topics,
            knows_latest_topics=lambda now: self.watch.is_fresh(now),
            **parts,
        )
        self.commits = Commits(config, network.view, self.coordinator, on_fenced=self.membership.note_fenced, **parts)
        self.lookup = CommittedLookup(config, positions, self.coordinator, **parts)
        self.watch = TopicWatch(
            max_age_ms=config.metadata_max_age_ms,
            exclude_internal=config.exclude_internal_topics,
            on_topics=self._on_topics,
            **parts,
        )
        # The coordinator lookup comes last: the others may request it in their poll().
        for decider in (self.membership, self.commits, self.lookup, self.watch, self.coordinator):
            network.add(decider)
        self._reported_version = -1
        """The version of the cluster view whose topic errors were raised already."""
        self._unannounced: set[TopicPartition] = set()
        """Assigned partitions whose on_partitions_assigned was cancelled together with its poll()."""
        self._finished: deque[tuple[CommitCallback, dict[TopicPartition, CommittedOffset], KafkaError | None]] = deque()

    # --- subscribing --------------------------------------------------------------------------------------

    def subscribe_topics(self, topics: tuple[str, ...], listener: Any) -> None:
        self._subscription.subscribe_topics(topics)
        self.listener = listener
        self.membership.want(topics, self._network.now())
        self._network.wake()

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: Any) -> None:
        self._subscription.subscribe_pattern(pattern)
        self.listener = listener
        self.watch.watch(pattern)
        self._network.wake()

    def _on_topics(self, topics: tuple[str, ...], now: int) -> None:
        self._subscription.topics = topics
        self.membership.want(topics, now)

    def _pin_topics(self, topics: frozenset[str], now: int) -> None:
        self._positions.pinned_topics = topics
        self._positions.keep_topics(now)

    async def unsubscribe(self, timeout_ms: int, *, commits: bool = True) -> None:
        """Commits, revokes everything and leaves the group. `commits=False` after an error, when not all records that
        were returned have been processed."""
        try:
            if self._subscription.is_automatic:
                await self._leave(timeout_ms, commits=commits)
            elif commits:
                await self.auto_commit(self._positions.states, timeout_ms)
        finally:
            self.watch.watch(None)
            self._subscription.clear()
            self._unannounced = set()
            self._positions.assign([], self._network.now())

    async def _leave(self, timeout_ms: int, *, commits: bool) -> None:
        membership = self.membership
        owned = list(self._positions.states)
        failure: Exception | None = None
        try:
            if commits:
                failure = await self._give_up(owned, timeout_ms)
            # Asynchronous commits are accepted only from a member.
            await self._network.until(lambda: self.commits.is_idle, min(timeout_ms, COMMITS_TIMEOUT_MS))
        finally:
            node_id = self.coordinator.find()
            leave_request = membership.depart()
            self._pin_topics(frozenset(), self._network.now())
            if not commits and owned:
                await self._notify_lost(owned)
            if leave_request is not None and node_id is not None:
                try:
                    await self._network.request(
                        ApiKey.LEAVE_GROUP,
                        leave_request,
                        destination=node_id,
                        timeout_ms=min(timeout_ms, LEAVE_TIMEOUT_MS),
                    )
                except KafkaError as error:
                    log.info("leaving group %s failed: %s", self.config.group_id, error)
        if failure is not None:
            raise failure

    async def _give_up(self, owned: list[TopicPartition], timeout_ms: int) -> Exception | None:
        """Commits and calls the listener. Returns what the listener raised, to be raised after leaving."""
        what = "on_partitions_revoked" if self.membership.has_generation else "on_partitions_lost"
        if self.membership.has_generation:
            await self.auto_commit(owned, timeout_ms)
        return await self._notify(what, owned) if owned else None

    async def _notify_lost(self, owned: list[TopicPartition]) -> None:
        """The consumer closes after an error, so not all records are processed and positions must not be stored. A
        listener that does not override on_partitions_lost is not called: it would run on_partitions_revoked."""
        if not has_own_lost(self.listener):
            return
        try:
            await notify(self.listener, "on_partitions_lost", owned)
        except Exception:
            log.warning("on_partitions_lost failed while the consumer was closing after an error", exc_info=True)

    async def close(self, timeout_ms: int, *, commits: bool) -> None:
        """Unsubscribes, then waits for pending commits."""
        try:
            await self.unsubscribe(timeout_ms, commits=commits)
            await self._network.until(lambda: self.commits.is_idle, timeout_ms)
        finally:
            await self.run_callbacks()

    # --- rebalances, inside poll() ------------------------------------------------------------------------

    @property
    def needs_user(self) -> bool:
        if self.membership.needs_user or self._unannounced or self._finished or self.coordinator.errors:
            return True
        return self._refused_topic() is not None

    async def explain_errors(self) -> None:
        """Adds the broker's limits to errors that poll() is about to raise."""
        for errors in (self.membership.errors, self.coordinator.errors):
            for index, error in enumerate(errors):
                if isinstance(error, KafkaError):
                    errors[index] = await with_limits(error, self._network, self.config)

    def raise_errors(self) -> None:
        refused = self._refused_topic()
        if refused is not None:
            # Raised once per metadata response, so that the other topics can still be read.
            view = self._network.view
            self._reported_version = view.version
            view.request_update()
            self._network.wake()
            raise topic_failure(view.topic_errors[refused], refused)
        for errors in (self.membership.errors, self.coordinator.errors):
            if errors:
                raise errors.pop(0)
        if self.membership.state is MemberState.FENCED:
            raise self.membership.fenced_error()

    def _refused_topic(self) -> str | None:
        """A subscribed topic with a non-retriable error, such as an invalid name."""
        view = self._network.view
        if not view.topic_errors or view.version == self._reported_version:
            return None
        refused = (t for t in self._subscription.topics or () if t in view.topic_errors)
        return next((t for t in refused if not view.topic_errors[t].retriable), None)

    @property
    def is_settled(self) -> bool:
        """Whether, as far as we know, the assignment is complete and no rebalance is under way."""
        return self.membership.is_settled or not self._subscription.is_automatic

    async def handle_rebalance(self) -> None:
        """Revokes, assigns or loses partitions as the group requires, and calls the listener."""
        await self.run_callbacks()
        if self._unannounced:
            failure = await self._notify_assigned(self._unannounced & self._positions.states.keys())
            if failure is not None:
                raise failure
        membership = self.membership
        while not membership.errors:
            if membership.state is MemberState.LOST:
                await self._lose()
            elif membership.state is MemberState.PREPARING:
                await self._prepare()
            elif membership.state is MemberState.ASSIGNED:
                await self._accept()
            else:
                return
            self._network.wake()

    async def _lose(self) -> None:
        owned = list(self._positions.states)
        try:
            if owned:
                await notify(self.listener, "on_partitions_lost", owned)
        finally:
            if self.membership.state is MemberState.LOST:
                self._read_only([])
                self.membership.given_up()

    async def _prepare(self) -> None:
        membership = self.membership
        owned = list(self._positions.states)
        # Before anything is revoked, because partitions of deleted topics are revoked now.
        await self._network.until(lambda: self.watch.is_fresh(self._network.now()), TOPICS_TIMEOUT_MS)
        if membership.state is not MemberState.PREPARING:
            return
        if owned and membership.has_generation:
            await self.auto_commit(owned, self._commit_timeout_ms())
            if membership.state is not MemberState.PREPARING:
                return
        if membership.is_cooperative:
            going = [partition for partition in owned if partition.topic not in membership.topics]
        else:
            going = owned
        failure = await self._revoke(going)
        # Asynchronous commits are valid only in this generation, and JoinGroup could overtake them.
        await self._network.until(
            lambda: self.commits.is_idle or membership.state is not MemberState.PREPARING, COMMITS_TIMEOUT_MS
        )
        if membership.state is MemberState.PREPARING:
            membership.prepared(self._positions.states)
        if failure is not None:
            raise failure

    async def _accept(self) -> None:
        membership = self.membership
        wanted = set(membership.accept().partitions)
        owned = set(self._positions.states)
        going = owned - wanted
        failure: Exception | None = None
        if going:
            await self.auto_commit(going, self._commit_timeout_ms())
            if membership.state is not MemberState.ASSIGNED:
                return
            failure = await self._revoke(going)
        if membership.state is MemberState.ASSIGNED:
            added = wanted - owned
            self._read_only(wanted)
            self.commits.forget(added)
            for partition in added:
                self.lookup.begin(partition)
            membership.taken(wanted, has_revoked=bool(going))
            self._network.wake()
            failed = await self._notify_assigned(added)
            if failure is not None and failed is not None:
                log.warning("on_partitions_assigned failed too, after on_partitions_revoked", exc_info=failed)
            failure = failure or failed
        if failure is not None:
            raise failure

    async def _revoke(self, going: Iterable[TopicPartition]) -> Exception | None:
        """Calls the listener, then stops reading these. Returns what the listener raised, to be raised at the end."""
        if not going:
            return None
        failure = await self._notify("on_partitions_revoked", going)
        self._read_only(set(self._positions.states).difference(going))
        return failure

    async def _notify_assigned(self, added: set[TopicPartition]) -> Exception | None:
        """Calls on_partitions_assigned. If it is cancelled together with its poll(), the next poll() calls it again: it
        may have been about to seek()."""
        self._unannounced = added
        failure = await self._notify("on_partitions_assigned", added)
        self._unannounced = set()
        return failure

    async def _notify(self, what: str, partitions: Iterable[TopicPartition]) -> Exception | None:
        """Calls the listener and returns what it raised, if anything."""
        try:
            await notify(self.listener, what, partitions)
        except Exception as error:
            return error
        return None

    def _read_only(self, partitions: Iterable[TopicPartition]) -> None:
        kept = sorted(partitions)
        self.commits.forget(self._positions.states.keys() - kept)
        self._positions.assign(kept, self._network.now())

    def _commit_timeout_ms(self) -> int:
        """Half of max.poll.interval.ms at most: the other members wait for us while we commit."""
        return min(self.config.default_api_timeout_ms, self.config.max_poll_interval_ms // 2)

    # --- committing ---------------------------------------------------------------------------------------

    def consumed(self) -> dict[TopicPartition, CommittedOffset]:
        """The offsets to commit now."""
        return {partition: self.with_epoch(partition, at) for partition, at in self._consumed().items()}

    def with_epoch(self, partition: TopicPartition, offset: int) -> CommittedOffset:
        """An offset to commit, with the leader epoch of the record before it if that was read here (KIP-320)."""
        state = self._positions.states.get(partition)
        if state is None or state.position is None or offset > state.position:
            return CommittedOffset(offset)
        return CommittedOffset(offset, state.epoch_before(offset))

    def add_commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], timeout_ms: int, on_done: Any = None
    ) -> None:
        """Queues a commit for the current generation."""
        membership = self.membership
        generation, member_id = NO_GENERATION, ""
        if self._subscription.is_automatic and offsets:
            if not membership.has_generation:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"offsets cannot be committed: this consumer is not a member of group {self.config.group_id}",
                )
            generation, member_id = membership.generation, membership.member_id
        self.commits.add(
            offsets,
            generation=generation,
            member_id=member_id,
            now=self._network.now(),
            timeout_ms=timeout_ms,
            on_done=on_done,
        )
        self._network.wake()

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], timeout_ms: int) -> None:
        """Commits and waits for the result; raises KafkaError if it failed."""
        self._network.start()
        outcome: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()

        def done(_: Any, error: KafkaError | None) -> None:
            if not outcome.done():
                outcome.set_result(error)

        self.add_commit(offsets, timeout_ms, done)
        if not await self._network.until(outcome.done, timeout_ms + 1_000):
            raise self._network.out_of_time(timeout_ms, "a commit")
        error = outcome.result()
        if error is not None:
            raise error

    def commit_later(self, offsets: Mapping[TopicPartition, CommittedOffset], callback: CommitCallback | None) -> None:
        """Commits asynchronously; the callback runs in a later poll(), commit() or close()."""

        def done(stored: dict[TopicPartition, CommittedOffset], error: KafkaError | None) -> None:
            if callback is not None:
                self._finished.append((callback, stored, error))
            elif error is not None:
                log.warning("offset commit of group %s failed: %s", self.config.group_id, error)

        try:
            self.add_commit(offsets, self.config.default_api_timeout_ms, done if callback is not None else None)
        except KafkaError as error:  # not a member: report it like a refusal by the coordinator
            done(dict(offsets), error)

    async def run_callbacks(self) -> None:
        while self._finished:
            callback, stored, error = self._finished.popleft()
            result = callback(stored, error)
            if asyncio.iscoroutine(result):
                await result

    def auto_commit_if_due(self, now: int) -> None:
        """In poll(): commits what earlier calls have returned, which counts as processed."""
        if not self.commits.is_auto_due(now):
            return
        if self._subscription.is_automatic and not self.membership.has_generation:
            return
        self.add_commit(self.commits.changed(self.consumed()), self.config.default_api_timeout_ms)

    def auto_commit_now(self) -> None:
        """With enable.auto.commit: commits what poll() has returned, asynchronously."""
        if self.config.enable_auto_commit:
            self.add_commit(self.commits.changed(self.consumed()), self.config.default_api_timeout_ms)

    async def auto_commit(self, partitions: Iterable[TopicPartition], timeout_ms: int) -> None:
        """With enable.auto.commit: commits these partitions and waits. A failure is logged, not raised."""
        if not self.config.enable_auto_commit:
            return
        chosen = set(partitions)
        offsets = self.commits.changed({p: at for p, at in self.consumed().items() if p in chosen})
        if not offsets:
            return
        try:
            await self.commit(offsets, timeout_ms)
        except KafkaError as error:
            log.warning("offset commit of group %s failed: %s", self.config.group_id, error)

    def metadata(self) -> GroupMetadata:
        assert self.config.group_id is not None
        membership = self.membership
        if not self._subscription.is_automatic:
            return GroupMetadata(self.config.group_id, group_instance_id=self.config.group_instance_id)
        # A member that was removed keeps its old identity until it has rejoined, so that TxnOffsetCommit fences it
        # (KIP-447). Without a generation it would count as a client outside the group, and be accepted.
        return GroupMetadata(self.config.group_id, *membership.last_identity, self.config.group_instance_id)
