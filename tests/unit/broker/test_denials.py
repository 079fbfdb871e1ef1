"""What clients were refused is in the log, and cannot fill it."""

import logging
from collections.abc import Iterator

import pytest

from ottla.broker import denials as module
from ottla.broker.denials import LINES, Denials
from ottla.errors import ErrorCode
from ottla.metadata.controller import NewTopic
from ottla.net.connection import Connection
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.security.acls import AccessControlEntry, ResourcePattern
from ottla.security.authorizer import Authorizer, Denial
from ottla.security.principal import Principal
from ottla.security.resources import Operation, PermissionType, Resource, ResourceType
from ottla.testing import World
from ottla.types import Endpoint
from tests.support.worlds.admin_world import AdminWorld

ALICE = Principal("User", "alice")
EVERY_TOPIC = ResourcePattern(ResourceType.TOPIC, "*")
CREATE = CreateTopicsRequest.CreatableTopic
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
    world.runner.run(world.services.metadata.create_topics([NewTopic("orders", 1, 1)]))
    assert world.ask(MetadataRequest(topics=None), 12).topics == []
    assert logged(caplog) == []
    named = MetadataRequest.MetadataRequestTopic(name="orders")
    world.ask(MetadataRequest(topics=[named], allow_auto_topic_creation=False), 12)
    assert logged(caplog) == [
        "User:alice at 127.0.0.1 may not DESCRIBE TOPIC orders (Metadata): the resource has no ACLs"
    ]


def test_what_is_allowed_is_not_logged(world: AdminWorld, caplog: pytest.LogCaptureFixture) -> None:
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
