"""The coordinator moves to another broker, in every state of a group. Spec: B6, R5."""

from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, assignment, subscription


def test_a_stable_group_survives_a_failover_without_a_rebalance() -> None:
    """Spec: R5. Members keep their ids, and there is no rebalance."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.commit(7, member_id=ids["ann"], generation=1)
    group.fail_over()
    assert (group.state(), group.generation(), group.leader()) == ("Stable", 1, ids["ann"])
    for index, member_id in enumerate(ids.values()):
        assert group.heartbeat(member_id, 1) == ErrorCode.NONE
        assert group.answers[group.sync(member_id, 1)].assignment == assignment(orders=[index])
    assert group.commit(8, member_id=ids["bob"], generation=1) == ErrorCode.NONE
    assert group.committed() == 8


def test_sessions_restart_after_a_failover() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.wait(9_000)
    group.fail_over()
    group.wait(9_000)
    assert group.heartbeat(ids["ann"], 1) == ErrorCode.NONE
    group.wait(2_000)
    assert group.members() == {ids["ann"]}


def test_an_empty_group_keeps_its_generation() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    group.fail_over()
    assert (group.state(), group.generation()) == ("Empty", 2)
    _, request = group.enter("bob")
    group.wait(0)
    assert group.answers[request].generation_id == 3, "a generation is never used twice"


def test_a_parked_join_gets_not_coordinator_and_the_member_keeps_its_id() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    parked = group.join(ids["ann"])
    group.fail_over()
    answer = group.answers[parked]
    assert (answer.error_code, answer.member_id) == (ErrorCode.NOT_COORDINATOR, ids["ann"])
    # The rebalance in progress is lost with everything that was not stored. The leader starts a new one.
    assert group.state() == "Stable"
    group.join(ids["ann"])
    assert group.state() == "PreparingRebalance"
    request = group.join(ids["bob"])
    assert group.answers[request].generation_id == 2


def test_a_parked_sync_gets_not_coordinator() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    for member_id in ids.values():
        group.join(member_id)
    parked = group.sync(ids["bob"], 2)
    group.fail_over()
    assert group.code(parked) == ErrorCode.NOT_COORDINATOR
    # Generation 2 was never stored: members that know of it get ILLEGAL_GENERATION.
    assert group.generation() == 1
    assert group.heartbeat(ids["bob"], 2) == ErrorCode.ILLEGAL_GENERATION
    assert group.code(group.sync(ids["ann"], 2, {})) == ErrorCode.ILLEGAL_GENERATION
    assert group.commit(9, member_id=ids["bob"], generation=2) == ErrorCode.ILLEGAL_GENERATION


def test_a_stored_assignment_survives_even_if_no_member_received_it() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    for member_id in ids.values():
        group.join(member_id)
    group.sync(ids["ann"], 2, {ids["bob"]: assignment(orders=[2])})
    group.fail_over()
    assert (group.state(), group.generation()) == ("Stable", 2)
    assert group.answers[group.sync(ids["bob"], 2)].assignment == assignment(orders=[2])


def test_a_group_in_its_first_rebalance_is_empty_after_a_failover() -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=3_000)
    ann, parked = group.enter("ann")
    group.fail_over()
    assert group.code(parked) == ErrorCode.NOT_COORDINATOR
    assert group.state() == "Empty"
    assert group.code(group.join(ann)) == ErrorCode.UNKNOWN_MEMBER_ID
    _, request = group.enter("ann")
    group.wait(3_000)
    assert group.code(request) == ErrorCode.NONE


def test_a_first_generation_that_was_never_stored_is_forgotten_with_its_members() -> None:
    group = GroupWorld()
    ann, _ = group.enter("ann")
    group.wait(0)
    assert group.state() == "CompletingRebalance"
    group.fail_over()
    assert group.state() == "Empty"
    assert group.heartbeat(ann, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_offers_several_protocols_looks_changed_and_triggers_a_rebalance() -> None:
    """Only the chosen protocol is stored. Kafka does the same."""
    group = GroupWorld()
    both = {"range": subscription("orders"), "sticky": subscription("orders")}
    ids = group.settle("ann", "bob", protocols=both)
    group.fail_over()
    group.join(ids["bob"], protocols=both)
    assert group.state() == "PreparingRebalance"
    group.join(ids["ann"], protocols=both)
    assert group.state() == "CompletingRebalance"


def test_a_follower_that_offers_only_the_chosen_protocol_causes_no_rebalance() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.fail_over()
    assert group.code(group.join(ids["bob"])) == ErrorCode.NONE
    assert group.state() == "Stable"


def test_static_members_keep_their_instance_ids_after_a_failover() -> None:
    group = GroupWorld()
    ids = group.settle("one", "two", static=True)
    group.fail_over()
    answer = group.answers[group.join(instance="two")]
    assert (answer.error_code, answer.generation_id) == (0, group.generation())
    assert answer.member_id != ids["two"]
    assert group.state() == "Stable"


def test_a_deleted_group_stays_deleted() -> None:
    group = GroupWorld()
    group.commit(1)
    group.delete_group()
    group.fail_over()
    assert group.state() == "Dead"
    assert group.committed() is None


def test_a_group_created_again_after_its_deletion_starts_from_scratch() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    group.delete_group()
    group.settle("bob")
    group.fail_over()
    assert group.generation() == 1, "a new group starts at generation 1"


def test_an_old_coordinator_answers_each_waiting_request_once() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob", "cid")
    parked = [group.join(ids[name]) for name in ("ann", "bob")]
    group.fail_over()
    group.wait(600_000)
    assert [group.code(request) for request in parked] == [ErrorCode.NOT_COORDINATOR] * 2


def test_repeated_failovers_change_nothing() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.commit(5, member_id=ids["ann"], generation=1)
    stored = len(group.log)
    for _ in range(10):
        group.wait(5_000)
        group.fail_over()
    assert (group.state(), group.members(), group.committed()) == ("Stable", set(ids.values()), 5)
    assert len(group.log) == stored
