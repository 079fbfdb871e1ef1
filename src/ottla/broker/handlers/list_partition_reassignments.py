"""ListPartitionReassignments v0: the partitions that are being moved to other brokers (KIP-455).

Partitions cannot be moved yet, so there are none. Tools ask before they show or change a topic.
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS)
def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, context: Context
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)
