"""SyncGroup, Heartbeat and LeaveGroup, one rule at a time. Spec: B5."""

import pytest

from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, assignment, subscription


def completing(*clients: str, **options: object) -> tuple[GroupWorld, dict[str, str]]:
    """A group whose members have joined and wait for the leader's assignment."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    ids = {client: group.enter(client, **options)[0] for client in clients}
    group.wait(10_000)
    assert group.state() == "CompletingRebalance"
    return group, ids


# --- SyncGroup ----------------------------------------------------------------------------------------------


def test_the_leaders_assignment_reaches_everyone_and_is_stored_first() -> None:
    """Spec: B5."""
    group, ids = completing("ann", "bob")
    waiting = group.sync(ids["bob"], 1)
    assert group.code(waiting) is None
    stored = len(group.log)
    leader = group.sync(ids["ann"], 1, {ids["ann"]: assignment(orders=[0]), ids["bob"]: assignment(orders=[1])})
    assert group.answers[leader].assignment == assignment(orders=[0])
    assert group.answers[waiting].assignment == assignment(orders=[1])
    assert len(group.log) == stored + 1
    assert group.state() == "Stable"


def test_only_the_leaders_assignment_counts() -> None:
    """Spec: B5."""
    group, ids = completing("ann", "bob")
    waiting = group.sync(ids["bob"], 1, {ids["bob"]: assignment(orders=[0, 1, 2])})
    assert group.code(waiting) is None
    assert group.state() == "CompletingRebalance"
    group.sync(ids["ann"], 1, {ids["bob"]: assignment(orders=[2])})
    assert group.answers[waiting].assignment == assignment(orders=[2])


def test_a_member_the_leader_left_out_gets_an_empty_assignment() -> None:
    group, ids = completing("ann", "bob")
    waiting = group.sync(ids["bob"], 1)
    group.sync(ids["ann"], 1, {ids["ann"]: assignment(orders=[0])})
    assert (group.answers[waiting].error_code, group.answers[waiting].assignment) == (0, b"")


def test_an_assignment_for_members_that_do_not_exist_is_ignored() -> None:
    group, ids = completing("ann")
    group.sync(ids["ann"], 1, {ids["ann"]: b"a", "stranger": b"s", "": b""})
    assert group.state() == "Stable"
    assert group.members() == {ids["ann"]}
    group.fail_over()
    assert group.members() == {ids["ann"]}


def test_an_unreadable_assignment_is_passed_through_and_the_group_survives() -> None:
    """The coordinator does not look into assignments."""
    group, ids = completing("ann", "bob")
    waiting = group.sync(ids["bob"], 1)
    group.sync(ids["ann"], 1, {ids["bob"]: b"\xff\xff garbage", ids["ann"]: b"\x00"})
    assert group.answers[waiting].assignment == b"\xff\xff garbage"
    assert group.events[-1].after[ids["bob"]] == "10 bytes", "the history records only its size"
    group.fail_over()
    assert group.state() == "Stable"


def test_an_assignment_too_large_to_store_is_refused_and_the_group_rebalances() -> None:
    """As in Kafka, every member gets UNKNOWN_SERVER_ERROR and a new rebalance starts."""
    group, ids = completing("ann", "bob")
    waiting = group.sync(ids["bob"], 1)
    stored = len(group.log)
    leader = group.sync(ids["ann"], 1, {ids["bob"]: bytes(group.config.record_max_bytes)})
    assert group.code(leader) == group.code(waiting) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert (group.state(), len(group.log)) == ("PreparingRebalance", stored)
    requests = [group.join(member_id) for member_id in ids.values()]
    assert [group.answers[request].generation_id for request in requests] == [2, 2]
    group.synchronize(ids)


def test_sync_in_a_stable_group_returns_the_stored_assignment_at_once() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    stored = len(group.log)
    answer = group.answers[group.sync(ids["bob"], group.generation(), {ids["bob"]: b"other"})]
    assert answer.assignment == assignment(orders=[1])
    assert len(group.log) == stored


def test_a_leader_cannot_change_the_assignment_of_a_stable_group() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.sync(ids["ann"], group.generation(), {ids["ann"]: assignment(orders=[0, 1, 2])})
    assert group.answers[group.sync(ids["ann"], group.generation())].assignment == assignment(orders=[0])


def test_sync_during_the_join_phase_gets_rebalance_in_progress() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    generation = group.generation()
    group.join(ids["ann"])
    assert group.code(group.sync(ids["bob"], generation)) == ErrorCode.REBALANCE_IN_PROGRESS


def test_sync_of_an_unknown_member_is_refused() -> None:
    group, _ = completing("ann")
    assert group.code(group.sync("stranger", 1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.code(group.sync("stranger", 1, group="unknown")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_to_an_empty_group_is_refused() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    assert group.code(group.sync(ids["ann"], group.generation())) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [-1, 0, 2])
def test_sync_of_another_generation_is_refused(generation: int) -> None:
    """Generation fencing: a zombie leader's assignment is ignored."""
    group, ids = completing("ann")
    refused = group.sync(ids["ann"], generation, {ids["ann"]: b"zombie"})
    assert group.code(refused) == ErrorCode.ILLEGAL_GENERATION
    assert group.state() == "CompletingRebalance"


