"""The partitions a consumer reads, how far it is in each, and finding a place to begin. Pure."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ottla.client.core.cluster_view import REFRESHING, ClusterView, Leader
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
"""As `reset_to` of a partition: begin with the first record that is no older than so long before now."""
RESET_TO = {"earliest": EARLIEST, "latest": LATEST, "by_duration": BY_DURATION}
HELD = -101
"""As `reset_to` of a partition: begin nowhere, until somebody says where."""
EPOCHS_KEPT = 8
"""Between what is fetched and what is committed there are hardly ever two."""
_turns = itertools.count(1)
"""No two turns are alike, of whatever state: a partition that goes and comes back has a new state, and what was fetched
for the old one may still come. Taken for the new one's, it would move the position past records nobody has seen."""


class NowhereToBegin(OttlaError):
    """Nothing says where reading a partition begins."""

    def __init__(self, partition: TopicPartition, why: str) -> None:
        super().__init__(
            f"{why}, and auto.offset.reset is none", "Call seek(), or set auto.offset.reset to earliest or latest."
        )
        self.partition = partition


class PartitionState:
    """Where a consumer is in one partition."""

    __slots__ = (
        "epochs",
        "failures",
        "fetch_offset",
        "fetch_until",
        "high_watermark",
        "is_paused",
        "is_resetting",
        "last_epoch",
        "last_stable_offset",
        "log_start_offset",
        "position",
        "read_replica",
        "read_replica_until",
        "reset_to",
        "retry_at",
        "topic_id",
        "turn",
    )

    def __init__(self) -> None:
        self.position: int | None = None
        """The offset of the next record that poll() gives; None while it is being looked up."""
        self.fetch_offset = -1
        """The offset of the next record to fetch; runs ahead of the position by what is buffered."""
        self.fetch_until: int | None = None
        """Nothing from this offset on is fetched: for those who read a range of offsets."""
        self.last_epoch = -1
        """The leader epoch of the last record fetched, by which a broker notices that our log is not its own."""
        self.epochs: list[tuple[int, int]] = []
        """Where the leader epochs of what was fetched begin, as (offset, epoch): the last few of them."""
        self.topic_id = ZERO_UUID
        """The topic that the position belongs to; another one may come to have its name."""
        self.is_paused = False
        self.reset_to: int | None = None
        """EARLIEST or LATEST while a place to begin is wanted."""
        self.is_resetting = False
        self.turn = next(_turns)
        """Changes with every seek; an answer that belongs to an earlier turn is of no use."""
        self.retry_at = 0
        self.failures = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.read_replica = -1
        """A follower near us that the leader pointed to."""
        self.read_replica_until = 0

    def move_to(self, offset: int | None, reset_to: int | None = None, epoch: int = -1) -> None:
        """Goes on at `offset`; `epoch` is the leader epoch of the record before it, where that is known."""
        self.turn = next(_turns)
        self.position = offset
        self.fetch_offset = -1 if offset is None else offset
        self.last_epoch = epoch
        self.epochs = [] if offset is None or epoch < 0 else [(offset - 1, epoch)]
        self.reset_to = reset_to
        self.is_resetting = False
        self.retry_at = self.failures = 0

    def go_back_to(self, offset: int) -> None:
        """Reads once more from `offset`, which lies in what was fetched: its epoch is known as far as it ever was."""
        self.move_to(offset, epoch=self.epoch_before(offset))

    def note_epochs(self, begins: Iterable[tuple[int, int]]) -> None:
        """Hears of the leader epochs in what was fetched, in order."""
        for offset, epoch in begins:
            if not self.epochs or epoch != self.epochs[-1][1]:
                self.epochs.append((offset, epoch))
        del self.epochs[:-EPOCHS_KEPT]

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before `offset`: what a commit of it says. -1 where it is not known."""
        return next((epoch for begin, epoch in reversed(self.epochs) if begin < offset), -1)


class Positions:
    """Every assigned partition with its state. Polled, it asks the leaders where to begin."""

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
        """`on_left` hears of partitions that are not read any more."""
        self.states: dict[TopicPartition, PartitionState] = {}
        self.errors: list[Exception] = []
        """What poll() has to raise to the user."""
        self.pinned_topics: frozenset[str] = frozenset()
        """Topics to know of even while none of their partitions is read: those subscribed to."""
        self._config = config
        self._view = view
        self._backoff = backoff
        self._jitter = jitter
        self._clock = clock
        self._on_left = on_left

    # --- what the user says -------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition], now: int) -> None:
        """Reads exactly these from now on; those that stay keep their positions."""
        states = {}
        for partition in partitions:
            state = self.states.get(partition)
            if state is None:
                state = PartitionState()
                self.reset(partition, state)
            states[partition] = state
        left = self.states.keys() - states.keys()
        for partition in left:
            self.states[partition].turn = next(_turns)
        self.states = states
        if left:
            self.errors.clear()  # what is wrong with those that stay will show again
            self._on_left(left)
        self.keep_topics(now)

    def keep_topics(self, now: int) -> None:
        """Has the view keep the topics that are read or pinned, and no others."""
        self._view.keep_only({partition.topic for partition in self.states} | self.pinned_topics, now)

    def state(self, partition: TopicPartition) -> PartitionState:
        state = self.states.get(partition)
        if state is None:
            raise OttlaError(f"{partition} is not assigned to this consumer", "Pass it to assign() first.")
        return state

    def reset(self, partition: TopicPartition, state: PartitionState) -> None:
        """Begins where `auto.offset.reset` says; with none the user has to be asked."""
        state.move_to(None, RESET_TO.get(self._config.auto_offset_reset.partition(":")[0]))

    def hold(self, partition: TopicPartition) -> None:
        """Has a partition without a position, so neither read nor committed, until seek() or reset() gives it one."""
        state = self.state(partition)
        state.move_to(None, HELD)
        state.is_resetting = True  # nobody shall look for a place to begin
        self.begins_somewhere({partition})

    def begins_somewhere(self, partitions: Collection[TopicPartition]) -> None:
        """Somebody has said where. That nobody had, the user need not hear any more: a listener tells its place after
        the assignment, when the group's answer may have come already."""
        self.errors[:] = [e for e in self.errors if not (isinstance(e, NowhereToBegin) and e.partition in partitions)]

    def without_position(self) -> list[TopicPartition]:
        """Partitions that nothing will ever give a position: `auto.offset.reset` is none."""
        return [p for p, state in self.states.items() if state.position is None and state.reset_to is None]

    def raise_if_lost(self) -> None:
        """Raises where there are such partitions, unless an error that waits to be raised says more."""
        lost = self.without_position()
        if lost and not self.errors:
            names = ", ".join(map(str, sorted(lost)))
            raise OttlaError(
                f"no position for {names}, and auto.offset.reset is none",
                "Call seek(), or set auto.offset.reset to earliest or latest.",
            )

    # --- finding a place to begin -------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        by_node: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        leaders: dict[TopicPartition, Leader] = {}
        for partition, state in self.states.items():
            if state.reset_to is None or state.is_resetting:
                continue
            if state.retry_at > now:
                poll.wake_by(state.retry_at)
                continue
            leader = self._view.find_leader(partition)
            if leader is None:
                self._view.request_update()
                error = self._view.topic_errors.get(partition.topic)
                if error is not None and not error.retriable:
                    self._failed(state, KafkaError(error, f"topic {partition.topic}"), now)
                poll.wake_by(max(state.retry_at, now + self._backoff.initial_ms))
                continue
            state.is_resetting = True
            leaders[partition] = leader
            by_node[leader.node_id][partition] = self._time_of(state.reset_to)
        for node_id, wanted in by_node.items():
            poll.requests.append(self._request(node_id, wanted, leaders))
        return poll

    def _time_of(self, reset_to: int) -> int:
        """What a broker is asked for: a time since 1970, or what stands for one."""
        return max(0, self._clock() - self._config.reset_duration_ms) if reset_to == BY_DURATION else reset_to

    def _request(
        self, node_id: int, wanted: dict[TopicPartition, int], leaders: dict[TopicPartition, Leader]
    ) -> Request:
        turns = {partition: self.states[partition].turn for partition in wanted}
        config = self._config

        def build(version: int) -> Any:
            return build_list_offsets(wanted, leaders, config.isolation_level, version, config.request_timeout_ms)

        def on_response(response: Any, version: int, now: int) -> None:
            for partition, error, found in read_list_offsets(response):
                state = self._current(partition, turns)
                if state is None:
                    continue
                if error != ErrorCode.NONE:
                    self._failed(state, KafkaError(error, f"looking up where to begin in {partition}"), now)
                elif found is None and state.reset_to == BY_DURATION:
                    state.move_to(None, LATEST)  # all there is came before
                else:
                    state.move_to(found.offset if found is not None else 0)
            for partition in wanted:
                state = self._current(partition, turns)
                if state is not None and state.is_resetting:
                    detail = f"the broker's answer says nothing of where to begin in {partition}"
                    self._failed(state, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail), now)

        def on_failure(error: KafkaError, now: int) -> None:
            for partition in wanted:
                state = self._current(partition, turns)
                if state is not None:
                    self._failed(state, error, now)

        return Request(node_id, ApiKey.LIST_OFFSETS, build, on_response, on_failure)

    def _current(self, partition: TopicPartition, turns: dict[TopicPartition, int]) -> PartitionState | None:
        state = self.states.get(partition)
        return state if state is not None and state.turn == turns.get(partition) else None

    def _failed(self, state: PartitionState, error: KafkaError, now: int) -> None:
        """Tries again later. What does not pass by itself is for the user, and is told again as long as it lasts."""
        state.is_resetting = False
        if not error.retriable and not self.errors:
            self.errors.append(error)
        if error.code in REFRESHING:
            self._view.request_update()
        state.failures += 1
        state.retry_at = now + self._backoff.delay_ms(state.failures, self._jitter())
