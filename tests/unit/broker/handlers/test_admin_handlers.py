"""The admin APIs in every version, encoded and decoded as on the wire."""

from collections.abc import Iterator

import pytest

from ottla.broker.services import Services
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.update_features import UpdateFeaturesRequest
from ottla.types import ZERO_UUID, Endpoint
from tests.support.worlds.admin_world import AdminWorld

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
CREATE = CreateTopicsRequest.CreatableTopic


@pytest.fixture
def world() -> Iterator[AdminWorld]:
    with AdminWorld() as world:
        yield world


def create(world: AdminWorld, *topics: NewTopic) -> None:
    for result in world.runner.run(world.services.metadata.changes.create_topics(topics)):
        assert result.error == ErrorCode.NONE, result


# CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_in_every_version(world: AdminWorld, version: int) -> None:
    request = CreateTopicsRequest(
        topics=[
            CREATE(
                name="a",
                num_partitions=3,
                replication_factor=1,
                configs=[CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="5")],
            ),
            CREATE(
                name="b",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[0])],
            ),
            CREATE(name="c", num_partitions=0, replication_factor=1),
        ]
    )
    response: CreateTopicsResponse = world.ask(request, version)
    a, _, c = response.topics
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("a", 0),
        ("b", 0),
        ("c", ErrorCode.INVALID_PARTITIONS),
    ]
    assert a.error_message is None
    assert c.error_message
    if version >= 5:
        assert (a.num_partitions, a.replication_factor) == (3, 1)
        assert (c.num_partitions, c.replication_factor, c.configs) == (-1, -1, [])
        assert a.configs is not None
        configs = {config.name: (config.value, config.config_source) for config in a.configs}
        assert configs["retention.ms"] == ("5", 1)
        assert configs["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert a.topic_id == world.image.topics["a"].topic_id
        assert c.topic_id == ZERO_UUID
    assert len(world.image.topics["a"].partitions) == 3
    assert "c" not in world.image.topics


def test_validate_only_creates_nothing_and_returns_no_id(world: AdminWorld) -> None:
    request = CreateTopicsRequest(topics=[CREATE(name="a", num_partitions=2, replication_factor=1)], validate_only=True)
    (result,) = world.ask(request, 7).topics
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 2, ZERO_UUID)
    assert world.image.topics == {}


def test_an_empty_request_has_an_empty_answer(world: AdminWorld) -> None:
    assert world.ask(CreateTopicsRequest(topics=[]), 7).topics == []
    assert world.ask(DeleteTopicsRequest(topics=[]), 6).responses == []
    assert world.ask(CreatePartitionsRequest(topics=[]), 3).results == []
    assert world.ask(DescribeConfigsRequest(resources=[]), 4).results == []


def test_a_request_waits_no_longer_than_its_timeout(world: AdminWorld) -> None:
    async def story() -> None:
        async with world.services.metadata._lock:  # noqa: SLF001 - something else is being decided, and takes its time
            request = CreateTopicsRequest(
                topics=[CREATE(name="a", num_partitions=1, replication_factor=1)], timeout_ms=20
            )
            with pytest.raises(KafkaError) as caught:
                await world.answer(request, 7)
            assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT

    world.runner.run(story())


# DeleteTopics


