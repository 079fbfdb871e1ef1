"""Why did the group rebalance? The causes that the coordinator records. Spec: B6."""

from dataclasses import replace

from ottla.coordinator.group.history import CAUSES_MAX, Cause, Rebalanced
from tests.support.worlds.group_world import GroupWorld, assignment, image_of, subscription


def rebalance(group: GroupWorld, ids: dict[str, str], shares: dict[str, list[int]]) -> Rebalanced:
    """Makes the named members rejoin with these assignments; returns the event."""
    for name in shares:
        member_id = ids[name]
        if group.shard.groups["g"].members[member_id].join is None and group.state() == "PreparingRebalance":
            group.join(member_id)
    assert group.state() == "CompletingRebalance", group.state()
    leader = group.leader()
    assigned = {ids[name]: assignment(orders=partitions) for name, partitions in shares.items()}
    for name in shares:
        if ids[name] != leader:
            group.sync(ids[name], group.generation())
    group.sync(leader, group.generation(), assigned)
    return group.events[-1]


def test_cause_of_a_join_includes_the_members_reason() -> None:
    """JoinGroup v8."""
    group = GroupWorld()
    ids = group.settle("ann")
    ids["bob"], _ = group.enter("bob", reason="scaled out")
    note = rebalance(group, ids, {"ann": [0], "bob": [1, 2]})
    assert note.causes == [Cause("joined", ids["bob"], "scaled out")]
    assert note.before == {ids["ann"]: {"orders": [0]}}, "a new member had nothing"
    assert note.after == {ids["ann"]: {"orders": [0]}, ids["bob"]: {"orders": [1, 2]}}
    assert (note.group_id, note.generation, note.protocol, note.leader) == ("g", 2, "range", ids["ann"])


