"""Every version of every group API through the dispatcher, in bytes, on real logs. Spec: B2, C1, C2."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.types import ZERO_UUID
from tests.support.wire.group_requests import (
    assignment,
    commit_request,
    delete_offsets_request,
    heartbeat_request,
    join_request,
    leave_request,
    offsets_request,
    subscription,
    sync_request,
)
from tests.support.worlds.coordinator_world import CoordinatorWorld
from tests.support.worlds.data_world import topic_id_of

ORDERS = topic_id_of("orders")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CoordinatorWorld]:
    made = CoordinatorWorld(str(tmp_path))
    made.topic("orders", partitions=3)
    yield made
    made.stop()
    made.close()


@pytest.fixture
def ready(world: CoordinatorWorld) -> CoordinatorWorld:
    """With a coordinator."""
    world.offsets_topic(partitions=5)
    return world


def settle(world: CoordinatorWorld, group: str = "g", **options: Any) -> str:
    """A stable group of one member; its id."""
    member_id = world.ask(join_request(group=group, **options), 9, client_id="ann").member_id
    joined = world.ask(join_request(member_id, group=group, **options), 9, client_id="ann")
    assert joined.error_code == 0
    share = {member_id: assignment(orders=[0, 1, 2])}
    assert world.ask(sync_request(member_id, 1, share, group=group), 5).error_code == 0
    return str(member_id)


def code_of(answer: Any) -> int:
    """Of an answer about one partition."""
    return int(answer.topics[0].partitions[0].error_code)


# --- FindCoordinator ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_every_version_finds_the_coordinator(world: CoordinatorWorld, version: int) -> None:
    """Spec: C1. The first request creates the topic, with 50 partitions."""
    if version < 4:
        found = world.ask(FindCoordinatorRequest(key="g"), version)
    else:
        (found,) = world.ask(FindCoordinatorRequest(coordinator_keys=["g"]), version).coordinators
        assert found.key == "g"
    assert (found.error_code, found.node_id, found.host, found.port) == (0, 0, "broker0", 9092)
    topic = world.image.topics["__consumer_offsets"]
    assert len(topic.partitions) == 50
    assert topic.configs["cleanup.policy"] == "compact"
    assert topic.configs["segment.bytes"] == "104857600"


def test_many_groups_are_found_at_once(world: CoordinatorWorld) -> None:
    """From v4 on, each with its own result."""
    names = ["g", "my-group", "", "é"]
    found = world.ask(FindCoordinatorRequest(coordinator_keys=names), 4).coordinators
    assert [(each.key, each.error_code, each.node_id) for each in found] == [(name, 0, 0) for name in names]


def test_concurrent_requests_create_the_topic_once(world: CoordinatorWorld) -> None:
    asked = [world.asks(FindCoordinatorRequest(key=f"g{number}"), 2) for number in range(10)]
    assert {each.answer().error_code for each in asked} == {0}
    assert world.created == ["__consumer_offsets"]


def test_a_partition_without_a_leader_has_no_coordinator(ready: CoordinatorWorld) -> None:
    ready.change_partitions(lambda p: p._replace(leader=-1), "__consumer_offsets")
    assert ready.ask(FindCoordinatorRequest(key="g"), 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (found,) = ready.ask(FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
    assert (found.error_code, found.node_id, found.port) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)


def test_a_coordinator_on_another_broker_is_found(ready: CoordinatorWorld) -> None:
    ready.change_partitions(lambda p: p._replace(leader=2, leader_epoch=1, replicas=(0, 2)), "__consumer_offsets")
    found = ready.ask(FindCoordinatorRequest(key="g"), 3)
    assert (found.error_code, found.node_id, found.host) == (0, 2, "broker2")


@pytest.mark.parametrize("key_type", [-1, 2, 3, 99])
def test_an_unknown_key_type_is_refused(world: CoordinatorWorld, key_type: int) -> None:
    (found,) = world.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"]), 5).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST


def test_share_groups_have_no_coordinator_here(world: CoordinatorWorld) -> None:
    (found,) = world.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=["g:id:0"]), 6).coordinators
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- membership ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_join_adds_a_member(ready: CoordinatorWorld, version: int) -> None:
    first = ready.ask(join_request(), version, client_id="ann")
    if version >= 4:
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        first = ready.ask(join_request(first.member_id), version, client_id="ann")
    assert (first.error_code, first.generation_id, first.leader) == (0, 1, first.member_id)
    assert first.member_id.startswith("ann-")
    assert len(first.member_id) == len("ann-") + 36
    assert [(m.member_id, m.metadata) for m in first.members] == [(first.member_id, subscription("orders"))]
    assert (first.protocol_name, first.skip_assignment) == ("range", False)


@pytest.mark.parametrize("version", range(10))
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "ghost"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_every_version_of_join_encodes_its_errors(
    ready: CoordinatorWorld, version: int, change: dict[str, Any], code: ErrorCode
) -> None:
    """Spec: B3."""
    options = dict(change)
    refused = ready.ask(join_request(options.pop("member_id", ""), **options), version)
    assert (refused.error_code, refused.generation_id, refused.members) == (code, -1, [])
    assert refused.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_sync(ready: CoordinatorWorld, version: int) -> None:
    member_id = settle(ready)
    synced = ready.ask(sync_request(member_id, 1), version)
    assert (synced.error_code, synced.assignment) == (0, assignment(orders=[0, 1, 2]))
    assert ready.ask(sync_request(member_id, 9), version).error_code == ErrorCode.ILLEGAL_GENERATION
    assert ready.ask(sync_request(member_id, 1, group=""), version).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_heartbeat(ready: CoordinatorWorld, version: int) -> None:
    member_id = settle(ready)
    assert ready.ask(heartbeat_request(member_id, 1), version).error_code == 0
    assert ready.ask(heartbeat_request(member_id, 2), version).error_code == ErrorCode.ILLEGAL_GENERATION
    assert ready.ask(heartbeat_request(member_id, 1, group=""), version).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_leave(ready: CoordinatorWorld, version: int) -> None:
    member_id = settle(ready)
    no_group = ready.ask(leave_request((member_id, None), group="", version=version), version)
    assert no_group.error_code == ErrorCode.INVALID_GROUP_ID
    refused = ready.ask(leave_request(("ghost", None), version=version), version)
    left = ready.ask(leave_request((member_id, None), version=version), version)
    if version < 3:
        assert (refused.error_code, left.error_code) == (ErrorCode.UNKNOWN_MEMBER_ID, 0)
    else:
        assert [each.members[0].error_code for each in (refused, left)] == [ErrorCode.UNKNOWN_MEMBER_ID, 0]
        assert [each.error_code for each in (refused, left)] == [0, 0]
    assert ready.shard().groups["g"].state == "Empty"


@pytest.mark.parametrize("version", range(5, 10))
def test_every_version_with_static_members(ready: CoordinatorWorld, version: int) -> None:
    first = ready.ask(join_request(instance="one"), version)
    assert first.error_code == 0
    assert first.members[0].group_instance_id == "one"
    ready.ask(sync_request(first.member_id, 1, {first.member_id: b"all"}, instance="one"), 5)
    back = ready.ask(join_request(instance="one"), version)
    assert (back.error_code, back.generation_id) == (0, 1)
    assert back.skip_assignment == (version >= 9)
    zombie = ready.ask(heartbeat_request(first.member_id, 1, instance="one"), 3)
    assert zombie.error_code == ErrorCode.FENCED_INSTANCE_ID


# --- offsets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_of_commit(ready: CoordinatorWorld, version: int) -> None:
    by_id = ORDERS if version >= 10 else ZERO_UUID
    assert code_of(ready.ask(commit_request({0: 5, 1: 6}, topic_id=by_id, metadata="m"), version)) == 0
    stored = ready.shard().offsets.find("g", "orders", 1)
    assert stored is not None
    assert (stored.offset, stored.metadata, stored.topic_id) == (6, "m", ORDERS)
    unknown = commit_request({0: 5}, topic_id=b"?" * 16) if version >= 10 else commit_request({0: 5}, topic="nowhere")
    expected = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refused = ready.ask(unknown, version)
    assert code_of(refused) == expected
    assert (refused.topics[0].name, refused.topics[0].topic_id) == (
        ("", b"?" * 16) if version >= 10 else ("nowhere", ZERO_UUID)
    )
    stale = ready.ask(commit_request({0: 5}, group="none", member_id="m", generation=3, topic_id=by_id), version)
    assert code_of(stale) == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION)
    no_group = ready.ask(commit_request({0: 8}, group="", topic_id=by_id), version)
    assert code_of(no_group) == 0, "the empty group id is allowed"


@pytest.mark.parametrize("version", range(1, 8))
def test_every_version_of_fetch_for_one_group(ready: CoordinatorWorld, version: int) -> None:
    ready.ask(commit_request({0: 5}, metadata="m", leader_epoch=3), 8)
    answer = ready.ask(offsets_request("g", version=version, topics={"orders": [0, 1], "nowhere": [0]}), version)
    found = [
        (topic.name, part.partition_index, part.committed_offset, part.metadata, part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    ]
    assert found == [("orders", 0, 5, "m", 0), ("orders", 1, -1, "", 0), ("nowhere", 0, -1, "", 0)]
    assert answer.topics[0].partitions[0].committed_leader_epoch == (3 if version >= 5 else -1)
    if version >= 2:
        everything = ready.ask(offsets_request("g", version=version), version)
        assert [(t.name, [p.committed_offset for p in t.partitions]) for t in everything.topics] == [("orders", [5])]
        assert everything.error_code == 0
        assert ready.ask(offsets_request("no_group", version=version), version).topics == []


@pytest.mark.parametrize("version", [8, 9])
def test_every_version_of_fetch_for_many_groups(ready: CoordinatorWorld, version: int) -> None:
    for number, group in enumerate(("a", "b")):
        ready.ask(commit_request({0: number}, group=group), 8)
    answer = ready.ask(offsets_request("a", "b", "none", version=version, topics={"orders": [0]}), version)
    found = {
        group.group_id: (group.error_code, group.topics[0].partitions[0].committed_offset) for group in answer.groups
    }
    assert found == {"a": (0, 0), "b": (0, 1), "none": (0, -1)}
    everything = ready.ask(offsets_request("a", "none", version=version), version)
    assert [(group.group_id, len(group.topics)) for group in everything.groups] == [("a", 1), ("none", 0)]


def test_offsets_that_are_committed_are_fetched_without_waiting(ready: CoordinatorWorld) -> None:
    ready.ask(commit_request({0: 5}), 8)
    assert ready.asks(offsets_request("g", "h", version=9), 9).was_immediate


def test_version_ten_of_fetch_names_topics_by_id(ready: CoordinatorWorld) -> None:
    ready.ask(commit_request({0: 5}), 8)
    ids = {"orders": ORDERS, "unknown": b"?" * 16}
    request = offsets_request("g", version=10, topics={"orders": [0], "unknown": [0]}, topic_ids=ids)
    (group,) = ready.ask(request, 10).groups
    found = [
        (topic.topic_id, part.committed_offset, part.error_code) for topic in group.topics for part in topic.partitions
    ]
    assert found == [(ORDERS, 5, 0), (b"?" * 16, -1, ErrorCode.UNKNOWN_TOPIC_ID)]
    (group,) = ready.ask(offsets_request("g", version=10), 10).groups
    assert [topic.topic_id for topic in group.topics] == [ORDERS]


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_of_offset_fetch_reports_a_missing_coordinator(world: CoordinatorWorld, version: int) -> None:
    """Up to version 1 in each partition, then on top, then for each group; never as 15, which old consumers
    do not expect here."""
    ids = {"orders": ORDERS} if version >= 10 else None
    answer = world.ask(offsets_request("g", version=version, topics={"orders": [0]}, topic_ids=ids), version)
    if version == 1:
        assert code_of(answer) == ErrorCode.NOT_COORDINATOR
    elif version < 8:
        assert (answer.error_code, answer.topics) == (ErrorCode.NOT_COORDINATOR, [])
    else:
        (group,) = answer.groups
        assert (group.group_id, group.error_code, group.topics) == ("g", ErrorCode.NOT_COORDINATOR, [])


def test_deleting_offsets(ready: CoordinatorWorld) -> None:
    ready.ask(commit_request({0: 5, 1: 6}), 8)
    answer = ready.ask(delete_offsets_request([0, 2, 9]), 0)
    assert answer.error_code == 0
    assert [part.error_code for part in answer.topics[0].partitions] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert ready.ask(delete_offsets_request([0], group=""), 0).error_code == ErrorCode.INVALID_GROUP_ID
    assert ready.ask(delete_offsets_request([0], group="none"), 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    left = ready.ask(offsets_request("g", version=7), 7)
    assert [part.partition_index for part in left.topics[0].partitions] == [1]


# --- groups as a whole --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_every_version_of_describe(ready: CoordinatorWorld, version: int) -> None:
    member_id = settle(ready)
    known, unknown = ready.ask(DescribeGroupsRequest(groups=["g", "none"]), version).groups
    assert (known.error_code, known.group_id, known.group_state) == (0, "g", "Stable")
    assert (known.protocol_type, known.protocol_data) == ("consumer", "range")
    (member,) = known.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "ann", "/127.0.0.1")
    assert member.member_metadata == subscription("orders")
    assert member.member_assignment == assignment(orders=[0, 1, 2])
    assert (unknown.group_id, unknown.group_state) == ("none", "Dead")
    assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)


@pytest.mark.parametrize("version", range(3, 7))
def test_authorized_operations_of_a_group_are_returned_on_request(ready: CoordinatorWorld, version: int) -> None:
    settle(ready)
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    assert ready.ask(request, version).groups[0].authorized_operations == 0b1101_0100_1000
    request = DescribeGroupsRequest(groups=["g"])
    assert ready.ask(request, version).groups[0].authorized_operations == -(2**31)


def test_the_empty_group_id_can_be_described_and_deleted(ready: CoordinatorWorld) -> None:
    """It may have offsets, which is why Kafka allows it."""
    ready.ask(commit_request({0: 5}, group=""), 8)
    (described,) = ready.ask(DescribeGroupsRequest(groups=[""]), 5).groups
    assert (described.error_code, described.group_state) == (0, "Empty")
    (deleted,) = ready.ask(DeleteGroupsRequest(groups_names=[""]), 2).results
    assert deleted.error_code == 0


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_list(ready: CoordinatorWorld, version: int) -> None:
    settle(ready, "stable")
    for name in "abc":
        ready.ask(commit_request({0: 1}, group=name), 8)
    answer = ready.ask(ListGroupsRequest(), version)
    assert {g.group_id: g.protocol_type for g in answer.groups} == {"stable": "consumer", "a": "", "b": "", "c": ""}
    states = {g.group_id: g.group_state for g in answer.groups}
    assert (states["stable"], states["a"]) == (("Stable", "Empty") if version >= 4 else ("", ""))
    assert {g.group_type for g in answer.groups} == ({"classic"} if version >= 5 else {""})
    if version >= 4:
        filtered = ready.ask(ListGroupsRequest(states_filter=[" sTABLE "]), version)
        assert [g.group_id for g in filtered.groups] == ["stable"]
    if version >= 5:
        assert len(ready.ask(ListGroupsRequest(types_filter=["Classic"]), version).groups) == 4
        assert ready.ask(ListGroupsRequest(types_filter=["consumer"]), version).groups == []


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_delete(ready: CoordinatorWorld, version: int) -> None:
    settle(ready, "busy")
    ready.ask(commit_request({0: 1}, group="idle"), 8)
    request = DeleteGroupsRequest(groups_names=["idle", "busy", "none", "idle"])
    results = ready.ask(request, version).results
    assert [(each.group_id, each.error_code) for each in results] == [
        ("idle", 0),
        ("busy", ErrorCode.NON_EMPTY_GROUP),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert [each.error_message is not None for each in results] == [False, version >= 3, version >= 3]
    assert [g.group_id for g in ready.ask(ListGroupsRequest(), 4).groups] == ["busy"]


def test_groups_of_another_coordinator_are_refused_one_by_one(ready: CoordinatorWorld) -> None:
    ready.change_partitions(lambda p: p._replace(leader=1, leader_epoch=1), "__consumer_offsets")
    (deleted,) = ready.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
    (described,) = ready.ask(DescribeGroupsRequest(groups=["g"], include_authorized_operations=True), 6).groups
    assert deleted.error_code == described.error_code == ErrorCode.NOT_COORDINATOR
    assert described.authorized_operations == -(2**31)
    assert code_of(ready.ask(commit_request({0: 1}), 8)) == ErrorCode.NOT_COORDINATOR
    assert ready.ask(leave_request(("m", None)), 5).error_code == ErrorCode.NOT_COORDINATOR
    assert ready.ask(leave_request(("m", None), version=2), 2).error_code == ErrorCode.NOT_COORDINATOR
