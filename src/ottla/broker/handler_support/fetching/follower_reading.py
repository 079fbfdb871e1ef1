"""Reading for the Fetch request of a follower: to the end of the log, and only partitions that have changed.

A follower fetches all partitions that this broker leads for it in one session. The session watches them: appends, a
higher high watermark or a new role put a partition on its list of changes. So a fetch costs time for the partitions
that have changed or that the request names, not for all in the session.
"""

from collections.abc import Iterable
from typing import Any

from ottla.broker.handler_support.fetching.fetch_sessions import FetchSession, SessionPartition
from ottla.broker.handler_support.fetching.reading import TOPIC_IDS_SINCE, PartitionData, Reading
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import ClusterImage
from ottla.protocol.fetch_session_epochs import INITIAL_EPOCH
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.replication.replica import Replica
from ottla.replication.throttling import is_throttled_leader
from ottla.replication.waiting import FetchWait, Limit


def check_follower(broker_id: int, broker_epoch: int, image: ClusterImage) -> None:
    """Raises unless the follower is a registered broker, with the epoch of its last restart (KIP-903)."""
    registered = image.brokers.get(broker_id)
    if registered is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    if 0 <= broker_epoch < registered.epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {broker_id} is registered with epoch {registered.epoch}, the fetch has {broker_epoch}",
        )


