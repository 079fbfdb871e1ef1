"""Static members (KIP-345) keep their place while they are away, one rule at a time. Spec: R5."""

from typing import Any

import pytest

from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, assignment, subscription


def test_a_static_member_needs_one_join_only_and_its_id_starts_with_its_instance_id() -> None:
    group = GroupWorld()
    request = group.join(instance="one", client="ann")
    group.wait(0)
    answer = group.answers[request]
    assert (answer.error_code, answer.member_id) == (0, "one-uuid1")
    assert answer.members[0].group_instance_id == "one"


# --- rejoining --------------------------------------------------------------------------------------------


def test_a_static_member_that_returns_to_a_stable_group_causes_no_rebalance() -> None:
    """Spec: R5. Bounced within its session, no revocation."""
    group = GroupWorld()
    ids = group.settle("one", "two", static=True)
    stored = len(group.log)
    answer = group.answers[group.join(instance="two", client="two")]
    assert (answer.error_code, answer.generation_id) == (0, group.generation())
    assert answer.member_id not in ids.values()
    assert answer.members == []
    assert group.state() == "Stable"
    assert len(group.log) == stored + 1, "its new id is stored before the reply"
    assert group.heartbeat(ids["one"], group.generation(), instance="one") == ErrorCode.NONE
    synced = group.answers[group.sync(answer.member_id, group.generation(), instance="two")]
    assert synced.assignment == assignment(orders=[1]), "it keeps its partitions"


def test_a_returning_static_leader_must_skip_the_assignment() -> None:
    """JoinGroup v9 (KIP-814): the leader must know that it leads, to watch the topics, but must not assign."""
    group = GroupWorld()
    ids = group.settle("one", "two", static=True)
    answer = group.answers[group.join(instance="one")]
    assert answer.leader == answer.member_id == group.leader()
    assert answer.skip_assignment
    assert {member.member_id for member in answer.members} == {answer.member_id, ids["two"]}


def test_a_returning_static_follower_gets_the_leader_id_and_does_not_skip_the_assignment() -> None:
    group = GroupWorld()
    ids = group.settle("one", "two", static=True)
    answer = group.answers[group.join(instance="two")]
    assert (answer.leader, answer.skip_assignment, answer.members) == (ids["one"], False, [])


@pytest.mark.parametrize("version", [5, 6, 7, 8])
def test_before_version_nine_a_returning_leader_gets_its_old_id_as_leader(version: int) -> None:
    """A leader that recognizes itself would assign again, and a stable group ignores assignments."""
    group = GroupWorld()
    ids = group.settle("one", "two", static=True)
    answer = group.answers[group.join(instance="one", version=version)]
    assert answer.leader == ids["one"] != answer.member_id
    assert answer.members == []
    assert group.leader() == answer.member_id, "the coordinator records the new id"


def test_a_returning_member_may_change_its_subscription_without_a_rebalance() -> None:
    """But the new subscription is stored."""
    group = GroupWorld()
    group.settle("one", "two", static=True)
    new = subscription("orders", "payments")
    answer = group.answers[group.join(instance="two", protocols={"range": new})]
    assert group.state() == "Stable"
    group.fail_over()
    assert group.shard.groups["g"].members[answer.member_id].metadata_for("range") == new


def test_a_returning_member_that_changes_the_vote_makes_everyone_rejoin() -> None:
    group = GroupWorld()
    ids = group.settle("one", "two", static=True, protocols={"range": b"r", "sticky": b"s"})
    back = group.join(instance="two", protocols={"sticky": b"s"})
    assert group.state() == "PreparingRebalance"
    assert group.code(back) is None
    group.join(ids["one"], instance="one", protocols={"range": b"r", "sticky": b"s"})
    assert group.answers[back].protocol_name == "sticky"


