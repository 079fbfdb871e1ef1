"""Fetch sessions (KIP-227): the broker remembers what a client fetches, and only changes are sent.

The number of sessions is limited. A client without one gets session id 0 and continues with full fetches.
"""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.fetch_session_epochs import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch
from ottla.replication.waiting import PartitionWaits, Watch
from ottla.types import INT32_MAX

if TYPE_CHECKING:
    import weakref

    from ottla.broker.handlers.fetch import WaitingFetch
    from ottla.replication.replica import Replica

EVICTION_MS = 120_000
"""A session unused for this long may be evicted by any client; a younger one not by another consumer."""
PARTITIONS_MAX = 50_000
"""The most partitions of all sessions together (about 25 MB); clients without room use full fetches."""

TopicKey = str | bytes
"""A topic's name up to Fetch v12, its id from v13 on."""


class SessionPartition:
    """One partition of a session: what the client last requested, and what it last received."""

    __slots__ = ("asked", "high_watermark", "is_sent", "last_stable_offset", "log_start_offset", "replica", "topic")

    def __init__(self, topic: TopicKey, asked: Any) -> None:
        self.topic = topic
        self.asked = asked
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.replica: Replica | None = None
        """For a follower: the replica that the session watches for changes."""
        self.is_sent = False
        """A follower got records, and has not requested more yet. Nothing is sent until it does."""

    def answered(self, data: Any) -> bool:
        """Records an answer for this partition. Returns whether it differs from what the client knows."""
        is_changed = (
            bool(data.records)
            or data.error_code != 0
            or data.high_watermark != self.high_watermark
            or data.last_stable_offset != self.last_stable_offset
            or data.log_start_offset != self.log_start_offset
            or data.preferred_read_replica != -1
            or data.diverging_epoch.end_offset >= 0
        )
        # After an error the client must learn when it is over, even if nothing else changed.
        self.high_watermark = data.high_watermark if data.error_code == 0 else -1
        self.last_stable_offset = data.last_stable_offset
        self.log_start_offset = data.log_start_offset
        return is_changed


class FetchSession:
    """One client's partitions, in the order in which they are served."""

    __slots__ = (
        "created_ms",
        "epoch",
        "is_follower",
        "last_used_ms",
        "partitions",
        "session_id",
        "uses_topic_ids",
        "waiting",
        "watch",
    )

    def __init__(self, session_id: int, *, uses_topic_ids: bool, is_follower: bool, monotonic_ms: int) -> None:
        self.session_id = session_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch that the next request must have."""
        self.uses_topic_ids = uses_topic_ids
        self.is_follower = is_follower
        self.created_ms = self.last_used_ms = monotonic_ms
        self.partitions: dict[tuple[TopicKey, int], SessionPartition] = {}
        self.watch = Watch() if is_follower else None
        """For a follower: its changed partitions, in the order in which they are served."""
        self.waiting: weakref.ref[WaitingFetch] | None = None
        """A follower's request that waits for its answer."""

    def update(self, request: Any) -> None:
        """Applies an incremental request: partitions added, changed or forgotten."""
        partitions = self.partitions
        for topic in request.topics:
            key: TopicKey = topic.topic_id if self.uses_topic_ids else topic.topic
            for asked in topic.partitions:
                known = partitions.get((key, asked.partition))
                if known is None:
                    known = partitions[key, asked.partition] = SessionPartition(key, asked)
                else:
                    known.asked = asked
                if self.watch is not None:
                    self.watch.changed[known] = None
                    known.is_sent = False
                    # A follower ignores the answer to its previous request, so it may have missed a high watermark.
                    known.high_watermark = -1
        for topic in request.forgotten_topics_data:
            key = topic.topic_id if self.uses_topic_ids else topic.topic
            for index in topic.partitions:
                known = partitions.pop((key, index), None)
                if known is not None and self.watch is not None:
                    self._unwatch(known)

    def serve_last(self, partition: SessionPartition) -> None:
        """Moves a partition that was just served behind the others, so that none starves because of max_bytes."""
        key = (partition.topic, partition.asked.partition)
        if self.partitions.pop(key, None) is not None:
            self.partitions[key] = partition

    # -- followers --

    def unsent(self) -> list[SessionPartition]:
        """The changed partitions that a follower has not received yet, in the order in which they are served."""
        assert self.watch is not None
        return [partition for partition in self.watch.changed if not partition.is_sent]

    def served(
        self, partition: SessionPartition, replica: "Replica | None", *, has_more: bool, is_sent: bool = False
    ) -> None:
        """A partition was answered. Watches it from now on, and keeps it on the list if there is more to send."""
        assert self.watch is not None
        partition.is_sent = is_sent
        if not has_more:
            self.watch.changed.pop(partition, None)
        elif partition not in self.watch.changed:
            self.watch.changed[partition] = None
        self.watch_partition(partition, replica)

    def watch_partition(self, partition: SessionPartition, replica: "Replica | None") -> None:
        assert self.watch is not None
        if partition.replica is not replica:
            self.stop_watching(partition)
            partition.replica = replica
            if replica is not None:
                if replica.waits is None:
                    replica.waits = PartitionWaits()
                replica.waits.watches[self.watch] = partition

    def _unwatch(self, partition: SessionPartition) -> None:
        assert self.watch is not None
        self.watch.changed.pop(partition, None)
        self.stop_watching(partition)

    def stop_watching(self, partition: SessionPartition) -> None:
        replica = partition.replica
        if replica is not None and replica.waits is not None and self.watch is not None:
            replica.waits.watches.pop(self.watch, None)
            partition.replica = None

    def end(self) -> None:
        """The session is removed."""
        if self.watch is not None:
            for partition in self.partitions.values():
                self._unwatch(partition)

    def answer_waiting(self) -> None:
        """The next request of a follower ends the wait of the one before it."""
        if self.waiting is not None:
            waiting, self.waiting = self.waiting(), None
            if waiting is not None:
                waiting.answer_now()