class FollowerReading(Reading):
    """One fetch of a follower."""

    __slots__ = ("follower_epoch", "follower_id", "throttled_ms", "unnoted")

    def __init__(self, request: FetchRequest, context: Context, session: FetchSession | None) -> None:
        has_state = context.api_version >= 15
        self.follower_id = request.replica_state.replica_id if has_state else request.replica_id
        self.follower_epoch = request.replica_state.replica_epoch
        self.throttled_ms = 0
        """How long partitions that are left out must wait at least, for room in the leader's quota (KIP-73)."""
        super().__init__(request, context, session)
        self.reads_followers, self.rack = False, ""
        self.unnoted: list[tuple[Any, Any]] = []
        """Partitions that this broker does not lead for this follower, as far as it knows when the request arrives."""
        self._note_progress(self._named())
        self.items = self._list_items()

    def _choose_readable(self) -> None:
        """A broker may read everything."""

    def _choose_limit(self) -> Limit:
        return Limit.LOG_END

    def _list_items(self) -> list[tuple[Any, Any]]:
        session = self.session
        self._check_quota()
        if session is None:
            return [item for item in self._named() if not (self.throttled_ms and self._waits_for_quota(*item))]
        return [(partition.topic, partition.asked) for partition in self._unsent(session)]

    # -- throttling --

    def _check_quota(self) -> None:
        quota = self.replicas.leader_quota
        self.throttled_ms = quota.wait_ms(self.replicas.monotonic()) if quota.is_limited else 0

    def _waits_for_quota(self, topic: Any, asked: Any) -> bool:
        """Whether a partition is left out while the quota is used up: its follower is catching up."""
        hosted = self.topics.get(topic)
        replica = None if hosted is None else hosted.replicas.get(asked.partition)
        return (
            replica is not None
            and replica.is_leader
            and self.follower_id not in replica.isr
            and is_throttled_leader(replica)
        )

    def _unsent(self, session: FetchSession) -> list[SessionPartition]:
        """The changed partitions, without those that wait for the quota. Their appends do not wake the follower."""
        if not self.throttled_ms:
            return session.unsent()
        found = []
        for partition in session.unsent():
            if self._waits_for_quota(partition.topic, partition.asked):
                session.stop_watching(partition)
            else:
                found.append(partition)
        return found

    def _note_progress(self, named: Iterable[tuple[Any, Any]]) -> None:
        """A follower that fetches from an offset has everything before it: that is how the leader tracks it."""
        for topic, asked in named:
            hosted = self.topics.get(topic)
            replica = None if hosted is None else hosted.replicas.get(asked.partition)
            if replica is None or not replica.is_leader or self.follower_id not in replica.followers:
                self.unnoted.append((topic, asked))
                continue
            try:
                diverging = self._diverging_epoch(replica, asked)
            except KafkaError:
                continue
            if diverging is None and asked.fetch_offset <= replica.log.log_end_offset:
                self.replicas.follower_fetched(
                    replica, self.follower_id, asked.fetch_offset, asked.log_start_offset, self.follower_epoch
                )

    def is_ready(self) -> bool:
        session = self.session
        has_partitions = self.throttled_ms if session is None else session.partitions
        if has_partitions and not self.items:
            return self.min_bytes <= 0  # Nothing has changed, or nothing that the quota allows: it waits.
        return super().is_ready()

    # -- waiting --

    def wait(self, wait: FetchWait) -> None:
        session = self.session
        if session is None:
            super().wait(wait)
            return
        assert session.watch is not None
        for partition in self._unsent(session):
            # Not answered before: after a failover, followers add partitions to the session with their new leader.
            hosted = self.topics.get(partition.topic)
            replica = None if hosted is None else hosted.replicas.get(partition.asked.partition)
            session.watch_partition(partition, replica)
        max_wait_ms = self.request.max_wait_ms
        if self.throttled_ms:
            max_wait_ms = min(max_wait_ms, self.throttled_ms)
        self.replicas.waits.wait_for_bytes(wait, [], self.limit, max_wait_ms)
        session.watch.wait = wait

    def end_wait(self, wait: FetchWait) -> None:
        session = self.session
        if session is not None and session.watch is not None and session.watch.wait is wait:
            session.watch.wait = None
        super().end_wait(wait)

    # -- the answer --

    def respond(self) -> FetchResponse:
        session, version = self.session, self.context.api_version
        response = FetchResponse()
        if self.unnoted:
            # The leader may have learned of its follower while the request waited. The follower does not name the
            # partition again unless it changes, so it would never join.
            self._note_progress([self.unnoted.pop() for _ in range(len(self.unnoted))])
        quota = self.replicas.leader_quota
        self._check_quota()
        if session is None:
            partitions = [SessionPartition(topic, asked) for topic, asked in self._named()]
        else:
            response.session_id = session.session_id
            partitions = self._unsent(session)
        remaining, has_data = self.max_bytes, False
        topics = response.responses
        for partition in partitions:
            topic: Any = partition.topic
            asked = partition.asked
            allowed = remaining
            if quota.is_limited and self._waits_for_quota(topic, asked):
                if self.throttled_ms:
                    continue
                allowed = min(remaining, quota.rate)  # Otherwise one answer could be more than the window allows.
            hosted = self.topics.get(topic)
            replica = None if hosted is None else hosted.replicas.get(asked.partition)
            try:
                data = self._read(topic, asked, allowed, has_data)
            except KafkaError as error:
                data = self._failure(response, topic, asked, error)
            size = len(data.records)  # type: ignore[arg-type]
            if size:
                remaining, has_data = remaining - size, True
                if quota.is_limited:
                    self._count(replica, size)
            if session is not None:
                session.served(partition, replica, has_more=_has_more(data, replica, asked), is_sent=size > 0)
            if not partition.answered(data) and session is not None:
                continue
            self._add_to_topics(topics, topic, data)
        if session is None and version >= 7 and self.request.session_epoch == INITIAL_EPOCH:
            response.session_id = self._start_session(partitions)
        return response

    def _count(self, replica: Replica | None, size_bytes: int) -> None:
        """Counts what throttled partitions get, even if their follower is in sync and does not have to wait."""
        if replica is not None and is_throttled_leader(replica):
            self.replicas.leader_quota.record(size_bytes, self.replicas.monotonic())
            self._check_quota()

    def _start_session(self, partitions: list[SessionPartition]) -> int:
        services = self.context.services
        session_id = services.sessions.create(
            partitions,
            uses_topic_ids=self.context.api_version >= TOPIC_IDS_SINCE,
            is_follower=True,
            monotonic_ms=services.monotonic(),
        )
        session = services.sessions.find(session_id)
        if session is not None:
            for partition in partitions:
                hosted = self.topics.get(partition.topic)
                replica = None if hosted is None else hosted.replicas.get(partition.asked.partition)
                # The next fetch removes those that have not changed.
                session.served(partition, replica, has_more=True)
        return session_id

    def _read(self, topic: Any, asked: Any, remaining: int, has_data: bool) -> PartitionData:
        hosted = self.topics.get(topic)
        replica = None if hosted is None else hosted.replicas.get(asked.partition)
        if replica is not None and replica.is_leader and self.follower_id not in replica.followers:
            replica.check_leader_epoch(asked.current_leader_epoch)
            # With equal epochs, this leader may not know its new follower yet.
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if asked.current_leader_epoch < 0 else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            raise KafkaError(code, f"broker {self.follower_id} is not a replica of {replica.topic_partition}")
        return super()._read(topic, asked, remaining, has_data)

    def _failure(self, response: FetchResponse, topic: Any, asked: Any, error: KafkaError) -> PartitionData:
        data = super()._failure(response, topic, asked, error)
        hosted = self.topics.get(topic)
        replica = None if hosted is None else hosted.replicas.get(asked.partition)
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and replica is not None:
            # A follower whose log ends before ours starts has to start over there.
            data.log_start_offset = replica.log.log_start_offset
        return data


def _has_more(data: Any, replica: Replica | None, asked: Any) -> bool:
    """Whether a partition has more to send after this answer. After records, the next fetch names the partition."""
    if data.error_code != ErrorCode.NONE or replica is None:
        return True
    return not data.records and data.diverging_epoch.end_offset < 0 and asked.fetch_offset < replica.log.log_end_offset