def test_a_static_member_that_returns_while_the_leader_assigns_restarts_the_rebalance() -> None:
    """The leader knows only the old id, so its assignment would leave the member out."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    first = group.join(instance="one")
    second = group.join(instance="two")
    group.wait(3_000)
    one, two = group.answers[first].member_id, group.answers[second].member_id
    waiting = group.sync(two, 1, instance="two")
    back = group.join(instance="two")
    assert group.code(waiting) == ErrorCode.FENCED_INSTANCE_ID
    assert group.state() == "PreparingRebalance"
    assert group.code(back) is None
    group.join(one, instance="one")
    assert group.answers[back].generation_id == 2


def test_a_static_member_that_returns_during_the_join_phase_waits_with_the_others() -> None:
    group = GroupWorld()
    ids = group.settle("one", "two", static=True)
    parked = group.join(ids["one"], instance="one")
    assert group.state() == "PreparingRebalance"
    back = group.join(instance="two")
    assert group.code(parked) == group.code(back) == ErrorCode.NONE
    assert group.answers[back].generation_id == group.generation()


def test_a_new_join_fences_the_parked_join_of_the_same_instance() -> None:
    """Spec: R5. Two members with the same group.instance.id: the older one is fenced."""
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    first = group.join(instance="one")
    second = group.join(instance="one")
    answer = group.answers[first]
    assert (answer.error_code, answer.member_id) == (ErrorCode.FENCED_INSTANCE_ID, "one-uuid1")
    group.wait(10_000)
    assert group.code(second) == ErrorCode.NONE
    assert len(group.members()) == 1


def test_a_returning_static_member_rejoins_a_full_group() -> None:
    group = GroupWorld(group_max_size=2)
    group.settle("one", "two", static=True)
    assert group.code(group.join(instance="two")) == ErrorCode.NONE
    assert group.code(group.join(instance="three")) == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_returning_member_must_support_the_groups_protocol() -> None:
    group = GroupWorld()
    group.settle("one", "two", static=True)
    refused = group.join(instance="two", protocols={"sticky": b""})
    assert group.code(refused) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_returning_static_member_gets_the_session_timeout_of_its_new_join() -> None:
    group = GroupWorld()
    group.settle("one", static=True, session_ms=60_000)
    group.join(instance="one", session_ms=10_000)
    group.wait(10_000)
    assert group.state() == "Empty"


# --- fencing ------------------------------------------------------------------------------------------------


def test_the_old_member_id_of_a_static_member_is_fenced_in_every_request() -> None:
    """A zombie of the same instance gets FENCED_INSTANCE_ID (82), not UNKNOWN_MEMBER_ID."""
    group = GroupWorld()
    old = group.settle("one", "two", static=True)["two"]
    group.join(instance="two")
    generation = group.generation()
    assert group.code(group.join(old, instance="two")) == ErrorCode.FENCED_INSTANCE_ID
    assert group.code(group.sync(old, generation, instance="two")) == ErrorCode.FENCED_INSTANCE_ID
    assert group.heartbeat(old, generation, instance="two") == ErrorCode.FENCED_INSTANCE_ID
    commit = group.commit(1, member_id=old, generation=generation, instance="two")
    assert commit == ErrorCode.FENCED_INSTANCE_ID
    left = group.leaves((old, "two"))
    assert left.members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert (
        group.commit_in_transaction(1, member_id=old, generation=generation, instance="two")
        == ErrorCode.FENCED_INSTANCE_ID
    )


def test_an_unknown_instance_id_is_an_unknown_member() -> None:
    group = GroupWorld()
    one = group.settle("one", static=True)["one"]
    generation = group.generation()
    assert group.code(group.join(one, instance="other")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.code(group.sync(one, generation, instance="other")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat(one, generation, instance="other") == ErrorCode.UNKNOWN_MEMBER_ID
    code = group.commit(1, member_id=one, generation=generation, instance="other")
    assert code == ErrorCode.UNKNOWN_MEMBER_ID


def test_fencing_is_checked_before_the_generation() -> None:
    group = GroupWorld()
    old = group.settle("one", static=True)["one"]
    group.join(instance="one")
    assert group.heartbeat(old, 99, instance="one") == ErrorCode.FENCED_INSTANCE_ID


def test_fencing_survives_a_failover() -> None:
    group = GroupWorld()
    old = group.settle("one", static=True)["one"]
    group.join(instance="one")
    group.fail_over()
    assert group.heartbeat(old, group.generation(), instance="one") == ErrorCode.FENCED_INSTANCE_ID


# --- removal --------------------------------------------------------------------------------------------------


def test_a_silent_static_member_stays_through_a_rebalance() -> None:
    """Dynamic members that did not rejoin are removed; static ones stay until their session expires."""
    group = GroupWorld()
    static = group.settle("one", "two", static=True, session_ms=300_000, rebalance_ms=30_000)
    rejoined = group.join(static["one"], instance="one", session_ms=300_000, rebalance_ms=30_000)
    group.wait(30_000)
    assert group.code(rejoined) == ErrorCode.NONE
    assert {member.member_id for member in group.answers[rejoined].members} == set(static.values())


def test_a_silent_static_leader_stays_a_member_but_not_the_leader() -> None:
    """Only a member that joined can compute the assignment."""
    group = GroupWorld()
    options: dict[str, Any] = {"session_ms": 300_000, "rebalance_ms": 30_000}
    static = group.settle("one", "two", static=True, **options)
    assert group.leader() == static["one"]
    request = group.join(static["two"], instance="two", protocols={"range": subscription("more")}, **options)
    group.wait(30_000)
    answer = group.answers[request]
    assert answer.leader == static["two"]
    assert {member.member_id for member in answer.members} == set(static.values())


def test_a_silent_static_member_is_removed_after_its_session_timeout() -> None:
    group = GroupWorld()
    static = group.settle("one", "two", static=True)
    for _ in range(3):
        group.wait(4_000)
        group.heartbeat(static["one"], group.generation(), instance="one")
    assert group.members() == {static["one"]}


def test_when_no_static_member_rejoins_the_group_waits_another_round() -> None:
    group = GroupWorld()
    static = group.settle("one", "two", static=True, session_ms=300_000, rebalance_ms=30_000)
    generation = group.generation()
    group.enter("dyn", session_ms=10_000, rebalance_ms=30_000)
    group.leave("dyn-uuid3")
    group.wait(30_000)
    assert (group.state(), group.generation()) == ("PreparingRebalance", generation)
    assert group.members() == set(static.values())
    group.join(static["one"], instance="one", session_ms=300_000, rebalance_ms=30_000)
    group.wait(30_000)
    assert (group.state(), group.generation()) == ("CompletingRebalance", generation + 1)


def test_static_members_that_never_return_leave_an_empty_group() -> None:
    group = GroupWorld()
    group.settle("one", "two", static=True, session_ms=10_000, rebalance_ms=30_000)
    group.wait(100_000)
    assert group.state() == "Empty"


def test_static_members_parked_in_sync_past_their_session_timeout_are_removed_when_they_die() -> None:
    """Sessions do not expire while a sync is parked, so the answer must start new ones."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    first = group.join(instance="one", session_ms=10_000, rebalance_ms=30_000)
    second = group.join(instance="two", session_ms=10_000, rebalance_ms=30_000)
    group.wait(3_000)
    two = group.answers[second].member_id
    parked = group.sync(two, 1, instance="two")
    group.wait(9_000)
    group.heartbeat(group.answers[first].member_id, 1, instance="one")
    group.wait(12_000)
    assert group.code(parked) == ErrorCode.REBALANCE_IN_PROGRESS, "the leader died"
    group.wait(100_000)
    assert group.state() == "Empty"


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    group = GroupWorld()
    static = group.settle("one", "two", static=True)
    answer = group.leaves(("", "two"))
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [("", "two", 0)]
    assert group.members() == {static["one"]}
    assert group.state() == "PreparingRebalance"