@pytest.mark.parametrize("version", range(1, 6))
def test_delete_topics_by_name(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a"), NewTopic("b"))
    response = world.ask(DeleteTopicsRequest(topic_names=["a", "missing"], timeout_ms=1000), version)
    assert [(r.name, r.error_code) for r in response.responses] == [
        ("a", 0),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    if version >= 5:
        assert response.responses[0].error_message is None
        assert response.responses[1].error_message
    assert set(world.image.topics) == {"b"}


def test_delete_topics_v6_takes_names_and_ids(world: AdminWorld) -> None:
    create(world, NewTopic("a"), NewTopic("b"))
    state = DeleteTopicsRequest.DeleteTopicState
    id_a, id_b = (world.image.topics[name].topic_id for name in "ab")
    response = world.ask(
        DeleteTopicsRequest(topics=[state(topic_id=id_a), state(name="b"), state(topic_id=b"?" * 16), state()]), 6
    )
    assert [(r.name, r.topic_id, r.error_code) for r in response.responses] == [
        ("a", id_a, 0),
        ("b", id_b, 0),
        (None, b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, ZERO_UUID, ErrorCode.INVALID_REQUEST),
    ]


def test_disabled_deletion_has_the_error_code_of_the_version() -> None:
    with AdminWorld({"delete.topic.enable": "false"}) as world:
        create(world, NewTopic("a"))
        for version, expected in (
            (1, ErrorCode.INVALID_REQUEST),
            (2, ErrorCode.INVALID_REQUEST),
            (3, ErrorCode.TOPIC_DELETION_DISABLED),
            (5, ErrorCode.TOPIC_DELETION_DISABLED),
        ):
            (result,) = world.ask(DeleteTopicsRequest(topic_names=["a"]), version).responses
            assert result.error_code == expected
        assert "a" in world.image.topics


# CreatePartitions


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_in_every_version(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a"), NewTopic("b", 2))
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    assignment = CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=[0])
    request = CreatePartitionsRequest(
        topics=[
            topic(name="a", count=3, assignments=None),
            topic(name="b", count=3, assignments=[assignment]),
            topic(name="c", count=3, assignments=None),
        ]
    )
    response = world.ask(request, version)
    assert [(r.name, r.error_code) for r in response.results] == [
        ("a", 0),
        ("b", 0),
        ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [len(world.image.topics[name].partitions) for name in "ab"] == [3, 3]


def test_create_partitions_supports_validate_only(world: AdminWorld) -> None:
    create(world, NewTopic("a"))
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=3, assignments=None)
    response = world.ask(CreatePartitionsRequest(topics=[topic], validate_only=True), 3)
    assert response.results[0].error_code == 0
    assert len(world.image.topics["a"].partitions) == 1


# DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_in_every_version(world: AdminWorld, version: int) -> None:
    world.add_broker(1, endpoints={"PLAINTEXT": Endpoint("10.0.0.1", 9093)}, rack="r")
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = world.ask(request, version)
    assert (response.error_code, response.cluster_id) == (0, world.image.cluster_id)
    assert response.controller_id == 0
    assert [(b.broker_id, b.host, b.port, b.rack) for b in response.brokers] == [
        (0, "127.0.0.1", 9092, None),
        (1, "10.0.0.1", 9093, "r"),
    ]
    assert response.cluster_authorized_operations == 8096
    assert [b.broker_id for b in world.ask(request, version, listener="OUTSIDE").brokers] == [0]
    assert world.ask(DescribeClusterRequest(), version).cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("endpoint_type", "expected"),
    [
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_a_broker_describes_brokers_only(world: AdminWorld, endpoint_type: int, expected: ErrorCode) -> None:
    response = world.ask(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
    assert (response.error_code, response.brokers) == (expected, [])
    assert response.error_message


# DescribeTopicPartitions


def pages(world: AdminWorld, limit: int, *names: str) -> list[DescribeTopicPartitionsResponse]:
    found = []
    cursor = None
    for _ in range(100):
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        response = world.ask(request, 0)
        found.append(response)
        if response.next_cursor is None:
            return found
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )
    raise AssertionError("the cursor never ended")


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 2000])
def test_topics_are_sorted_and_paged_without_gaps(world: AdminWorld, limit: int) -> None:
    create(world, NewTopic("c", 3), NewTopic("a", 1), NewTopic("b", 3))
    found = pages(world, limit)
    shown = [(t.name, p.partition_index) for page in found for t in page.topics for p in t.partitions]
    assert shown == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1), ("c", 2)]
    assert all(sum(len(t.partitions) for t in page.topics) <= limit for page in found)
    assert len(found) == -(-7 // limit)


def test_the_brokers_limit_applies_too() -> None:
    with AdminWorld({"max.request.partition.size.limit": "2"}) as world:
        create(world, NewTopic("a", 5))
        assert len(pages(world, 2000)) == 3
        assert len(pages(world, -5)) == 5, "nonsense asks for one at a time"


def test_named_topics_are_described_and_unknown_ones_reported(world: AdminWorld) -> None:
    create(world, NewTopic("b", 2), NewTopic("z"))
    (page,) = pages(world, 2000, "b", "a", "no/pe")
    assert [(t.name, t.error_code, len(t.partitions)) for t in page.topics] == [
        ("a", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
        ("b", 0, 2),
        ("no/pe", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]
    topic = page.topics[1]
    assert topic.topic_id == world.image.topics["b"].topic_id
    assert topic.topic_authorized_operations == 3576
    partition = topic.partitions[1]
    assert (partition.partition_index, partition.leader_id, partition.leader_epoch) == (1, 0, 0)
    assert partition.replica_nodes == partition.isr_nodes == [0]
    assert partition.offline_replicas == []


@pytest.mark.parametrize(("topic", "partition"), [("other", 0), ("b", -1)])
def test_an_invalid_cursor_is_refused(world: AdminWorld, topic: str, partition: int) -> None:
    create(world, NewTopic("b"))
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name="b")],
        cursor=DescribeTopicPartitionsRequest.Cursor(topic_name=topic, partition_index=partition),
    )
    with pytest.raises(KafkaError) as caught:
        world.ask(request, 0)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_a_cursor_whose_topic_was_deleted_continues_with_the_next(world: AdminWorld) -> None:
    create(world, NewTopic("a"), NewTopic("c"))
    request = DescribeTopicPartitionsRequest(
        cursor=DescribeTopicPartitionsRequest.Cursor(topic_name="b", partition_index=5)
    )
    assert [t.name for t in world.ask(request, 0).topics] == ["c"]


# ListPartitionReassignments


def test_no_partition_is_being_moved(world: AdminWorld) -> None:
    response = world.ask(ListPartitionReassignmentsRequest(topics=None), 0)
    assert (response.error_code, response.error_message, response.topics) == (ErrorCode.NONE, None, [])


# UpdateFeatures


def levels(world: AdminWorld, broker: Services | None = None) -> tuple[int, dict[str, int]]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = world.ask(request, 4, broker=broker)
    return response.finalized_features_epoch, {f.name: f.max_version_level for f in response.finalized_features}


@pytest.mark.parametrize("version", range(3))
def test_update_features_in_every_version(world: AdminWorld, version: int) -> None:
    def update(name: str, level: int, upgrade_type: int = 1) -> UpdateFeaturesRequest:
        key = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
        return UpdateFeaturesRequest(feature_updates=[key])

    other = world.add_broker(1)
    response = world.ask(update("transaction.version", 2), version)
    assert response.error_code == ErrorCode.NONE
    assert [result.feature for result in response.results] == (["transaction.version"] if version < 2 else [])
    others = {"ottla.metadata.version": 1}
    assert levels(world) == (1, {"transaction.version": 2, **others}), "it was at that level"
    with pytest.raises(KafkaError) as caught:
        world.ask(update("no.such", 1), version)
    assert caught.value.code == ErrorCode.INVALID_UPDATE_VERSION
    if version == 0:
        return
    assert world.ask(update("transaction.version", 0, upgrade_type=2), version).error_code == ErrorCode.NONE
    world.settle()
    assert levels(world) == levels(world, other) == (2, others), "level 0 means that the feature is off"
