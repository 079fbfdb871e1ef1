"""When offsets and groups are forgotten (Spec: C4., PROTOCOL 8.3, KIP-211), and what deletes them at once."""

import pytest

from ottla.coordinator.group import shard as shard_module
from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, image_of, subscription

HOUR = 3_600_000
DAY = 24 * HOUR
RETENTION = 7 * DAY


def world(**settings: object) -> GroupWorld:
    return GroupWorld(
        topics=("orders", "payments"),
        offsets_retention_minutes=RETENTION // 60_000,
        offsets_retention_check_interval_ms=HOUR,
        **settings,
    )


# --- groups without members ---------------------------------------------------------------------------------


def test_an_offset_of_a_simple_group_expires_one_retention_after_its_commit() -> None:
    group = world()
    group.commit(5)
    group.wait(RETENTION - 1)
    assert group.committed() == 5
    group.wait(HOUR + 1)
    assert (group.committed(), group.state()) == (None, "Dead")


def test_each_offset_of_a_simple_group_has_its_own_time() -> None:
    group = world()
    group.commit(5, partition=0)
    group.wait(DAY)
    group.commit(5, partition=1)
    group.wait(RETENTION - DAY + HOUR)
    assert (group.committed(partition=0), group.committed(partition=1)) == (None, 5)
    assert group.state() == "Empty"


def test_a_new_commit_starts_the_retention_anew() -> None:
    group = world()
    for _ in range(5):
        group.commit(5)
        group.wait(RETENTION - HOUR)
    assert group.committed() == 5


def test_an_empty_groups_retention_counts_from_when_it_became_empty() -> None:
    """Not from the commit: it consumed quietly for a month, and stopped yesterday."""
    group = world()
    ids = group.settle("ann", session_ms=1_800_000)
    group.commit(5, member_id=ids["ann"], generation=1)
    keep_alive(group, ids, 30 * 24)
    group.leave(ids["ann"])
    group.wait(RETENTION - 1)
    assert group.committed() == 5
    group.wait(HOUR + 1)
    assert (group.committed(), group.state()) == (None, "Dead")


def test_a_failover_does_not_start_the_retention_anew() -> None:
    group = world()
    ids = group.settle("ann")
    group.commit(5, member_id=ids["ann"], generation=1)
    group.leave(ids["ann"])
    group.wait(RETENTION - DAY)
    group.fail_over()
    group.wait(DAY + HOUR)
    assert group.committed() is None


def test_where_it_is_not_known_when_a_group_became_empty_the_commit_counts() -> None:
    group = world()
    ids = group.settle("ann")
    group.commit(5, member_id=ids["ann"], generation=1)
    group.leave(ids["ann"])
    group.shard.groups["g"].state_timestamp = -1
    group.wait(RETENTION + HOUR)
    assert group.committed() is None


def test_an_empty_group_without_offsets_is_forgotten_at_the_next_check() -> None:
    group = world()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    group.wait(HOUR)
    assert group.state() == "Dead"
    group.fail_over()
    assert group.state() == "Dead"


def test_a_group_that_somebody_is_about_to_join_is_not_forgotten() -> None:
    group = world()
    group.wait(HOUR - 1)
    ann = group.answers[group.join(client="ann", session_ms=10_000)].member_id
    group.wait(1)
    request = group.join(ann)
    group.wait(0)
    assert group.code(request) == ErrorCode.NONE


# --- groups with members ------------------------------------------------------------------------------------


