"""DescribeProducers v0: the idempotent and transactional producers of partitions that this broker leads (KIP-664)."""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.log.producers.producer_state import ProducerEntry
from ottla.metadata.changes.topic_changes import check_topic_name
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from ottla.security.resources import Operation, ResourceType
from ottla.types import TopicPartition

PartitionAnswer = DescribeProducersResponse.PartitionResponse


@handles(ApiKey.DESCRIBE_PRODUCERS)
def describe_producers(request: DescribeProducersRequest, context: Context) -> DescribeProducersResponse:
    replicas = context.services.replicas
    topics = []
    readable = context.allowed(Operation.READ, ResourceType.TOPIC)
    for topic in request.topics:
        answers = []
        for index in topic.partition_indexes:
            answer = PartitionAnswer(partition_index=index)
            try:
                check_topic_name(topic.name)
                if readable is not None and not readable[topic.name]:
                    raise KafkaError(
                        ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.principal} may not READ the topic {topic.name}"
                    )
                replica = replicas.leader(TopicPartition(topic.name, index))
                answer.active_producers = [_describe(entry) for entry in replica.log.producers.entries()]
            except KafkaError as error:
                answer.error_code, answer.error_message = error.code, error.detail or None
            answers.append(answer)
        topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=answers))
    return DescribeProducersResponse(topics=topics)


def _describe(entry: ProducerEntry) -> DescribeProducersResponse.ProducerState:
    first_offset = entry.transaction_first_offset
    return DescribeProducersResponse.ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=-1 if first_offset is None else first_offset,
    )
