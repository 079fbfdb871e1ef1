"""The APIs that operate a cluster, in every version, encoded and decoded as on the wire. Spec: B10."""

from collections.abc import Iterator

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from ottla.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tests.support.worlds.admin_world import AdminWorld

PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
def world() -> Iterator[AdminWorld]:
    """Three brokers, and a topic `t` whose only partition is on brokers 0 and 1."""
    with AdminWorld() as world:
        world.add_broker(1)
        world.add_broker(2)
        (result,) = world.runner.run(
            world.services.metadata.changes.create_topics([NewTopic("t", assignments=[(0, (0, 1))])])
        )
        assert result.error == ErrorCode.NONE
        yield world


# ElectLeaders


def elect(
    world: AdminWorld, version: int, election_type: int, *partitions: tuple[str, int], every: bool = False
) -> dict[tuple[str, int], int]:
    wanted = [ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[index]) for topic, index in partitions]
    request = ElectLeadersRequest(topic_partitions=None if every else wanted)
    if version:
        request.election_type = election_type
    response = world.ask(request, version)
    assert response.error_code == ErrorCode.NONE
    return {
        (result.topic, partition.partition_id): partition.error_code
        for result in response.replica_election_results
        for partition in result.partition_result
    }


@pytest.mark.parametrize("version", range(3))
def test_elect_leaders_in_every_version(world: AdminWorld, version: int) -> None:
    assert elect(world, version, PREFERRED, ("t", 0), ("u", 0), ("t", 9)) == {
        ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert elect(world, version, PREFERRED, every=True) == {}, "partitions that need no election are not listed"


def test_an_unclean_election_elects_a_leader_for_a_partition_without_one(world: AdminWorld) -> None:
    world.remove_broker(1)
    assert world.services.image.topics["t"].partitions[0].isr == (0,)
    third = world.add_broker(3)
    world.remove_broker(0)
    assert third.image.topics["t"].partitions[0].leader == -1
    world.services = third
    world.add_broker(1)
    assert third.image.topics["t"].partitions[0].leader == -1, "broker 1 was not in sync"
    assert elect(world, 2, PREFERRED, ("t", 0)) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert elect(world, 2, UNCLEAN, every=True) == {("t", 0): ErrorCode.NONE}
    assert third.image.topics["t"].partitions[0].leader == 1


def test_an_unknown_election_type_is_rejected(world: AdminWorld) -> None:
    with pytest.raises(KafkaError) as caught:
        elect(world, 2, 7, ("t", 0))
    assert caught.value.code == ErrorCode.INVALID_REQUEST


# Reassignments


@pytest.mark.parametrize("version", range(2))
def test_alter_partition_reassignments_in_every_version(world: AdminWorld, version: int) -> None:
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition

    def alter(name: str, replicas: list[int] | None) -> tuple[int, str | None]:
        request = AlterPartitionReassignmentsRequest(
            topics=[topic(name=name, partitions=[partition(partition_index=0, replicas=replicas)])]
        )
        response = world.ask(request, version)
        assert (response.error_code, response.responses[0].name) == (ErrorCode.NONE, name)
        (result,) = response.responses[0].partitions
        return result.error_code, result.error_message

    def moving() -> list[tuple[int, list[int], list[int], list[int]]]:
        response = world.ask(ListPartitionReassignmentsRequest(topics=None), 0)
        return [
            (each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
            for found in response.topics
            for each in found.partitions
        ]

    assert alter("t", None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert alter("u", [0])[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    code, message = alter("t", [0, 9])
    assert (code, "broker 9" in (message or "")) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, True)
    assert alter("t", [2, 1]) == (ErrorCode.NONE, None)
    assert moving() == [(0, [2, 1, 0], [2], [0])]
    named = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    request = ListPartitionReassignmentsRequest(topics=[named(name="t", partition_indexes=[1])])
    assert world.ask(request, 0).topics == []
    assert alter("t", None) == (ErrorCode.NONE, None)
    assert moving() == []


def test_the_replication_factor_is_kept_if_the_request_says_so(world: AdminWorld) -> None:
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=False,
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(
                name="t",
                partitions=[
                    AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[0, 1, 2])
                ],
            )
        ],
    )
    (result,) = world.ask(request, 1).responses[0].partitions
    assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


# Brokers


def test_a_stopped_broker_is_fenced_until_it_is_unregistered(world: AdminWorld) -> None:
    def brokers(*, fenced: bool) -> dict[int, bool]:
        response = world.ask(DescribeClusterRequest(include_fenced_brokers=fenced), 2)
        return {broker.broker_id: broker.is_fenced for broker in response.brokers}

    with pytest.raises(KafkaError, match="is running") as caught:
        world.ask(UnregisterBrokerRequest(broker_id=2), 0)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    world.remove_broker(2)
    assert brokers(fenced=False) == {0: False, 1: False}
    assert brokers(fenced=True) == {0: False, 1: False, 2: True}
    assert world.ask(UnregisterBrokerRequest(broker_id=2), 0).error_code == ErrorCode.NONE
    assert brokers(fenced=True) == {0: False, 1: False}
    with pytest.raises(KafkaError) as caught:
        world.ask(UnregisterBrokerRequest(broker_id=2), 0)
    assert caught.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("version", range(3))
def test_describe_quorum_shows_the_controller_as_leader(world: AdminWorld, version: int) -> None:
    world.services.clock = lambda: 1234
    topic, partition = DescribeQuorumRequest.TopicData, DescribeQuorumRequest.PartitionData
    request = DescribeQuorumRequest(
        topics=[
            topic(topic_name="__cluster_metadata", partitions=[partition(partition_index=0)]),
            topic(topic_name="t", partitions=[partition(partition_index=0)]),
        ]
    )
    response = world.ask(request, version)
    assert response.error_code == ErrorCode.NONE
    quorum, other = (each.partitions[0] for each in response.topics)
    assert (quorum.error_code, quorum.leader_id, quorum.leader_epoch) == (ErrorCode.NONE, 0, 1)
    assert quorum.high_watermark > 0
    assert [voter.replica_id for voter in quorum.current_voters] == [0, 1, 2]
    assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= 2:
        assert [node.node_id for node in response.nodes] == [0, 1, 2]


@pytest.mark.parametrize("version", range(1, 3))
def test_replicas_are_not_moved_to_another_directory(
    world: AdminWorld, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    own = world.services.config.log_dirs[0]
    directory, topic = AlterReplicaLogDirsRequest.AlterReplicaLogDir, AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
    request = AlterReplicaLogDirsRequest(
        dirs=[
            directory(path="/elsewhere", topics=[topic(name="t", partitions=[0])]),
            directory(path=own, topics=[topic(name="t", partitions=[1])]),
        ]
    )
    (result,) = world.ask(request, version).results
    assert {each.partition_index: each.error_code for each in result.partitions} == {
        0: ErrorCode.LOG_DIR_NOT_FOUND,
        1: ErrorCode.NONE,
    }
    assert "a broker has one directory" in caplog.text
