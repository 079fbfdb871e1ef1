"""Fetch v4-18: reads stored batches, for consumers and followers; waits for them up to max_wait_ms.

v4   isolation level and aborted transactions (KIP-98)
v5   log start offset
v6   KAFKA_STORAGE_ERROR (KIP-112)
v7   fetch sessions (KIP-227)
v9   current leader epoch (KIP-320)
v10  zstd (KIP-110); earlier versions get UNSUPPORTED_COMPRESSION_TYPE
v11  rack and preferred read replica (KIP-392); here the leader is always preferred
v12  flexible (KIP-482); last fetched and diverging epoch (KIP-595)
v13  topic ids (KIP-516)
v15  replica id in a tagged field, with a replica epoch (KIP-903)
v16  current leader and node endpoints (KIP-951)
v17  directory id (KIP-853); ignored
v18  high watermark of the follower (KIP-1166); ignored

If there is enough data the response is sent at once. Otherwise the fetch registers with each of its partitions for
the bytes it lacks; appends count them, and the data is read once, when the response is due.
"""

import asyncio
from collections.abc import Generator
from typing import Any

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.current_leader import current_leader
from ottla.broker.handler_support.fetch_sessions import INITIAL_EPOCH, NO_SESSION, FetchSession, SessionPartition
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.log.segments.file_records import FileRecords
from ottla.protocol.api import ApiKey
from ottla.protocol.framing import INLINE_RECORDS_BYTES
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.record_batch import iter_batches
from ottla.replication.replica import Replica
from ottla.replication.waiting import FetchWait, Limit

PartitionData = FetchResponse.PartitionData
TopicData = FetchResponse.FetchableTopicResponse

READ_COMMITTED = 1
TOPIC_IDS_SINCE = 13


@handles(ApiKey.FETCH)
def fetch(request: FetchRequest, context: Context) -> "FetchResponse | WaitingFetch":
    session = None
    if request.session_id != NO_SESSION or request.session_epoch > INITIAL_EPOCH:
        services = context.services
        try:
            session = services.sessions.resume(
                request, uses_topic_ids=context.api_version >= TOPIC_IDS_SINCE, monotonic_ms=services.monotonic()
            )
        except KafkaError as error:
            return FetchResponse(error_code=error.code)
    reading = Reading(request, context, session)
    if request.max_wait_ms > 0 and not reading.is_ready():
        return WaitingFetch(reading)
    return reading.respond()


class Reading:
    """One fetch: decides whether it can be answered, and builds the answer."""

    __slots__ = (
        "available_bytes",
        "context",
        "follower_id",
        "found",
        "inline_bytes",
        "items",
        "limit",
        "max_bytes",
        "min_bytes",
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
        """The topics of this broker, by name or id, as the version has it."""
        if version >= TOPIC_IDS_SINCE:
            self.topics = self.replicas.topics_by_id
        else:
            self.topics = self.replicas.topics
        self.follower_id = request.replica_state.replica_id if version >= 15 else request.replica_id
        if self.follower_id >= 0:
            self.limit = Limit.LOG_END
        elif request.isolation_level == READ_COMMITTED:
            self.limit = Limit.LAST_STABLE_OFFSET
        else:
            self.limit = Limit.HIGH_WATERMARK
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
        if session is not None:
            self.items = [(partition.topic, partition.asked) for partition in session.partitions.values()]
        elif version >= TOPIC_IDS_SINCE:
            self.items = [(topic.topic_id, asked) for topic in request.topics for asked in topic.partitions]
        else:
            self.items = [(topic.topic, asked) for topic in request.topics for asked in topic.partitions]
        if self.follower_id >= 0:
            self._note_follower()

    # -- can it be answered? --

    def is_ready(self) -> bool:
        """Whether to answer now: enough bytes, no partitions, or an error to report."""
        min_bytes = self.min_bytes
        if min_bytes <= 0 or not self.items:
            return True
        for topic, asked in self.items:
            hosted = self.topics.get(topic)
            replica = None if hosted is None else hosted.replicas.get(asked.partition)
            if replica is None or not replica.is_leader:
                return True
            offset = asked.fetch_offset
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

    def _note_follower(self) -> None:
        """A follower that fetches from an offset has everything before it: that is how the leader tracks it."""
        for topic, asked in self.items:
            hosted = self.topics.get(topic)
            replica = None if hosted is None else hosted.replicas.get(asked.partition)
            if replica is None or not replica.is_leader or self.follower_id not in replica.followers:
                continue
            try:
                diverging = self._diverging_epoch(replica, asked)
            except KafkaError:
                continue
            if diverging is None and asked.fetch_offset <= replica.log.log_end_offset:
                self.replicas.follower_fetched(replica, self.follower_id, asked.fetch_offset, asked.log_start_offset)

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
        previous: Any = None
        for topic, asked in self.items:
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
            # A session is not ordered by topic, so a topic may occur more than once.
            if topic == previous:
                topics[-1].partitions.append(data)
            elif version >= TOPIC_IDS_SINCE:
                topics.append(TopicData(topic_id=topic, partitions=[data]))
            else:
                topics.append(TopicData(topic=topic, partitions=[data]))
            previous = topic
        if answered is not None:
            services = self.context.services
            response.session_id = services.sessions.create(
                answered,
                uses_topic_ids=version >= TOPIC_IDS_SINCE,
                is_follower=self.follower_id >= 0,
                monotonic_ms=services.monotonic(),
            )
        return response

    def _read(self, topic: Any, asked: Any, remaining: int, has_data: bool) -> PartitionData:
        hosted = self.topics.get(topic)
        replica = None if hosted is None else hosted.replicas.get(asked.partition)
        if replica is None or not replica.is_leader:
            raise self._not_leading(topic, asked.partition)
        diverging = None
        epoch = asked.current_leader_epoch
        if (epoch != replica.leader_epoch and epoch != -1) or asked.last_fetched_epoch >= 0:
            diverging = self._diverging_epoch(replica, asked)
        if self.follower_id >= 0 and self.follower_id not in replica.followers:
            # With equal epochs, this leader may not know its new follower yet.
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER if asked.current_leader_epoch < 0 else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            raise KafkaError(code, f"broker {self.follower_id} is not a replica of {replica.topic_partition}")
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
        end = self._end(replica)
        records: bytes | FileRecords = b""
        if diverging is None and offset < end:
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
            records=records,  # type: ignore[arg-type]  # what stays in its file is encoded as a part of its own
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
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            topic = name
        return self.replicas.not_leading(topic, partition)

    def _failure(self, response: FetchResponse, topic: Any, asked: Any, error: KafkaError) -> PartitionData:
        version, code = self.context.api_version, error.code
        if code is ErrorCode.KAFKA_STORAGE_ERROR and version < 6:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        data = PartitionData(
            partition_index=asked.partition, error_code=code, high_watermark=-1, aborted_transactions=None, records=b""
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


class WaitingFetch:
    """A fetch whose answer waits for bytes. Its data is read only when it is its turn to be answered.

    Dropped unawaited, it leaves its partitions: nothing of a lost connection stays behind.
    """

    __slots__ = ("_enough", "_reading", "_wait")

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait = FetchWait(reading.min_bytes - reading.available_bytes, self._enough)
        reading.replicas.wait_for_bytes(self._wait, reading.found, reading.limit, reading.request.max_wait_ms)

    def __await__(self) -> Generator[Any, None, FetchResponse]:
        try:
            yield from self._enough
        finally:
            self._reading.replicas.end_wait(self._wait)
        return self._reading.respond()

    def __del__(self) -> None:
        self._reading.replicas.end_wait(self._wait)
