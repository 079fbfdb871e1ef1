"""Requests of clients with no, some and all permissions: Ottla and Apache Kafka's StandardAuthorizer answer alike."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Broker
from ottla.protocol.api import API
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_acls import CreateAclsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from ottla.security.resources import Operation, PatternType, PermissionType, ResourceType
from tests.support.processes.oracle import RealKafka, oracle_available
from tests.support.wire.acl_requests import MAKERS, Grant, creation, requests_of
from tests.support.wire.acl_world import (
    SETTINGS,
    Secured,
    add_acls,
    answers_to,
    ask_from,
    await_acls,
    prepare,
    questions_about,
)
from tests.support.wire.raw import Side, differences

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[Secured]]:
    """Both brokers with an authorizer, and an administrator at 127.0.0.1."""
    reason = oracle_available()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(Broker.embedded(settings={**SETTINGS, "group.initial.rebalance.delay.ms": 0}))
        theirs = stack.enter_context(RealKafka(SETTINGS))
        both = []
        for name, bootstrap in (("ottla", ours.bootstrap), ("kafka", theirs.bootstrap)):
            side = stack.enter_context(contextlib.closing(Side(name, bootstrap, "seen")))
            both.append(Secured(side, prepare(side)))
        yield both


def test_every_api_is_answered_the_same_with_no_some_and_all_permissions(brokers: list[Secured]) -> None:
    served = brokers[1].side.connection.ask(ApiVersionsRequest(), 0).api_keys
    newest = {each.api_key: each.max_version for each in served}
    ahead = {key.name for key in MAKERS if API[key].versions[-1] > newest[key]}
    assert ahead == {"API_VERSIONS", "DELETE_GROUPS", "INIT_PRODUCER_ID", "TXN_OFFSET_COMMIT"}, (
        "Kafka does not offer these versions"
    )
    outcomes: list[dict[str, Any]] = []
    for side, names in brokers:
        cases = [case for case in requests_of(names) if case.version <= newest[case.request.api_key]]
        outcomes.append(answers_to(side, questions_about(cases)))
    ours, theirs = outcomes
    # Apache Kafka adds an entry for a user without a name when it refuses the whole request.
    theirs["DescribeUserScramCredentials v0 with []"]["results"] = []
    found = [f"{question}{line}" for question in ours for line in differences(ours[question], theirs[question])]
    assert not found, "\n".join(found)


def test_random_acls_decide_the_same(brokers: list[Secured]) -> None:
    """Patterns, hosts, principals, denials and implied operations: what a client may do with topics and groups."""
    rng = random.Random(20)
    names = ["a", "ab", "abc", "b", "bc", "*"]
    creations = [
        creation(
            Grant(
                Operation[rng.choice(["READ", "WRITE", "DESCRIBE", "ALTER_CONFIGS", "DELETE", "ALTER", "ALL"])],
                ResourceType.TOPIC,
                f"random-{rng.choice(names)}" if rng.random() < 0.9 else "*",
            ),
            host=rng.choice(["*"] * 2 + [f"127.5.0.{number}" for number in range(20)] * 2),
            principal=rng.choice(["User:ANONYMOUS"] * 4 + ["User:*", "User:somebody"]),
            pattern_type=rng.choice([PatternType.LITERAL, PatternType.PREFIXED]),
            permission=rng.choice([PermissionType.ALLOW] * 3 + [PermissionType.DENY]),
        )
        for _ in range(150)
    ]
    # A denial of everything to everyone would hide the rest, and lock out the administrator.
    creations = [
        each
        for each in creations
        if not (each.permission_type == PermissionType.DENY and (each.host == "*" or each.resource_name == "*"))
    ]
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=f"random-{name}") for name in names if name != "*"]
        + [DescribeTopicPartitionsRequest.TopicRequest(name="random-abcd")],
        response_partition_limit=100,
    )
    outcomes = []
    for side, _ in brokers:
        add_acls(side, creations)
        outcomes.append([ask_from(side, f"127.5.0.{number}", request, 0) for number in range(20)])
        everything = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=PermissionType.DENY,
        )
        side.connection.ask(DeleteAclsRequest(filters=[everything]), 3)
    found = differences(outcomes[0], outcomes[1])
    assert not found, "\n".join(found)
    operations = {topic["topic_authorized_operations"] for answer in outcomes[0] for topic in answer["topics"]}
    assert len(operations) >= 5, "the ACLs make a difference"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_found_and_deleted_the_same(brokers: list[Secured], version: int) -> None:
    host = f"127.6.0.{version}"
    good = [
        creation(Grant(Operation.READ, ResourceType.TOPIC, "x"), host=host),
        creation(Grant(Operation.READ, ResourceType.TOPIC, "x"), host=host),
        creation(Grant(Operation.ALL, ResourceType.TOPIC, "xy"), host=host, pattern_type=PatternType.PREFIXED),
        creation(Grant(Operation.READ, ResourceType.TOPIC, "*"), host=host, pattern_type=PatternType.PREFIXED),
        creation(Grant(Operation.WRITE, ResourceType.TOPIC, "*"), host=host, permission=PermissionType.DENY),
        creation(Grant(Operation.READ, ResourceType.GROUP, "x/y %"), host=host, principal="User:CN=a,O=b"),
        creation(Grant(Operation.READ, ResourceType.CLUSTER, "not-the-cluster"), host=host),
        creation(Grant(Operation.READ, ResourceType.TOPIC, ""), host=host),
    ]
    filters: list[dict[str, Any]] = [
        {"resource_type_filter": 2, "resource_name_filter": "x", "pattern_type_filter": 3},
        {"resource_type_filter": 2, "resource_name_filter": "x", "pattern_type_filter": 4},
        {"resource_type_filter": 2, "resource_name_filter": "xyz", "pattern_type_filter": 2},
        {"resource_type_filter": 2, "resource_name_filter": "xy", "pattern_type_filter": 1},
        {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1},
        {"resource_type_filter": 1, "resource_name_filter": "x/y %", "pattern_type_filter": 2},
        {"resource_type_filter": 2, "resource_name_filter": "*", "pattern_type_filter": 3},
    ]
    more: list[dict[str, Any]] = [
        {"principal_filter": None, "operation": 1, "permission_type": 1},
        {"principal_filter": "User:ANONYMOUS", "operation": 3, "permission_type": 3},
    ]
    combined = [{**one, **other, "host_filter": host} for one in filters for other in more]

    def script(side: Side) -> Any:
        outcome = [ask_from(side, "127.0.0.1", CreateAclsRequest(creations=good), version)]
        await_acls(side, [good[0], *good[2:6]])
        outcome += [ask_from(side, "127.0.0.1", DescribeAclsRequest(**each), version) for each in combined]
        doomed = [DeleteAclsRequest.DeleteAclsFilter(**each) for each in combined]
        outcome.append(ask_from(side, "127.0.0.1", DeleteAclsRequest(filters=doomed), version))
        return outcome

    found = differences(*(script(side) for side, _ in brokers))
    assert not found, "\n".join(found)