def _random_id() -> int:
    return int.from_bytes(os.urandom(4), "big") & INT32_MAX


class FetchSessions:
    """The sessions of one broker, at most `slots`, ordered by last use."""

    def __init__(self, slots: int = 1000, *, new_id: Callable[[], int] = _random_id) -> None:
        self.slots = slots
        self.partition_count = 0
        self._sessions: dict[int, FetchSession] = {}
        self._new_id = new_id

    def __len__(self) -> int:
        return len(self._sessions)

    def resume(
        self, request: Any, *, uses_topic_ids: bool, is_follower: bool, monotonic_ms: int
    ) -> FetchSession | None:
        """The session of an incremental request, updated by it; None for a full fetch.

        Raises FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR, and then has
        changed nothing; the client restarts with a full fetch.
        """
        session_id, epoch = request.session_id, request.session_epoch
        session = self._sessions.get(session_id)
        if session is not None and session.is_follower != is_follower:
            session = None  # a consumer must not read, change or end what a follower has, nor the other way round
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session is not None:
                self._remove(session_id)
            return None
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {session_id}")
        if session.epoch != epoch:
            raise KafkaError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}",
            )
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, "a fetch session uses either topic names or topic ids"
            )
        session.answer_waiting()
        if request.topics or request.forgotten_topics_data:
            before = len(session.partitions)
            session.update(request)
            self.partition_count += len(session.partitions) - before
            if not session.partitions or self.partition_count > PARTITIONS_MAX:
                # Without partitions the session has ended. One that has grown too large becomes an empty full fetch,
                # and session id 0 makes the client restart.
                self._remove(session_id)
                return None
        session.epoch = next_epoch(epoch)
        session.last_used_ms = monotonic_ms
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def create(
        self, partitions: Iterable[SessionPartition], *, uses_topic_ids: bool, is_follower: bool, monotonic_ms: int
    ) -> int:
        """Starts a session from a full fetch and its answer. Returns its id, or 0 if there is no room."""
        by_key = {(p.topic, p.asked.partition): p for p in partitions}
        if not by_key or len(by_key) > PARTITIONS_MAX or self.slots <= 0:
            return NO_SESSION
        while self.partition_count + len(by_key) > PARTITIONS_MAX:
            stalest = next(iter(self._sessions.values()))
            if monotonic_ms - stalest.last_used_ms <= EVICTION_MS:
                return NO_SESSION
            self._remove(stalest.session_id)
        if len(self._sessions) >= self.slots and not self._evict(is_follower, len(by_key), monotonic_ms):
            return NO_SESSION
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(
            session_id, uses_topic_ids=uses_topic_ids, is_follower=is_follower, monotonic_ms=monotonic_ms
        )
        session.partitions = by_key
        self._sessions[session_id] = session
        self.partition_count += len(by_key)
        return session_id

    def find(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id)
        self.partition_count -= len(session.partitions)
        session.end()

    def _evict(self, is_follower: bool, size: int, monotonic_ms: int) -> bool:
        """Evicts a stale session, or else a smaller one; never a follower's session for a consumer."""
        stalest = next(iter(self._sessions.values()))
        if monotonic_ms - stalest.last_used_ms <= EVICTION_MS:
            candidates = [
                session
                for session in self._sessions.values()
                if monotonic_ms - session.created_ms > EVICTION_MS or (is_follower and not session.is_follower)
            ]
            if not candidates:
                return False
            stalest = min(candidates, key=lambda session: (session.is_follower, len(session.partitions)))
            if (is_follower, size) <= (stalest.is_follower, len(stalest.partitions)):
                return False
        self._remove(stalest.session_id)
        return True
