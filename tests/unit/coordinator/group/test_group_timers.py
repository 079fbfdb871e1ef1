"""Timers of a group: initial rebalance delay, sessions, rebalance timeout, sync timeout."""

import pytest

from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, subscription

# --- the initial delay --------------------------------------------------------------------------------------


def test_the_first_rebalance_waits_for_more_members() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    _, request = group.enter("ann")
    group.wait(2_999)
    assert group.code(request) is None
    group.wait(1)
    assert group.code(request) == ErrorCode.NONE


def test_the_initial_delay_is_extended_when_a_member_joins() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    _, first = group.enter("ann")
    group.wait(2_000)
    _, second = group.enter("bob")
    group.wait(3_999)
    assert group.code(first) is None, "extended once, to 6 s"
    group.wait(1)
    assert group.code(first) == group.code(second) == ErrorCode.NONE
    assert group.generation() == 1, "one rebalance, not two"


def test_the_initial_delay_never_exceeds_the_rebalance_timeout() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    requests = []
    for number in range(8):
        requests.append(group.enter(f"c{number}", rebalance_ms=10_000)[1])
        group.wait(1_000)
    assert {group.code(request) for request in requests} == {None}
    group.wait(1_999)
    assert group.code(requests[0]) is None
    group.wait(1)
    assert {group.code(request) for request in requests} == {ErrorCode.NONE}, "10 s after the first join"


def test_the_initial_delay_is_not_extended_when_the_rebalance_timeout_is_no_longer() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    _, first = group.enter("ann", rebalance_ms=2_000)
    group.wait(1_000)
    group.enter("bob", rebalance_ms=2_000)
    group.wait(2_000)
    assert group.code(first) == ErrorCode.NONE


def test_the_initial_delay_is_not_cut_short_when_all_members_joined() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    ann, first = group.enter("ann")
    bob, _ = group.enter("bob")
    retried = group.join(ann)
    group.leave(bob)
    assert group.code(retried) is None
    assert group.code(first) == ErrorCode.REBALANCE_IN_PROGRESS
    group.wait(6_000)
    assert group.code(retried) == ErrorCode.NONE


def test_a_pending_id_that_expires_does_not_cut_the_initial_delay_short() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=20_000)
    _, request = group.enter("ann")
    group.join(client="bob", session_ms=6_000)
    group.wait(19_999)
    assert group.code(request) is None


def test_a_group_that_was_empty_has_an_initial_delay_again() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    ann, request = group.enter("ann")
    group.wait(3_000)
    group.sync(ann, group.answers[request].generation_id, {})
    group.leave(ann)
    assert group.state() == "Empty"
    _, second = group.enter("bob")
    group.wait(2_999)
    assert group.code(second) is None
    group.wait(1)
    assert group.code(second) == ErrorCode.NONE


def test_a_later_rebalance_has_no_initial_delay() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    ann, request = group.enter("ann")
    group.wait(3_000)
    group.sync(ann, group.answers[request].generation_id, {})
    again = group.join(ann)
    assert group.code(again) == ErrorCode.NONE


def test_a_group_whose_members_all_left_during_the_initial_delay_is_empty() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    ann, _ = group.enter("ann")
    group.leave(ann)
    assert group.state() == "PreparingRebalance"
    group.wait(3_000)
    assert group.state() == "Empty"


def test_without_an_initial_delay_the_first_member_does_not_wait() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=0)
    _, request = group.enter("ann")
    group.wait(0)
    assert group.code(request) == ErrorCode.NONE


# --- sessions -----------------------------------------------------------------------------------------------


