"""DescribeQuorum v0-2: the brokers as the quorum of the cluster's metadata (KIP-595, KIP-836, KIP-853).

There is no Raft quorum: every broker can change the metadata store. Tools see each broker as a voter that has every
change, the controller as leader, and the store's revision as end of the log.
"""

from ottla.broker.dispatch import handles
from ottla.broker.services import Context
from ottla.errors import ErrorCode
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from ottla.security.resources import CLUSTER, Operation
from ottla.types import METADATA_TOPIC


@handles(ApiKey.DESCRIBE_QUORUM)
def describe_quorum(request: DescribeQuorumRequest, context: Context) -> DescribeQuorumResponse:
    context.require(Operation.DESCRIBE, CLUSTER)
    image = context.services.image
    return DescribeQuorumResponse(
        error_message=None,
        topics=[
            DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _partition(context, topic.topic_name, partition.partition_index) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=[
            DescribeQuorumResponse.Node(
                node_id=broker.broker_id,
                listeners=[
                    DescribeQuorumResponse.Listener(name=name, host=endpoint.host, port=endpoint.port)
                    for name, endpoint in broker.endpoints.items()
                ],
            )
            for broker in image.brokers.values()
            if context.api_version >= 2
        ],
    )


def _partition(context: Context, topic: str, index: int) -> DescribeQuorumResponse.PartitionData:
    if (topic, index) != (METADATA_TOPIC, 0):
        return DescribeQuorumResponse.PartitionData(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"Only {METADATA_TOPIC}-0 has a quorum.",
        )
    image, now = context.services.image, context.services.clock()
    return DescribeQuorumResponse.PartitionData(
        partition_index=index,
        error_message=None,
        leader_id=image.shown_controller_id,
        leader_epoch=image.controller_epoch,
        high_watermark=image.version,
        current_voters=[
            DescribeQuorumResponse.ReplicaState(
                replica_id=broker_id,
                log_end_offset=image.version,
                last_fetch_timestamp=now,
                last_caught_up_timestamp=now,
            )
            for broker_id in sorted(image.brokers)
        ],
    )
