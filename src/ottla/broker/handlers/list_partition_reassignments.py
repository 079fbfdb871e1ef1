"""ListPartitionReassignments v0: the partitions that are being moved to other brokers (KIP-455)."""

from itertools import groupby

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.metadata.changes.reassignments import reassigning
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.security.resources import CLUSTER, Operation


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS)
def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, context: Context
) -> ListPartitionReassignmentsResponse:
    context.require(Operation.DESCRIBE, CLUSTER)
    wanted = None
    if request.topics is not None:
        wanted = {(topic.name, index) for topic in request.topics for index in topic.partition_indexes}
    found = [
        (topic.name, partition)
        for topic, partition in reassigning(context.services.image)
        if wanted is None or (topic.name, partition.index) in wanted
    ]
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[
            ListPartitionReassignmentsResponse.OngoingTopicReassignment(
                name=name,
                partitions=[
                    ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                        partition_index=partition.index,
                        replicas=list(partition.replicas),
                        adding_replicas=list(partition.adding),
                        removing_replicas=list(partition.removing),
                    )
                    for _, partition in group
                ],
            )
            for name, group in groupby(found, key=lambda each: each[0])
        ],
    )
