"""Metadata in every version: brokers, topics and leaders as clients see them."""

import asyncio
from collections.abc import Iterator

import pytest

from ottla.broker.handler_support.sliced_response import SLICE
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.changes.cluster_changes import CREATED_AT_ONCE, CREATING_MAX
from ottla.metadata.changes.topic_changes import NewTopic, TopicReference
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.types import ZERO_UUID, Endpoint
from tests.support.worlds.admin_world import AdminWorld

Asked = MetadataRequest.MetadataRequestTopic
ALL_VERSIONS = range(14)
NO_OPERATIONS = -(2**31)


@pytest.fixture
def world() -> Iterator[AdminWorld]:
    with AdminWorld() as world:
        yield world


def create(world: AdminWorld, *topics: NewTopic) -> None:
    for result in world.runner.run(world.services.metadata.changes.create_topics(topics)):
        assert result.error == ErrorCode.NONE, result


def by_name(*names: str, create_missing: bool = False) -> MetadataRequest:
    return MetadataRequest(topics=[Asked(name=name) for name in names], allow_auto_topic_creation=create_missing)


def errors(response: MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_every_version_returns_brokers_and_all_topics(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a", 2), NewTopic("__consumer_offsets", 1))
    response = world.ask(MetadataRequest(topics=[] if version == 0 else None), version)
    (broker,) = response.brokers
    assert (broker.node_id, broker.host, broker.port) == (0, "127.0.0.1", 9092)
    assert errors(response) == {"a": 0, "__consumer_offsets": 0}
    topic = response.topics[0]
    assert [(p.error_code, p.partition_index, p.leader_id) for p in topic.partitions] == [(0, 0, 0), (0, 1, 0)]
    assert topic.partitions[0].replica_nodes == topic.partitions[0].isr_nodes == [0]
    if version >= 1:
        assert response.controller_id == 0
        assert [t.is_internal for t in response.topics] == [False, True]
    if version >= 2:
        assert response.cluster_id == world.image.cluster_id
    if version >= 7:
        assert topic.partitions[0].leader_epoch == 0
    if version >= 10:
        assert topic.topic_id == world.image.topics["a"].topic_id
    assert response.error_code == 0


@pytest.mark.parametrize("version", range(1, 14))
def test_from_v1_an_empty_list_means_no_topics(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a"))
    response = world.ask(MetadataRequest(topics=[]), version)
    assert response.topics == []
    assert len(response.brokers) == 1


def test_leader_epochs_follow_the_image(world: AdminWorld) -> None:
    create(world, NewTopic("a"))
    world.remove_broker(0)
    world.services = world.add_broker(0)
    assert world.ask(by_name("a"), 12).topics[0].partitions[0].leader_epoch == 1


@pytest.mark.parametrize("version", range(4, 14))
def test_unknown_and_invalid_topics_have_different_errors(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a"))
    response = world.ask(by_name("a", "missing", "no/such", "", "a"), version)
    assert errors(response) == {
        "a": ErrorCode.NONE,
        "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "no/such": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert len(response.topics) == 4, "a topic requested twice is returned once"
    assert all(topic.topic_id == ZERO_UUID for topic in response.topics[1:])
    assert set(world.image.topics) == {"a"}


# Auto-creation


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_a_missing_topic_is_unknown_until_it_has_been_created_in_the_background(version: int) -> None:
    with AdminWorld({"num.partitions": "3"}) as world:
        response = world.ask(by_name("new", create_missing=True), version)
        assert errors(response) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert response.topics[0].partitions == []
        world.settle()
        response = world.ask(by_name("new", create_missing=True), version)
        assert errors(response) == {"new": ErrorCode.NONE}
        assert [p.leader_id for p in response.topics[0].partitions] == [0, 0, 0]


def test_a_topic_that_was_just_deleted_is_unknown(world: AdminWorld) -> None:
    """Clients whose requests always create topics (kafka-go) wait like this for the end of a deletion."""
    create(world, NewTopic("old"))
    world.runner.run(world.services.metadata.changes.delete_topics([TopicReference("old")]))
    assert errors(world.ask(by_name("old", create_missing=True), 1)) == {"old": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_before_v4_a_client_cannot_decline(world: AdminWorld) -> None:
    world.ask(by_name("new", create_missing=True), 3)
    world.settle()
    assert "new" in world.image.topics


def test_no_topic_is_created_if_the_broker_or_the_client_declines(world: AdminWorld) -> None:
    assert errors(world.ask(by_name("new"), 9)) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    with AdminWorld({"auto.create.topics.enable": "false"}) as other:
        response = other.ask(by_name("new", create_missing=True), 9)
        assert errors(response) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert other.image.topics == {}


def test_asking_for_all_topics_creates_none(world: AdminWorld) -> None:
    assert world.ask(MetadataRequest(topics=None, allow_auto_topic_creation=True), 9).topics == []


def test_a_topic_that_cannot_be_created_has_an_error(world: AdminWorld) -> None:
    create(world, NewTopic("a.b"))
    response = world.ask(by_name("bad name", "a_b", "fine", create_missing=True), 9)
    assert errors(response) == {
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "a_b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "fine": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    world.settle()
    assert set(world.image.topics) == {"a.b", "fine"}
    with AdminWorld({"default.replication.factor": "3"}) as other:
        response = other.ask(by_name("t", create_missing=True), 9)
        assert errors(response) == {"t": ErrorCode.INVALID_REPLICATION_FACTOR}


def test_internal_topics_are_created_with_their_own_settings(world: AdminWorld) -> None:
    """Spec: C1."""
    world.ask(by_name("__consumer_offsets", create_missing=True), 9)
    world.settle()
    response = world.ask(by_name("__consumer_offsets"), 9)
    assert len(response.topics[0].partitions) == 50
    assert response.topics[0].is_internal
    assert world.image.topics["__consumer_offsets"].configs["cleanup.policy"] == "compact"


def test_many_clients_asking_for_one_new_topic_create_it_once(world: AdminWorld) -> None:
    commits = world.tree.commits

    async def crowd() -> list[MetadataResponse]:
        return list(await asyncio.gather(*(world.answer(by_name("new", create_missing=True), 12) for _ in range(100))))

    responses = world.runner.run(crowd())
    world.settle()
    assert world.tree.commits == commits + 1
    assert {r.topics[0].error_code for r in responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert "new" in world.image.topics


def test_a_limited_number_of_topics_is_created_in_the_background(world: AdminWorld) -> None:
    """A few at a time: other requests are served in between. The client's next request creates more."""
    commits = world.tree.commits
    names = [f"t{number}" for number in range(CREATING_MAX + 5)]
    world.ask(by_name(*names, create_missing=True), 9)
    for _ in range(10):
        world.settle()
    assert world.tree.commits == commits + CREATING_MAX // CREATED_AT_ONCE
    assert set(world.image.topics) == set(names[:CREATING_MAX])
    world.ask(by_name(*names, create_missing=True), 9)
    world.settle()
    assert set(world.image.topics) == set(names)


# Many topics


@pytest.mark.parametrize("version", [0, 1, 8, 9, 13])
def test_very_many_topics_are_answered_in_slices(version: int) -> None:
    """Other requests are served in between. The response is the same as those of small requests."""
    names = ["b", *(f"unknown-{number}" for number in range(2 * SLICE)), "a"]
    turns = 0

    async def count_turns(answer: "asyncio.Task[MetadataResponse]") -> None:
        nonlocal turns
        while not answer.done():
            turns += 1
            await asyncio.sleep(0)

    async def ask(world: AdminWorld) -> MetadataResponse:
        # Before v4 every request allows creation.
        answer = asyncio.ensure_future(world.answer(by_name(*names, create_missing=True), version))
        await count_turns(answer)
        response: MetadataResponse = answer.result()
        return response

    with AdminWorld({"auto.create.topics.enable": "false"}) as world:
        create(world, NewTopic("a"), NewTopic("b", partitions=3))
        response = world.runner.run(ask(world))
        few = world.ask(by_name("b", "unknown-0", "a", create_missing=True), version)
    assert [topic.name for topic in response.topics] == names
    assert turns > 2
    assert [response.topics[0], response.topics[1], response.topics[-1]] == few.topics
    assert response.brokers == few.brokers


# Topic ids


@pytest.mark.parametrize("version", [12, 13])
def test_topics_can_be_looked_up_by_id(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a"), NewTopic("b"))
    id_a = world.image.topics["a"].topic_id
    unknown = b"\x07" * 16
    request = MetadataRequest(
        topics=[Asked(topic_id=id_a, name=None), Asked(topic_id=unknown, name=None), Asked(name="b")]
    )
    response = world.ask(request, version)
    assert [(t.name, t.topic_id, t.error_code) for t in response.topics] == [
        ("a", id_a, ErrorCode.NONE),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        ("b", world.image.topics["b"].topic_id, ErrorCode.NONE),
    ]


def test_the_id_of_a_deleted_topic_stays_unknown_when_its_name_is_reused(world: AdminWorld) -> None:
    create(world, NewTopic("a"))
    old = world.image.topics["a"].topic_id
    world.runner.run(world.services.metadata.changes.delete_topics([TopicReference("a")]))
    create(world, NewTopic("a"))
    response = world.ask(MetadataRequest(topics=[Asked(topic_id=old, name=None)]), 12)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [10, 11])
def test_v10_and_v11_return_ids_but_accept_none(world: AdminWorld, version: int) -> None:
    for asked in (Asked(topic_id=b"x" * 16, name="a"), Asked(name=None)):
        with pytest.raises(KafkaError) as caught:
            world.ask(MetadataRequest(topics=[asked]), version)
        assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_neither_name_nor_id_is_refused(world: AdminWorld) -> None:
    with pytest.raises(KafkaError) as caught:
        world.ask(MetadataRequest(topics=[Asked(name=None)]), 12)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


# Authorized operations


@pytest.mark.parametrize("version", [8, 10, 11, 13])
def test_authorized_operations_are_returned_on_request(world: AdminWorld, version: int) -> None:
    create(world, NewTopic("a"))
    request = by_name("a")
    response = world.ask(request, version)
    assert response.topics[0].topic_authorized_operations == NO_OPERATIONS
    assert response.cluster_authorized_operations == NO_OPERATIONS
    request.include_topic_authorized_operations = True
    request.include_cluster_authorized_operations = version <= 10
    response = world.ask(request, version)
    assert response.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert response.cluster_authorized_operations == (8096 if version <= 10 else NO_OPERATIONS)


# Several brokers and listeners


def test_clients_get_the_addresses_of_the_listener_they_use(world: AdminWorld) -> None:
    response = world.ask(MetadataRequest(topics=None), 9, listener="OUTSIDE")
    assert [(b.host, b.port) for b in response.brokers] == [("kafka.example.com", 19092)]


def test_racks_and_offline_replicas_are_returned(world: AdminWorld) -> None:
    world.add_broker(1, rack="r1")
    create(world, NewTopic("a", assignments=[(0, (0, 1))]), NewTopic("b", assignments=[(0, (1,))]))
    response = world.ask(MetadataRequest(topics=None), 9)
    assert {b.node_id: b.rack for b in response.brokers} == {0: None, 1: "r1"}
    world.remove_broker(1)
    first, second = (topic.partitions[0] for topic in world.ask(by_name("a", "b"), 9).topics)
    assert (first.error_code, first.leader_id, first.replica_nodes, first.isr_nodes) == (0, 0, [0, 1], [0])
    assert first.offline_replicas == [1]
    assert (second.error_code, second.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert second.offline_replicas == [1]


def test_v0_leaves_dead_replicas_out_with_an_error_code(world: AdminWorld) -> None:
    world.add_broker(1)
    create(world, NewTopic("a", assignments=[(0, (0, 1))]))
    world.remove_broker(1)
    (partition,) = world.ask(by_name("a", create_missing=True), 0).topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.REPLICA_NOT_AVAILABLE, 0)
    assert partition.replica_nodes == [0]
    (partition,) = world.ask(by_name("a", create_missing=True), 1).topics[0].partitions
    assert (partition.error_code, partition.replica_nodes) == (0, [0, 1])


def test_a_leader_without_the_clients_listener_is_reported_by_version(world: AdminWorld) -> None:
    world.add_broker(1, endpoints={"PLAINTEXT": Endpoint("127.0.0.1", 9093)})
    create(world, NewTopic("a", assignments=[(0, (1,))]))
    for version, expected in (
        (4, ErrorCode.LEADER_NOT_AVAILABLE),
        (5, ErrorCode.LEADER_NOT_AVAILABLE),
        (6, ErrorCode.LISTENER_NOT_FOUND),
        (13, ErrorCode.LISTENER_NOT_FOUND),
    ):
        response = world.ask(by_name("a"), version, listener="OUTSIDE")
        (partition,) = response.topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (expected, -1)
        assert [b.node_id for b in response.brokers] == [0]
        assert world.ask(by_name("a"), version).topics[0].partitions[0].leader_id == 1


def test_every_broker_gives_the_same_answer(world: AdminWorld) -> None:
    other = world.add_broker(1)
    create(world, NewTopic("a", 3, 2))
    world.settle()
    request = MetadataRequest(topics=None)
    assert world.ask(request, 12, broker=other) == world.ask(request, 12)


def test_answers_are_built_once_for_each_image(world: AdminWorld) -> None:
    create(world, NewTopic("a"))
    first = world.ask(by_name("a"), 12)
    memo = dict(world.image.memo)
    assert world.ask(by_name("a"), 12) == first
    assert world.image.memo == memo
    assert memo
    create(world, NewTopic("b"))
    assert world.image.memo == {}
    assert errors(world.ask(by_name("a", "b"), 12)) == {"a": 0, "b": 0}