def test_a_silent_member_is_removed_after_its_session_timeout_and_the_others_rejoin() -> None:
    """Spec: B6."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    generation = group.generation()
    for _ in range(3):
        group.wait(4_000)
        group.heartbeat(ids["ann"], generation)
    assert group.members() == {ids["ann"]}
    assert group.heartbeat(ids["bob"], generation) == ErrorCode.UNKNOWN_MEMBER_ID
    rejoined = group.join(ids["ann"])
    assert group.answers[rejoined].generation_id == generation + 1


def test_a_session_lasts_exactly_the_requested_timeout() -> None:
    group = GroupWorld()
    group.settle("ann", session_ms=10_000)
    group.wait(9_999)
    assert group.state() == "Stable"
    group.wait(1)
    assert group.state() == "Empty"


def test_a_heartbeat_at_the_last_moment_keeps_the_member() -> None:
    group = GroupWorld()
    ids = group.settle("ann", session_ms=10_000)
    for _ in range(10):
        group.wait(9_999)
        assert group.heartbeat(ids["ann"], 1) == ErrorCode.NONE


def test_a_commit_keeps_a_member_alive() -> None:
    """In Stable and PreparingRebalance."""
    group = GroupWorld()
    ids = group.settle("ann", "bob", session_ms=10_000)
    for _ in range(3):
        group.wait(9_000)
        for name in ids:
            assert group.commit(1, member_id=ids[name], generation=1) == ErrorCode.NONE
    group.join(ids["ann"])
    for _ in range(3):
        group.wait(9_000)
        assert group.commit(1, member_id=ids["bob"], generation=1) == ErrorCode.NONE
    assert group.members() == set(ids.values())


def test_a_refused_commit_does_not_extend_a_session() -> None:
    group = GroupWorld()
    ids = group.settle("ann", session_ms=10_000)
    group.wait(9_000)
    assert group.commit(1, member_id=ids["ann"], generation=7) == ErrorCode.ILLEGAL_GENERATION
    group.wait(1_000)
    assert group.state() == "Empty"


def test_a_transactional_commit_does_not_extend_a_session() -> None:
    """Unlike OffsetCommit, it does not count as a heartbeat."""
    group = GroupWorld()
    ids = group.settle("ann", session_ms=10_000)
    group.wait(9_000)
    assert group.commit_in_transaction(1, member_id=ids["ann"], generation=1) == ErrorCode.NONE
    group.wait(1_000)
    assert group.state() == "Empty"


def test_a_member_parked_in_join_does_not_time_out() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob", session_ms=10_000, rebalance_ms=60_000)
    request = group.join(ids["ann"], session_ms=10_000)
    for _ in range(5):
        group.wait(9_000)
        group.heartbeat(ids["bob"], 1)
    assert group.code(request) is None
    assert ids["ann"] in group.members()


def test_a_member_parked_in_sync_does_not_time_out_and_has_a_session_again_afterwards() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    ann, _ = group.enter("ann", session_ms=30_000)
    bob, _ = group.enter("bob", session_ms=10_000)
    group.wait(3_000)
    waiting = group.sync(bob, 1)
    group.wait(25_000)
    assert group.members() == {ann, bob}
    group.sync(ann, 1, {})
    assert group.code(waiting) == ErrorCode.NONE
    group.wait(9_999)
    assert bob in group.members()
    group.wait(1)
    assert bob not in group.members()


def test_a_session_that_expires_during_the_join_phase_completes_it_for_the_rest() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob", session_ms=10_000, rebalance_ms=300_000)
    request = group.join(ids["ann"], rebalance_ms=300_000)
    group.wait(10_000)
    assert group.code(request) == ErrorCode.NONE
    assert group.members() == {ids["ann"]}


def test_when_the_leaders_session_expires_while_it_assigns_everyone_rejoins() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    ann, _ = group.enter("ann", session_ms=10_000)
    bob, _ = group.enter("bob", session_ms=60_000)
    group.wait(3_000)
    waiting = group.sync(bob, 1)
    group.wait(10_000)
    assert group.code(waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = group.answers[group.join(bob)]
    assert (rejoined.leader, rejoined.generation_id) == (bob, 2)
    assert ann not in group.members()


def test_a_shorter_session_timeout_applies_at_once() -> None:
    group = GroupWorld()
    ids = group.settle("ann", session_ms=100_000)
    group.join(ids["ann"], session_ms=10_000)
    group.sync(ids["ann"], 2, {})
    group.wait(10_000)
    assert group.state() == "Empty"


def test_many_heartbeats_leave_no_stale_deadlines() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.wait(5_000)
    before = len(group.shard.deadlines)
    for _ in range(1_000):
        group.wait(1_000)
        group.heartbeat(ids["ann"], 1)
    assert len(group.shard.deadlines) <= before + 1


def test_a_group_that_never_stops_rebalancing_leaves_no_stale_deadlines() -> None:
    """The timeout may be weeks: a round must not leave an entry behind for that long."""
    group = GroupWorld()
    weeks = 2**31 - 1
    ids = group.settle("ann", session_ms=1_800_000, rebalance_ms=weeks)
    for _ in range(500):
        group.wait(100)
        group.join(ids["ann"], session_ms=1_800_000, rebalance_ms=weeks)
        group.sync(ids["ann"], group.generation(), {})
    assert len(group.shard.deadlines) < 10
    assert group.generation() == 501


def test_a_deadline_that_was_moved_still_fires() -> None:
    """The heap holds an earlier time for it, which fires and is pushed back."""
    group = GroupWorld()
    ids = group.settle("ann", "bob", session_ms=300_000, rebalance_ms=30_000)
    for _ in range(3):
        # Each rebalance has its own thirty seconds, although the first one's entry stays in the heap.
        request = group.join(ids["ann"], session_ms=300_000, rebalance_ms=30_000)
        group.wait(20_000)
        group.join(ids["bob"], session_ms=300_000, rebalance_ms=30_000)
        assert group.code(request) == ErrorCode.NONE
        group.synchronize(ids)
    request = group.join(ids["ann"], session_ms=300_000, rebalance_ms=30_000)
    group.wait(29_999)
    assert group.code(request) is None
    group.wait(1)
    assert group.code(request) == ErrorCode.NONE
    assert group.members() == {ids["ann"]}


# --- new members --------------------------------------------------------------------------------------------


def test_a_new_member_waits_in_join_for_five_minutes_and_no_longer() -> None:
    """A new member has no session yet that could expire."""
    group = GroupWorld()
    ids = group.settle("ann", session_ms=10_000, rebalance_ms=1_800_000)
    _, request = group.enter("bob", session_ms=10_000)
    for _ in range(59):
        group.wait(5_000)
        group.heartbeat(ids["ann"], 1)
    assert group.code(request) is None
    group.wait(5_000)
    answer = group.answers[request]
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert group.members() == {ids["ann"]}


# --- the rebalance timeout ----------------------------------------------------------------------------------


def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_removed() -> None:
    """Spec: B6. This includes a member that exceeds max.poll.interval.ms, whose heartbeats continue."""
    group = GroupWorld()
    ids = group.settle("ann", "bob", rebalance_ms=30_000)
    request = group.join(ids["ann"], rebalance_ms=30_000)
    for _ in range(5):
        group.wait(5_000)
        group.heartbeat(ids["bob"], 1)
    assert group.code(request) is None
    group.wait(5_000)
    assert group.code(request) == ErrorCode.NONE
    assert group.members() == {ids["ann"]}
    assert group.heartbeat(ids["bob"], 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_longest_rebalance_timeout_of_the_members_applies() -> None:
    group = GroupWorld()
    ids = group.settle("ann", session_ms=300_000, rebalance_ms=10_000)
    _, slow = group.enter("slow", session_ms=300_000, rebalance_ms=90_000)
    group.join(ids["ann"], session_ms=300_000, rebalance_ms=10_000)
    assert group.code(slow) == ErrorCode.NONE
    request = group.join(ids["ann"], session_ms=300_000, rebalance_ms=10_000, protocols={"range": subscription("x")})
    group.wait(89_999)
    assert group.code(request) is None
    group.wait(1)
    assert group.code(request) == ErrorCode.NONE


def test_a_negative_rebalance_timeout_counts_as_zero() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    _, request = group.enter("ann", rebalance_ms=-5)
    assert group.shard.groups["g"].rebalance_timeout_ms == 0
    group.wait(3_000)
    assert group.code(request) == ErrorCode.NONE


# --- the sync timeout ---------------------------------------------------------------------------------------


def syncing(**options: int) -> tuple[GroupWorld, str, str]:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    ann, _ = group.enter("ann", session_ms=300_000, rebalance_ms=30_000, **options)
    bob, _ = group.enter("bob", session_ms=300_000, rebalance_ms=30_000, **options)
    group.wait(3_000)
    return group, ann, bob


def test_a_leader_that_never_syncs_is_removed_after_the_rebalance_timeout() -> None:
    """Followers wait until then, and rejoin."""
    group, _, bob = syncing()
    waiting = group.sync(bob, 1)
    deadline = group.shard.groups["g"].sync_deadline
    assert deadline is not None
    group.wait(deadline - group.now - 1)
    assert group.code(waiting) is None
    group.wait(1)
    assert group.code(waiting) == ErrorCode.REBALANCE_IN_PROGRESS
    assert group.members() == {bob}
    rejoined = group.answers[group.join(bob)]
    assert (rejoined.leader, rejoined.generation_id) == (bob, 2)


def test_a_follower_that_never_syncs_is_removed_even_when_the_group_is_stable() -> None:
    group, ann, _ = syncing()
    group.sync(ann, 1, {})
    assert group.state() == "Stable"
    group.wait(30_000)
    assert group.members() == {ann}
    assert group.state() == "PreparingRebalance"


def test_the_sync_timeout_is_cancelled_once_everyone_has_synced() -> None:
    group, ann, bob = syncing()
    group.sync(bob, 1)
    group.sync(ann, 1, {})
    group.wait(100_000)
    assert group.members() == {ann, bob}
    assert group.state() == "Stable"


def test_a_sync_timeout_of_an_earlier_generation_does_nothing() -> None:
    group, ann, bob = syncing()
    group.wait(20_000)
    # A new generation, in which no member has synced for 10 s when the first sync timeout is due.
    group.join(ann, session_ms=300_000, rebalance_ms=30_000, protocols={"range": subscription("x")})
    group.join(bob, session_ms=300_000, rebalance_ms=30_000)
    assert group.generation() == 2
    group.wait(12_000)
    assert group.members() == {ann, bob}


def test_static_members_that_never_sync_are_removed_too() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    one = group.join(instance="one", session_ms=300_000, rebalance_ms=30_000)
    group.join(instance="two", session_ms=300_000, rebalance_ms=30_000)
    group.wait(3_000)
    leader = group.answers[one].member_id
    group.sync(leader, 1, {}, instance="one")
    group.wait(30_000)
    assert group.members() == {leader}


def test_a_group_whose_members_never_sync_ends_up_empty() -> None:
    group, _, _ = syncing()
    group.wait(60_000)
    assert group.state() == "Empty"


# --- clock jumps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_clock_jump_neither_removes_live_members_nor_keeps_dead_ones(jump_ms: int) -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob", session_ms=10_000)
    pending = group.answers[group.join(client="cid", session_ms=10_000)].member_id
    group.wait(5_000)
    group.heartbeat(ids["ann"], 1)
    group.now += jump_ms
    group.shard.on_clock_jump(jump_ms)
    group.wait(4_999)
    assert group.members() == set(ids.values())
    assert pending in group.shard.groups["g"].pending_members
    group.wait(1)
    assert group.members() == {ids["ann"]}
    assert pending not in group.shard.groups["g"].pending_members


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_rebalance_deadlines_move_with_the_clock(jump_ms: int) -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    ann, request = group.enter("ann", rebalance_ms=30_000, session_ms=60_000)
    group.wait(1_000)
    group.now += jump_ms
    group.shard.on_clock_jump(jump_ms)
    group.wait(1_999)
    assert group.code(request) is None
    group.wait(1)
    assert group.code(request) == ErrorCode.NONE
    group.wait(10_000)
    group.now += jump_ms
    group.shard.on_clock_jump(jump_ms)
    group.wait(19_999)
    assert group.members() == {ann}
    group.wait(1)
    assert group.state() == "Empty", "it never synced"
