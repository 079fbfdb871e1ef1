"""The assigned partitions of a consumer and their positions; looks up initial positions with ListOffsets. Pure."""

import enum
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ottla.client.core.cluster_view import REFRESHING, ClusterView, Leader, topic_failure
from ottla.client.core.model import EARLIEST, LATEST
from ottla.client.core.offset_requests import build_list_offsets, read_list_offsets
from ottla.client.core.polling import Poll, Request
from ottla.client.core.settings import ConsumerConfig
from ottla.clock import Clock, system_clock
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.types import ZERO_UUID, TopicPartition

BY_DURATION = -102
"""As `reset_to` of a partition: the first record that is at most the configured duration old (KIP-1106)."""
RESET_TO = {"earliest": EARLIEST, "latest": LATEST, "by_duration": BY_DURATION}
EPOCHS_KEPT = 8
"""Between the committed and the fetched offset there is rarely more than one change of leader epoch."""
_seek_ids = itertools.count(1)
"""Unique across all PartitionState objects. A partition that is revoked and assigned again gets a new state, while a
fetch for the old one may still be in flight. Mistaking it for the new one's would skip records."""


class FetchState(enum.Enum):
    """Whether a partition has a position, and how it gets one."""

    FETCHING = "fetching"
    """It has a position."""
    AWAIT_RESET = "await reset"
    """The ListOffsets request for `reset_to` has yet to be sent."""
    RESETTING = "resetting"
    """The ListOffsets request is in flight."""
    AWAIT_COMMITTED = "await committed"
    """The group's committed offset is being looked up."""
    HELD = "held"
    """Waits for seek() or reset(); nothing is looked up."""
    NO_OFFSET = "no offset"
    """There is no offset to begin at, and auto.offset.reset is none. Only seek() helps."""


class NoOffsetForPartitionError(OttlaError):
    """A partition has no committed offset, and auto.offset.reset is none."""

    def __init__(self, partition: TopicPartition, why: str) -> None:
        super().__init__(
            f"{why}, and auto.offset.reset is none", "Call seek(), or set auto.offset.reset to earliest or latest."
        )
        self.partition = partition


