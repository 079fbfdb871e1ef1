"""What the consumer asks for next, and the records that came and wait to be taken. Pure."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from ottla.client.consumer.fetch_session import FetchFrom, FetchSession, SessionRequest
from ottla.client.consumer.fetched import FetchedPartition
from ottla.client.consumer.positions import PartitionState, Positions
from ottla.client.core.cluster_view import REFRESHING, ClusterView
from ottla.client.core.model import EARLIEST, ConsumerRecord, Node, error_of
from ottla.client.core.offset_requests import ISOLATION_CODES
from ottla.client.core.polling import Poll, Request
from ottla.client.core.settings import ConsumerConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.record_batch import Section
from ottla.types import INT64_MAX, ZERO_UUID, TopicPartition

FETCH_LANE = "fetch"
"""Long polls have their own connections, so that nothing else waits behind them."""

READ_AHEAD = 2
"""Fetches of one partition that may wait to be taken: one is being read, the next is already here."""

RECORD_BYTES_EXPECTED = 1024
RANGE_BYTES_MIN = 65_536
"""What is asked for where only a range of offsets is wanted: so much for each, and so much in any case."""

HASTE_MS = 20
"""How long a fetch may wait while other partitions are about to be asked for."""

MAX_VERSION_WITHOUT_TOPIC_ID = 12

_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Fetcher:
    """Keeps each leader busy with one fetch for all the partitions that we read from it."""

    def __init__(
        self,
        config: ConsumerConfig,
        positions: Positions,
        view: ClusterView,
        *,
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._config = config
        self._positions = positions
        self._view = view
        self._backoff = backoff
        self._jitter = jitter
        self._is_committed_only = config.isolation_level == "read_committed"
        self._buffer: deque[tuple[int, FetchedPartition]] = deque()  # (turn of the partition, what came)
        self._buffered: dict[TopicPartition, int] = defaultdict(int)
        self._came_from: dict[TopicPartition, int] = {}
        """The positions before the last takings, of those partitions that were moved by them."""
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: set[int] = set()
        self._rotation = 0

    # --- taking -------------------------------------------------------------------------------------------

    @property
    def has_records(self) -> bool:
        """Whether something waits that may be taken. Paused partitions keep theirs."""
        return any(self._is_takable(turn, fetched) for turn, fetched in self._buffer)

    @property
    def is_due(self) -> bool:
        """Whether a leader could be asked for more now."""
        idle: set[int] = set()
        full: set[int] = set()
        for partition in self._positions.states:
            leader = self._view.find_leader(partition)
            if leader is not None:
                (full if self._buffered[partition] >= READ_AHEAD else idle).add(leader.node_id)
        return not idle <= full | self._in_flight

    @property
    def waiting(self) -> int:
        """How many fetches wait to be taken, those of all partitions together."""
        return len(self._buffer)

    def begin_to_take(self) -> int:
        """For a taker who may be broken off at any line: `take_back` then undoes what it did since. Gives `waiting`."""
        self._came_from.clear()
        return len(self._buffer)

    def take_back(self) -> None:
        """Goes back to where the taking began. What has come is fetched again: some of it may be in nobody's hands."""
        self._buffer.clear()
        self._buffered.clear()
        for partition, state in self._positions.states.items():
            if state.position is not None:
                state.go_back_to(self._came_from.get(partition, state.position))

    def given_out(self) -> None:
        """What was taken has reached the user: `take_back` leaves it alone."""
        self._came_from.clear()

    def take(self, max_records: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to so many records, in the order of each partition, and moves the positions past them."""
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        kept: deque[tuple[int, FetchedPartition]] = deque()
        room = max_records
        while self._buffer and room:
            turn, fetched = self._buffer.popleft()
            state = self._positions.states.get(fetched.partition)
            if state is None or state.turn != turn:
                self._buffered[fetched.partition] -= 1
                continue
            if state.is_paused:
                kept.append((turn, fetched))
                continue
            try:
                records = fetched.take(room)
            except KafkaError:
                self._buffered[fetched.partition] -= 1
                state.move_to(state.position)  # to be fetched, and perhaps to fail, once more
                if taken:
                    break  # what was read before it comes first
                self._buffer.extendleft(reversed(kept))
                raise
            self._move(state, fetched)
            room -= len(records)
            if records:
                taken.setdefault(fetched.partition, []).extend(records)
            if fetched.is_exhausted:
                self._buffered[fetched.partition] -= 1
            else:
                self._buffer.appendleft((turn, fetched))
        self._buffer.extendleft(reversed(kept))
        return taken

    def take_sections(self, max_records: int, max_bytes: int) -> list[tuple[FetchedPartition, Section]]:
        """Batches to be read next, in the order of each partition: about so many records or bytes, where they wait.

        Positions move when `took` says how far the reading went.
        """
        found: list[tuple[FetchedPartition, Section]] = []
        interrupted: set[TopicPartition] = set()
        self._drop_outdated()
        for turn, fetched in list(self._buffer):
            if max_records <= 0 or max_bytes <= 0:
                break
            if not self._is_takable(turn, fetched) or fetched.partition in interrupted:
                continue
            try:
                sections = fetched.sections(max_records, max_bytes)
            except KafkaError:
                if found:
                    break
                self.refuse(fetched)
                raise
            if not sections:
                self.took(fetched)  # nothing in it is shown
            elif fetched.has_more:
                interrupted.add(fetched.partition)
            for section in sections:
                found.append((fetched, section))
                max_records -= section.header.record_count
                max_bytes -= section.end - section.start
        return found

    def take_fetch(self) -> FetchedPartition | None:
        """Hands over what the next fetch brought and moves the position past all of it. None when nothing waits."""
        self._drop_outdated()
        for turn, fetched in self._buffer:
            if self._is_takable(turn, fetched):
                self._buffer.remove((turn, fetched))
                self._buffered[fetched.partition] -= 1
                self._positions.states[fetched.partition].position = fetched.end_offset
                return fetched
        return None

    def took(self, fetched: FetchedPartition) -> None:
        """Moves the position to where the reading of `fetched` has come."""
        state = self._positions.states[fetched.partition]
        self._move(state, fetched)
        if fetched.is_exhausted:
            self._buffer.remove((state.turn, fetched))
            self._buffered[fetched.partition] -= 1

    def _move(self, state: PartitionState, fetched: FetchedPartition) -> None:
        if state.position is not None:
            self._came_from.setdefault(fetched.partition, state.position)
        state.position = fetched.next_offset

    def refuse(self, fetched: FetchedPartition) -> None:
        """Lets go of a fetch that cannot be read. It is fetched, and perhaps fails, once more."""
        state = self._positions.states[fetched.partition]
        self._buffer.remove((state.turn, fetched))
        self._buffered[fetched.partition] -= 1
        state.move_to(state.position)

    def _drop_outdated(self) -> None:
        """Lets go of what was fetched before a seek, so that it does not count as read-ahead."""
        states = self._positions.states
        for turn, fetched in list(self._buffer):
            state = states.get(fetched.partition)
            if state is None or state.turn != turn:
                self._buffer.remove((turn, fetched))
                self._buffered[fetched.partition] -= 1
        if len(self._buffered) > len(states):  # partitions that are gone leave nothing behind
            self._buffered = defaultdict(int, {p: count for p, count in self._buffered.items() if count})

    def _is_takable(self, turn: int, fetched: FetchedPartition) -> bool:
        state = self._positions.states.get(fetched.partition)
        return state is not None and state.turn == turn and not state.is_paused

    # --- asking -------------------------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        self._drop_outdated()
        by_node: dict[int, dict[TopicPartition, FetchFrom]] = defaultdict(dict)
        full: set[int] = set()
        for partition, state in self._positions.states.items():
            if state.position is None or state.is_paused or state.fetch_offset >= (state.fetch_until or INT64_MAX):
                continue
            node_id, leader_epoch = self._source(partition, state, now, poll)
            if node_id is None:
                continue
            if self._buffered[partition] >= READ_AHEAD:
                # A fetch without this partition might wait long for the others while this one runs dry.
                full.add(node_id)
            elif state.retry_at > now:
                poll.wake_by(state.retry_at)
            elif self._is_same_topic(partition, state, now, poll):
                by_node[node_id][partition] = FetchFrom(
                    self._view.topic_id(partition.topic),
                    state.fetch_offset,
                    leader_epoch,
                    state.last_epoch,
                    self._max_bytes(state),
                )
        for node_id, wanted in by_node.items():
            if node_id not in self._in_flight and node_id not in full:
                poll.requests.append(self._request(node_id, wanted))
        return poll

    def _max_wait_ms(self) -> int:
        """How long a leader may wait for records. Short while a partition still looks for its place to begin.

        There is one fetch at a time to a leader: who gets its place meanwhile has to wait until it is answered.
        """
        most = self._config.fetch_max_wait_ms
        states = self._positions.states.values()
        return min(most, HASTE_MS) if any(s.reset_to is not None and not s.is_paused for s in states) else most

    def _max_bytes(self, state: PartitionState) -> int:
        """How much to ask for. The last records of a range need not bring megabytes of others with them."""
        most = self._config.max_partition_fetch_bytes
        if state.fetch_until is None:
            return most
        return min(most, max(RANGE_BYTES_MIN, (state.fetch_until - state.fetch_offset) * RECORD_BYTES_EXPECTED))

    def _is_same_topic(self, partition: TopicPartition, state: PartitionState, now: int, poll: Poll) -> bool:
        """False when the topic was deleted and made again: then every record in it is a new one for us."""
        topic_id = self._view.topic_id(partition.topic)
        if state.topic_id in (topic_id, ZERO_UUID) or topic_id == ZERO_UUID:
            state.topic_id = topic_id
            return True
        if not self._buffered[partition]:  # what was fetched of the old one is still read
            state.topic_id = topic_id
            if self._config.auto_offset_reset == "none":
                detail = f"topic {partition.topic} was deleted and made again, so our position is none of its own"
                self._positions.errors.append(KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail))
                state.move_to(None)  # whoever goes on without a seek must not land in the middle of the new one
            else:
                state.move_to(None, EARLIEST)
                poll.wake_by(now)  # for the positions, who look it up
        return False

    def _source(self, partition: TopicPartition, state: PartitionState, now: int, poll: Poll) -> tuple[int | None, int]:
        """The node to read a partition from and the leader epoch to name; (None, -1) while there is no leader."""
        leader = self._view.find_leader(partition)
        if leader is None:
            self._view.request_update()
            poll.wake_by(now + self._backoff.initial_ms)
            return None, -1
        if state.read_replica >= 0:
            if now < state.read_replica_until and state.read_replica in self._view.brokers:
                return state.read_replica, leader.epoch
            state.read_replica = -1
        return leader.node_id, leader.epoch

    def _request(self, node_id: int, wanted: dict[TopicPartition, FetchFrom]) -> Request:
        self._in_flight.add(node_id)
        session = self._sessions.setdefault(node_id, FetchSession())
        if any(
            session.knows(partition) and self._positions.states[partition].high_watermark < 0 for partition in wanted
        ):
            # The answer that told where it ends was not for us any more; in a session it is not told again.
            session.reset()
        turns = {partition: self._positions.states[partition].turn for partition in wanted}
        has_ids = all(source.topic_id != ZERO_UUID for source in wanted.values())
        # The first partitions of a request are served first, so everyone gets to be first in turn.
        self._rotation += 1
        order = list(wanted)
        cut = self._rotation % len(order)
        wanted = {partition: wanted[partition] for partition in order[cut:] + order[:cut]}
        return Request(
            node_id,
            ApiKey.FETCH,
            lambda version: self._build(session, wanted, version),
            on_response=lambda response, version, now: self._on_response(node_id, wanted, turns, response, now),
            on_failure=lambda error, now: self._on_failure(node_id, wanted, turns, error, now),
            lane=FETCH_LANE,
            max_version=None if has_ids else MAX_VERSION_WITHOUT_TOPIC_ID,
            timeout_ms=self._config.request_timeout_ms + self._config.fetch_max_wait_ms,
        )

    def _build(self, session: FetchSession, wanted: dict[TopicPartition, FetchFrom], version: int) -> FetchRequest:
        asked = session.request(wanted) if version >= 7 else SessionRequest(0, -1, wanted, {})
        topics: dict[str, Any] = {}
        for partition, source in asked.changed.items():
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = FetchRequest.FetchTopic(
                    topic=partition.topic, topic_id=source.topic_id, partitions=[]
                )
            topic.partitions.append(
                FetchRequest.FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=source.leader_epoch,
                    fetch_offset=source.fetch_offset,
                    last_fetched_epoch=source.last_fetched_epoch if version >= 12 else -1,
                    partition_max_bytes=source.max_bytes,
                )
            )
        forgotten: dict[tuple[str, bytes], Any] = {}
        for partition, topic_id in asked.forgotten.items():
            entry = forgotten.setdefault(
                (partition.topic, topic_id),
                FetchRequest.ForgottenTopic(topic=partition.topic, topic_id=topic_id, partitions=[]),
            )
            entry.partitions.append(partition.partition)
        return FetchRequest(
            max_wait_ms=self._max_wait_ms(),
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            isolation_level=ISOLATION_CODES[self._config.isolation_level],
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
            rack_id=self._config.client_rack,
        )

    # --- answers ------------------------------------------------------------------------------------------

    def _on_response(
        self,
        node_id: int,
        wanted: dict[TopicPartition, FetchFrom],
        turns: dict[TopicPartition, int],
        response: Any,
        now: int,
    ) -> None:
        self._in_flight.discard(node_id)
        error = error_of(response.error_code)
        if error != ErrorCode.NONE:
            self._sessions.pop(node_id, None)
            if error not in _SESSION_ERRORS:
                self._back_off_all(wanted, turns, KafkaError(error, f"fetching from broker {node_id}"), now)
            return
        self._sessions[node_id].on_response(response.session_id)
        names = {source.topic_id: partition.topic for partition, source in wanted.items()}
        nodes = {n.node_id: Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for result in topic.partitions:
                partition = TopicPartition(name, result.partition_index)
                state = self._positions.states.get(partition)
                if state is None or partition not in wanted or state.turn != turns[partition]:
                    continue
                hint = result.current_leader
                self._view.learn_leader(partition, hint.leader_id, hint.leader_epoch, nodes)
                self._take_in(partition, state, wanted[partition], result, now)

    def _take_in(
        self, partition: TopicPartition, state: PartitionState, source: FetchFrom, result: Any, now: int
    ) -> None:
        error = error_of(result.error_code)
        if error != ErrorCode.NONE:
            self._on_partition_error(partition, state, source, error, now)
            return
        state.failures = 0
        if result.diverging_epoch.end_offset >= 0:
            self._on_truncation(partition, state, result.diverging_epoch, now)
            return
        if result.preferred_read_replica >= 0:
            state.read_replica = result.preferred_read_replica
            state.read_replica_until = now + self._config.metadata_max_age_ms
            if state.read_replica not in self._view.brokers:
                # It was away when we last asked who is there: the leader points to it again and again meanwhile.
                self._view.request_update()
                self._back_off(state, now)
            return
        state.high_watermark = result.high_watermark
        state.last_stable_offset = result.last_stable_offset
        state.log_start_offset = result.log_start_offset
        if not result.records:
            return
        aborted = [(a.producer_id, a.first_offset) for a in result.aborted_transactions or ()]
        try:
            fetched = FetchedPartition(
                partition,
                result.records,
                source.fetch_offset,
                aborted=aborted if self._is_committed_only else (),
                check_crcs=self._config.check_crcs,
            )
        except KafkaError as corrupt:
            self._give_to_user(partition, state, corrupt, now)
            return
        state.fetch_offset = fetched.end_offset
        state.last_epoch = fetched.last_epoch
        state.note_epochs(fetched.epochs)
        self._buffer.append((state.turn, fetched))
        self._buffered[partition] += 1

    def _on_partition_error(
        self, partition: TopicPartition, state: PartitionState, source: FetchFrom, error: ErrorCode, now: int
    ) -> None:
        was_following = state.read_replica >= 0
        state.read_replica = -1
        if error in REFRESHING:
            self._view.request_update()
        if self._buffered[partition]:
            # Records from before it still wait to be read. They come first; afterwards it will show again.
            self._back_off(state, now)
        elif error == ErrorCode.OFFSET_OUT_OF_RANGE and was_following:
            self._back_off(state, now)  # a follower may be behind; the leader decides
        elif error == ErrorCode.OFFSET_OUT_OF_RANGE and self._config.auto_offset_reset != "none":
            self._positions.reset(partition, state)
        elif error.retriable or error == ErrorCode.UNKNOWN_SERVER_ERROR:
            self._back_off(state, now)
        else:
            detail = f"reading {partition} at offset {source.fetch_offset}"
            self._give_to_user(partition, state, KafkaError(error, detail), now)

    def _on_truncation(self, partition: TopicPartition, state: PartitionState, diverging: Any, now: int) -> None:
        """The leader's log ends, or turns another way, before what we have read: records were lost there."""
        if self._buffered[partition]:
            self._back_off(state, now)
        elif self._config.auto_offset_reset != "none":
            state.move_to(min(diverging.end_offset, state.position or 0))
        else:
            detail = f"{partition} was cut back to offset {diverging.end_offset}, below our position {state.position}"
            self._give_to_user(partition, state, KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail), now)

    def _give_to_user(self, partition: TopicPartition, state: PartitionState, error: KafkaError, now: int) -> None:
        """poll() raises it. Fetching goes on a little later, in case the user carries on."""
        self._positions.errors.append(error)
        self._back_off(state, now)

    def _on_failure(
        self,
        node_id: int,
        wanted: dict[TopicPartition, FetchFrom],
        turns: dict[TopicPartition, int],
        error: KafkaError,
        now: int,
    ) -> None:
        self._in_flight.discard(node_id)
        self._sessions.pop(node_id, None)
        if not error.retriable:
            self._positions.errors.append(error)
        self._back_off_all(wanted, turns, error, now)

    def _back_off_all(
        self, wanted: dict[TopicPartition, FetchFrom], turns: dict[TopicPartition, int], error: KafkaError, now: int
    ) -> None:
        if error.code in REFRESHING:
            self._view.request_update()
        for partition in wanted:
            state = self._positions.states.get(partition)
            if state is not None and state.turn == turns[partition]:
                state.read_replica = -1
                self._back_off(state, now)

    def _back_off(self, state: PartitionState, now: int) -> None:
        state.failures += 1
        state.retry_at = now + self._backoff.delay_ms(state.failures, self._jitter())