def test_the_member_is_checked_before_the_generation() -> None:
    group, _ = completing("ann")
    assert group.code(group.sync("stranger", 99)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_version_five_checks_the_protocol() -> None:
    group, ids = completing("ann")
    for protocol_type, protocol in (("connect", "range"), ("consumer", "sticky")):
        refused = group.sync(ids["ann"], 1, protocol_type=protocol_type, protocol=protocol)
        assert group.code(refused) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.code(group.sync(ids["ann"], 9, protocol="sticky")) == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize(("protocol_type", "protocol"), [(None, "range"), ("consumer", None), (None, None)])
def test_version_five_requires_the_protocol(protocol_type: str | None, protocol: str | None) -> None:
    """Kafka refuses this before it looks at the group at all."""
    group, ids = completing("ann")
    refused = group.sync(ids["ann"], 1, protocol_type=protocol_type, protocol=protocol)
    assert group.code(refused) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    stranger = group.sync("stranger", 1, protocol_type=protocol_type, protocol=protocol)
    assert group.code(stranger) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", range(6))
def test_every_version_of_sync_gets_its_assignment(version: int) -> None:
    group, ids = completing("ann")
    answer = group.answers[group.sync(ids["ann"], 1, {ids["ann"]: b"mine"}, version=version)]
    assert (answer.error_code, answer.assignment) == (0, b"mine")
    assert (answer.protocol_type, answer.protocol_name) == (("consumer", "range") if version >= 5 else (None, None))
    refused = group.answers[group.sync(ids["ann"], 7, version=version)]
    assert (refused.error_code, refused.assignment) == (ErrorCode.ILLEGAL_GENERATION, b"")


def test_of_two_parked_syncs_of_one_member_only_the_last_gets_the_assignment() -> None:
    group, ids = completing("ann", "bob")
    given_up = group.sync(ids["bob"], 1)
    retried = group.sync(ids["bob"], 1)
    assert group.code(given_up) == ErrorCode.REBALANCE_IN_PROGRESS
    group.sync(ids["ann"], 1, {ids["bob"]: b"bob"})
    assert group.answers[retried].assignment == b"bob"


def test_a_rebalance_ends_parked_syncs_with_rebalance_in_progress() -> None:
    group, ids = completing("ann", "bob")
    waiting = group.sync(ids["bob"], 1)
    group.enter("cid")
    answer = group.answers[waiting]
    assert (answer.error_code, answer.assignment) == (ErrorCode.REBALANCE_IN_PROGRESS, b"")


# --- Heartbeat ----------------------------------------------------------------------------------------------


def test_a_heartbeat_succeeds_in_a_stable_group_and_while_the_leader_assigns() -> None:
    group, ids = completing("ann")
    assert group.heartbeat(ids["ann"], 1) == ErrorCode.NONE
    group.sync(ids["ann"], 1, {ids["ann"]: b""})
    assert group.heartbeat(ids["ann"], 1) == ErrorCode.NONE


def test_a_heartbeat_during_a_rebalance_reports_it_and_keeps_the_member_alive() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    generation = group.generation()
    group.join(ids["ann"])
    for _ in range(5):
        group.wait(9_000)
        assert group.heartbeat(ids["bob"], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.members() == set(ids.values())


def test_a_heartbeat_with_an_unknown_member_generation_or_group_is_refused() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    generation = group.generation()
    assert group.heartbeat("stranger", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat("stranger", 99) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat(ids["ann"], generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat(ids["ann"], generation, group="no-such-group") == ErrorCode.UNKNOWN_MEMBER_ID
    group.leave(ids["ann"])
    assert group.heartbeat(ids["ann"], generation) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_heartbeat_is_answered(version: int) -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    assert group.heartbeat(ids["ann"], group.generation(), version=version) == ErrorCode.NONE
    assert group.heartbeat(ids["ann"], 77, version=version) == ErrorCode.ILLEGAL_GENERATION


# --- LeaveGroup ---------------------------------------------------------------------------------------------


def test_when_a_member_leaves_the_others_get_its_partitions() -> None:
    """Spec: B6."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    answer = group.leave(ids["bob"])
    assert [(m.member_id, m.error_code) for m in answer.members] == [(ids["bob"], 0)]
    assert group.state() == "PreparingRebalance"
    assert group.code(group.join(ids["ann"])) == ErrorCode.NONE


def test_when_the_last_member_leaves_the_group_is_stored_as_empty() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    stored = len(group.log)
    group.leave(ids["ann"])
    assert (group.state(), group.generation(), len(group.log)) == ("Empty", 2, stored + 1)
    group.fail_over()
    found = group.shard.groups["g"]
    assert (group.state(), found.generation, found.protocol_type) == ("Empty", 2, "consumer")
    assert found.protocol is None
    assert found.leader_id is None


def test_several_members_can_leave_in_one_request_each_with_its_own_error() -> None:
    """LeaveGroup v3 (KIP-345)."""
    group = GroupWorld()
    ids = group.settle("ann", "bob", "cid")
    answer = group.leave(ids["ann"], "stranger", ids["cid"])
    assert [m.error_code for m in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert answer.error_code == 0
    assert group.members() == {ids["bob"]}
    assert group.generation() == 1, "one rebalance for all of them, still in progress"


def test_the_join_phase_completes_when_the_last_missing_member_leaves() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    request = group.join(ids["ann"])
    assert group.code(request) is None
    group.leave(ids["bob"])
    assert group.code(request) == ErrorCode.NONE


def test_a_parked_request_of_a_member_that_leaves_is_answered() -> None:
    group, ids = completing("ann", "bob")
    waiting = group.sync(ids["bob"], 1)
    group.leave(ids["bob"])
    assert group.code(waiting) == ErrorCode.UNKNOWN_MEMBER_ID
    again = group.join(ids["ann"])
    assert group.code(again) == ErrorCode.NONE
    other = GroupWorld(group_initial_rebalance_delay_ms=5_000)
    cid, parked = other.enter("cid")
    other.leave(cid)
    answer = other.answers[parked]
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")


def test_a_pending_member_can_leave() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    pending = group.answers[group.join(client="bob")].member_id
    request = group.join(ids["ann"])
    assert group.code(request) is None
    assert group.leave(pending).members[0].error_code == 0
    assert group.code(request) == ErrorCode.NONE, "the join phase no longer waits for it"
    assert group.code(group.join(pending)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_an_unknown_group_is_refused() -> None:
    group = GroupWorld()
    answer = group.leaves(("ann", None), group="nowhere")
    assert (answer.error_code, answer.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert group.state("nowhere") == "Dead"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_before_version_three_one_member_leaves_and_its_error_is_at_the_top_level(version: int) -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    assert group.leaves(("stranger", None), version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.leaves(("", None), version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.leaves(("ann", None), group="nowhere", version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.leaves((ids["ann"], None), version=version).error_code == 0
    assert group.state() == "Empty"


@pytest.mark.parametrize("version", [3, 4, 5])
def test_from_version_three_on_each_member_has_its_own_error(version: int) -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    answer = group.leaves((ids["ann"], None), ("stranger", None), version=version)
    assert [m.error_code for m in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_member_named_twice_in_one_leave_request_leaves_once() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    answer = group.leave(ids["ann"], ids["ann"])
    assert [m.error_code for m in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_changed_protocol_type_is_stored_with_the_group() -> None:
    group = GroupWorld()
    group.settle("worker", protocol_type="connect", protocols={"compatible": subscription("x")})
    group.fail_over()
    found = group.shard.groups["g"]
    assert (found.protocol_type, found.protocol) == ("connect", "compatible")
