"""Commits offsets, one request at a time and in order, and looks up committed offsets after an assignment. Pure."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.client.consumer.positions import FetchState, NoOffsetForPartitionError, PartitionState, Positions
from ottla.client.core.cluster_view import ClusterView
from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.interceptors import ConsumerInterceptor, notify_commit
from ottla.client.core.model import CommittedOffset
from ottla.client.core.offset_requests import MAX_VERSION_WITH_NAMES
from ottla.client.core.polling import Poll, Request
from ottla.client.core.settings import ConsumerConfig
from ottla.client.group.protocol import offset_commit_request, offset_fetch_request
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff, Retry
from ottla.protocol.api import ApiKey
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")

FENCING = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""A commit with these errors was rejected because the member is not (or not yet) in the current generation."""

Done = Callable[[dict[TopicPartition, CommittedOffset], "KafkaError | None"], None]


@dataclass(slots=True)
class Commit:
    """Offsets to commit, with the generation and member id at the time of the call."""

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
    """Why the last attempt has to be retried."""


class Commits:
    """A queue of commits. Each one is sent after the response to the one before it."""

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
        """The offsets that our own commits have stored; auto-commit skips unchanged ones."""
        self.interceptors: Sequence[ConsumerInterceptor] = ()
        self.finished = self.failed = 0
        """For the metrics."""
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
        """Queues a commit. Without `on_done` a failure is only logged."""
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
            # No caller waits for the older one: merge the two, so that the queue stays short.
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
        """Whether `is_auto_due` would change anything or return True."""
        return self._config.enable_auto_commit and (self._auto_at is None or now >= self._auto_at)

    def is_auto_due(self, now: int) -> bool:
        """Whether auto.commit.interval.ms has passed; if so, starts the next interval."""
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
        """The positions that differ from the committed offsets or from those in the queue. After seeking back, the
        committed offset may be equal while a queued commit would still overwrite it."""
        coming = {p: at.offset for commit in self._queue for p, at in commit.remaining.items()}
        return {
            p: at
            for p, at in positions.items()
            if self.committed.get(p) != at.offset or coming.get(p, at.offset) != at.offset
        }

    def forget(self, partitions: Any) -> None:
        """Forgets the committed offsets of partitions that other members own now."""
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
                    detail += f"; the last attempt failed with {commit.refusal}"
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
            self._coordinator.note_failure(error, node_id)
            if error.retriable:
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
                error = ErrorCode(p.error_code)
                if partition not in commit.remaining:
                    continue  # not requested
                if error == ErrorCode.NONE:
                    self.committed[partition] = commit.remaining.pop(partition).offset
                    continue
                self._coordinator.note(error, node_id)
                if failure is None or not is_final:
                    failure = KafkaError(error, self._describe(error, partition, commit))
                    is_final = not error.retriable or self._is_gone(error, topic.name)
        if failure is None and commit.remaining:
            detail = f"the coordinator's response does not include {', '.join(map(str, commit.remaining))}"
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
        """Whether the topic was deleted. UNKNOWN_TOPIC_OR_PARTITION alone does not say so: the coordinator's metadata
        may lag behind, so it is retried (KAFKA-6829). Retrying for a deleted topic would block all other commits, and
        the next rebalance, until the timeout."""
        if error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        self._view.request_update()
        return self._view.topic_errors.get(topic) == error

    def _describe(self, error: ErrorCode, partition: TopicPartition, commit: Commit) -> str:
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            return f"group {self._config.group_id} is rebalancing: call poll() to rejoin, then commit again"
        if error in FENCING:
            return (
                f"group {self._config.group_id} has rebalanced and assigned the partitions to another member, so "
                "the commit cannot be completed. Call poll() more often, or increase max.poll.interval.ms"
            )
        return f"committing offset {commit.offsets[partition].offset} of {partition}"

    def _try_again(self, commit: Commit, refusal: KafkaError, now: int) -> None:
        commit.refusal = refusal
        commit.failures += 1
        commit.retry_at = now + self._backoff.delay_ms(commit.failures, self._jitter())

    def _finish(self, commit: Commit, error: KafkaError | None) -> None:
        self._queue.popleft()
        self.finished += 1
        if error is not None:
            self.failed += 1
            self.forget(commit.remaining)  # some of them may be stored despite the error
        elif self.interceptors:
            notify_commit(self.interceptors, commit.offsets)
        if commit.on_done is not None:
            commit.on_done(commit.offsets, error)
        elif error is not None:
            log.warning("offset commit of group %s failed: %s", self._config.group_id, error)


