"""DescribeGroups and ListGroups. Spec: B2."""

import pytest

from ottla.coordinator.group.shard import listed
from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, assignment, subscription


def test_a_stable_group_shows_everything() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    described = group.shard.describe("g", 6)
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    ann, _ = described.members
    assert (ann.member_id, ann.client_id, ann.client_host) == (ids["ann"], "ann", "/127.0.0.1")
    assert (ann.member_metadata, ann.member_assignment) == (subscription("orders"), assignment(orders=[0]))


def test_a_group_that_is_not_stable_shows_its_members_and_their_last_assignments() -> None:
    """Protocol and metadata are shown only in Stable; assignments always, as in Kafka since 4.0."""
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    group.join(ids["ann"])
    described = group.shard.describe("g", 6)
    assert (described.group_state, described.protocol_type) == ("PreparingRebalance", "consumer")
    assert described.protocol_data == ""
    assert {m.member_id for m in described.members} == set(ids.values())
    assert {m.member_metadata for m in described.members} == {b""}
    assert [m.member_assignment for m in described.members] == [assignment(orders=[0]), assignment(orders=[1])]


def test_a_static_member_shows_its_instance() -> None:
    group = GroupWorld()
    group.settle("one", static=True)
    (member,) = group.shard.describe("g", 6).members
    assert member.group_instance_id == "one"


def test_an_empty_and_a_simple_group_show_their_protocol_type() -> None:
    group = GroupWorld()
    ids = group.settle("ann")
    group.leave(ids["ann"])
    group.commit(1, group="simple")
    assert group.shard.describe("g", 6).protocol_type == "consumer"
    simple = group.shard.describe("simple", 6)
    assert (simple.group_state, simple.protocol_type, simple.members) == ("Empty", "", [])


@pytest.mark.parametrize("version", range(7))
def test_an_unknown_group_is_dead_and_from_version_six_on_an_error(version: int) -> None:
    group = GroupWorld()
    described = group.shard.describe("unknown", version)
    assert described.group_state == "Dead"
    if version >= 6:
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert described.error_message == "Group unknown not found."
    else:
        assert (described.error_code, described.error_message) == (0, None)


def listing(group: GroupWorld, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> dict[str, str]:
    groups = group.shard.groups.values()
    return {each.group_id: each.group_state for each in listed(groups, set(states), set(types))}


def test_groups_are_listed_with_their_state_and_type() -> None:
    group = GroupWorld()
    group.settle("ann", group="stable")
    group.commit(1, group="simple")
    group.enter("bob", group="joining")
    assert listing(group) == {"stable": "Stable", "simple": "Empty", "joining": "PreparingRebalance"}
    found = {g.group_id: g for g in listed(group.shard.groups.values(), set(), set())}
    assert {g.group_type for g in found.values()} == {"classic"}
    assert (found["stable"].protocol_type, found["simple"].protocol_type) == ("consumer", "")


def test_groups_are_filtered_by_state_and_type() -> None:
    group = GroupWorld()
    group.settle("ann", group="stable")
    group.commit(1, group="simple")
    assert listing(group, states=("stable",)) == {"stable": "Stable"}
    assert listing(group, states=("empty", "dead")) == {"simple": "Empty"}
    assert listing(group, states=("nonsense",)) == {}
    assert set(listing(group, types=("classic",))) == {"stable", "simple"}
    assert listing(group, types=("consumer",)) == {}
    assert listing(group, types=("nonsense",)) == {}
    assert set(listing(group, types=("consumer", "classic"), states=("stable",))) == {"stable"}
