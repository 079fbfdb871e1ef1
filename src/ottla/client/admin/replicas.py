"""Admin calls about replicas: leader elections, reassignments, the controller's quorum, removing a broker."""

from collections.abc import Iterable, Sequence

from ottla.checks import require_number
from ottla.client.admin.requests import ask, fixed, retrying
from ottla.client.core.arguments import ByPartition, PartitionLike, as_partitions, by_partition
from ottla.client.core.model import QuorumDescription, Reassignment
from ottla.client.core.network import Network
from ottla.client.core.polling import CONTROLLER
from ottla.errors import ArgumentError, ErrorCode, KafkaError, raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.types import METADATA_TOPIC, TopicPartition, partitions_by_topic

PREFERRED, UNCLEAN = 0, 1


async def elect_leaders(
    network: Network, partitions: Iterable[PartitionLike] | None, *, unclean: bool = False
) -> dict[TopicPartition, KafkaError | None]:
    chosen = None if partitions is None else as_partitions(partitions)
    if chosen is None and unclean:
        raise ArgumentError("an unclean election needs partitions", "Name those whose records may be lost.")

    def build(version: int) -> ElectLeadersRequest:
        if unclean and version < 1:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker supports no unclean elections (KIP-460)")
        request = ElectLeadersRequest(topic_partitions=None, timeout_ms=network.config.request_timeout_ms)
        if version >= 1:
            request.election_type = UNCLEAN if unclean else PREFERRED
        if chosen is not None:
            request.topic_partitions = [
                ElectLeadersRequest.TopicPartitions(topic=topic, partitions=indexes)
                for topic, indexes in partitions_by_topic(chosen).items()
            ]
        return request

    async def attempt() -> dict[TopicPartition, KafkaError | None]:
        response = await ask(network, ApiKey.ELECT_LEADERS, build, CONTROLLER)
        raise_for(response.error_code, "electing leaders")
        results: dict[TopicPartition, KafkaError | None] = {}
        for topic in response.replica_election_results:
            for result in topic.partition_result:
                partition = TopicPartition(topic.topic, result.partition_id)
                if result.error_code == ErrorCode.NONE:
                    results[partition] = None
                elif result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    code = ErrorCode(result.error_code)
                    results[partition] = KafkaError(code, result.error_message or f"electing a leader of {partition}")
        return results

    return await retrying(network, attempt)


async def alter_partition_reassignments(
    network: Network, replicas: ByPartition[Sequence[int] | None], *, allow_replication_factor_change: bool = True
) -> None:
    asked = by_partition(replicas, "replicas", '{("orders", 0): [1, 2, 3]}')
    for partition, brokers in asked.items():
        for broker in brokers or ():
            require_number(broker, f"a replica of {partition}", at_least=0)

    def build(version: int) -> AlterPartitionReassignmentsRequest:
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=network.config.request_timeout_ms,
            topics=[
                AlterPartitionReassignmentsRequest.ReassignableTopic(
                    name=topic,
                    partitions=[
                        AlterPartitionReassignmentsRequest.ReassignablePartition(
                            partition_index=index,
                            replicas=None
                            if (brokers := asked[TopicPartition(topic, index)]) is None
                            else list(brokers),
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in partitions_by_topic(asked).items()
            ],
        )
        if not allow_replication_factor_change:
            if version < 1:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION, "the broker cannot check the replication factor (KIP-860)"
                )
            request.allow_replication_factor_change = False
        return request

    async def attempt() -> None:
        response = await ask(network, ApiKey.ALTER_PARTITION_REASSIGNMENTS, build, CONTROLLER)
        raise_for(response.error_code, "reassigning partitions", response.error_message)
        for topic in response.responses:
            for result in topic.partitions:
                doing = f"reassigning {topic.name}-{result.partition_index}"
                raise_for(result.error_code, doing, result.error_message)

    await retrying(network, attempt)


async def list_partition_reassignments(
    network: Network, partitions: Iterable[PartitionLike] | None = None
) -> dict[TopicPartition, Reassignment]:
    message = ListPartitionReassignmentsRequest(timeout_ms=network.config.request_timeout_ms)
    if partitions is not None:
        message.topics = [
            ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in partitions_by_topic(as_partitions(partitions)).items()
        ]

    async def attempt() -> dict[TopicPartition, Reassignment]:
        response = await ask(network, ApiKey.LIST_PARTITION_REASSIGNMENTS, fixed(message), CONTROLLER)
        raise_for(response.error_code, "listing reassignments", response.error_message)
        return {
            TopicPartition(topic.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in response.topics
            for p in topic.partitions
        }

    return await retrying(network, attempt)


async def describe_quorum(network: Network) -> QuorumDescription:
    asked = DescribeQuorumRequest.TopicData(
        topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)]
    )

    async def attempt() -> QuorumDescription:
        response = await ask(network, ApiKey.DESCRIBE_QUORUM, fixed(DescribeQuorumRequest(topics=[asked])))
        raise_for(response.error_code, "describing the quorum", response.error_message)
        (found,) = response.topics[0].partitions
        raise_for(found.error_code, "describing the quorum", found.error_message)
        return QuorumDescription(
            found.leader_id,
            found.leader_epoch,
            found.high_watermark,
            tuple(voter.replica_id for voter in found.current_voters),
        )

    return await retrying(network, attempt)


async def unregister_broker(network: Network, broker_id: int) -> None:
    message = UnregisterBrokerRequest(broker_id=require_number(broker_id, "broker_id", at_least=0))

    async def attempt() -> None:
        response = await ask(network, ApiKey.UNREGISTER_BROKER, fixed(message), CONTROLLER)
        raise_for(response.error_code, f"removing broker {broker_id}", response.error_message)

    await retrying(network, attempt)
