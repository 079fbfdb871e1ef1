"""Requests of clients with no, some and all permissions: Ottla and Apache Kafka's StandardAuthorizer answer alike.

Who a client is depends on its address here: every question comes from an address of its own, and ACLs for that
address give it the permissions. So the same script needs no authentication.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ottla import Broker
from ottla.protocol.api import API
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_acls import CreateAclsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.security.resources import Operation, ResourceType
from tests.support.processes.oracle import RealKafka, oracle_available
from tests.support.waiting import PATIENCE_S
from tests.support.wire.acl_requests import (
    CLUSTER_NAME,
    MAKERS,
    Grant,
    Names,
    creation,
    requests_of,
)
from tests.support.wire.raw import RawConnection, Side, differences

pytestmark = pytest.mark.oracle

ADMIN = "127.0.0.1"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Until the first ACLs are there, which make it meaningless: there are ACLs for every resource then.
    "allow.everyone.if.no.acl.found": "true",
    "node.id": "1",
}
HIDE = frozenset({"records", "configs", "total_bytes", "usable_bytes", "partition_size", "log_append_time_ms"})


class Secured(NamedTuple):
    side: Side
    names: Names


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


def prepare(side: Side) -> Names:
    everything = [
        Grant(Operation.ALL, kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else "*")
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
    ]
    add_acls(side, [creation(grant, host=ADMIN) for grant in everything])
    ids = {}
    for topic in ("seen", "hidden"):
        side.create(topic)
        ids[topic] = side.topic_id
    for key_type, keys in ((0, ["group", "hidden-group"]), (1, ["transaction", "hidden-transaction"])):
        for key in keys:
            settled(side, FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type), 4)
    request = OffsetCommitRequest
    for group in ("group", "hidden-group"):
        topics = [
            request.OffsetCommitRequestTopic(
                name=topic,
                partitions=[request.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)],
            )
            for topic in ("seen", "hidden")
        ]
        settled(side, request(group_id=group, generation_id_or_member_epoch=-1, topics=topics), 9)
    for transactional_id in ("transaction", "hidden-transaction"):
        settled(side, InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)
    return Names(
        seen="seen",
        hidden="hidden",
        missing="missing",
        seen_id=ids["seen"],
        hidden_id=ids["hidden"],
        group="group",
        hidden_group="hidden-group",
        transactional_id="transaction",
        hidden_transactional_id="hidden-transaction",
        node_id=side.node_id,
    )


def settled(side: Side, request: Any, version: int) -> None:
    """Asks as the administrator until there is no error: coordinators take a moment to start."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = str(side.ask(request, version))
        if "'error_code': 0" in answer and not any(f"'error_code': {code}" in answer for code in (14, 15, 16)):
            return
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def add_acls(side: Side, creations: list[Any]) -> None:
    """Returns when the broker decides by the new ACLs."""
    for start in range(0, len(creations), 200):
        chunk = creations[start : start + 200]
        answer = side.connection.ask(CreateAclsRequest(creations=chunk), 3)
        assert [result.error_code for result in answer.results] == [0] * len(chunk), answer
    wanted = {acl_of(each) for each in creations}
    deadline = time.monotonic() + PATIENCE_S
    while not wanted <= described(side):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def acl_of(each: Any) -> tuple[Any, ...]:
    return (
        each.resource_type,
        each.resource_name,
        each.resource_pattern_type,
        each.principal,
        each.host,
        each.operation,
        each.permission_type,
    )


def described(side: Side, **chosen: Any) -> set[tuple[Any, ...]]:
    filters = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    answer = side.connection.ask(DescribeAclsRequest(**{**filters, **chosen}), 3)
    assert answer.error_code == 0, answer
    return {
        (r.resource_type, r.resource_name, r.pattern_type, a.principal, a.host, a.operation, a.permission_type)
        for r in answer.resources
        for a in r.acls
    }


def address(number: int) -> str:
    return f"127.1.{number >> 8}.{number & 255}"


def ask_from(side: Side, source: str, request: Any, version: int) -> Any:
    """The answer to a client at this address, in an order that does not depend on the broker."""
    with RawConnection(side.bootstrap, source=source) as connection:
        try:
            response = connection.ask(request, version)
        except ConnectionError:
            return "closed"
    return in_order(side.plain(response, HIDE))


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        # Apache Kafka has a message for a success of FindCoordinator: the word NONE.
        is_success = value.get("error_code") == 0
        return {key: in_order(each) for key, each in value.items() if not (is_success and key == "error_message")}
    if isinstance(value, list):
        return sorted((in_order(each) for each in value), key=repr)
    return value


def test_every_served_api_is_asked() -> None:
    from ottla.broker.dispatch import SERVED

    missing = SERVED.keys() - MAKERS.keys()
    assert not missing, f"write a maker in tests/support/wire/acl_requests.py for {[API[key].name for key in missing]}"


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
        questions = [(case, granted) for case in cases for granted in range(len(case.grants) + 1)]
        add_acls(
            side,
            [
                creation(grant, host=address(number))
                for number, (case, granted) in enumerate(questions)
                for grant in case.grants[:granted]
            ],
        )
        outcomes.append(
            {
                f"{case.label} with {[f'{g.operation.name} {g.kind.name}' for g in case.grants[:granted]]}": ask_from(
                    side, address(number), case.request, case.version
                )
                for number, (case, granted) in enumerate(questions)
            }
        )
    ours, theirs = outcomes
    # Apache Kafka adds an entry for a user without a name when it refuses the whole request.
    theirs["DescribeUserScramCredentials v0 with []"]["results"] = []
    found = [f"{question}{line}" for question in ours for line in differences(ours[question], theirs[question])]
    assert not found, "\n".join(found)
