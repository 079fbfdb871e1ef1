"""AlterPartitionReassignments v0-1: moves partitions to other brokers, or cancels that (KIP-455).

v1   whether the replication factor may change (KIP-860)
"""

from itertools import groupby

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.deadline import within
from ottla.broker.services import Context
from ottla.metadata.changes.reassignments import Reassignment
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from ottla.security.resources import CLUSTER, Operation
from ottla.types import TopicPartition


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, context: Context
) -> AlterPartitionReassignmentsResponse:
    context.require(Operation.ALTER, CLUSTER)
    wanted = [
        Reassignment(TopicPartition(topic.name, partition.partition_index), partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    altering = context.services.metadata.changes.alter_partition_reassignments(
        wanted, allow_replication_factor_change=request.allow_replication_factor_change, by=context.requester
    )
    results = await within(request.timeout_ms, altering)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic,
                partitions=[
                    AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                        partition_index=result.topic_partition.partition,
                        error_code=result.error,
                        error_message=result.message,
                    )
                    for result in group
                ],
            )
            for topic, group in groupby(results, key=lambda result: result.topic_partition.topic)
        ],
    )
