"""Decides what to fetch next, and buffers completed fetches until poll() takes their records. Pure."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.client.consumer.fetch_session import FetchFrom, FetchSession, SessionRequest, fetch_request
from ottla.client.consumer.positions import FetchState, PartitionState, Positions
from ottla.client.core.cluster_view import REFRESHING, ClusterView
from ottla.client.core.model import EARLIEST, ConsumerRecord, Node
from ottla.client.core.polling import Poll, Request
from ottla.client.core.settings import ConsumerConfig
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.records.record_batch import Section
from ottla.types import INT64_MAX, ZERO_UUID, TopicPartition

FETCH_LANE = "fetch"
"""Fetches have their own connections: a broker holds them as long polls, and nothing else must wait behind them."""

READ_AHEAD = 2
"""Completed fetches to buffer per partition: one that is being read, and the next one."""

RECORD_BYTES_EXPECTED = 1024
RANGE_BYTES_MIN = 65_536
"""Fetch size for a range of offsets: the expected bytes per record, but at least RANGE_BYTES_MIN."""

SHORT_WAIT_MS = 20
"""Maximum wait of a fetch while other partitions are about to get a position."""

MAX_VERSION_WITHOUT_TOPIC_ID = 12
"""From version 13 on, Fetch names topics by id only (KIP-516)."""

_SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class Fetcher:
    """Keeps one fetch in flight per broker, for all the partitions that are read from it."""

    def __init__(
        self,
        config: ConsumerConfig,
        positions: Positions,
        view: ClusterView,
        *,
        backoff: Backoff,
        jitter: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.bytes_fetched = self.records_taken = 0
        """For the metrics."""
        self._config = config
        self._positions = positions
        self._view = view
        self._backoff = backoff
        self._jitter = jitter
        self._is_committed_only = config.isolation_level == "read_committed"
        self._buffer: deque[tuple[int, CompletedFetch]] = deque()  # (seek_id of the partition, fetch)
        self._buffered: dict[TopicPartition, int] = defaultdict(int)
        self._came_from: dict[TopicPartition, int] = {}
        """The positions before the last take(), of the partitions that it has moved."""
        self._sessions: dict[int, FetchSession] = {}
        self._in_flight: set[int] = set()
        self._rotation = 0

    # --- taking -------------------------------------------------------------------------------------------

    @property
    def has_records(self) -> bool:
        """Whether take() would return records or an error. Paused partitions keep theirs."""
        return any(self._is_takable(seek_id, fetched) for seek_id, fetched in self._buffer)

    @property
    def is_due(self) -> bool:
        """Whether a fetch could be sent now."""
        idle: set[int] = set()
        full: set[int] = set()
        for partition in self._positions.states:
            leader = self._view.find_leader(partition)
            if leader is not None:
                (full if self._buffered[partition] >= READ_AHEAD else idle).add(leader.node_id)
        return not idle <= full | self._in_flight

    @property
    def waiting(self) -> int:
        """The number of buffered fetches."""
        return len(self._buffer)

    def begin_to_take(self) -> int:
        """Starts a take() that may be interrupted at any line: `take_back` then undoes it. Returns `waiting`."""
        self._came_from.clear()
        return len(self._buffer)

    def take_back(self) -> None:
        """Restores the positions of `begin_to_take`. Buffered records are fetched again, as some may be lost."""
        self._buffer.clear()
        self._buffered.clear()
        for partition, state in self._positions.states.items():
            if state.position is not None:
                state.go_back_to(self._came_from.get(partition, state.position))

    def confirm_taken(self) -> None:
        """The taken records have reached the user: `take_back` no longer undoes this."""
        self._came_from.clear()

    def take(self, max_records: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Takes up to `max_records` records, in order per partition, and moves the positions past them."""
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        kept: deque[tuple[int, CompletedFetch]] = deque()
        room = max_records
        while self._buffer and room:
            seek_id, fetched = self._buffer.popleft()
            state = self._positions.states.get(fetched.partition)
            if state is None or state.seek_id != seek_id:
                self._buffered[fetched.partition] -= 1
                continue
            if state.is_paused:
                kept.append((seek_id, fetched))
                continue
            try:
                records = fetched.take(room)
            except KafkaError:
                self._buffered[fetched.partition] -= 1
                self._fetch_again(state)
                if taken:
                    break  # return what was read before the error first
                self._buffer.extendleft(reversed(kept))
                raise
            self._move(state, fetched)
            room -= len(records)
            if records:
                taken.setdefault(fetched.partition, []).extend(records)
            if fetched.is_exhausted:
                self._buffered[fetched.partition] -= 1
            else:
                self._buffer.appendleft((seek_id, fetched))
        self._buffer.extendleft(reversed(kept))
        self.records_taken += max_records - room
        return taken

    def take_sections(self, max_records: int, max_bytes: int) -> list[tuple[CompletedFetch, Section]]:
        """The next batches to read, in order per partition, up to about `max_records` or `max_bytes`.

        Does not move positions: `took` does, once the records have been read.
        """
        found: list[tuple[CompletedFetch, Section]] = []
        interrupted: set[TopicPartition] = set()
        self._drop_stale()
        for seek_id, fetched in list(self._buffer):
            if max_records <= 0 or max_bytes <= 0:
                break
            if not self._is_takable(seek_id, fetched) or fetched.partition in interrupted:
                continue
            try:
                sections = fetched.sections(max_records, max_bytes)
            except KafkaError:
                if found:
                    break
                self.refuse(fetched)
                raise
            if not sections:
                self.took(fetched)  # only control batches or aborted records
            elif fetched.has_more:
                interrupted.add(fetched.partition)
            for section in sections:
                found.append((fetched, section))
                max_records -= section.header.record_count
                max_bytes -= section.end - section.start
        return found

    def take_fetch(self) -> CompletedFetch | None:
        """Takes the next completed fetch and moves the position past all of it. None if there is none."""
        self._drop_stale()
        for seek_id, fetched in self._buffer:
            if self._is_takable(seek_id, fetched):
                self._buffer.remove((seek_id, fetched))
                self._buffered[fetched.partition] -= 1
                self._positions.states[fetched.partition].position = fetched.end_offset
                return fetched
        return None

    def took(self, fetched: CompletedFetch) -> None:
        """Moves the position to where `fetched` has been read up to."""
        state = self._positions.states[fetched.partition]
        self._move(state, fetched)
        if fetched.is_exhausted:
            self._buffer.remove((state.seek_id, fetched))
            self._buffered[fetched.partition] -= 1

    def _move(self, state: PartitionState, fetched: CompletedFetch) -> None:
        if state.position is not None:
            self._came_from.setdefault(fetched.partition, state.position)
        state.position = fetched.next_offset

    def refuse(self, fetched: CompletedFetch) -> None:
        """Drops a fetch that cannot be read. It is fetched again, and may fail again."""
        state = self._positions.states[fetched.partition]
        self._buffer.remove((state.seek_id, fetched))
        self._buffered[fetched.partition] -= 1
        self._fetch_again(state)

    def _fetch_again(self, state: PartitionState) -> None:
        assert state.position is not None, "only partitions with a position are fetched"
        state.move_to(state.position)

    def _drop_stale(self) -> None:
        """Drops fetches from before a seek, so that they do not count as read-ahead."""
        states = self._positions.states
        for seek_id, fetched in list(self._buffer):
            state = states.get(fetched.partition)
            if state is None or state.seek_id != seek_id:
                self._buffer.remove((seek_id, fetched))
                self._buffered[fetched.partition] -= 1
        if len(self._buffered) > len(states):  # forget partitions that are no longer assigned
            self._buffered = defaultdict(int, {p: count for p, count in self._buffered.items() if count})

    def _is_takable(self, seek_id: int, fetched: CompletedFetch) -> bool:
        state = self._positions.states.get(fetched.partition)
        return state is not None and state.seek_id == seek_id and not state.is_paused

    # --- fetching -----------------------------------------------------------------------------------------

    def poll(self, now: int) -> Poll:
        poll = Poll()
        self._drop_stale()
        by_node: dict[int, dict[TopicPartition, FetchFrom]] = defaultdict(dict)
        full: set[int] = set()
        for partition, state in self._positions.states.items():
            if state.position is None or state.is_paused or state.fetch_offset >= (state.fetch_until or INT64_MAX):
                continue
            node_id, leader_epoch = self._source(partition, state, now, poll)
            if node_id is None:
                continue
            if self._buffered[partition] >= READ_AHEAD:
                # A fetch without this partition might wait a long time for records of the others, and then this
                # one's buffer would run empty.
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
        """fetch.max.wait.ms, but short while a partition waits for its initial position.

        Only one fetch per broker is in flight: such a partition could not be fetched before this one returns.
        """
        most = self._config.fetch_max_wait_ms
        states = self._positions.states.values()
        looking_up = any(
            s.position is None and s.fetch_state is not FetchState.NO_OFFSET and not s.is_paused for s in states
        )
        return min(most, SHORT_WAIT_MS) if looking_up else most

    def _max_bytes(self, state: PartitionState) -> int:
        """How many bytes to fetch. The end of a range of offsets should not bring megabytes of further records."""
        most = self._config.max_partition_fetch_bytes
        if state.fetch_until is None:
            return most
        return min(most, max(RANGE_BYTES_MIN, (state.fetch_until - state.fetch_offset) * RECORD_BYTES_EXPECTED))

    def _is_same_topic(self, partition: TopicPartition, state: PartitionState, now: int, poll: Poll) -> bool:
        """False if the topic was deleted and recreated (KIP-516): then the old position is meaningless."""
        topic_id = self._view.topic_id(partition.topic)
        if state.topic_id in (topic_id, ZERO_UUID) or topic_id == ZERO_UUID:
            state.topic_id = topic_id
            return True
        if not self._buffered[partition]:  # records that were fetched from the old topic are read first
            state.topic_id = topic_id
            if self._config.auto_offset_reset == "none":
                detail = f"topic {partition.topic} was deleted and recreated, so the position is no longer valid"
                self._positions.report(partition, KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail))
                state.await_reset(None)  # without a seek() the user must not continue in the middle of the new topic
            else:
                state.await_reset(EARLIEST)
                poll.wake_by(now)  # so that Positions looks it up
        return False

    def _source(self, partition: TopicPartition, state: PartitionState, now: int, poll: Poll) -> tuple[int | None, int]:
        """The node to fetch a partition from and the leader epoch; (None, -1) while there is no leader."""
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
            # The response with the high watermark was stale, for example because of a seek. An incremental fetch
            # session does not repeat unchanged values (KIP-227).
            session.reset()
        seek_ids = {partition: self._positions.states[partition].seek_id for partition in wanted}
        has_ids = all(source.topic_id != ZERO_UUID for source in wanted.values())
        # A broker fills the response in the order of the request, so rotate for fairness (KIP-74).
        self._rotation += 1
        order = list(wanted)
        cut = self._rotation % len(order)
        wanted = {partition: wanted[partition] for partition in order[cut:] + order[:cut]}
        return Request(
            node_id,
            ApiKey.FETCH,
            lambda version: self._build(session, wanted, version),
            on_response=lambda response, version, now: self._on_response(node_id, wanted, seek_ids, response, now),
            on_failure=lambda error, now: self._on_failure(node_id, wanted, seek_ids, error, now),
            lane=FETCH_LANE,
            max_version=None if has_ids else MAX_VERSION_WITHOUT_TOPIC_ID,
            timeout_ms=self._config.request_timeout_ms + self._config.fetch_max_wait_ms,
        )

    def _build(self, session: FetchSession, wanted: dict[TopicPartition, FetchFrom], version: int) -> FetchRequest:
        asked = session.request(wanted) if version >= 7 else SessionRequest(0, -1, wanted, {})
        return fetch_request(self._config, asked, self._max_wait_ms(), version)

    # --- responses ----------------------------------------------------------------------------------------

    def _on_response(
        self,
        node_id: int,
        wanted: dict[TopicPartition, FetchFrom],
        seek_ids: dict[TopicPartition, int],
        response: Any,
        now: int,
    ) -> None:
        self._in_flight.discard(node_id)
        error = ErrorCode(response.error_code)
        if error != ErrorCode.NONE:
            self._sessions.pop(node_id, None)
            if error not in _SESSION_ERRORS:
                self._back_off_all(wanted, seek_ids, KafkaError(error, f"fetching from broker {node_id}"), now)
            return
        self._sessions[node_id].on_response(response.session_id)
        names = {source.topic_id: partition.topic for partition, source in wanted.items()}
        nodes = {n.node_id: Node(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints}
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for result in topic.partitions:
                partition = TopicPartition(name, result.partition_index)
                state = self._positions.states.get(partition)
                if state is None or partition not in wanted or state.seek_id != seek_ids[partition]:
                    continue
                hint = result.current_leader  # set with an error about the leader: saves a metadata request (KIP-951)
                self._view.learn_leader(partition, hint.leader_id, hint.leader_epoch, nodes)
                if wanted[partition].fetch_offset != state.fetch_offset:
                    # Another broker has answered meanwhile: this one is a former leader that hung.
                    continue
                self._on_partition(partition, state, wanted[partition], result, now)

    def _on_partition(
        self, partition: TopicPartition, state: PartitionState, source: FetchFrom, result: Any, now: int
    ) -> None:
        error = ErrorCode(result.error_code)
        if error != ErrorCode.NONE:
            self._on_partition_error(partition, state, source, error, now)
            return
        state.failures = 0
        if result.diverging_epoch.end_offset >= 0:
            self._on_truncation(partition, state, result.diverging_epoch, now)
            return
        if result.preferred_read_replica >= 0:  # instead of records: fetch from a follower in our rack (KIP-392)
            state.read_replica = result.preferred_read_replica
            state.read_replica_until = now + self._config.metadata_max_age_ms
            if state.read_replica not in self._view.brokers:
                # Our metadata does not have it yet. Until it does, the leader keeps naming it.
                self._view.request_update()
                self._back_off(state, now)
            return
        state.high_watermark = result.high_watermark
        state.last_stable_offset = result.last_stable_offset
        state.log_start_offset = result.log_start_offset
        if not result.records:
            return
        self.bytes_fetched += len(result.records)
        aborted = [(a.producer_id, a.first_offset) for a in result.aborted_transactions or ()]
        try:
            fetched = CompletedFetch(
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
        self._buffer.append((state.seek_id, fetched))
        self._buffered[partition] += 1

    def _on_partition_error(
        self, partition: TopicPartition, state: PartitionState, source: FetchFrom, error: ErrorCode, now: int
    ) -> None:
        was_following = state.read_replica >= 0
        state.read_replica = -1
        if error in REFRESHING:
            self._view.request_update()
        if self._buffered[partition]:
            # Buffered records are read first; the error will occur again afterwards.
            self._back_off(state, now)
        elif error == ErrorCode.OFFSET_OUT_OF_RANGE and was_following:
            self._back_off(state, now)  # the follower may lag behind: ask the leader (KIP-392)
        elif error == ErrorCode.OFFSET_OUT_OF_RANGE and self._config.auto_offset_reset != "none":
            self._positions.reset(state)
        elif error.retriable or error == ErrorCode.UNKNOWN_SERVER_ERROR:
            self._back_off(state, now)
        else:
            detail = f"reading {partition} at offset {source.fetch_offset}"
            self._give_to_user(partition, state, KafkaError(error, detail), now)

    def _on_truncation(self, partition: TopicPartition, state: PartitionState, diverging: Any, now: int) -> None:
        """The leader's log diverges before our position: an unclean leader election lost records (KIP-320)."""
        if self._buffered[partition]:
            self._back_off(state, now)
        elif self._config.auto_offset_reset != "none":
            state.move_to(min(diverging.end_offset, state.position or 0))
        else:
            detail = f"{partition} was truncated to offset {diverging.end_offset}, below the position {state.position}"
            self._give_to_user(partition, state, KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, detail), now)

    def _give_to_user(self, partition: TopicPartition, state: PartitionState, error: KafkaError, now: int) -> None:
        """Has poll() raise the error, and backs off in case the user continues polling."""
        self._positions.report(partition, error)
        self._back_off(state, now)

    def _on_failure(
        self,
        node_id: int,
        wanted: dict[TopicPartition, FetchFrom],
        seek_ids: dict[TopicPartition, int],
        error: KafkaError,
        now: int,
    ) -> None:
        self._in_flight.discard(node_id)
        self._sessions.pop(node_id, None)
        if not error.retriable:
            self._positions.errors.append(error)
        self._back_off_all(wanted, seek_ids, error, now)

    def _back_off_all(
        self, wanted: dict[TopicPartition, FetchFrom], seek_ids: dict[TopicPartition, int], error: KafkaError, now: int
    ) -> None:
        if error.code in REFRESHING:
            self._view.request_update()
        for partition in wanted:
            state = self._positions.states.get(partition)
            if state is not None and state.seek_id == seek_ids[partition]:
                state.read_replica = -1
                self._back_off(state, now)

    def _back_off(self, state: PartitionState, now: int) -> None:
        state.failures += 1
        state.retry_at = now + self._backoff.delay_ms(state.failures, self._jitter())