def keep_alive(group: GroupWorld, ids: dict[str, str], hours: int) -> None:
    for _ in range(hours * 4):
        group.wait(HOUR // 4)
        for member_id in ids.values():
            group.heartbeat(member_id, group.generation())


def test_what_a_stable_group_consumes_never_expires() -> None:
    group = world()
    ids = group.settle("ann", session_ms=1_800_000)
    group.commit(5, member_id=ids["ann"], generation=1)
    keep_alive(group, ids, 8 * 24)
    assert group.committed() == 5


def test_what_a_stable_group_no_longer_consumes_expires_after_its_commit() -> None:
    group = world()
    ids = group.settle("ann", session_ms=1_800_000)
    group.commit(5, topic="payments", member_id=ids["ann"], generation=1)
    group.commit(6, topic="orders", member_id=ids["ann"], generation=1)
    keep_alive(group, ids, 7 * 24 + 1)
    assert (group.committed(topic="payments"), group.committed()) == (None, 6)
    assert group.state() == "Stable"


def test_where_a_subscription_cannot_be_read_nothing_expires() -> None:
    group = world()
    ids = group.settle("ann", session_ms=1_800_000, protocols={"range": b"?"})
    group.commit(5, topic="payments", member_id=ids["ann"], generation=1)
    keep_alive(group, ids, 8 * 24)
    assert group.committed(topic="payments") == 5


@pytest.mark.parametrize("metadata", [b"\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff", b"\x00"])
def test_a_subscription_of_no_known_form_is_no_subscription_to_nothing(metadata: bytes) -> None:
    group = world()
    group.settle("ann", protocols={"range": metadata})
    assert group.shard.groups["g"].subscribed_topics is None


def test_an_empty_group_subscribes_to_nothing() -> None:
    group = world()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    assert group.shard.groups["g"].subscribed_topics == set()


def test_a_subscription_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    group = world()
    newer = b"\x00\x63" + subscription("orders")[2:] + b"what is to come"
    group.settle("ann", protocols={"range": newer})
    assert group.shard.groups["g"].subscribed_topics == {"orders"}


def test_a_stable_group_of_another_kind_keeps_everything() -> None:
    group = world()
    ids = group.settle("w", session_ms=1_800_000, protocol_type="connect", protocols={"compatible": b""})
    group.commit(5, member_id=ids["w"], generation=1)
    keep_alive(group, ids, 8 * 24)
    assert group.committed() == 5


def test_while_a_group_rebalances_nothing_expires() -> None:
    group = world()
    ids = group.settle("ann", "bob", session_ms=1_800_000, rebalance_ms=10 * DAY)
    group.commit(5, topic="payments", member_id=ids["ann"], generation=1)
    group.join(ids["ann"], session_ms=1_800_000, rebalance_ms=10 * DAY)
    for _ in range(8 * 24 * 4):
        group.wait(HOUR // 4)
        group.heartbeat(ids["bob"], 1)
    assert group.state() == "PreparingRebalance"
    assert group.committed(topic="payments") == 5


# --- a retention of one's own -------------------------------------------------------------------------------


def test_an_offset_with_a_retention_of_its_own_expires_when_that_is_over() -> None:
    group = world()
    group.commit(5, version=4, retention_ms=2 * HOUR)
    group.commit(6, version=4, retention_ms=30 * DAY, partition=1)
    group.wait(2 * HOUR)
    assert (group.committed(), group.committed(partition=1)) == (None, 6)
    group.wait(RETENTION + HOUR)
    assert group.committed(partition=1) == 6, "longer than the broker's is fine too"
    group.wait(30 * DAY)
    assert group.committed(partition=1) is None


def test_it_expires_in_an_empty_group_that_is_not_yet_due_as_a_whole() -> None:
    group = world()
    ids = group.settle("ann")
    group.commit(5, member_id=ids["ann"], generation=1, version=4, retention_ms=2 * HOUR)
    group.leave(ids["ann"])
    group.wait(3 * HOUR)
    assert group.committed() is None


def test_it_does_not_expire_while_the_topic_is_consumed() -> None:
    group = world()
    ids = group.settle("ann", session_ms=1_800_000)
    group.commit(5, member_id=ids["ann"], generation=1, version=4, retention_ms=2 * HOUR)
    keep_alive(group, ids, 4)
    assert group.committed() == 5


# --- open transactions --------------------------------------------------------------------------------------


def test_a_partition_with_a_pending_offset_does_not_expire() -> None:
    group = world()
    group.commit(5)
    group.commit_in_transaction(6)
    group.wait(RETENTION + 2 * HOUR)
    assert (group.committed(), group.state()) == (5, "Empty")
    group.end_transaction(7, commit=False)
    group.wait(2 * HOUR)
    assert (group.committed(), group.state()) == (None, "Dead")


def test_a_group_with_nothing_but_a_pending_offset_is_not_forgotten() -> None:
    group = world()
    group.commit_in_transaction(6)
    group.wait(3 * HOUR)
    assert group.state() == "Empty"
    group.end_transaction(7, commit=True)
    assert group.committed() == 6


# --- the check itself ---------------------------------------------------------------------------------------


def test_a_check_looks_at_some_groups_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand groups must not hold everybody up."""
    monkeypatch.setattr(shard_module, "GROUPS_PER_STEP", 10)
    group = world()
    for number in range(95):
        group.commit(1, group=f"g{number}")
    group.now += RETENTION + HOUR
    steps = 0
    while group.shard.groups:
        assert group.shard.next_deadline() == group.now or steps == 0
        effects = group.run(group.shard.tick(group.now))
        assert len(effects.records) <= 20
        steps += 1
    assert steps == 10
    assert group.shard.next_deadline() == group.now + HOUR, "and then not before the interval is over"


def test_checks_come_at_their_interval() -> None:
    group = world()
    group.commit(5, version=4, retention_ms=1)
    group.wait(HOUR - 1)
    assert group.committed() == 5
    group.wait(1)
    assert group.committed() is None


# --- deleted topics -----------------------------------------------------------------------------------------


def test_deleting_a_topic_deletes_its_offsets() -> None:
    """Spec: C4."""
    group = world()
    group.commit(5)
    group.commit(6, topic="payments")
    group.commit(7, group="other", partition=2)
    group.delete_topic("orders")
    assert (group.committed(), group.committed(topic="payments")) == (None, 6)
    assert group.committed(group="other", partition=2) is None
    group.fail_over()
    assert (group.committed(), group.committed(topic="payments")) == (None, 6)


def test_deleting_a_topic_drops_its_pending_offsets_too() -> None:
    group = world()
    group.commit_in_transaction(5)
    group.delete_topic("orders")
    group.end_transaction(7, commit=True)
    assert group.committed() is None


def test_a_topic_made_again_under_its_name_starts_without_offsets() -> None:
    group = world()
    group.commit(5)
    group.publish(image_of("orders", "payments", version=2, incarnation=1))
    assert group.committed() is None


def test_offsets_of_the_new_topic_survive_news_of_the_old_ones_end() -> None:
    """An id tells them apart, should the news come late."""
    group = world()
    old = group.image
    group.image = image_of("orders", "payments", version=2, incarnation=1)
    group._start()
    group.commit(9)
    group.shard._image = old
    group.run(group.shard.on_image(group.image, group.now))
    assert group.committed() == 9


def test_a_coordinator_does_not_delete_what_it_has_never_seen_exist() -> None:
    """Its image may be older than a commit that another coordinator took."""
    group = world()
    group.commit(5)
    group.image = image_of("payments")
    group.fail_over()
    assert group.committed() == 5
    group.publish(image_of("orders", "payments", version=3))
    assert group.committed() == 5


# --- DeleteGroups -------------------------------------------------------------------------------------------


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    group = world()
    ids = group.settle("ann")
    group.commit(5, member_id=ids["ann"], generation=1)
    group.commit(6, topic="payments", member_id=ids["ann"], generation=1)
    group.leave(ids["ann"])
    assert group.delete_group() == ErrorCode.NONE
    for _ in range(2):
        assert (group.state(), group.committed(), group.committed(topic="payments")) == ("Dead", None, None)
        group.fail_over()


def test_a_group_with_members_is_not_deleted() -> None:
    group = world()
    group.settle("ann")
    assert group.delete_group() == ErrorCode.NON_EMPTY_GROUP
    assert group.state() == "Stable"


def test_a_group_that_is_not_there_cannot_be_deleted() -> None:
    group = world()
    assert group.delete_group() == ErrorCode.GROUP_ID_NOT_FOUND


def test_deleting_a_group_drops_its_pending_offsets() -> None:
    group = world()
    group.commit_in_transaction(5)
    assert group.delete_group() == ErrorCode.NONE
    group.end_transaction(7, commit=True)
    for _ in range(2):
        assert (group.state(), group.committed()) == ("Dead", None)
        group.fail_over()


def test_who_was_about_to_join_a_deleted_group_starts_over() -> None:
    group = world()
    ann = group.answers[group.join(client="ann")].member_id
    assert group.delete_group() == ErrorCode.NONE
    assert group.code(group.join(ann)) == ErrorCode.UNKNOWN_MEMBER_ID
    group.wait(DAY)
    assert group.state() == "Dead"
