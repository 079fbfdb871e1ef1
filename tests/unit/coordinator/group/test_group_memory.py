"""The memory that groups take is bounded, whatever clients send. Spec: R8."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ottla.coordinator.effects import Deadlines
from ottla.coordinator.group.metadata_usage import size_of
from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld

LIMIT = 100_000


def offers(size: int, fill: bytes = b"x") -> dict[str, bytes]:
    return {"range": fill * size}


def used(group: GroupWorld) -> int:
    """What the members take, counted again."""
    return sum(size_of(m.protocols) for g in group.shard.groups.values() for m in g.members.values())


# --- metadata -----------------------------------------------------------------------------------------------


def test_a_member_with_too_much_metadata_is_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    group = GroupWorld(group_metadata_max_bytes=LIMIT)
    ids = group.settle("ann", protocols=offers(60_000))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert group.code(group.join(client="bob", protocols=offers(60_000))) == ErrorCode.GROUP_MAX_SIZE_REACHED
    (line,) = caplog.messages
    assert "group g: client 'bob' at /127.0.0.1 cannot join with 60655 bytes of metadata" in line
    assert "121310 bytes would be more than ottla.group.metadata.max.bytes=100000; subscribe to fewer topics" in line
    assert group.heartbeat(ids["ann"], 1) == ErrorCode.NONE, "the group does not notice"
    group.join(client="cid", protocols=offers(30_000), version=3)
    assert len(group.members()) == 2


def test_many_members_count_even_without_metadata() -> None:
    group = GroupWorld(group_metadata_max_bytes=LIMIT, group_initial_rebalance_delay_ms=1_000)
    codes = [group.code(group.join(protocols={"a": b""}, version=3)) for _ in range(500)]
    assert 100 < codes.count(None) < 200, "they wait for the rebalance"
    assert set(codes) == {None, ErrorCode.GROUP_MAX_SIZE_REACHED}


def test_a_member_that_grows_too_large_leaves_the_group() -> None:
    group = GroupWorld(group_metadata_max_bytes=LIMIT)
    ids = group.settle("ann", "bob")
    assert group.code(group.join(ids["bob"], protocols=offers(LIMIT))) == ErrorCode.GROUP_MAX_SIZE_REACHED
    group.join(ids["ann"])
    assert group.members() == {ids["ann"]}
    assert group.shard.usage.size_bytes == used(group)


def test_a_member_may_rejoin_with_as_much_as_it_had() -> None:
    group = GroupWorld(group_metadata_max_bytes=LIMIT)
    ids = group.settle("ann", protocols=offers(90_000))
    assert group.code(group.join(ids["ann"], protocols=offers(90_000, b"y"))) == ErrorCode.NONE
    assert group.shard.usage.size_bytes == used(group)


def test_a_static_member_that_returns_takes_its_own_place() -> None:
    group = GroupWorld(group_metadata_max_bytes=LIMIT)
    for _ in range(3):
        request = group.join(protocols=offers(90_000), instance="first")
        group.wait(0)
        assert group.code(request) == ErrorCode.NONE
    assert group.shard.usage.size_bytes == used(group)


def test_groups_share_the_memory_of_the_broker() -> None:
    group = GroupWorld(group_metadata_max_bytes=LIMIT, groups_metadata_max_bytes=2 * LIMIT)
    for name in ("a", "b"):
        group.settle("ann", group=name, protocols=offers(90_000))
    assert group.code(group.join(group="c", protocols=offers(90_000))) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "c" not in group.shard.groups
    group.leave(*group.members("a"), group="a")
    group.settle("ann", group="c", protocols=offers(90_000))


def test_the_memory_of_members_is_known_after_a_load_and_freed_with_them() -> None:
    group = GroupWorld()
    group.settle("ann", "bob", protocols=offers(5_000))
    group.settle("cid", group="other", protocols=offers(7_000))
    assert group.shard.usage.size_bytes == used(group) > 17_000
    group.fail_over()
    assert group.shard.usage.size_bytes == used(group) > 17_000
    for name in ("g", "other"):
        group.leave(*group.members(name), group=name)
        group.wait(60_000)
    assert group.shard.usage.size_bytes == used(group) == 0


def test_equal_metadata_is_kept_once() -> None:
    group = GroupWorld()
    group.settle("ann", "bob", "cid", protocols=offers(1_000))
    kept = {id(member.metadata_for("range")) for member in group.shard.groups["g"].members.values()}
    assert len(kept) == 1
    group.fail_over()
    kept = {id(member.metadata_for("range")) for member in group.shard.groups["g"].members.values()}
    assert len(kept) == 1


# --- ids that nobody uses -----------------------------------------------------------------------------------


def test_very_many_ids_are_forgotten_with_the_groups_made_for_them() -> None:
    """Clients that make up a group id for each request cannot fill the memory."""
    group = GroupWorld()
    group.settle("ann")
    first = group.answers[group.join(group="made-up")].member_id
    for number in range(3_000):
        last = group.answers[group.join(group=f"made-up-{number}", session_ms=1_800_000)].member_id
    assert len(group.shard.groups) < 1_500
    assert group.code(group.join(first, group="made-up")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.code(group.join(last, group="made-up-2999")) != ErrorCode.UNKNOWN_MEMBER_ID
    assert group.state() == "Stable"


def test_an_id_that_expires_keeps_a_group_with_offsets() -> None:
    group = GroupWorld()
    group.commit(5)
    group.join(session_ms=6_000)
    group.wait(6_000)
    assert group.committed() == 5
    assert group.state() == "Empty"


def test_an_id_that_expires_keeps_a_group_that_had_members() -> None:
    """Kafka shows a group until its offsets expire."""
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    group.join(session_ms=6_000)
    group.wait(6_000)
    assert group.state() == "Empty"


def test_members_that_come_and_go_leave_no_deadlines_behind() -> None:
    group = GroupWorld()
    ids = group.settle("ann", group="other")
    for _ in range(1_500):
        request = group.join(version=3)
        group.wait(0)
        group.leave(group.answers[request].member_id)
    assert len(group.shard.deadlines) < 1_100
    group.wait(9_999)
    assert group.members("other") == set(ids.values())
    group.wait(1)
    assert group.members("other") == set(), "the deadlines that matter are still there"


def test_many_deadlines_that_matter_are_not_searched_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    keep = Deadlines.keep

    def note(deadlines: Deadlines, is_needed: Callable[[int, Any], bool]) -> None:
        searches.append(len(deadlines))
        keep(deadlines, is_needed)

    monkeypatch.setattr(Deadlines, "keep", note)
    group = GroupWorld(group_initial_rebalance_delay_ms=60_000)
    for _ in range(2_500):
        group.join(version=3)
    assert len(group.members()) == 2_500
    assert len(searches) == 2, "after 1,000 and after 2,000"
