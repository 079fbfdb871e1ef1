"""Committing offsets, one request at a time and in order, and reading them back for partitions just assigned. Pure."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.client.admin.group_model import CommittedOffset
from ottla.client.consumer.positions import NowhereToBegin, PartitionState, Positions
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.model import error_of
from ottla.client.core.polling import Poll, Request
from ottla.client.core.settings import ConsumerConfig
from ottla.client.group.protocol import offset_commit_request, offset_fetch_request
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")

MAX_VERSION_WITH_NAMES = 9
"""From version 10 on OffsetCommit and OffsetFetch name topics by id, of which a deleted topic has none."""

COMMITTED = -100
"""As `reset_to` of a partition: begin where the group has committed."""

FENCING = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)

Done = Callable[[dict[TopicPartition, CommittedOffset], "KafkaError | None"], None]


@dataclass(slots=True)
class Commit:
    """Offsets on their way to the coordinator, in the name of the generation that asked."""

    offsets: dict[TopicPartition, CommittedOffset]
    generation: int
    member_id: str
    deadline: int
    on_done: Done | None
    remaining: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    retry_at: int = 0
    failures: int = 0
    is_sent: bool = False
    refusal: KafkaError | None = None
    """Why it had to be tried again, the last time."""


class Commits:
    """A queue of commits. The next one goes out when the one before it has been answered."""

    def __init__(
        self,
        config: ConsumerConfig,
        view: ClusterView,
        coordinator: CoordinatorFinder,
        *,
        on_fenced: Callable[[ErrorCode, int], None],
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.committed: dict[TopicPartition, int] = {}
        """What we know to be stored, by our own commits; to see whether there is anything new."""
        self._config = config
        self._view = view
        self._coordinator = coordinator
        self._on_fenced = on_fenced
        self._backoff = backoff
        self._jitter = jitter
        self._queue: deque[Commit] = deque()
        self._in_flight = False
        self._auto_at: int | None = None

    def add(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        generation: int,
        member_id: str,
        now: int,
        timeout_ms: int,
        on_done: Done | None = None,
    ) -> None:
        """Commits these offsets after those added before. Without `on_done` a failure is only logged."""
        if not offsets:
            if on_done is not None:
                on_done({}, None)
            return
        last = self._queue[-1] if self._queue else None
        if (
            last is not None
            and not last.is_sent
            and last.on_done is None
            and on_done is None
            and (last.generation, last.member_id) == (generation, member_id)
        ):
            # Nobody asks after the older one, so the two go as one and the queue stays short.
            last.offsets.update(offsets)
            last.remaining.update(offsets)
            last.deadline = now + timeout_ms
            return
        self._queue.append(
            Commit(dict(offsets), generation, member_id, now + timeout_ms, on_done, remaining=dict(offsets))
        )

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def is_auto_near(self, now: int) -> bool:
        """Whether `is_auto_due` has something to do."""
        return self._config.enable_auto_commit and (self._auto_at is None or now >= self._auto_at)

    def is_auto_due(self, now: int) -> bool:
        """Whether auto.commit.interval.ms has passed; if so, the next interval begins."""
        if not self._config.enable_auto_commit:
            return False
        if self._auto_at is None:
            self._auto_at = now + self._config.auto_commit_interval_ms
            return False
        if now < self._auto_at:
            return False
        self._auto_at = now + self._config.auto_commit_interval_ms
        return True

    def changed(self, positions: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, CommittedOffset]:
        """The positions that differ from what is stored, or from what is on its way and will be: after a seek back
        both are needed to tell."""
        coming = {p: at.offset for commit in self._queue for p, at in commit.remaining.items()}
        return {
            p: at
            for p, at in positions.items()
            if self.committed.get(p) != at.offset or coming.get(p, at.offset) != at.offset
        }

    def forget(self, partitions: Any) -> None:
        """Others commit for these now."""
        for partition in partitions:
            self.committed.pop(partition, None)

    # --- sending ------------------------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        while self._queue and not self._in_flight:
            commit = self._queue[0]
            if now >= commit.deadline:
                detail = f"offsets of group {self._config.group_id} were not committed in time"
                if commit.refusal is not None:
                    detail += f", the last try ended with {commit.refusal}"
                self._finish(commit, KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail))
                continue
            poll.wake_by(commit.deadline)
            if now < commit.retry_at:
                poll.wake_by(commit.retry_at)
                break
            node_id = self._coordinator.find()
            if node_id is None:
                break
            self._in_flight = commit.is_sent = True
            poll.requests.append(self._request(commit, node_id))
        return poll

    def _request(self, commit: Commit, node_id: int) -> Request:
        build = offset_commit_request(self._config, commit.member_id, commit.generation, commit.remaining)

        def answered(response: Any, version: int, now: int) -> None:
            self._in_flight = False
            self._take(commit, response, node_id, now)

        def failed(error: KafkaError, now: int) -> None:
            self._in_flight = False
            if error.retriable:
                self._coordinator.note(ErrorCode.NETWORK_EXCEPTION, node_id)
                self._try_again(commit, error, now)
            else:
                self._finish(commit, error)

        return Request(node_id, ApiKey.OFFSET_COMMIT, build, answered, failed, max_version=MAX_VERSION_WITH_NAMES)

    def _take(self, commit: Commit, response: Any, node_id: int, now: int) -> None:
        failure: KafkaError | None = None
        is_final = False
        for topic in response.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                error = error_of(p.error_code)
                if partition not in commit.remaining:
                    continue  # nobody asked
                if error == ErrorCode.NONE:
                    self.committed[partition] = commit.remaining.pop(partition).offset
                    continue
                self._coordinator.note(error, node_id)
                if failure is None or not is_final:
                    failure = KafkaError(error, self._describe(error, partition, commit))
                    is_final = not error.retriable or self._is_gone(error, topic.name)
        if failure is None and commit.remaining:
            detail = f"the coordinator's answer says nothing of {', '.join(map(str, commit.remaining))}"
            failure, is_final = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail), True
        if failure is None:
            self._finish(commit, None)
        elif not is_final:
            self._try_again(commit, failure, now)
        else:
            if failure.code in FENCING:
                self._on_fenced(failure.code, commit.generation)
            self._finish(commit, failure)

    def _is_gone(self, error: ErrorCode, topic: str) -> bool:
        """Whether a topic was deleted, and not only a coordinator has yet to hear of it. Tried again until its time is
        over, it would keep every other commit waiting, and with them a rebalance."""
        if error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        self._view.request_update()
        return self._view.topic_errors.get(topic) == error

    def _describe(self, error: ErrorCode, partition: TopicPartition, commit: Commit) -> str:
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            return f"group {self._config.group_id} is rebalancing: call poll() to take part, then commit again"
        if error in FENCING:
            return (
                f"group {self._config.group_id} has rebalanced and given the partitions to another member: "
                "the commit cannot be completed. Poll more often, or raise max.poll.interval.ms"
            )
        return f"committing offset {commit.offsets[partition].offset} of {partition}"

    def _try_again(self, commit: Commit, refusal: KafkaError, now: int) -> None:
        commit.refusal = refusal
        commit.failures += 1
        commit.retry_at = now + self._backoff.delay_ms(commit.failures, self._jitter())

    def _finish(self, commit: Commit, error: KafkaError | None) -> None:
        self._queue.popleft()
        if error is not None:
            self.forget(commit.remaining)  # some of it may be stored all the same
        if commit.on_done is not None:
            commit.on_done(commit.offsets, error)
        elif error is not None:
            log.warning("offsets of group %s were not committed: %s", self._config.group_id, error)


class CommittedLookup:
    """Gives partitions that wait for it the position that the group has committed. Polled, it asks the coordinator."""

    def __init__(
        self,
        config: ConsumerConfig,
        positions: Positions,
        coordinator: CoordinatorFinder,
        *,
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._config = config
        self._positions = positions
        self._coordinator = coordinator
        self._backoff = backoff
        self._jitter = jitter
        self._in_flight = False
        self._retry_at = 0
        self._failures = 0

    def begin(self, partition: TopicPartition) -> None:
        """Has a partition wait for the committed position."""
        state = self._positions.states[partition]
        state.move_to(None, COMMITTED)
        state.is_resetting = True  # nobody else shall look for a place to begin

    def poll(self, now: int) -> Poll:
        poll = Poll()
        if self._in_flight:
            return poll
        turns = {p: state.turn for p, state in self._positions.states.items() if state.reset_to == COMMITTED}
        if not turns:
            return poll
        if now < self._retry_at:
            poll.wake_by(self._retry_at)
            return poll
        node_id = self._coordinator.find()
        if node_id is None:
            return poll
        self._in_flight = True

        def answered(response: Any, version: int, now: int) -> None:
            self._in_flight = False
            self._take(turns, response, node_id, now)

        def failed(error: KafkaError, now: int) -> None:
            self._in_flight = False
            if error.retriable:
                self._coordinator.note(ErrorCode.NETWORK_EXCEPTION, node_id)
            self._failed(error, now)

        build = offset_fetch_request(self._config, turns)
        poll.requests.append(
            Request(node_id, ApiKey.OFFSET_FETCH, build, answered, failed, max_version=MAX_VERSION_WITH_NAMES)
        )
        return poll

    def _take(self, turns: dict[TopicPartition, int], response: Any, node_id: int, now: int) -> None:
        answer = response.groups[0] if response.groups else response
        doing = f"reading the committed offsets of group {self._config.group_id}"
        error = error_of(answer.error_code)
        if error != ErrorCode.NONE:
            self._coordinator.note(error, node_id)
            self._failed(KafkaError(error, doing), now)
            return
        failure: KafkaError | None = None
        for topic in answer.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                state = self._waiting(partition, turns)
                if state is None:
                    continue
                error = error_of(p.error_code)
                if error != ErrorCode.NONE:
                    failure = KafkaError(error, f"{doing}: {partition}")
                elif p.committed_offset >= 0:
                    # With the epoch the leader can tell, at the first fetch, whether its log still has our past.
                    state.move_to(p.committed_offset, epoch=p.committed_leader_epoch)
                else:
                    self._begin_without(partition, state)
        silent_of = [partition for partition in turns if self._waiting(partition, turns) is not None]
        if failure is None and silent_of:
            names = ", ".join(map(str, silent_of))
            failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{doing}: the answer says nothing of {names}")
        if failure is not None:
            self._failed(failure, now)
        else:
            self._failures = 0

    def _begin_without(self, partition: TopicPartition, state: PartitionState) -> None:
        self._positions.reset(partition, state)
        if state.reset_to is None:
            why = f"no offset of {partition} is committed by group {self._config.group_id}"
            self._positions.errors.append(NowhereToBegin(partition, why))

    def _waiting(self, partition: TopicPartition, turns: dict[TopicPartition, int]) -> PartitionState | None:
        state = self._positions.states.get(partition)
        if state is None or state.reset_to != COMMITTED or state.turn != turns.get(partition):
            return None
        return state

    def _failed(self, error: KafkaError, now: int) -> None:
        self._failures += 1
        self._retry_at = now + self._backoff.delay_ms(self._failures, self._jitter())
        if not error.retriable and not self._positions.errors:
            self._positions.errors.append(error)
