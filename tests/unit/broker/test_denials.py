"""What clients were refused is in the log, and cannot fill it."""

import functools
import logging
from collections.abc import Iterator

import pytest

from ottla.broker import denials as module
from ottla.broker.denials import LINES, Denials
from ottla.errors import ErrorCode
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.net.client.connection import Connection
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from ottla.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from ottla.protocol.schema import Message
from ottla.security.acls import AccessControlEntry, AclBinding, AclBindingFilter, ResourcePattern
from ottla.security.authorizer import Authorizer, Denial
from ottla.security.principal import Principal
from ottla.security.resources import CLUSTER_NAME, Operation, PermissionType, Resource, ResourceType
from ottla.testing import World
from ottla.types import Endpoint
from tests.support.worlds.admin_world import AdminWorld

ALICE = Principal("User", "alice")
EVERY_TOPIC = ResourcePattern(ResourceType.TOPIC, "*")
CREATE = CreateTopicsRequest.CreatableTopic
PROTECTED = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
MORE = CreatePartitionsRequest.CreatePartitionsTopic


class Now:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    now = Now()
    monkeypatch.setattr(module, "monotonic", now)
    return now


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture, now: Now) -> Iterator[AdminWorld]:
    caplog.set_level(logging.INFO, "ottla.authorizer")
    with AdminWorld() as world:
        world.principal = ALICE
        world.services.authorizer = Authorizer(on_denied=Denials().report)
        yield world


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ottla.authorizer"]


def allow(world: AdminWorld, operation: Operation) -> None:
    entry = AccessControlEntry(str(ALICE), "*", operation, PermissionType.ALLOW)
    assert world.services.authorizer is not None
    world.services.authorizer = world.services.authorizer.with_acls({EVERY_TOPIC: (entry,)})


def test_a_refusal_is_logged_with_who_where_what_and_why(world: AdminWorld, caplog: pytest.LogCaptureFixture) -> None:
    response = world.ask(CreateTopicsRequest(topics=[CREATE(name="orders", num_partitions=1, replication_factor=1)]), 7)
    assert response.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    # The question about the whole cluster before that refused nothing.
    assert logged(caplog) == [
        "User:alice at 127.0.0.1 may not CREATE TOPIC orders (CreateTopics): the resource has no ACLs"
    ]


def test_a_refusal_by_a_remembered_decision_is_logged_again(
    world: AdminWorld, caplog: pytest.LogCaptureFixture, now: Now
) -> None:
    request = CreatePartitionsRequest(topics=[MORE(name="orders", count=2)])
    for _ in range(3):
        world.ask(request, 3)
    assert len(logged(caplog)) == 1, "clients that try again and again do not hide others"
    now.seconds += module.INTERVAL_S
    world.ask(request, 3)
    assert len(logged(caplog)) == 2
    # After a change of the ACLs, the log says what decides now.
    allow(world, Operation.DESCRIBE)
    now.seconds += module.INTERVAL_S
    world.ask(request, 3)
    assert logged(caplog)[-1].endswith("may not ALTER TOPIC orders (CreatePartitions): no ACL matches")


