"""JoinGroup to a classic group, one rule at a time. Spec: B2, B3, B4."""

from dataclasses import replace

import pytest

from ottla.coordinator.group.classic_group import TRANSITIONS, GroupState
from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, subscription

# --- admission ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("session_ms", "is_fine"), [(5_999, False), (6_000, True), (300_000, True), (300_001, False)])
def test_a_session_timeout_outside_the_brokers_bounds_is_refused(session_ms: int, is_fine: bool) -> None:
    """Spec: B3."""
    group = GroupWorld(group_max_session_timeout_ms=300_000)
    code = group.code(group.join(session_ms=session_ms))
    assert code == (ErrorCode.MEMBER_ID_REQUIRED if is_fine else ErrorCode.INVALID_SESSION_TIMEOUT)
    assert group.state() == ("Empty" if is_fine else "Dead")


def test_the_default_bounds_of_the_session_timeout_are_kafkas() -> None:
    """Spec: B3. 6 seconds to 30 minutes."""
    group = GroupWorld()
    for session_ms in (6_000, 1_800_000):
        assert group.code(group.join(session_ms=session_ms)) == ErrorCode.MEMBER_ID_REQUIRED
    for session_ms in (5_999, 1_800_001):
        assert group.code(group.join(session_ms=session_ms)) == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_bad_session_timeout_is_reported_before_an_unknown_member() -> None:
    group = GroupWorld()
    assert group.code(group.join("stranger", session_ms=1)) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert group.code(group.join("stranger")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_is_created_by_a_join_without_a_member_id() -> None:
    group = GroupWorld()
    assert group.code(group.join("ann-1")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.state() == "Dead"
    assert not group.log
    group.join()
    assert group.state() == "Empty"
    assert len(group.log) == 1, "a new group is stored before the reply"


def test_a_member_with_an_invented_id_is_unknown() -> None:
    group = GroupWorld()
    group.settle("ann")
    answer = group.answers[group.join("stranger")]
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "stranger")


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", {"range": b""}), ("consumer", {}), ("", {})])
def test_joining_an_empty_group_requires_a_protocol_type_and_a_protocol(
    protocol_type: str, protocols: dict[str, bytes]
) -> None:
    group = GroupWorld()
    refused = group.join(protocol_type=protocol_type, protocols=protocols)
    assert group.code(refused) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.state() == "Dead", "a refused join leaves no group behind"


def test_a_group_has_one_protocol_type() -> None:
    group = GroupWorld()
    group.settle("ann")
    assert group.code(group.join(protocol_type="connect")) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_can_change_its_protocol_type() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    assert group.state() == "Empty"
    worker, request = group.enter("worker", protocol_type="connect", protocols={"compatible": b""})
    group.wait(0)
    assert group.answers[request].protocol_type == "connect"
    assert group.members() == {worker}


def test_a_member_that_supports_none_of_the_groups_protocols_is_refused() -> None:
    """Spec: B4. All members must support the protocol, not just some."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    group.enter("ann", protocols={"range": b"", "sticky": b""})
    group.enter("bob", protocols={"range": b"", "roundrobin": b""})
    refused = group.join(protocols={"sticky": b"", "roundrobin": b""})
    assert group.code(refused) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.code(group.join(protocols={"range": b""})) == ErrorCode.MEMBER_ID_REQUIRED


def test_a_protocol_offered_twice_counts_once() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    _, request = group.enter("ann", protocols={"range": b"", "sticky": b""})
    group.enter("bob", protocols=[("range", b""), ("range", b"")])
    assert group.code(group.join(protocols={"sticky": b""})) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    group.wait(5_000)
    assert group.answers[request].protocol_name == "range"


# --- the member id (KIP-394) --------------------------------------------------------------------------------


def test_a_first_join_only_returns_a_member_id() -> None:
    """Spec: B3. The id is the client id and a UUID (KIP-394)."""
    group = GroupWorld()
    answer = group.answers[group.join(client="ann")]
    assert (answer.error_code, answer.member_id, answer.generation_id) == (79, "ann-uuid1", -1)
    assert group.state() == "Empty"
    assert not group.members()


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_before_version_four_a_first_join_adds_the_member_at_once(version: int) -> None:
    group = GroupWorld()
    request = group.join(version=version, client="ann")
    group.wait(0)
    answer = group.answers[request]
    assert (answer.error_code, answer.member_id, answer.leader) == (0, "ann-uuid1", "ann-uuid1")


def test_a_pending_member_id_is_forgotten_after_the_session_timeout() -> None:
    group = GroupWorld()
    ann = group.answers[group.join(client="ann", session_ms=10_000)].member_id
    group.wait(9_999)
    assert ann in group.shard.groups["g"].pending_members
    group.wait(1)
    assert group.code(group.join(ann)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_member_id_can_be_used_until_it_is_forgotten() -> None:
    group = GroupWorld()
    ann = group.answers[group.join(client="ann", session_ms=10_000)].member_id
    group.wait(9_999)
    request = group.join(ann)
    group.wait(60_000)
    assert group.answers[request].member_id == ann


def test_the_join_phase_waits_for_pending_members() -> None:
    """A pending member blocks the join phase until it joins or is forgotten."""
    group = GroupWorld()
    ids = group.settle("ann")
    group.join(client="bob", session_ms=20_000)
    request = group.join(ids["ann"])
    assert group.code(request) is None
    assert group.state() == "PreparingRebalance"
    group.wait(19_999)
    assert group.code(request) is None
    group.wait(1)
    assert group.code(request) == ErrorCode.NONE
    assert group.members() == set(ids.values())


def test_a_pending_id_does_not_block_an_empty_group_forever() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.join(client="bob", session_ms=20_000)
    group.leave(ids["ann"])
    group.wait(0)
    assert group.state() == "Empty"


def test_pending_ids_do_not_survive_a_failover() -> None:
    """They are not stored."""
    group = GroupWorld()
    ann = group.answers[group.join(client="ann")].member_id
    group.fail_over()
    assert group.code(group.join(ann)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_id_does_not_become_a_static_member() -> None:
    group = GroupWorld()
    group.settle("one", static=True)
    pending = group.answers[group.join(client="bob")].member_id
    assert group.code(group.join(pending, instance="one")) == ErrorCode.FENCED_INSTANCE_ID
    assert group.code(group.join(pending, instance="two")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert len(group.members()) == 1


def test_a_very_long_client_id_still_yields_a_member_id_that_can_be_stored() -> None:
    group = GroupWorld()
    client = "é" * 16_000
    ann, request = group.enter(client)
    group.wait(0)
    assert group.code(request) == ErrorCode.NONE
    group.sync(ann, 1, {ann: b""})
    group.fail_over()
    assert group.members() == {ann}


# --- the first rebalance and its leader ---------------------------------------------------------------------


def test_a_lone_member_becomes_leader_of_generation_one() -> None:
    """Spec: B4, B5. The first member is the leader, and only the leader gets the list of members."""
    group = GroupWorld()
    ann, request = group.enter("ann")
    group.wait(0)
    answer = group.answers[request]
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, ann, "range")
    assert [(member.member_id, member.metadata) for member in answer.members] == [(ann, subscription("orders"))]
    assert group.state() == "CompletingRebalance"


def test_only_the_leader_sees_the_members() -> None:
    """Spec: B5."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    ann, first = group.enter("ann")
    bob, second = group.enter("bob")
    group.wait(3_000)
    assert [member.member_id for member in group.answers[first].members] == [ann, bob]
    assert group.answers[second].members == []
    assert group.answers[second].leader == ann


def test_a_new_leader_is_picked_when_the_leader_leaves() -> None:
    """Spec: B4."""
    group = GroupWorld()
    ids = group.settle("ann", "bob", "cid")
    assert group.leader() == ids["ann"]
    group.leave(ids["ann"])
    requests = {name: group.join(ids[name]) for name in ("cid", "bob")}
    leader = group.answers[requests["bob"]].leader
    assert leader == ids["bob"], "the next existing member, not the first to rejoin"
    assert len(group.answers[requests["bob"]].members) == 2


def test_a_leader_that_does_not_rejoin_in_time_is_replaced_by_one_that_did() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob", rebalance_ms=30_000, session_ms=60_000)
    request = group.join(ids["bob"], protocols={"range": subscription("more")}, rebalance_ms=30_000)
    group.wait(30_000)
    assert group.answers[request].leader == ids["bob"]
    assert group.members() == {ids["bob"]}


def test_a_leader_that_rejoins_stays_leader() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    second = group.join(ids["bob"], protocols={"range": subscription("other")})
    group.join(ids["ann"])
    assert group.answers[second].leader == ids["ann"]


# --- the vote -----------------------------------------------------------------------------------------------


def voted(*preferences: list[str]) -> str:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    requests = [
        group.enter(f"c{number}", protocols={name: name.encode() for name in names})[1]
        for number, names in enumerate(preferences)
    ]
    group.wait(10_000)
    (name,) = {group.answers[request].protocol_name for request in requests}
    return str(name)


def test_the_protocol_with_most_votes_wins() -> None:
    """Spec: B4."""
    assert voted(["sticky", "range"], ["sticky", "range"], ["range", "sticky"]) == "sticky"
    assert voted(["sticky", "range"], ["range", "sticky"], ["range", "sticky"]) == "range"


def test_only_protocols_that_all_support_can_be_voted_for() -> None:
    """Spec: B4. Two of three prefer sticky, which the third does not know."""
    assert voted(["sticky", "range"], ["sticky", "range"], ["range"]) == "range"


def test_each_member_votes_for_its_first_protocol_that_all_support() -> None:
    """Spec: B4."""
    assert voted(["a", "b", "c"], ["x", "c", "b"], ["c", "b"]) == "c"


def test_a_tie_is_decided_deterministically() -> None:
    assert voted(["range", "sticky"], ["sticky", "range"]) == "range"
    assert voted(["sticky", "range"], ["range", "sticky"]) == "range"


def test_the_leader_gets_the_metadata_of_the_chosen_protocol() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    _, first = group.enter("ann", protocols={"sticky": b"s1", "range": b"r1"})
    group.enter("bob", protocols={"range": b"r2"})
    group.wait(3_000)
    assert [member.metadata for member in group.answers[first].members] == [b"r1", b"r2"]


# --- rejoining ------------------------------------------------------------------------------------------


def test_a_new_member_makes_everyone_rejoin() -> None:
    """Spec: B6."""
    group = GroupWorld()
    ids = group.settle("ann")
    _, bob = group.enter("bob")
    assert group.state() == "PreparingRebalance"
    assert group.code(bob) is None
    assert group.heartbeat(ids["ann"], 1) == ErrorCode.REBALANCE_IN_PROGRESS
    group.join(ids["ann"])
    assert group.answers[bob].generation_id == 2


def test_a_join_repeated_while_the_leader_assigns_gets_the_same_answer_again() -> None:
    """In CompletingRebalance with the same protocols: the reply was lost."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    ann, first = group.enter("ann")
    bob, second = group.enter("bob")
    group.wait(3_000)
    again = group.answers[group.join(ann)]
    assert again == group.answers[first]
    assert len(again.members) == 2
    assert group.answers[group.join(bob)] == group.answers[second]
    assert group.state() == "CompletingRebalance"


def test_a_join_with_other_protocols_while_the_leader_assigns_restarts_the_rebalance() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    ann, _ = group.enter("ann")
    bob, _ = group.enter("bob")
    group.wait(3_000)
    waiting = group.sync(bob, 1)
    changed = group.join(ann, protocols={"range": subscription("other")})
    assert group.state() == "PreparingRebalance"
    answer = group.answers[waiting]
    assert (answer.error_code, answer.assignment) == (ErrorCode.REBALANCE_IN_PROGRESS, b"")
    group.join(bob)
    assert group.answers[changed].generation_id == 2


def test_the_leader_of_a_stable_group_rebalances_it_by_rejoining() -> None:
    """Spec: B6. This is how a topic with new partitions gets assigned."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.join(ids["ann"])
    assert group.state() == "PreparingRebalance"


def test_a_follower_that_rejoins_a_stable_group_unchanged_causes_no_rebalance() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    answer = group.answers[group.join(ids["bob"])]
    assert (answer.error_code, answer.generation_id, answer.members) == (0, group.generation(), [])
    assert group.state() == "Stable"


def test_a_follower_with_a_changed_subscription_makes_everyone_rejoin() -> None:
    """Spec: B6."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.join(ids["bob"], protocols={"range": subscription("orders", "payments")})
    assert group.state() == "PreparingRebalance"
    group.join(ids["ann"])
    assert group.state() == "CompletingRebalance"


def test_a_rejoin_right_after_stable_starts_a_normal_rebalance() -> None:
    """KIP-429: a cooperative member revokes partitions after SyncGroup and rejoins at once."""
    group = GroupWorld()
    ids = group.settle("ann", "bob", protocols={"cooperative-sticky": subscription("orders")})
    for generation in range(2, 5):
        # Both revoked partitions, so both rejoin with other metadata.
        protocols = {"cooperative-sticky": subscription("orders") + bytes([generation])}
        requests = [group.join(member_id, protocols=protocols) for member_id in ids.values()]
        assert [group.answers[request].generation_id for request in requests] == [generation, generation]
        group.synchronize(ids)


def test_of_two_parked_joins_of_one_member_only_the_last_succeeds() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    changed = {"range": subscription("more")}
    given_up = group.join(ids["bob"], protocols=changed)
    retried = group.join(ids["bob"], protocols=changed)
    assert group.code(given_up) == ErrorCode.REBALANCE_IN_PROGRESS
    group.join(ids["ann"])
    assert group.code(retried) == ErrorCode.NONE


def test_members_can_change_their_timeouts_by_rejoining() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.join(ids["ann"], session_ms=20_000, rebalance_ms=90_000)
    member = group.shard.groups["g"].members[ids["ann"]]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (20_000, 90_000)


# --- older versions -----------------------------------------------------------------------------------------


def test_in_version_zero_the_session_timeout_is_the_rebalance_timeout() -> None:
    group = GroupWorld()
    group.join(version=0, session_ms=12_000, rebalance_ms=60_000)
    assert group.shard.groups["g"].rebalance_timeout_ms == 12_000
    other = GroupWorld()
    other.join(version=1, session_ms=12_000, rebalance_ms=60_000)
    assert other.shard.groups["g"].rebalance_timeout_ms == 60_000


@pytest.mark.parametrize("version", range(10))
def test_every_version_can_join_and_encodes_every_error(version: int) -> None:
    """Responses are encoded in the request's version and may use only its fields."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    if version >= 4:
        ann, request = group.enter("ann", version=version)
    else:
        request = group.join(client="ann", version=version)
        (ann,) = group.members()
    group.wait(3_000)
    answer = group.answers[request]
    assert (answer.error_code, answer.leader, answer.protocol_name) == (0, ann, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    refused = group.answers[group.join("stranger", version=version)]
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "stranger")
    assert refused.protocol_name == (None if version >= 7 else "")
    assert (refused.generation_id, refused.leader, refused.members) == (-1, "", [])


# --- maximum size ---------------------------------------------------------------------------------------------------


def test_a_full_group_accepts_no_more_members() -> None:
    group = GroupWorld(group_max_size=2)
    group.settle("ann", "bob")
    answer = group.answers[group.join()]
    assert (answer.error_code, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert group.state() == "Stable"


def test_a_member_of_a_full_group_may_rejoin() -> None:
    group = GroupWorld(group_max_size=2)
    ids = group.settle("ann", "bob")
    requests = [group.join(member_id) for member_id in ids.values()]
    assert [group.code(request) for request in requests] == [ErrorCode.NONE, ErrorCode.NONE]


def test_a_pending_member_that_finds_the_group_full_is_forgotten() -> None:
    group = GroupWorld(group_max_size=1)
    early = group.answers[group.join(client="early")].member_id
    late = group.answers[group.join(client="late")].member_id
    request = group.join(early)
    assert group.code(group.join(late)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    group.wait(0)
    assert group.code(request) == ErrorCode.NONE, "the join phase does not wait for the refused member"


def test_when_the_maximum_size_was_lowered_the_last_to_rejoin_are_refused() -> None:
    """`group.max.size` was lowered: after the load everyone must rejoin, and the last are refused."""
    group = GroupWorld()
    ids = group.settle("ann", "bob", "cid")
    group.config = replace(group.config, group_max_size=2)
    group.fail_over()
    assert group.state() == "PreparingRebalance"
    assert group.heartbeat(ids["ann"], group.generation()) == ErrorCode.REBALANCE_IN_PROGRESS
    first, second = group.join(ids["cid"]), group.join(ids["bob"])
    assert group.code(first) is None
    late = group.answers[group.join(ids["ann"])]
    assert (late.error_code, late.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert group.code(first) == group.code(second) == ErrorCode.NONE, "the rest do not wait for the refused members"
    assert group.members() == {ids["bob"], ids["cid"]}


def test_a_repeated_parked_join_keeps_its_slot_in_a_full_group() -> None:
    group = GroupWorld(group_max_size=2)
    ids = group.settle("ann", "bob", rebalance_ms=30_000)
    group.join(ids["ann"])
    group.join(ids["ann"])
    assert ids["ann"] in group.members()
    group.join(ids["bob"])
    assert group.state() == "CompletingRebalance"


# --- states -------------------------------------------------------------------------------------------------


def test_the_state_transitions_are_kafkas() -> None:
    """The table of states is Kafka's."""
    predecessors = {state: {s for s, to in TRANSITIONS.items() if state in to} for state in GroupState}
    alive = set(GroupState) - {GroupState.DEAD}
    assert predecessors == {
        GroupState.PREPARING_REBALANCE: {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE},
        GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
        GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
        GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
        GroupState.DEAD: alive,
    }


def test_a_group_goes_through_its_states() -> None:
    """Spec: B2."""
    group = GroupWorld()
    assert group.state() == "Dead"
    ann, _ = group.enter("ann")
    assert group.state() == "PreparingRebalance"
    group.wait(0)
    assert group.state() == "CompletingRebalance"
    group.sync(ann, 1, {ann: b""})
    assert group.state() == "Stable"
    group.leave(ann)
    assert (group.state(), group.generation()) == ("Empty", 2)


def test_the_leader_gets_what_members_offered_when_they_rejoined() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    new = {"range": subscription("orders", "payments")}
    group.join(ids["bob"], protocols=new, client="bob-2")
    answer = group.answers[group.join(ids["ann"])]
    offered = {member.member_id: member.metadata for member in answer.members}
    assert offered[ids["bob"]] == new["range"]
    members = group.shard.describe("g", 5).members
    assert {member.client_id for member in members} == {"client", "bob-2"}, "as of their last join"
