"""A broker with an authorizer whose clients are told apart by their addresses.

Who a client is depends on its address here: ACLs for an address of 127.0.0.0/8 give its client permissions. So the same
script runs on any broker, without authentication. The administrator is at 127.0.0.1.
"""

from typing import Any, NamedTuple

from ottla.protocol.messages.create_acls import CreateAclsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.security.resources import Operation, ResourceType
from tests.support.waiting import eventually, until
from tests.support.wire.acl_requests import CLUSTER_NAME, Case, Grant, Names, creation
from tests.support.wire.raw import RawConnection, Side

ADMIN = "127.0.0.1"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # Needed until the first ACLs exist. From then on every resource has ACLs, so it has no effect.
    "allow.everyone.if.no.acl.found": "true",
    "node.id": "1",
}
HIDE = frozenset({"records", "configs", "total_bytes", "usable_bytes", "partition_size", "log_append_time_ms"})


class Secured(NamedTuple):
    side: Side
    names: Names


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
    answer = ""

    def is_settled() -> bool:
        nonlocal answer
        answer = str(side.ask(request, version))
        return "'error_code': 0" in answer and not any(f"'error_code': {code}" in answer for code in (14, 15, 16))

    assert until(is_settled), answer


def add_acls(side: Side, creations: list[Any]) -> None:
    """Returns when the broker decides by the new ACLs."""
    for start in range(0, len(creations), 200):
        chunk = creations[start : start + 200]
        answer = side.connection.ask(CreateAclsRequest(creations=chunk), 3)
        assert [result.error_code for result in answer.results] == [0] * len(chunk), answer
    await_acls(side, creations)


def await_acls(side: Side, creations: list[Any]) -> None:
    """Apache Kafka answers before its broker has the ACLs of its controller."""
    wanted = {acl_of(each) for each in creations}
    eventually(lambda: wanted <= described(side))


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


class Question(NamedTuple):
    """A case, asked by a client that has the first `granted` of its permissions."""

    case: Case
    granted: int
    source: str

    def __str__(self) -> str:
        granted = [f"{grant.operation.name} {grant.kind.name}" for grant in self.case.grants[: self.granted]]
        return f"{self.case.label} with {granted}"


def questions_about(cases: list[Case], network: int = 1) -> list[Question]:
    """Each case with none of its permissions, with the first, and so on; each from an address of its own."""
    asked = [(case, granted) for case in cases for granted in range(len(case.grants) + 1)]
    return [
        Question(case, granted, f"127.{network}.{number >> 8}.{number & 255}")
        for number, (case, granted) in enumerate(asked)
    ]


def answers_to(side: Side, questions: list[Question]) -> dict[str, Any]:
    """Grants the permissions, and asks."""
    add_acls(
        side,
        [
            creation(grant, host=question.source)
            for question in questions
            for grant in question.case.grants[: question.granted]
        ],
    )
    return {str(each): ask_from(side, each.source, each.case.request, each.case.version) for each in questions}


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
