"""Reading for one Fetch request: whether it can be answered now, and the answer.

Followers read differently (`follower_reading.py`): to the end of the log, and only what has changed in their session.
"""

from typing import TYPE_CHECKING, Any

from ottla.broker.handler_support.fetching.current_leader import current_leader
from ottla.broker.handler_support.fetching.fetch_sessions import FetchSession, SessionPartition
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.log.segments.file_records import FileRecords
from ottla.protocol.fetch_session_epochs import INITIAL_EPOCH
from ottla.protocol.framing import INLINE_RECORDS_BYTES
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.records.record_batch import iter_batches
from ottla.protocol.wire_values import READ_COMMITTED
from ottla.replication.replica import Replica
from ottla.replication.replica_selection import LEADER, is_rack_aware, preferred_replica
from ottla.replication.waiting import FetchWait, Limit
from ottla.security.resources import Operation, ResourceType
from ottla.types import uuid_to_text

if TYPE_CHECKING:
    from ottla.security.authorizer import Decisions

PartitionData = FetchResponse.PartitionData
TopicData = FetchResponse.FetchableTopicResponse

FOLLOWERS_SINCE = 11
TOPIC_IDS_SINCE = 13


_BEFORE_READING = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""Errors that Kafka detects before it reads a log. The list of aborted transactions is not null then."""


class Reading:
    """One fetch: decides whether it can be answered, and builds the answer."""

    __slots__ = (
        "available_bytes",
        "context",
        "found",
        "inline_bytes",
        "items",
        "limit",
        "max_bytes",
        "min_bytes",
        "rack",
        "readable",
        "reads_followers",
        "replicas",
        "request",
        "session",
        "topics",
    )

    def __init__(self, request: FetchRequest, context: Context, session: FetchSession | None) -> None:
        version = context.api_version
        self.request = request
        self.context = context
        self.session = session
        self.replicas = context.services.replicas
        self.topics: dict[Any, Any]
        """The topics of this broker, by name or id, depending on the version."""
        if version >= TOPIC_IDS_SINCE:
            self.topics = self.replicas.topics_by_id
        else:
            self.topics = self.replicas.topics
        self.readable: Decisions | None = None
        """What ACLs allow the client to read, by topic name; None if nothing is restricted."""
        if context.services.authorizer is not None:
            self.readable = self._choose_readable()
        self.limit = self._choose_limit()
        self.reads_followers = version >= FOLLOWERS_SINCE
        self.rack = ""
        """The consumer's rack, if it may be redirected to a replica there."""
        if request.rack_id and version >= FOLLOWERS_SINCE:
            self.rack = request.rack_id if is_rack_aware(context.services.config.replica_selector_class) else ""
        self.max_bytes, self.min_bytes = request.max_bytes, request.min_bytes
        allowed = context.services.config.fetch_max_bytes
        if self.max_bytes > allowed:
            self.max_bytes = allowed
        if self.min_bytes > self.max_bytes:
            self.min_bytes = self.max_bytes
        self.inline_bytes = INLINE_RECORDS_BYTES
        """How much more is read while the response is built. The rest is read when it is sent."""
        self.available_bytes = 0
        self.found: list[Replica] = []
        self.items: list[tuple[Any, Any]]
        """(topic, requested partition) in the order to serve them."""
        self.items = self._list_items()

    def _choose_readable(self) -> "Decisions | None":
        return self.context.allowed(Operation.READ, ResourceType.TOPIC)

    def _may_read(self, topic: Any, readable: "Decisions") -> bool:
        """Whether the ACLs allow it. A topic with an unknown id is answered as such."""
        name = topic
        if self.context.api_version >= TOPIC_IDS_SINCE:
            hosted = self.topics.get(topic)
            name = self.context.services.image.topic_names.get(topic) if hosted is None else hosted.name
        return name is None or readable[name]

    def _choose_limit(self) -> Limit:
        if self.request.isolation_level == READ_COMMITTED:
            return Limit.LAST_STABLE_OFFSET
        return Limit.HIGH_WATERMARK

    def _list_items(self) -> list[tuple[Any, Any]]:
        if self.session is not None:
            return [(partition.topic, partition.asked) for partition in self.session.partitions.values()]
        return self._named()

    def _named(self) -> list[tuple[Any, Any]]:
        """The partitions that the request names."""
        if self.context.api_version >= TOPIC_IDS_SINCE:
            return [(topic.topic_id, asked) for topic in self.request.topics for asked in topic.partitions]
        return [(topic.topic, asked) for topic in self.request.topics for asked in topic.partitions]

    # -- can it be answered? --

    def is_ready(self) -> bool:
        """Whether to answer now: enough bytes, no partitions, or an error to report."""
        min_bytes = self.min_bytes
        if min_bytes <= 0 or not self.items:
            return True
        for topic, asked in self.items:
            hosted = self.topics.get(topic)
            replica = None if hosted is None else hosted.replicas.get(asked.partition)
            if replica is None or not (replica.is_leader or self.reads_followers):
                return True
            if self.readable is not None and not self._may_read(topic, self.readable):
                return True
            offset = asked.fetch_offset
            if self.rack and self._preferred(replica, offset) != LEADER:
                return True
            end = self._end(replica)
            if offset < end:
                # One byte or an error is enough for an answer.
                if min_bytes == 1:
                    return True
                try:
                    self.available_bytes += self._readable_bytes(replica, asked, end)
                except KafkaError:
                    return True
                if self.available_bytes >= min_bytes:
                    return True
            elif offset > replica.log.log_end_offset:
                return True
            epoch = asked.current_leader_epoch
            if (epoch != replica.leader_epoch and epoch != -1) or asked.last_fetched_epoch >= 0:
                try:
                    if self._diverging_epoch(replica, asked) is not None:
                        return True
                except KafkaError:
                    return True
            self.found.append(replica)
        return False

    def _readable_bytes(self, replica: Replica, asked: Any, end: int) -> int:
        if asked.fetch_offset < replica.log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        readable = replica.log.size_between(asked.fetch_offset, end)
        size: int = min(readable, max(asked.partition_max_bytes, 1))
        return size

    def _end(self, replica: Replica) -> int:
        """The end offset for this reader."""
        if self.limit is Limit.HIGH_WATERMARK:
            return replica.log.high_watermark
        if self.limit is Limit.LAST_STABLE_OFFSET:
            return replica.log.last_stable_offset
        return replica.log.log_end_offset

    def _preferred(self, replica: Replica, offset: int) -> int:
        """The follower that the consumer should read from instead (KIP-392)."""
        if not replica.is_leader:
            return LEADER
        return preferred_replica(replica, offset, self.rack, self.context.services.image.brokers)

    def _diverging_epoch(self, replica: Replica, asked: Any) -> FetchResponse.EpochEndOffset | None:
        """Checks the epochs of a reader. Its last records may not be in this log (KIP-595)."""
        replica.check_leader_epoch(asked.current_leader_epoch)
        fetched_epoch = asked.last_fetched_epoch
        if fetched_epoch < 0:
            return None
        log = replica.log
        epoch, end_offset = log.leader_epochs.end_offset_for(fetched_epoch, log.log_end_offset)
        if end_offset < 0 or asked.fetch_offset < log.log_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {asked.fetch_offset} after epoch {fetched_epoch} is not in this log",
            )
        if epoch < fetched_epoch or end_offset < asked.fetch_offset:
            return FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return None

    # -- waiting --

    def wait(self, wait: FetchWait) -> None:
        """Completes `wait` when enough bytes are available, or at the timeout."""
        self.replicas.waits.wait_for_bytes(wait, self.found, self.limit, self.request.max_wait_ms)

    def end_wait(self, wait: FetchWait) -> None:
        self.replicas.waits.end_wait(wait)

    # -- the answer --

    def respond(self) -> FetchResponse:
        session, version = self.session, self.context.api_version
        remaining, has_data = self.max_bytes, False
        response = FetchResponse()
        answered: list[SessionPartition] | None = None
        if session is not None:
            response.session_id = session.session_id
        elif version >= 7 and self.request.session_epoch == INITIAL_EPOCH:
            answered = []
        topics = response.responses
        for topic, asked in self.items:
            if session is not None and self._is_known(session, topic, asked):
                continue
            try:
                data = self._read(topic, asked, remaining, has_data)
            except KafkaError as error:
                data = self._failure(response, topic, asked, error)
            size = len(data.records)  # type: ignore[arg-type]
            if size:
                remaining, has_data = remaining - size, True
            if session is not None:
                partition = session.partitions.get((topic, asked.partition))
                if partition is not None:
                    if not partition.answered(data):
                        continue
                    if size:
                        session.serve_last(partition)
            elif answered is not None:
                remembered = SessionPartition(topic, asked)
                remembered.answered(data)
                answered.append(remembered)
            self._add_to_topics(topics, topic, data)
        if answered is not None:
            services = self.context.services
            response.session_id = services.sessions.create(
                answered,
                uses_topic_ids=version >= TOPIC_IDS_SINCE,
                is_follower=False,
                monotonic_ms=services.monotonic(),
            )
        return response

    def _add_to_topics(self, topics: list[TopicData], topic: Any, data: PartitionData) -> None:
        """Adds a partition to the answer. A session is not ordered by topic, so a topic may occur more than once."""
        by_id = self.context.api_version >= TOPIC_IDS_SINCE
        if topics and (topics[-1].topic_id if by_id else topics[-1].topic) == topic:
            topics[-1].partitions.append(data)
        elif by_id:
            topics.append(TopicData(topic_id=topic, partitions=[data]))
        else:
            topics.append(TopicData(topic=topic, partitions=[data]))

    def _is_known(self, session: FetchSession, topic: Any, asked: Any) -> bool:
        """Whether the answer for a partition would contain nothing new, as for most partitions of a large session.

        Only a shortcut: `_read` and `SessionPartition.answered` have the same result, in four times the time.
        """
        partition = session.partitions.get((topic, asked.partition))
        hosted = self.topics.get(topic)
        if partition is None or hosted is None or self.rack or self.readable is not None:
            return False
        replica = hosted.replicas.get(asked.partition)
        if replica is None or not replica.is_leader or asked.last_fetched_epoch >= 0:
            return False
        log, offset = replica.log, asked.fetch_offset
        return (
            asked.current_leader_epoch in (-1, replica.leader_epoch)
            and self._end(replica) <= offset <= log.log_end_offset
            and partition.log_start_offset == log.log_start_offset <= offset
            and partition.high_watermark == log.high_watermark  # the last stable offset moves with it
        )

    def _read(self, topic: Any, asked: Any, remaining: int, has_data: bool) -> PartitionData:
        if self.readable is not None and not self._may_read(topic, self.readable):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        hosted = self.topics.get(topic)
        replica = None if hosted is None else hosted.replicas.get(asked.partition)
        if replica is None or not (replica.is_leader or self.reads_followers):
            raise self._not_leading(topic, asked.partition)
        diverging = None
        epoch = asked.current_leader_epoch
        if (epoch != replica.leader_epoch and epoch != -1) or asked.last_fetched_epoch >= 0:
            diverging = self._diverging_epoch(replica, asked)
        log = replica.log
        if self.context.api_version < 10 and log.config.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd requires Fetch version 10")
        offset = asked.fetch_offset
        # A reader whose log has diverged gets the point of divergence, not OFFSET_OUT_OF_RANGE.
        if diverging is None and not log.log_start_offset <= offset <= log.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not between {log.log_start_offset} and {log.log_end_offset}",
            )
        preferred = self._preferred(replica, offset) if self.rack else LEADER
        end = self._end(replica)
        records: bytes | FileRecords = b""
        if diverging is None and offset < end and preferred == LEADER:
            size = asked.partition_max_bytes
            if size > remaining:
                size = remaining
            if size > 0 or not has_data:
                # The first partition with data gets at least one batch, however large, so that readers make progress.
                records = log.find_records(
                    offset,
                    max(size, 0),
                    upper_bound=end,
                    minimum_one_batch=not has_data,
                    inline_bytes=self.inline_bytes,
                )
                if isinstance(records, bytes):
                    self.inline_bytes -= len(records)
        data = PartitionData(
            partition_index=asked.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=None,
            preferred_read_replica=preferred,
            records=records,  # type: ignore[arg-type]  # what stays in its file is encoded as a separate part
        )
        if diverging is not None:
            data.diverging_epoch = diverging
        if self.limit is Limit.LAST_STABLE_OFFSET:
            data.aborted_transactions = _aborted(replica, offset, end, records)
        return data

    def _not_leading(self, topic: Any, partition: int) -> KafkaError:
        if self.context.api_version >= TOPIC_IDS_SINCE:
            name = self.context.services.image.topic_names.get(topic)
            if name is None:
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {uuid_to_text(topic)}")
            topic = name
        return self.replicas.not_leading(topic, partition)

    def _failure(self, response: FetchResponse, topic: Any, asked: Any, error: KafkaError) -> PartitionData:
        version, code = self.context.api_version, error.code
        if code is ErrorCode.KAFKA_STORAGE_ERROR and version < 6:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = PartitionData(
            partition_index=asked.partition,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=[] if code in _BEFORE_READING else None,
            records=b"",
        )
        if version >= 16 and code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            image = self.context.services.image
            leader = current_leader(image, image.topic_names.get(topic, ""), asked.partition, self.context.listener)
            data.current_leader = FetchResponse.LeaderIdAndEpoch(
                leader_id=leader.leader_id, leader_epoch=leader.leader_epoch
            )
            if leader.is_reachable and all(node.node_id != leader.leader_id for node in response.node_endpoints):
                response.node_endpoints.append(
                    FetchResponse.NodeEndpoint(
                        node_id=leader.leader_id, host=leader.host, port=leader.port, rack=leader.rack
                    )
                )
        return data


def _aborted(
    replica: Replica, offset: int, end: int, records: bytes | FileRecords
) -> list[FetchResponse.AbortedTransaction]:
    """The aborted transactions that a reader of `records` must skip."""
    if not records:
        return []
    aborted = replica.log.aborted_transactions(offset, end)
    if isinstance(records, FileRecords):
        end = records.next_offset
    elif aborted:
        for _, header in iter_batches(records):
            end = header.next_offset
    return [
        FetchResponse.AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
        for entry in aborted
        if entry.first_offset < end
    ]