class PartitionState:
    """The position of a consumer in one partition, and what is known about the partition."""

    __slots__ = (
        "epochs",
        "failures",
        "fetch_offset",
        "fetch_state",
        "fetch_until",
        "high_watermark",
        "is_paused",
        "last_epoch",
        "last_stable_offset",
        "log_start_offset",
        "position",
        "read_replica",
        "read_replica_until",
        "reset_to",
        "retry_at",
        "seek_id",
        "topic_id",
    )

    def __init__(self) -> None:
        self.position: int | None = None
        """The offset of the next record that poll() returns. Not None exactly in FETCHING."""
        self.fetch_offset = -1
        """The offset of the next record to fetch: ahead of the position by the buffered records."""
        self.fetch_until: int | None = None
        """If set, records from this offset on are not fetched. For readers of a range of offsets."""
        self.last_epoch = -1
        """The leader epoch of the last fetched record, by which the leader detects a diverging log (KIP-320)."""
        self.epochs: list[tuple[int, int]] = []
        """The last leader epochs of the fetched records, each as (first offset, epoch)."""
        self.topic_id = ZERO_UUID
        """The topic that the position belongs to. A recreated topic has the same name and another id (KIP-516)."""
        self.is_paused = False
        self.fetch_state = FetchState.NO_OFFSET
        self.reset_to: int | None = None
        """In AWAIT_RESET and RESETTING: EARLIEST, LATEST or BY_DURATION."""
        self.seek_id = next(_seek_ids)
        """Changes with every seek. A response to a request with another seek_id is stale."""
        self.retry_at = 0
        self.failures = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.read_replica = -1
        """The preferred read replica, a nearby follower that the leader named (KIP-392); -1 for the leader."""
        self.read_replica_until = 0

    def move_to(self, offset: int, epoch: int = -1) -> None:
        """Continues at `offset`. `epoch` is the leader epoch of the record before it, if known."""
        self._seek(FetchState.FETCHING, offset, epoch=epoch)

    def await_reset(self, reset_to: int | None) -> None:
        """Has no position until ListOffsets has found `reset_to`; with None there is nothing to look up."""
        self._seek(FetchState.NO_OFFSET if reset_to is None else FetchState.AWAIT_RESET, None, reset_to=reset_to)

    def await_committed(self) -> None:
        """Has no position until the group's committed offset is known."""
        self._seek(FetchState.AWAIT_COMMITTED, None)

    def hold(self) -> None:
        """Has no position until seek() or reset()."""
        self._seek(FetchState.HELD, None)

    def _seek(
        self, fetch_state: FetchState, offset: int | None, *, epoch: int = -1, reset_to: int | None = None
    ) -> None:
        self.seek_id = next(_seek_ids)
        self.fetch_state = fetch_state
        self.position = offset
        self.fetch_offset = -1 if offset is None else offset
        self.last_epoch = epoch
        self.epochs = [] if offset is None or epoch < 0 else [(offset - 1, epoch)]
        self.reset_to = reset_to
        self.retry_at = self.failures = 0

    def go_back_to(self, offset: int) -> None:
        """Reads again from an `offset` that was fetched before, so its leader epoch is still known."""
        self.move_to(offset, epoch=self.epoch_before(offset))

    def note_epochs(self, begins: Iterable[tuple[int, int]]) -> None:
        """Remembers the leader epochs of fetched records, in order."""
        for offset, epoch in begins:
            if not self.epochs or epoch != self.epochs[-1][1]:
                self.epochs.append((offset, epoch))
        del self.epochs[:-EPOCHS_KEPT]

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before `offset`, which a commit includes (KIP-320); -1 if unknown."""
        return next((epoch for begin, epoch in reversed(self.epochs) if begin < offset), -1)


class Positions:
    """All assigned partitions with their states. poll() asks the leaders for initial positions."""

    def __init__(
        self,
        config: ConsumerConfig,
        view: ClusterView,
        *,
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
        on_left: Callable[[set[TopicPartition]], None] = lambda _: None,
        clock: Clock = system_clock,
    ) -> None:
        """`on_left` is called with the partitions that are no longer assigned."""
        self.states: dict[TopicPartition, PartitionState] = {}
        self.errors: list[Exception] = []
        """Errors for the consumer's poll() to raise."""
        self._reported: dict[TopicPartition, Exception] = {}
        """Those of `errors` that are about the position in one partition."""
        self.pinned_topics: frozenset[str] = frozenset()
        """Subscribed topics: their metadata is kept even while none of their partitions is assigned."""
        self._config = config
        self._view = view
        self._backoff = backoff
        self._jitter = jitter
        self._clock = clock
        self._on_left = on_left

    # --- assigning and seeking ----------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition], now: int) -> None:
        """Replaces the assignment. Partitions that stay keep their positions."""
        states = {}
        for partition in partitions:
            state = self.states.get(partition)
            if state is None:
                state = PartitionState()
                self.reset(state)
            states[partition] = state
        left = self.states.keys() - states.keys()
        for partition in left:
            self.states[partition].seek_id = next(_seek_ids)
        self.states = states
        if left:
            # Errors of the partitions that stay will occur again.
            self.errors.clear()
            self._reported.clear()
            self._on_left(left)
        self.keep_topics(now)

    def keep_topics(self, now: int) -> None:
        """Limits the cluster view to topics that are assigned or pinned."""
        self._view.keep_only({partition.topic for partition in self.states} | self.pinned_topics, now)

    def state(self, partition: TopicPartition) -> PartitionState:
        state = self.states.get(partition)
        if state is None:
            raise OttlaError(f"{partition} is not assigned to this consumer", "Pass it to assign() first.")
        return state

    def reset(self, state: PartitionState) -> None:
        """Looks up the position that `auto.offset.reset` specifies; with none there is nothing to look up."""
        state.await_reset(RESET_TO.get(self._config.auto_offset_reset.partition(":")[0]))

    def hold(self, partition: TopicPartition) -> None:
        """Neither reads nor commits a partition until seek() or reset() gives it a position."""
        self.state(partition).hold()
        self.clear_errors({partition})

    def report(self, partition: TopicPartition, error: Exception) -> None:
        """Has poll() raise an error about the position in a partition, once, however often it occurs until then."""
        self.clear_errors({partition})
        self.errors.append(error)
        self._reported[partition] = error

    def take_error(self) -> Exception:
        """The next error to raise."""
        error = self.errors.pop(0)
        for partition, reported in self._reported.items():
            if reported is error:
                del self._reported[partition]
                break
        return error

    def clear_errors(self, partitions: Collection[TopicPartition]) -> None:
        """Drops errors about the positions in these partitions, which have other positions now.

        A user may seek() while a fetch at the old position is retried, and a listener after the group has answered
        that it has no committed offset.
        """
        for partition in partitions:
            old = self._reported.pop(partition, None)
            if old is not None:
                self.errors[:] = [error for error in self.errors if error is not old]

    def without_offset(self) -> list[TopicPartition]:
        """Partitions that get no position without a seek(): `auto.offset.reset` is none."""
        return [p for p, state in self.states.items() if state.fetch_state is FetchState.NO_OFFSET]

    def raise_if_without_offset(self) -> None:
        """Raises if there are such partitions, unless a more specific error is about to be raised."""
        lost = self.without_offset()
        if lost and not self.errors:
            names = ", ".join(map(str, sorted(lost)))
            raise OttlaError(
                f"no position for {names}, and auto.offset.reset is none",
                "Call seek(), or set auto.offset.reset to earliest or latest.",
            )

    # --- looking up positions -----------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        by_node: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        leaders: dict[TopicPartition, Leader] = {}
        for partition, state in self.states.items():
            if state.fetch_state is not FetchState.AWAIT_RESET:
                continue
            if state.retry_at > now:
                poll.wake_by(state.retry_at)
                continue
            leader = self._view.find_leader(partition)
            if leader is None:
                self._view.request_update()
                error = self._view.topic_errors.get(partition.topic)
                if error is not None and not error.retriable:
                    self._failed(partition, state, topic_failure(error, partition.topic), now)
                poll.wake_by(max(state.retry_at, now + self._backoff.initial_ms))
                continue
            state.fetch_state = FetchState.RESETTING
            leaders[partition] = leader
            assert state.reset_to is not None
            by_node[leader.node_id][partition] = self._time_of(state.reset_to)
        for node_id, wanted in by_node.items():
            poll.requests.append(self._request(node_id, wanted, leaders))
        return poll

    def _time_of(self, reset_to: int) -> int:
        """The timestamp of the ListOffsets request: milliseconds since the epoch, or EARLIEST or LATEST."""
        return max(0, self._clock() - self._config.reset_duration_ms) if reset_to == BY_DURATION else reset_to

    def _request(
        self, node_id: int, wanted: dict[TopicPartition, int], leaders: dict[TopicPartition, Leader]
    ) -> Request:
        seek_ids = {partition: self.states[partition].seek_id for partition in wanted}
        config = self._config

        def build(version: int) -> Any:
            return build_list_offsets(wanted, leaders, config.isolation_level, version, config.request_timeout_ms)

        def on_response(response: Any, version: int, now: int) -> None:
            for partition, error, found in read_list_offsets(response):
                state = self._current(partition, seek_ids)
                if state is None:
                    continue
                if error != ErrorCode.NONE:
                    self._failed(
                        partition, state, KafkaError(error, f"looking up the initial position of {partition}"), now
                    )
                elif found is None and state.reset_to == BY_DURATION:
                    state.await_reset(LATEST)  # all records are older
                else:
                    state.move_to(found.offset if found is not None else 0)
            for partition in wanted:
                state = self._current(partition, seek_ids)
                if state is not None and state.fetch_state is FetchState.RESETTING:
                    detail = f"the broker's response to ListOffsets does not include {partition}"
                    self._failed(partition, state, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail), now)

        def on_failure(error: KafkaError, now: int) -> None:
            for partition in wanted:
                state = self._current(partition, seek_ids)
                if state is not None:
                    self._failed(partition, state, error, now)

        return Request(node_id, ApiKey.LIST_OFFSETS, build, on_response, on_failure)

    def _current(self, partition: TopicPartition, seek_ids: dict[TopicPartition, int]) -> PartitionState | None:
        state = self.states.get(partition)
        return state if state is not None and state.seek_id == seek_ids.get(partition) else None

    def _failed(self, partition: TopicPartition, state: PartitionState, error: KafkaError, now: int) -> None:
        """Retries later. A non-retriable error is also raised to the user, again and again while it lasts."""
        if state.fetch_state is FetchState.RESETTING:
            state.fetch_state = FetchState.AWAIT_RESET
        if not error.retriable and not self.errors:
            self.report(partition, error)
        if error.code in REFRESHING:
            self._view.request_update()
        state.failures += 1
        state.retry_at = now + self._backoff.delay_ms(state.failures, self._jitter())
