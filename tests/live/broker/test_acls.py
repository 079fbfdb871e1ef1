"""A broker with an authorizer: each permission matters, a refusal reveals nothing, changes take effect immediately."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ottla import Broker
from ottla.broker.dispatch import SERVED
from ottla.broker.embedded.broker import EmbeddedBroker
from ottla.broker.permissions import PERMISSIONS
from ottla.protocol.api import API, ApiKey
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.alter_configs import AlterConfigsRequest
from ottla.protocol.messages.create_acls import CreateAclsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.security.resources import Operation, ResourceType
from tests.support.wire.acl_requests import (
    CLUSTER,
    CLUSTER_NAME,
    GROUP,
    MAKERS,
    TOPIC,
    TRANSACTIONAL_ID,
    Case,
    Grant,
    Names,
    creation,
    requests_of,
)
from tests.support.wire.acl_world import SETTINGS, Secured, add_acls, answers_to, ask_from, prepare, questions_about
from tests.support.wire.raw import RawConnection, Side

REFUSALS = (29, 30, 31, 53)


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    settings = {**SETTINGS, "transaction.two.phase.commit.enable": "true"}
    with Broker.embedded(settings=settings) as broker, contextlib.closing(Side("ottla", broker.bootstrap, "")) as side:
        yield Secured(side, prepare(side))


class Outcome(NamedTuple):
    answers: dict[str, Any]
    mattering: set[tuple[int, Operation, ResourceType]]
    """(API, operation, resource type): permissions that changed an answer."""


@pytest.fixture(scope="module")
def outcome(secured: Secured) -> Outcome:
    """Every request of every API and version, with none, some and all of its permissions."""
    side, names = secured
    questions = questions_about([*requests_of(names), *own_cases(side, names)], network=2)
    answers = answers_to(side, questions)
    mattering = set()
    for before, after in itertools.pairwise(questions):
        if before.case is after.case and answers[str(before)] != answers[str(after)]:
            grant = after.case.grants[after.granted - 1]
            mattering.add((int(after.case.request.api_key), grant.operation, grant.kind))
    return Outcome(answers, mattering)


def own_cases(side: Side, names: Names) -> Iterator[Case]:
    """What cannot be compared with Apache Kafka: it answers about KRaft, or the request changes something."""

    def on(operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> Grant:
        return Grant(operation, kind, name)

    action, transaction = on(Operation.CLUSTER_ACTION, CLUSTER), names.transactional_id
    partition = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1000)
    fetch = FetchRequest(replica_id=99, topics=[FetchRequest.FetchTopic(topic="seen", partitions=[partition])])
    yield Case("Fetch v11 of a follower", fetch, 11, [action])
    topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="seen", partitions=[0])]
    batch = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=transaction, producer_id=1, producer_epoch=0, topics=topics
    )
    yield Case("AddPartitionsToTxn v4 of a broker", AddPartitionsToTxnRequest(transactions=[batch]), 4, [action])
    yield Case("DescribeQuorum v0", DescribeQuorumRequest(), 0, [on(Operation.DESCRIBE, CLUSTER)])
    share = FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAA:0"])
    yield Case("FindCoordinator v6 of share groups", share, 6, [action])
    two_phase = InitProducerIdRequest(transactional_id=transaction, transaction_timeout_ms=1000, enable2_pc=True)
    grants = [
        on(operation, TRANSACTIONAL_ID, transaction) for operation in (Operation.WRITE, Operation.TWO_PHASE_COMMIT)
    ]
    yield Case("InitProducerId v6 for two-phase commit", two_phase, 6, grants)
    for name, create in (
        ("created-1", on(Operation.CREATE, TOPIC, "created-1")),
        ("created-2", on(Operation.CREATE, CLUSTER)),
    ):
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
        yield Case(f"Metadata v9 of {name}", request, 9, [on(Operation.DESCRIBE, TOPIC, name), create])
    for grant in (on(Operation.DELETE, TOPIC, "missing"), on(Operation.DELETE, CLUSTER)):
        deletion = DeleteTopicsRequest(topic_names=["missing"], timeout_ms=1000)
        yield Case(f"DeleteTopics v5 by {grant.kind.name}", deletion, 5, [grant])
    commit = TxnOffsetCommitRequest(
        transactional_id=transaction,
        group_id=names.group,
        producer_id=1,
        producer_epoch=0,
        topics=[
            TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                name="seen",
                partitions=[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0)],
            )
        ],
    )
    grants = [
        on(Operation.WRITE, TRANSACTIONAL_ID, transaction),
        on(Operation.READ, GROUP, names.group),
        on(Operation.READ, TOPIC, "seen"),
    ]
    yield Case("TxnOffsetCommit v3 of one topic", commit, 3, grants)
    started = side.connection.ask(InitProducerIdRequest(transactional_id="ongoing", transaction_timeout_ms=60_000), 4)
    side.connection.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="ongoing",
            v3_and_below_producer_id=started.producer_id,
            v3_and_below_producer_epoch=started.producer_epoch,
            v3_and_below_topics=topics,
        ),
        3,
    )
    grants = [on(Operation.DESCRIBE, TRANSACTIONAL_ID, "ongoing"), on(Operation.DESCRIBE, TOPIC, "seen")]
    yield Case("DescribeTransactions v0", DescribeTransactionsRequest(transactional_ids=["ongoing"]), 0, grants)
    node = str(names.node_id)
    for kind, name, grant in (
        (4, node, on(Operation.ALTER_CONFIGS, CLUSTER)),
        (32, names.group, on(Operation.ALTER_CONFIGS, GROUP, names.group)),
    ):
        old = AlterConfigsRequest.AlterConfigsResource(resource_type=kind, resource_name=name)
        yield Case(f"AlterConfigs v2 of type {kind}", AlterConfigsRequest(resources=[old]), 2, [grant])
        new = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=kind, resource_name=name)
        yield Case(
            f"IncrementalAlterConfigs v1 of type {kind}", IncrementalAlterConfigsRequest(resources=[new]), 1, [grant]
        )
    cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
    yield Case("DescribeCluster v0 with operations", cluster, 0, [on(Operation.DESCRIBE, CLUSTER)])


def test_every_served_api_says_which_permissions_it_requires() -> None:
    """A new API needs a row in broker/permissions.py, and requests in tests/support/wire/acl_requests.py."""
    assert {API[key].name for key in SERVED} == {API[key].name for key in PERMISSIONS}
    assert {API[key].name for key in SERVED} == {API[key].name for key in MAKERS}


@pytest.mark.parametrize("key", sorted(PERMISSIONS), ids=lambda key: API[key].name)
def test_each_permission_of_an_api_matters(outcome: Outcome, key: ApiKey) -> None:
    """If a handler forgot to ask for one of them, having it or not would make no difference."""
    required = {(each.operation, each.type) for each in PERMISSIONS[key]}
    mattering = {(operation, kind) for api, operation, kind in outcome.mattering if api == key}
    assert not required - mattering


@pytest.mark.parametrize(
    "key", sorted(key for key, required in PERMISSIONS.items() if required), ids=lambda key: API[key].name
)
def test_a_client_without_permission_learns_nothing(secured: Secured, key: ApiKey) -> None:
    """The answers about resources that exist and about others that do not are the same, apart from their names."""
    side, names = secured
    ghosts: dict[str, Any] = {
        "seen": "ghostly-s",
        "hidden": "ghostly-h",
        "group": "ghostly-g",
        "hidden_group": "ghostly-i",
        "transactional_id": "ghostly-t",
        "hidden_transactional_id": "ghostly-u",
    }
    imagined = names._replace(**ghosts)
    for version in API[key].versions:
        pairs = zip(MAKERS[key](names, version), MAKERS[key](imagined, version), strict=True)
        for (label, real, _), (_, ghostly, _) in pairs:
            answer = json.dumps(ask_from(side, "127.9.9.9", ghostly, version), default=str)
            for field, ghost in ghosts.items():
                answer = answer.replace(f'"{ghost}', f'"{getattr(names, field)}')
            expected = json.dumps(ask_from(side, "127.9.9.9", real, version), default=str)
            assert canonical(answer) == canonical(expected), f"v{version} {label}"


def canonical(text: str) -> Any:
    """Lists sorted: their order follows the names."""

    def sort(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: sort(each) for key, each in value.items()}
        return sorted((sort(each) for each in value), key=repr) if isinstance(value, list) else value

    return sort(json.loads(text))


# -- changes --


def latest(side: Side, source: str, topic: str) -> int:
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
        ]
    )
    code: int = ask_from(side, source, request, 5)["topics"][0]["partitions"][0]["error_code"]
    return code


def test_a_change_of_acls_takes_effect_on_open_connections(secured: Secured) -> None:
    side, _ = secured
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="seen")])
    with RawConnection(side.bootstrap, source="127.7.0.1") as client:
        assert client.ask(request, 9).topics[0].error_code == 29
        add_acls(side, [creation(Grant(Operation.DESCRIBE, TOPIC, "seen"), host="127.7.0.1")])
        assert client.ask(request, 9).topics[0].error_code == 0
        answer = side.connection.ask(DeleteAclsRequest(filters=[delete_filter(host_filter="127.7.0.1")]), 3)
        assert len(answer.filter_results[0].matching_acls) == 1
        assert client.ask(request, 9).topics[0].error_code == 29


def delete_filter(**chosen: Any) -> DeleteAclsRequest.DeleteAclsFilter:
    anything: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return DeleteAclsRequest.DeleteAclsFilter(**{**anything, **chosen})


def test_many_acls_are_created_and_deleted_in_one_request(secured: Secured) -> None:
    """More than one commit to the metadata store takes."""
    side, _ = secured
    grants = [creation(Grant(Operation.READ, TOPIC, f"many-{number}"), host="127.7.0.2") for number in range(450)]
    answer = side.connection.ask(CreateAclsRequest(creations=grants), 3)
    assert [result.error_code for result in answer.results] == [0] * 450
    overlapping = [delete_filter(host_filter="127.7.0.2"), delete_filter(resource_name_filter="many-7")]
    answer = side.connection.ask(DeleteAclsRequest(filters=overlapping), 3)
    assert [len(result.matching_acls) for result in answer.filter_results] == [450, 1]
    again = side.connection.ask(DeleteAclsRequest(filters=overlapping), 3)
    assert [len(result.matching_acls) for result in again.filter_results] == [0, 0]


def test_without_an_authorizer_acls_are_refused(broker: EmbeddedBroker) -> None:
    filters: dict[str, Any] = {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    with RawConnection(broker.bootstrap) as client:
        for version in API[ApiKey.DESCRIBE_ACLS].versions:
            assert client.ask(DescribeAclsRequest(**filters), version).error_code == 54
            created = client.ask(
                CreateAclsRequest(creations=[creation(Grant(Operation.READ, TOPIC, "a"), host="*")]), version
            )
            assert [result.error_code for result in created.results] == [54]
            deleted = client.ask(DeleteAclsRequest(filters=[delete_filter()]), version)
            assert [result.error_code for result in deleted.filter_results] == [54]


def test_acls_survive_a_restart(tmp_path: Any) -> None:
    with (
        Broker.embedded(tmp_path, settings=SETTINGS) as broker,
        contextlib.closing(Side("ottla", broker.bootstrap, "")) as side,
    ):
        prepare(side)
        assert latest(side, "127.7.0.3", "seen") == 29
    with (
        Broker.embedded(tmp_path, settings=SETTINGS) as broker,
        contextlib.closing(Side("ottla", broker.bootstrap, "")) as side,
    ):
        assert latest(side, "127.7.0.3", "seen") == 29
        assert latest(side, "127.0.0.1", "seen") == 0