def test_removing_an_unknown_instance_is_refused() -> None:
    group = GroupWorld()
    group.settle("one", static=True)
    answer = group.leaves(("", "unknown"), ("", None))
    assert [m.error_code for m in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert group.state() == "Stable"


def test_an_instance_that_left_may_come_back_as_a_new_member() -> None:
    group = GroupWorld()
    group.settle("one", "two", static=True)
    group.leaves(("", "two"))
    request = group.join(instance="two")
    assert group.code(request) is None
    assert group.state() == "PreparingRebalance"


# --- rules that no other test noticed -------------------------------------------------------------------------


def test_a_leader_that_is_not_the_oldest_member_stays_leader() -> None:
    group = GroupWorld()
    options: dict[str, Any] = {"session_ms": 300_000, "rebalance_ms": 30_000}
    static = group.settle("one", "two", static=True, **options)
    group.join(static["two"], instance="two", protocols={"range": subscription("more")}, **options)
    group.wait(30_000)
    assert group.leader() == static["two"]
    group.sync(static["two"], group.generation(), {}, instance="two")
    group.join(static["two"], instance="two", **options)
    request = group.join(static["one"], instance="one", **options)
    assert group.answers[request].leader == static["two"], "both rejoined"


def test_a_static_member_whose_assignment_could_not_be_stored_is_removed_when_it_dies() -> None:
    """It waited for longer than its session: the answer must start a new one."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    first = group.join(instance="one", session_ms=10_000, rebalance_ms=60_000)
    second = group.join(instance="two", session_ms=10_000, rebalance_ms=60_000)
    group.wait(3_000)
    one, two = group.answers[first].member_id, group.answers[second].member_id
    parked = group.sync(two, 1, instance="two")
    for _ in range(3):
        group.wait(6_000)
        group.heartbeat(one, 1, instance="one")
    group.sync(one, 1, {one: bytes(2_000_000)}, instance="one")
    assert group.code(parked) == ErrorCode.UNKNOWN_SERVER_ERROR
    group.wait(9_999)
    assert group.members() == {one, two}
    group.wait(1)
    assert group.members() == set()


def test_a_rebalance_does_not_extend_the_session_of_a_silent_static_member() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    first = group.join(instance="one", session_ms=10_000, rebalance_ms=60_000)
    second = group.join(instance="two", session_ms=10_000, rebalance_ms=60_000)
    group.wait(3_000)
    one, two = group.answers[first].member_id, group.answers[second].member_id
    assert group.state() == "CompletingRebalance"
    group.wait(5_000)
    group.heartbeat(one, 1, instance="one")
    group.join(one, instance="one", protocols={"range": subscription("more")}, session_ms=10_000)
    assert group.state() == "PreparingRebalance"
    group.wait(5_000)
    assert two not in group.members()


def test_a_static_member_that_returns_must_sync_like_its_predecessor() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    first = group.join(instance="one", session_ms=10_000, rebalance_ms=20_000)
    group.join(instance="two", session_ms=10_000, rebalance_ms=20_000)
    group.wait(3_000)
    one = group.answers[first].member_id
    group.sync(one, 1, {}, instance="one")
    returned = group.answers[group.join(instance="two", session_ms=10_000, rebalance_ms=20_000)]
    assert (returned.error_code, group.state()) == (ErrorCode.NONE, "Stable")
    for _ in range(5):
        group.wait(5_000)
        group.heartbeat(one, 1, instance="one")
        group.heartbeat(returned.member_id, 1, instance="two")
    assert group.members() == {one}, "it never sent SyncGroup"
