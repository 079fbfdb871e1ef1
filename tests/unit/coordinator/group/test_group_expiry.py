"""When offsets and groups expire (KIP-211), and what deletes them at once. Spec: C4."""

from typing import Any

import pytest

from ottla.coordinator.group import shard as shard_module
from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, image_of, subscription

HOUR = 3_600_000
DAY = 24 * HOUR
RETENTION = 7 * DAY


def world(**settings: Any) -> GroupWorld:
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


def test_by_default_offsets_expire_after_a_week_checked_every_ten_minutes() -> None:
    """Spec: C4. 10,080 minutes and 600,000 ms. What is left of the group are tombstones."""
    group = GroupWorld()
    group.commit(5)
    group.wait(10_080 * 60_000 - 1)
    assert group.committed() == 5
    group.wait(600_000)
    assert group.committed() is None
    assert {record.key: record.value for record in group.log} == dict.fromkeys(
        (record.key for record in group.log), None
    )


def test_each_offset_of_a_simple_group_has_its_own_time() -> None:
    group = world()
    group.commit(5, partition=0)
    group.wait(DAY)
    group.commit(5, partition=1)
    group.wait(RETENTION - DAY + HOUR)
    assert (group.committed(partition=0), group.committed(partition=1)) == (None, 5)
    assert group.state() == "Empty"


def test_a_new_commit_restarts_the_retention_time() -> None:
    group = world()
    for _ in range(5):
        group.commit(5)
        group.wait(RETENTION - HOUR)
    assert group.committed() == 5


def test_an_empty_groups_retention_counts_from_when_it_became_empty() -> None:
    """Not from the commit: a group may be idle for a month and stop yesterday."""
    group = world()
    ids = group.settle("ann", session_ms=1_800_000)
    group.commit(5, member_id=ids["ann"], generation=1)
    keep_alive(group, ids, 30 * 24)
    group.leave(ids["ann"])
    group.wait(RETENTION - 1)
    assert group.committed() == 5
    group.wait(HOUR + 1)
    assert (group.committed(), group.state()) == (None, "Dead")


def test_a_failover_does_not_restart_the_retention_time() -> None:
    group = world()
    ids = group.settle("ann")
    group.commit(5, member_id=ids["ann"], generation=1)
    group.leave(ids["ann"])
    group.wait(RETENTION - DAY)
    group.fail_over()
    group.wait(DAY + HOUR)
    assert group.committed() is None


def test_retention_counts_from_the_commit_when_it_is_unknown_when_the_group_became_empty() -> None:
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


def test_a_group_with_a_pending_member_does_not_expire() -> None:
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


def test_offsets_of_subscribed_topics_never_expire() -> None:
    group = world()
    ids = group.settle("ann", session_ms=1_800_000)
    group.commit(5, member_id=ids["ann"], generation=1)
    keep_alive(group, ids, 8 * 24)
    assert group.committed() == 5


def test_offsets_of_topics_no_longer_subscribed_expire_after_their_commit() -> None:
    group = world()
    ids = group.settle("ann", session_ms=1_800_000)
    group.commit(5, topic="payments", member_id=ids["ann"], generation=1)
    group.commit(6, topic="orders", member_id=ids["ann"], generation=1)
    keep_alive(group, ids, 7 * 24 + 1)
    assert (group.committed(topic="payments"), group.committed()) == (None, 6)
    assert group.state() == "Stable"


def test_nothing_expires_when_a_subscription_cannot_be_read() -> None:
    group = world()
    ids = group.settle("ann", session_ms=1_800_000, protocols={"range": b"?"})
    group.commit(5, topic="payments", member_id=ids["ann"], generation=1)
    keep_alive(group, ids, 8 * 24)
    assert group.committed(topic="payments") == 5


@pytest.mark.parametrize("metadata", [b"\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff", b"\x00"])
def test_an_unreadable_subscription_is_not_an_empty_one(metadata: bytes) -> None:
    group = world()
    group.settle("ann", protocols={"range": metadata})
    assert group.shard.groups["g"].subscribed_topics is None


def test_an_empty_group_subscribes_to_nothing() -> None:
    group = world()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    assert group.shard.groups["g"].subscribed_topics == set()


def test_the_known_fields_of_a_newer_subscription_version_are_read() -> None:
    group = world()
    newer = b"\x00\x63" + subscription("orders")[2:] + b"what is to come"
    group.settle("ann", protocols={"range": newer})
    assert group.shard.groups["g"].subscribed_topics == {"orders"}


