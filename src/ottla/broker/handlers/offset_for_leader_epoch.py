"""OffsetForLeaderEpoch v2-4: the end offset of a leader epoch, to detect that logs have diverged (KIP-101, KIP-320).

v3   replica id
v4   flexible (KIP-482)
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from ottla.security.resources import CLUSTER, Operation, ResourceType
from ottla.types import TopicPartition


@handles(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, context: Context) -> OffsetForLeaderEpochResponse:
    replicas = context.services.replicas
    topics = []
    describable = None
    if not context.allows(Operation.CLUSTER_ACTION, CLUSTER, quietly=True):
        describable = context.allowed(Operation.DESCRIBE, ResourceType.TOPIC)
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer = OffsetForLeaderEpochResponse.EpochEndOffset(partition=asked.partition)
            try:
                if describable is not None and not describable[topic.topic]:
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                replica = replicas.leader(TopicPartition(topic.topic, asked.partition))
                replica.check_leader_epoch(asked.current_leader_epoch)
                log = replica.log
                answer.leader_epoch, answer.end_offset = log.leader_epochs.end_offset_for(
                    asked.leader_epoch, log.log_end_offset
                )
            except KafkaError as error:
                answer.error_code = error.code
            answers.append(answer)
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)
