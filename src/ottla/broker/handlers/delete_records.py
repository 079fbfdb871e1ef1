"""DeleteRecords v0-2: moves the start of a log forward; -1 means up to the high watermark (KIP-107).

v2   flexible (KIP-482)

The response has the low watermark: the smallest log start offset of any replica.
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from ottla.types import INTERNAL_TOPICS, TopicPartition

PartitionResult = DeleteRecordsResponse.DeleteRecordsPartitionResult


@handles(ApiKey.DELETE_RECORDS)
def delete_records(request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
    replicas = context.services.replicas
    topics = []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            result = PartitionResult(partition_index=asked.partition_index, low_watermark=-1)
            try:
                replica = replicas.leader(TopicPartition(topic.name, asked.partition_index))
                if topic.name in INTERNAL_TOPICS:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
                result.low_watermark = replicas.delete_records(replica, asked.offset)
            except KafkaError as error:
                result.error_code = error.code
            results.append(result)
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)