class CommittedLookup:
    """Looks up the group's committed offsets for partitions in AWAIT_COMMITTED. poll() asks the coordinator."""

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
        self._in_flight = False
        self._retry = Retry(backoff, jitter)

    def begin(self, partition: TopicPartition) -> None:
        """Starts the lookup for a partition."""
        self._positions.states[partition].await_committed()

    def poll(self, now: int) -> Poll:
        poll = Poll()
        if self._in_flight:
            return poll
        seek_ids = {
            p: state.seek_id
            for p, state in self._positions.states.items()
            if state.fetch_state is FetchState.AWAIT_COMMITTED
        }
        if not seek_ids:
            return poll
        if not self._retry.is_due(now):
            poll.wake_by(self._retry.at)
            return poll
        node_id = self._coordinator.find()
        if node_id is None:
            return poll
        self._in_flight = True

        def answered(response: Any, version: int, now: int) -> None:
            self._in_flight = False
            self._take(seek_ids, response, node_id, now)

        def failed(error: KafkaError, now: int) -> None:
            self._in_flight = False
            self._coordinator.note_failure(error, node_id)
            self._failed(error, now)

        build = offset_fetch_request(self._config, seek_ids)
        poll.requests.append(
            Request(node_id, ApiKey.OFFSET_FETCH, build, answered, failed, max_version=MAX_VERSION_WITH_NAMES)
        )
        return poll

    def _take(self, seek_ids: dict[TopicPartition, int], response: Any, node_id: int, now: int) -> None:
        answer = response.groups[0] if response.groups else response
        doing = f"looking up the committed offsets of group {self._config.group_id}"
        error = ErrorCode(answer.error_code)
        if error != ErrorCode.NONE:
            self._coordinator.note(error, node_id)
            self._failed(KafkaError(error, doing), now)
            return
        failure: KafkaError | None = None
        for topic in answer.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                state = self._waiting(partition, seek_ids)
                if state is None:
                    continue
                error = ErrorCode(p.error_code)
                if error != ErrorCode.NONE:
                    failure = KafkaError(error, f"{doing}: {partition}")
                elif p.committed_offset >= 0:
                    # With the epoch, the leader detects at the first fetch whether the log was truncated (KIP-320).
                    state.move_to(p.committed_offset, epoch=p.committed_leader_epoch)
                else:
                    self._begin_without(partition, state)
        missing = [partition for partition in seek_ids if self._waiting(partition, seek_ids) is not None]
        if failure is None and missing:
            names = ", ".join(map(str, missing))
            failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{doing}: the response does not include {names}")
        if failure is not None:
            self._failed(failure, now)
        else:
            self._retry.succeeded()

    def _begin_without(self, partition: TopicPartition, state: PartitionState) -> None:
        self._positions.reset(state)
        if state.reset_to is None:
            why = f"group {self._config.group_id} has no committed offset for {partition}"
            self._positions.report(partition, NoOffsetForPartitionError(partition, why))

    def _waiting(self, partition: TopicPartition, seek_ids: dict[TopicPartition, int]) -> PartitionState | None:
        state = self._positions.states.get(partition)
        if state is None or state.seek_id != seek_ids.get(partition):
            return None
        return state if state.fetch_state is FetchState.AWAIT_COMMITTED else None

    def _failed(self, error: KafkaError, now: int) -> None:
        self._retry.failed(now)
        if not error.retriable and not self._positions.errors:
            self._positions.errors.append(error)
