"""Administrative changes are in the log once, with who made them from where, and without secrets."""

import logging
from collections.abc import Iterator

import pytest

from ottla.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from ottla.protocol.messages.alter_configs import AlterConfigsRequest
from ottla.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from ottla.protocol.messages.create_acls import CreateAclsRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.security.authorizer import Authorizer
from ottla.security.principal import Principal
from tests.support.worlds.admin_world import AdminWorld

ADMIN = Principal("User", "admin")
BY = ", by User:admin at 127.0.0.1"
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, REMOVE = 0, 1
NEW = CreateTopicsRequest.CreatableTopic
RESOURCE = IncrementalAlterConfigsRequest.AlterConfigsResource
SETTING = IncrementalAlterConfigsRequest.AlterableConfig


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> Iterator[AdminWorld]:
    with AdminWorld() as world:
        world.principal = ADMIN
        world.services.authorizer = Authorizer(super_users=[ADMIN])
        world.ask(CreateTopicsRequest(topics=[NEW(name="orders", num_partitions=1, replication_factor=1)]), 7)
        caplog.set_level(logging.INFO, "ottla")
        caplog.clear()
        yield world


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_topics(world: AdminWorld, caplog: pytest.LogCaptureFixture) -> None:
    new = NEW(name="payments", num_partitions=2, replication_factor=1)
    world.ask(CreateTopicsRequest(topics=[new], validate_only=True), 7)
    world.ask(CreateTopicsRequest(topics=[new]), 7)
    world.ask(CreateTopicsRequest(topics=[new]), 7)
    more = CreatePartitionsRequest.CreatePartitionsTopic(name="payments", count=3, assignments=None)
    world.ask(CreatePartitionsRequest(topics=[more], validate_only=True), 3)
    world.ask(CreatePartitionsRequest(topics=[more]), 3)
    world.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="payments")]), 6)
    assert logged(caplog) == [
        f"topic payments created: 2 partitions{BY}",
        f"topic payments has 3 partitions now{BY}",
        f"topic payments deleted{BY}",
    ]


def test_a_topic_that_is_created_because_a_client_asked_for_it(
    world: AdminWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="clicks")]), 12)
    world.settle()
    assert logged(caplog) == [f"topic clicks created: 1 partitions{BY}"]


def test_settings_of_topics_with_values_and_of_brokers_without(
    world: AdminWorld, caplog: pytest.LogCaptureFixture
) -> None:
    topic = RESOURCE(
        resource_type=TOPIC,
        resource_name="orders",
        configs=[
            SETTING(name="retention.ms", config_operation=SET, value="5"),
            SETTING(name="cleanup.policy", config_operation=REMOVE, value=None),
        ],
    )
    secret = SETTING(name="listener.name.x.ssl.keystore.password", config_operation=SET, value="hush")
    broker = RESOURCE(resource_type=BROKER, resource_name="0", configs=[secret])
    logger = RESOURCE(
        resource_type=LOGGER,
        resource_name="0",
        configs=[SETTING(name="ottla.net", config_operation=SET, value="INFO")],
    )
    refused = RESOURCE(resource_type=TOPIC, resource_name="nowhere", configs=topic.configs)
    for is_trial in (True, False):
        request = IncrementalAlterConfigsRequest(resources=[topic, broker, refused, logger], validate_only=is_trial)
        response = world.ask(request, 1)
        assert [each.error_code for each in response.responses] == [0, 0, 3, 0], response
    replaced = AlterConfigsRequest.AlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=[])
    world.ask(AlterConfigsRequest(resources=[replaced]), 2)
    assert logged(caplog) == [
        f"settings of topic orders changed: retention.ms=5, cleanup.policy removed{BY}",
        f"settings of broker 0 changed: listener.name.x.ssl.keystore.password{BY}",
        f"logger ottla.net is now at level INFO{BY}",
        f"settings of topic orders replaced: none are left{BY}",
    ]


def test_changed_users_are_logged_without_their_credentials(
    world: AdminWorld, caplog: pytest.LogCaptureFixture
) -> None:
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="alice\nforged", mechanism=1, iterations=4096, salt=b"salty", salted_password=b"hush" * 8
    )
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="alice\nforged", mechanism=1)
    unknown = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="bob", mechanism=1)
    world.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion]), 0)
    world.ask(AlterUserScramCredentialsRequest(deletions=[deletion, unknown]), 0)
    assert logged(caplog) == [
        f"user alice\\nforged has a new password for SCRAM-SHA-256{BY}",
        f"user alice\\nforged can no longer log in with SCRAM-SHA-256{BY}",
    ]


def test_quotas(world: AdminWorld, caplog: pytest.LogCaptureFixture) -> None:
    entity = [
        AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="alice"),
        AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=None),
    ]
    ops = [
        AlterClientQuotasRequest.OpData(key="producer_byte_rate", value=1000.0, remove=False),
        AlterClientQuotasRequest.OpData(key="consumer_byte_rate", value=0.0, remove=True),
    ]
    for is_trial in (True, False):
        entry = AlterClientQuotasRequest.EntryData(entity=entity, ops=ops)
        world.ask(AlterClientQuotasRequest(entries=[entry], validate_only=is_trial), 1)
    assert logged(caplog) == [
        "quotas of user alice, client-id (default) changed: producer_byte_rate=1000, consumer_byte_rate removed" + BY
    ]


def test_acls(world: AdminWorld, caplog: pytest.LogCaptureFixture) -> None:
    creation = CreateAclsRequest.AclCreation(
        resource_type=3,
        resource_name="g\nforged",
        resource_pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    world.ask(CreateAclsRequest(creations=[creation]), 3)
    everything = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    world.ask(DeleteAclsRequest(filters=[everything]), 3)
    acl = "GROUP:LITERAL:g\\nforged User:alice ALLOW READ from *"
    assert logged(caplog) == [f"ACL added: {acl}{BY}", f"ACL deleted: {acl}{BY}"]