def test_cause_of_a_leave_includes_the_members_reason_and_partitions() -> None:
    """LeaveGroup v5."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.leave(ids["bob"], reason="the consumer is being closed")
    note = rebalance(group, ids, {"ann": [0, 1, 2]})
    assert note.causes == [Cause("left", ids["bob"], "the consumer is being closed")]
    assert note.before == {ids["ann"]: {"orders": [0]}, ids["bob"]: {"orders": [1]}}
    assert note.after == {ids["ann"]: {"orders": [0, 1, 2]}}


def test_cause_when_the_last_member_leaves() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    note = group.events[-1]
    assert (note.generation, note.protocol, note.leader, note.after) == (2, None, None, {})
    assert note.causes == [Cause("left", ids["ann"])]
    assert note.before == {ids["ann"]: {"orders": [0]}}


def test_cause_of_a_session_timeout() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    for _ in range(3):
        group.wait(4_000)
        group.heartbeat(ids["ann"], 1)
    note = rebalance(group, ids, {"ann": [0, 1]})
    assert note.causes == [Cause("timed out", ids["bob"], "no heartbeat for 10000 ms")]
    assert ids["bob"] in note.before


def test_cause_of_a_changed_subscription() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.join(ids["bob"], protocols={"range": subscription("payments")}, reason="subscribed to more")
    note = rebalance(group, ids, {"ann": [0], "bob": []})
    assert note.causes == [Cause("changed its subscription", ids["bob"], "subscribed to more")]


def test_cause_of_a_topic_with_more_partitions() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.publish(image_of("orders", version=2, partitions=6))
    group.join(ids["ann"], reason="cached metadata has changed")
    note = rebalance(group, ids, {"ann": [0], "bob": [1]})
    reason = "orders: 3 -> 6 partitions; cached metadata has changed"
    assert note.causes == [Cause("topic changed", ids["ann"], reason)]


def test_cause_of_a_deleted_topic() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.delete_topic("orders")
    group.join(ids["ann"])
    note = rebalance(group, ids, {"ann": []})
    assert note.causes == [Cause("topic changed", ids["ann"], "orders: 3 -> no partitions")]


def test_cause_of_a_leader_that_enforces_a_rebalance() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.join(ids["ann"], reason="rebalance enforced by user")
    note = rebalance(group, ids, {"ann": [0], "bob": [1]})
    assert note.causes == [Cause("leader rejoined", ids["ann"], "rebalance enforced by user")]


def test_cause_of_a_failover_during_a_rebalance() -> None:
    group = GroupWorld()
    both = {"range": subscription("orders"), "sticky": subscription("orders")}
    ids = group.settle("ann", "bob", protocols=both)
    group.join(ids["ann"], protocols=both)
    group.fail_over()
    group.join(ids["bob"], protocols=both)
    group.join(ids["ann"], protocols=both)
    note = rebalance(group, ids, {"ann": [0], "bob": [1]})
    assert note.causes == [Cause("coordinator moved", ids["bob"])]
    assert note.before == {ids["ann"]: {"orders": [0]}, ids["bob"]: {"orders": [1]}}


def test_cause_of_a_leader_that_rejoins_right_after_a_failover() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.fail_over()
    group.join(ids["ann"])
    note = rebalance(group, ids, {"ann": [0], "bob": [1]})
    assert note.causes == [Cause("coordinator moved", ids["ann"])]


def test_a_failover_long_ago_is_not_a_cause() -> None:
    group = GroupWorld()
    both = {"range": subscription("orders"), "sticky": subscription("orders")}
    ids = group.settle("ann", "bob", protocols=both)
    group.fail_over()
    for _ in range(20):
        group.wait(5_000)
        for member_id in ids.values():
            group.heartbeat(member_id, 1)
    group.join(ids["bob"], protocols=both)
    group.join(ids["ann"], protocols=both)
    note = rebalance(group, ids, {"ann": [0], "bob": [1]})
    assert note.causes == [Cause("rejoined", ids["bob"])], "it only looks changed: one of its two protocols was stored"


def test_a_real_change_right_after_a_failover_is_named_as_the_cause() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.fail_over()
    group.join(ids["bob"], protocols={"range": subscription("payments")})
    note = rebalance(group, ids, {"ann": [0], "bob": []})
    assert note.causes == [Cause("changed its subscription", ids["bob"])]


def test_cause_of_members_that_did_not_rejoin_or_never_synced() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob", session_ms=300_000, rebalance_ms=30_000)
    group.join(ids["ann"], session_ms=300_000, rebalance_ms=30_000)
    group.wait(30_000)
    note = rebalance(group, ids, {"ann": [0]})
    assert note.causes == [Cause("leader rejoined", ids["ann"]), Cause("did not rejoin in time", ids["bob"])]
    ids["cid"], _ = group.enter("cid", session_ms=300_000, rebalance_ms=30_000)
    group.join(ids["ann"], session_ms=300_000, rebalance_ms=30_000)
    group.sync(ids["ann"], group.generation(), {})
    assert group.events[-1].causes == [Cause("joined", ids["cid"])]
    group.wait(30_000)
    note = rebalance(group, ids, {"ann": [0]})
    assert note.causes == [Cause("never synced", ids["cid"])]


def test_all_causes_of_one_rebalance_are_in_one_event() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    ann, _ = group.enter("ann", reason="first")
    bob, _ = group.enter("bob", reason="second")
    group.leave(bob, reason="changed my mind")
    group.wait(10_000)
    group.sync(ann, 1, {ann: assignment(orders=[0, 1, 2])})
    (note,) = group.events
    assert [tuple(cause) for cause in note.causes] == [
        ("joined", ann, "first"),
        ("joined", bob, "second"),
        ("left", bob, "changed my mind"),
    ]
    assert note.finished - note.started == 10_000


def test_a_restarted_rebalance_is_one_event() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.join(ids["ann"])
    group.join(ids["bob"])
    assert group.state() == "CompletingRebalance"
    ids["cid"], _ = group.enter("cid")
    group.wait(1_000)
    note = rebalance(group, ids, {"ann": [0], "bob": [1], "cid": [2]})
    assert [cause.what for cause in note.causes] == ["leader rejoined", "joined"]
    assert note.finished - note.started == 1_000
    assert note.before == {ids["ann"]: {"orders": [0]}, ids["bob"]: {"orders": [1]}}
    assert note.generation == 3
    assert len(group.events) == 2


def test_cause_of_a_static_member_that_returned_while_the_leader_assigned() -> None:
    group = GroupWorld()
    ids = group.settle("one", "two", static=True)
    group.join(ids["one"], instance="one")
    group.join(ids["two"], instance="two")
    back = group.join(instance="two", reason="restarted")
    group.join(ids["one"], instance="one")
    new = group.answers[back].member_id
    group.sync(ids["one"], group.generation(), {new: assignment(orders=[1])})
    note = group.events[-1]
    assert note.causes[-1] == Cause("static member came back", new, "restarted")
    assert set(note.before) == set(ids.values()), "it had its partitions under its old id"


def test_a_static_member_that_returns_unchanged_causes_no_history_entry() -> None:
    group = GroupWorld()
    ids = group.settle("one", "two", static=True)
    group.wait(5_000)
    group.join(instance="two")
    assert len(group.events) == 1
    group.wait(1_000)
    group.leaves((ids["one"], None))
    assert group.shard.groups["g"].story is not None
    assert group.shard.groups["g"].story.started == group.now, "the return without a rebalance does not start it"


def test_cause_of_a_group_over_its_maximum_size() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.config = replace(group.config, group_max_size=1)
    group.fail_over()
    group.join(ids["bob"])
    group.join(ids["ann"])
    note = rebalance(group, ids, {"bob": [0, 1, 2]})
    assert [cause.what for cause in note.causes] == ["group is over its maximum size", "was rejected for lack of room"]


def test_reasons_and_causes_are_bounded() -> None:
    """Neither long reasons nor a group that never becomes stable can fill the history."""
    group = GroupWorld(group_initial_rebalance_delay_ms=60_000)
    ann, _ = group.enter("ann", rebalance_ms=90_000, reason="x" * 10_000)
    for _ in range(CAUSES_MAX):
        bob, _ = group.enter("bob", rebalance_ms=90_000)
        group.leave(bob)
    group.wait(300_000)
    group.sync(ann, 1, {})
    story = group.shard.groups["g"].story
    causes = story.causes if story is not None else group.events[-1].causes
    assert len(causes) == CAUSES_MAX
    assert causes[0].reason == "x" * 255


def test_assignments_of_other_protocol_types_are_shown_by_size() -> None:
    group = GroupWorld()
    worker, _ = group.enter("w", protocol_type="connect", protocols={"compatible": b""})
    group.wait(0)
    group.sync(worker, 1, {worker: b"secret"}, protocol_type="connect")
    assert group.events[-1].after == {worker: "6 bytes"}