def test_topics_left_out_of_a_list_are_not_logged_but_named_ones_are(
    world: AdminWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.runner.run(world.services.metadata.changes.create_topics([NewTopic("orders", 1, 1)]))
    assert world.ask(MetadataRequest(topics=None), 12).topics == []
    assert logged(caplog) == []
    named = MetadataRequest.MetadataRequestTopic(name="orders")
    world.ask(MetadataRequest(topics=[named], allow_auto_topic_creation=False), 12)
    assert logged(caplog) == [
        "User:alice at 127.0.0.1 may not DESCRIBE TOPIC orders (Metadata): the resource has no ACLs"
    ]


def test_allowed_requests_are_not_logged(world: AdminWorld, caplog: pytest.LogCaptureFixture) -> None:
    allow(world, Operation.ALL)
    world.ask(CreateTopicsRequest(topics=[CREATE(name="orders", num_partitions=1, replication_factor=1)]), 7)
    assert logged(caplog) == []


def test_a_broker_with_an_authorizer_logs_refusals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.authorizer")

    async def story(world: World) -> None:
        connection = await Connection.open(Endpoint("127.0.0.1", 9092))
        request = CreatePartitionsRequest(topics=[MORE(name="orders", count=2)])
        await connection.send(request.api_key, lambda version: request)
        connection.close()

    World(1, authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer").run(story)
    (line,) = logged(caplog)
    assert line.startswith("User:ANONYMOUS at ")
    assert line.endswith(" may not ALTER TOPIC orders (CreatePartitions): the resource has no ACLs")


async def grant(world: World, *grants: tuple[Operation, ResourceType]) -> None:
    """Everyone may do this with every resource of the type, and nothing else."""
    assert world.broker is not None
    metadata = world.broker.services.metadata
    await metadata.changes.delete_acls([AclBindingFilter()])
    for operation, kind in grants:
        pattern = ResourcePattern(kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else "*")
        entry = AccessControlEntry("User:*", "*", operation, PermissionType.ALLOW)
        assert await metadata.changes.create_acls([AclBinding(pattern, entry)]) == [None]


def _same(request: Message, version: int) -> Message:
    return request


def named(topic: str) -> MetadataRequest:
    asked = MetadataRequest.MetadataRequestTopic(name=topic)
    return MetadataRequest(
        topics=[asked], include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )


def test_resources_granted_in_another_way_or_only_left_out_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.authorizer")
    epochs = OffsetForLeaderEpochRequest
    partition = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    by_the_resources_themselves: list[tuple[Message, int]] = [
        (CreateTopicsRequest(topics=[CREATE(name="a", num_partitions=1, replication_factor=1)], timeout_ms=9000), 7),
        (named("a"), 10),
        (named("created"), 10),
        (epochs(replica_id=-1, topics=[epochs.OffsetForLeaderTopic(topic="a", partitions=[partition])]), 4),
        (InitProducerIdRequest(transactional_id=None), 4),
        (ListGroupsRequest(), 4),
        (DescribeClusterRequest(include_cluster_authorized_operations=True), 0),
        (DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="a")], timeout_ms=9000), 6),
    ]
    lists: list[tuple[Message, int]] = [
        (MetadataRequest(topics=None), 10),
        (DescribeTopicPartitionsRequest(), 0),
        (ListGroupsRequest(), 4),
        (ListTransactionsRequest(), 1),
    ]

    fetch = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    delete = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="b")], timeout_ms=9000)

    async def story(world: World) -> None:
        await grant(world, *((Operation.ALL, kind) for kind in PROTECTED))
        async with world.admin() as admin, world.producer(transactional_id="t") as producer:
            await admin.create_topic("shown", partitions=1)
            await admin.alter_group_offsets("g", {("shown", 0): 0})
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send_and_wait("shown", b"1")
            await admin.alter_client_quotas({"user": None}, {"producer_byte_rate": 1e9})
            assert logged(caplog) == []
            await refuse_nothing(world)
            await grant(world, *((Operation.ALL, kind) for kind in PROTECTED))
            await producer.commit_transaction()

    async def refuse_nothing(world: World) -> None:
        connection = await Connection.open(Endpoint("127.0.0.1", 9092), client_id="broker-0")

        async def ask(*requests: tuple[Message, int]) -> None:
            for request, version in requests:
                await connection.send(request.api_key, functools.partial(_same, request), max_version=version)
                assert logged(caplog) == [], request

        await grant(world, (Operation.ALL, ResourceType.TOPIC), (Operation.ALL, ResourceType.GROUP))
        await ask(*by_the_resources_themselves)
        await grant(world, (Operation.CLUSTER_ACTION, ResourceType.CLUSTER))
        await ask((WriteTxnMarkersRequest(), 1), *lists)
        await grant(world, (Operation.ALTER, ResourceType.CLUSTER))
        await ask((WriteTxnMarkersRequest(), 1))
        await grant(world, (Operation.CREATE, ResourceType.TOPIC))
        await ask((CreateTopicsRequest(topics=[CREATE(name="b", num_partitions=1, replication_factor=1)]), 7))
        await grant(world, (Operation.DESCRIBE, ResourceType.TOPIC))
        await ask((named("b"), 10))
        await grant(world, (Operation.DESCRIBE, ResourceType.GROUP))
        await ask((OffsetFetchRequest(groups=[fetch]), 8))
        await grant(world, (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID))
        await ask((DescribeTransactionsRequest(transactional_ids=["t"]), 0))
        # One refusal is one line, however many questions it took.
        await connection.send(delete.api_key, lambda version: delete, max_version=6)
        (line,) = logged(caplog)
        assert "may not DELETE TOPIC b (DeleteTopics)" in line
        connection.close()

    World(1, authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer").run(story)


def test_a_hostile_client_can_neither_fill_the_log_nor_forge_a_line(caplog: pytest.LogCaptureFixture, now: Now) -> None:
    caplog.set_level(logging.INFO, "ottla.authorizer")
    denials, authorizer = Denials(), Authorizer()

    def refuse(name: str) -> None:
        resource = Resource(ResourceType.GROUP, name)
        denials.report(Denial(ALICE, "10.0.0.7", Operation.READ, resource, ApiKey.JOIN_GROUP), authorizer)

    for number in range(1000):
        refuse(f"g{number}\n2030-01-01 INFO all is well" + "x" * 10_000)
    assert len(logged(caplog)) == LINES
    assert all("\n" not in line and len(line) < 600 for line in logged(caplog))
    now.seconds += module.INTERVAL_S
    refuse("last")
    assert logged(caplog)[-1].endswith(f"({1000 - LINES} more such lines were not logged)")
