"""DeleteRecords v0-2: moves the start of a log forward; -1 means up to the high watermark (KIP-107).

v2   flexible (KIP-482)

The response has the low watermark: the smallest log start offset of any live replica. It is sent when that has reached
the requested offset, so that no replica can show the deleted records again.
"""

import asyncio

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from ottla.replication.replica import Replica
from ottla.security.resources import Operation, ResourceType
from ottla.types import INTERNAL_TOPICS, TopicPartition

PartitionResult = DeleteRecordsResponse.DeleteRecordsPartitionResult


@handles(ApiKey.DELETE_RECORDS)
def delete_records(
    request: DeleteRecordsRequest, context: Context
) -> "DeleteRecordsResponse | asyncio.Future[DeleteRecordsResponse]":
    replicas = context.services.replicas
    topics = []
    waiting: list[tuple[Replica, int, PartitionResult]] = []
    deletable = context.allowed(Operation.DELETE, ResourceType.TOPIC)
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = PartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            try:
                if deletable is not None and not deletable[topic.name]:
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                replica = replicas.leader(TopicPartition(topic.name, asked.partition_index))
                if topic.name in INTERNAL_TOPICS:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
                result.low_watermark = replicas.delete_records(replica, asked.offset)
                offset = asked.offset if asked.offset >= 0 else replica.log.high_watermark
                if result.low_watermark < offset:
                    waiting.append((replica, offset, result))
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=results))
    response = DeleteRecordsResponse(topics=topics)
    return _when_deleted(response, waiting, request.timeout_ms, context) if waiting else response


def _when_deleted(
    response: DeleteRecordsResponse,
    waiting: list[tuple[Replica, int, PartitionResult]],
    timeout_ms: int,
    context: Context,
) -> "asyncio.Future[DeleteRecordsResponse]":
    """The response, once every live replica has deleted the records, or at the timeout."""
    future: asyncio.Future[DeleteRecordsResponse] = asyncio.get_running_loop().create_future()

    def reply(codes: list[ErrorCode]) -> None:
        if future.done():
            return
        for (replica, _, result), code in zip(waiting, codes, strict=True):
            result.error_code = code
            result.low_watermark = -1
            if code is ErrorCode.NONE:
                result.low_watermark = replica.low_watermark(replica.log.log_start_offset)
        future.set_result(response)

    context.services.replicas.waits.when_deleted(
        [(replica, offset) for replica, offset, _ in waiting], timeout_ms, reply
    )
    return future
