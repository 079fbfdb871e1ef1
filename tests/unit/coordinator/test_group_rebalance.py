"""The classic rebalance protocol, a rule at a time (MISSION B2-B6)."""

from ottla.errors import ErrorCode
from ottla.testing.group_world import GroupWorld, assignment, subscription


def test_a_first_join_only_hands_out_a_member_id() -> None:
    """B3, KIP-394."""
    group = GroupWorld()
    first = group.join(client="ann")
    assert group.answers[first].error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert group.answers[first].member_id == "ann-uuid1"
    assert group.state() == "Empty"


def test_a_lone_member_becomes_leader_of_generation_one() -> None:
    """B4: the first to join leads; B5: only the leader sees the members."""
    group = GroupWorld()
    ann, request = group.enter("ann")
    group.wait(0)
    answer = group.answers[request]
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, ann, "range")
    assert [member.member_id for member in answer.members] == [ann]
    assert group.state() == "CompletingRebalance"


def test_the_leaders_assignment_reaches_everyone_and_is_stored_first() -> None:
    """B5."""
    group = GroupWorld(initial_rebalance_delay_ms=3_000)
    ann, join_a = group.enter("ann")
    bob, join_b = group.enter("bob")
    group.wait(6_000)
    assert group.code(join_a) == group.code(join_b) == ErrorCode.NONE
    assert group.answers[join_b].members == []
    waiting = group.sync(bob, 1, {})
    assert group.code(waiting) is None
    stored = len(group.log)
    leader = group.sync(ann, 1, {ann: assignment(orders=[0]), bob: assignment(orders=[1])})
    assert group.answers[leader].assignment == assignment(orders=[0])
    assert group.answers[waiting].assignment == assignment(orders=[1])
    assert len(group.log) == stored + 1
    assert group.state() == "Stable"


def test_a_silent_member_is_gone_after_one_session_and_the_others_rejoin() -> None:
    """B6."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    generation = group.shard.groups["g"].generation
    for _ in range(3):
        group.wait(4_000)
        group.heartbeat(ids["ann"], generation)
    assert group.members() == {ids["ann"]}
    assert group.heartbeat(ids["ann"], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = group.join(ids["ann"])
    assert group.answers[rejoined].generation_id == generation + 1


def test_a_silent_member_is_gone_one_session_after_a_failover() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    generation = group.shard.groups["g"].generation
    group.wait(9_000)
    group.fail_over()  # sessions start afresh on the new coordinator
    group.wait(9_000)
    assert group.heartbeat(ids["ann"], generation) == ErrorCode.NONE
    group.wait(2_000)
    assert group.members() == {ids["ann"]}


def test_a_changed_subscription_makes_everyone_rejoin() -> None:
    """B6."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.join(ids["bob"], protocols={"range": subscription("orders", "payments")})
    assert group.state() == "PreparingRebalance"
    group.join(ids["ann"])
    assert group.state() == "CompletingRebalance"


def test_a_static_member_that_returns_disturbs_nobody() -> None:
    """KIP-345."""
    group = GroupWorld()
    join = group.join(instance="one", client="ann")
    group.wait(0)
    ann = group.answers[join].member_id
    group.sync(ann, 1, {ann: assignment(orders=[0, 1, 2])}, instance="one")
    back = group.join(instance="one", client="ann")
    answer = group.answers[back]
    assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (0, 1, True)
    assert answer.member_id != ann and answer.leader == answer.member_id
    assert group.state() == "Stable"
    assert group.heartbeat(ann, 1, instance="one") == ErrorCode.FENCED_INSTANCE_ID
    synced = group.sync(answer.member_id, 1, {}, instance="one")
    assert group.answers[synced].assignment == assignment(orders=[0, 1, 2])


def test_the_protocol_is_voted_for() -> None:
    """B4."""
    group = GroupWorld(initial_rebalance_delay_ms=1_000)
    both = {"sticky": b"s", "range": b"r"}
    _, a = group.enter("ann", protocols=both)
    _, b = group.enter("bob", protocols=both)
    _, c = group.enter("cid", protocols={"range": b"r", "sticky": b"s"})
    group.wait(3_000)
    assert {group.answers[request].protocol_name for request in (a, b, c)} == {"sticky"}
    stranger = group.join(protocols={"roundrobin": b""})
    assert group.code(stranger) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
