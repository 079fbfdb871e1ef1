"""ListOffsets v1-11: offsets by timestamp, and the first and last offset of a log.

v2   isolation level (KIP-98)
v4   leader epoch (KIP-320)
v5   OFFSET_NOT_AVAILABLE (KIP-207); earlier versions get LEADER_NOT_AVAILABLE
v6   flexible (KIP-482)
v7   timestamp -3: the record with the largest timestamp (KIP-734)
v8   timestamp -4: the first local offset (KIP-405), here the start of the log
v9   timestamp -5: the last tiered offset (KIP-1005), here none
v10  a timeout for remote lookups (KIP-1075); ignored
v11  timestamp -6: the first offset not uploaded yet (KIP-1023), here none
"""

import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any, NamedTuple

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.log.segments.time_search import LargeBatch, TimeSearch
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.protocol.wire_values import EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED
from ottla.replication.replica import Replica
from ottla.security.resources import Operation, ResourceType
from ottla.types import TopicPartition

log = logging.getLogger("ottla.broker")

PartitionAnswer = ListOffsetsResponse.ListOffsetsPartitionResponse
Asked = ListOffsetsRequest.ListOffsetsPartition

LARGE_BATCHES_MAX = 100
"""How many large compressed batches are searched for one partition; usually it is one."""

EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

CONSUMER = -1
DEBUGGING_CONSUMER = -2


class Found(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


NOTHING = Found(-1, -1, -1)


@handles(ApiKey.LIST_OFFSETS)
def list_offsets(
    request: ListOffsetsRequest, context: Context
) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
    asked_for = Counter((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
    topics = []
    late: list[tuple[str, Asked, PartitionAnswer, LargeBatch]] = []
    describable = context.allowed(Operation.DESCRIBE, ResourceType.TOPIC)
    for topic in request.topics:
        answers = []
        for asked in {each.partition_index: each for each in topic.partitions}.values():
            answer = PartitionAnswer(partition_index=asked.partition_index)
            try:
                if describable is not None and not describable[topic.name]:
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if asked_for[topic.name, asked.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the request has the partition more than once")
                found = _find(request, context, topic.name, asked, None)
            except KafkaError as error:
                _fail(answer, error, context, topic.name)
            except LargeBatch as large:
                late.append((topic.name, asked, answer, large))
            else:
                _fill(answer, found, context)
            answers.append(answer)
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    response = ListOffsetsResponse(topics=topics)
    return _find_later(request, response, late, context) if late else response


async def _find_later(
    request: ListOffsetsRequest,
    response: ListOffsetsResponse,
    late: list[tuple[str, Asked, PartitionAnswer, LargeBatch]],
    context: Context,
) -> ListOffsetsResponse:
    """Searches large compressed batches in a thread. The log may change meanwhile, so each search starts again."""
    in_thread = context.services.replicas.late_appends.in_thread
    for topic, asked, answer, first in late:
        large: LargeBatch | None = first
        try:
            for _ in range(LARGE_BATCHES_MAX):
                if large is None:
                    break
                await in_thread(large.search)
                try:
                    found, large = _find(request, context, topic, asked, large.time_search), None
                except LargeBatch as another:
                    large = another
            if large is not None:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{topic}-{asked.partition_index}: {large}")
        except KafkaError as error:
            _fail(answer, error, context, topic)
        else:
            _fill(answer, found, context)
    return response


def _fill(answer: PartitionAnswer, found: Found, context: Context) -> None:
    answer.offset, answer.timestamp = found.offset, found.timestamp
    if context.api_version >= 4:
        answer.leader_epoch = found.leader_epoch


def _fail(answer: PartitionAnswer, error: KafkaError, context: Context, topic: str) -> None:
    answer.error_code = error.code
    if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and context.api_version < 5:
        answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    elif error.code is ErrorCode.CORRUPT_MESSAGE:
        # The response has no room for the offset.
        log.warning("partition %s-%d: ListOffsets by timestamp failed: %s", topic, answer.partition_index, error.detail)


def _find(request: ListOffsetsRequest, context: Context, topic: str, asked: Asked, search: TimeSearch | None) -> Found:
    """`search` is what an earlier attempt has found."""
    timestamp = asked.timestamp
    if timestamp < 0 and timestamp not in (LATEST, EARLIEST):
        since = SINCE_VERSION.get(timestamp)
        if since is None or context.api_version < since:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"timestamp {timestamp} is not supported in version {context.api_version}",
            )
    replica = _replica(request, context, TopicPartition(topic, asked.partition_index))
    replica.check_leader_epoch(asked.current_leader_epoch)
    partition_log = replica.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return Found(
            partition_log.log_start_offset,
            -1,
            partition_log.leader_epochs.epoch_for_offset(partition_log.log_start_offset),
        )
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    is_client = request.replica_id == CONSUMER
    # A new leader's high watermark may be behind what clients have already seen from its predecessor.
    is_current = not is_client or replica.is_high_watermark_current(partition_log.high_watermark)
    if not is_client:
        end = partition_log.log_end_offset
    elif request.isolation_level == READ_COMMITTED:
        end = partition_log.last_stable_offset
    else:
        end = partition_log.high_watermark
    if timestamp == LATEST:
        if not is_current:
            raise _not_available(replica)
        return Found(end, -1, replica.leader_epoch)
    if search is None:
        search = partition_log.time_search(None if timestamp == MAX_TIMESTAMP else timestamp)
    found = partition_log.search(search, end)
    if found is None:
        if not is_current:
            raise _not_available(replica)
        return NOTHING
    return Found(found.offset, found.timestamp, found.leader_epoch)


def _replica(request: ListOffsetsRequest, context: Context, topic_partition: TopicPartition) -> Replica:
    replicas = context.services.replicas
    if request.replica_id == DEBUGGING_CONSUMER:
        replica = replicas.find(*topic_partition)
        if replica is not None:
            return replica
    return replicas.leader(topic_partition)


def _not_available(replica: Replica) -> KafkaError:
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE,
        f"the new leader of {replica.topic_partition} does not know the high watermark yet",
    )