def test_a_stable_group_of_another_protocol_type_keeps_all_offsets() -> None:
    group = world()
    ids = group.settle("w", session_ms=1_800_000, protocol_type="connect", protocols={"compatible": b""})
    group.commit(5, member_id=ids["w"], generation=1)
    keep_alive(group, ids, 8 * 24)
    assert group.committed() == 5


def test_nothing_expires_during_a_rebalance() -> None:
    group = world()
    ids = group.settle("ann", "bob", session_ms=1_800_000, rebalance_ms=10 * DAY)
    group.commit(5, topic="payments", member_id=ids["ann"], generation=1)
    group.join(ids["ann"], session_ms=1_800_000, rebalance_ms=10 * DAY)
    for _ in range(8 * 24 * 4):
        group.wait(HOUR // 4)
        group.heartbeat(ids["bob"], 1)
    assert group.state() == "PreparingRebalance"
    assert group.committed(topic="payments") == 5


# --- explicit retention -------------------------------------------------------------------------------------


def test_an_offset_with_an_explicit_retention_expires_when_it_is_over() -> None:
    group = world()
    group.commit(5, version=4, retention_ms=2 * HOUR)
    group.commit(6, version=4, retention_ms=30 * DAY, partition=1)
    group.wait(2 * HOUR)
    assert (group.committed(), group.committed(partition=1)) == (None, 6)
    group.wait(RETENTION + HOUR)
    assert group.committed(partition=1) == 6, "longer than the broker's is allowed"
    group.wait(30 * DAY)
    assert group.committed(partition=1) is None


def test_an_explicit_retention_applies_before_the_groups_retention_is_over() -> None:
    group = world()
    ids = group.settle("ann")
    group.commit(5, member_id=ids["ann"], generation=1, version=4, retention_ms=2 * HOUR)
    group.leave(ids["ann"])
    group.wait(3 * HOUR)
    assert group.committed() is None


def test_an_explicit_retention_does_not_apply_while_the_topic_is_subscribed() -> None:
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


def test_a_group_with_only_a_pending_offset_is_not_forgotten() -> None:
    group = world()
    group.commit_in_transaction(6)
    group.wait(3 * HOUR)
    assert group.state() == "Empty"
    group.end_transaction(7, commit=True)
    assert group.committed() == 6


# --- the check itself ---------------------------------------------------------------------------------------


def test_an_expiry_check_looks_at_a_few_groups_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand groups must not block the event loop."""
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


def test_expiry_checks_run_at_their_interval() -> None:
    group = world()
    group.commit(5, version=4, retention_ms=1)
    group.wait(HOUR - 1)
    assert group.committed() == 5
    group.wait(1)
    assert group.committed() is None


# --- deleted topics -----------------------------------------------------------------------------------------


def test_offsets_of_many_groups_are_deleted_with_their_topic_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one step, the deletion of a topic would block the broker for seconds."""
    monkeypatch.setattr(shard_module, "GROUPS_PER_STEP", 30)
    group = GroupWorld(topics=("orders", "payments"))
    for number in range(100):
        group.commit(1, group=f"g{number}")
    group.commit(1, group="g0", topic="payments")
    before = len(group.log)
    group.delete_topic("orders")
    assert len(group.log) == before, "the image is applied to every shard in one step"
    group.run(group.shard.tick(group.now))
    assert len(group.log) == before + 30
    group.delete_topic("payments")
    group.wait(0)
    assert group.shard.offsets.count() == 0


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


def test_a_topic_created_again_under_the_same_name_starts_without_offsets() -> None:
    group = world()
    group.commit(5)
    group.publish(image_of("orders", "payments", version=2, incarnation=1))
    assert group.committed() is None


def test_offsets_of_a_recreated_topic_survive_the_deletion_of_the_old_one() -> None:
    """The topic id tells them apart if the deletion is seen late."""
    group = world()
    old = group.image
    group.image = image_of("orders", "payments", version=2, incarnation=1)
    group.load()
    group.commit(9)
    group.shard._image = old  # noqa: SLF001 (a stale image, which on_image would compare with the current one)
    group.run(group.shard.on_image(group.image, group.now))
    assert group.committed() == 9


def test_a_coordinator_keeps_offsets_of_topics_it_has_never_seen() -> None:
    """Its metadata image may be older than a commit that another coordinator accepted."""
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


def test_deleting_an_unknown_group_is_refused() -> None:
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


def test_a_pending_member_of_a_deleted_group_starts_over() -> None:
    group = world()
    ann = group.answers[group.join(client="ann")].member_id
    assert group.delete_group() == ErrorCode.NONE
    assert group.code(group.join(ann)) == ErrorCode.UNKNOWN_MEMBER_ID
    group.wait(DAY)
    assert group.state() == "Dead"
