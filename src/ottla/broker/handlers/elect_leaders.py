"""ElectLeaders v0-2: makes preferred replicas leaders again, or elects out-of-sync ones (KIP-183, KIP-460).

v1   election type: preferred or unclean
v2   flexible (KIP-482)
"""

from itertools import groupby

from ottla.broker.dispatch import handles
from ottla.broker.handler_support.deadline import within
from ottla.broker.services import Context
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.controller.elections import ElectionType
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from ottla.security.resources import CLUSTER, Operation
from ottla.types import TopicPartition


@handles(ApiKey.ELECT_LEADERS)
async def elect_leaders(request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
    context.require(Operation.ALTER, CLUSTER)
    if request.election_type not in set(ElectionType):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    metadata = context.services.metadata
    wanted = request.topic_partitions
    if wanted is None:
        partitions = [
            TopicPartition(topic.name, partition.index)
            for topic in metadata.image.topics.values()
            for partition in topic.partitions
        ]
    else:
        partitions = [TopicPartition(each.topic, index) for each in wanted for index in each.partitions]
    electing = metadata.changes.elect_leaders(ElectionType(request.election_type), partitions)
    results = await within(request.timeout_ms, electing)
    if wanted is None:
        # A request for all partitions reports only those that needed an election.
        results = [result for result in results if result.error != ErrorCode.ELECTION_NOT_NEEDED]
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic,
                partition_result=[
                    ElectLeadersResponse.PartitionResult(
                        partition_id=result.topic_partition.partition,
                        error_code=result.error,
                        error_message=result.message,
                    )
                    for result in group
                ],
            )
            for topic, group in groupby(results, key=lambda result: result.topic_partition.topic)
        ]
    )
