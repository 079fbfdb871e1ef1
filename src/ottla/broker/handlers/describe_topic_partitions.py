"""DescribeTopicPartitions v0: describes topics page by page, sorted by name; a cursor marks the next page (KIP-966)."""

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.authorized_operations import authorized_operations
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.topic_changes import missing_topic_error
from ottla.metadata.image import ClusterImage, PartitionImage
from ottla.metadata.records import NO_LEADER
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from ottla.security.resources import Operation, Resource, ResourceType
from ottla.types import INTERNAL_TOPICS

Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
Partition = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: Context
) -> DescribeTopicPartitionsResponse:
    image = context.services.image
    first_topic, first_partition = _start(request)
    names = {topic.name for topic in request.topics} or image.topics.keys()
    room = max(1, min(request.response_partition_limit, context.services.config.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse()
    describable = context.allowed(Operation.DESCRIBE, ResourceType.TOPIC, quietly=not request.topics)
    refused = [] if describable is None else [name for name in names if not describable[name] and name >= first_topic]
    for name in sorted(name for name in names if name >= first_topic):
        if describable is not None and not describable[name]:
            continue
        topic = image.topics.get(name)
        if topic is None:
            if request.topics:
                response.topics.append(_unknown(name, context))
            continue
        start = first_partition if name == first_topic else 0
        if room == 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=start)
            break
        shown = topic.partitions[start : start + room]
        response.topics.append(
            Topic(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[_partition(partition, image, context.listener) for partition in shown],
                topic_authorized_operations=authorized_operations(context, Resource(ResourceType.TOPIC, name)),
            )
        )
        room -= len(shown)
        if start + len(shown) < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=start + len(shown)
            )
            break
    if request.topics:
        # Does not reveal whether such a topic exists.
        response.topics += [Topic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name) for name in refused]
    return response


def _start(request: DescribeTopicPartitionsRequest) -> tuple[str, int]:
    cursor = request.cursor
    if cursor is None:
        return "", 0
    if request.topics and cursor.topic_name not in {topic.name for topic in request.topics}:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"The topic list should contain the cursor topic: {cursor.topic_name}"
        )
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The cursor's partition must be valid: {cursor.partition_index}")
    return cursor.topic_name, cursor.partition_index


def _unknown(name: str, context: Context) -> Topic:
    return Topic(
        error_code=missing_topic_error(name),
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=authorized_operations(context, Resource(ResourceType.TOPIC, name)),
    )


def _partition(partition: PartitionImage, image: ClusterImage, listener: str) -> Partition:
    leader, error = partition.leader, ErrorCode.NONE
    broker = image.brokers.get(leader)
    if broker is None or listener not in broker.endpoints:
        error = ErrorCode.LEADER_NOT_AVAILABLE if broker is None else ErrorCode.LISTENER_NOT_FOUND
        leader = NO_LEADER
    return Partition(
        error_code=error,
        partition_index=partition.index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=[replica.broker_id for replica in partition.recovering],
        offline_replicas=[replica for replica in partition.replicas if replica not in image.brokers],
    )
