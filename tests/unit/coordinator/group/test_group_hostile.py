"""Requests that no correct client sends are refused or ignored, and the group survives. Spec: R8."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import ErrorCode
from tests.support.worlds.group_world import GroupWorld, assignment, subscription


def survives(group: GroupWorld, ids: dict[str, str]) -> None:
    """The members of a stable group notice nothing."""
    for index, member_id in enumerate(ids.values()):
        assert group.heartbeat(member_id, group.generation()) == ErrorCode.NONE
        synced = group.answers[group.sync(member_id, group.generation())]
        assert synced.assignment == assignment(orders=[index])


def test_unknown_members_cannot_disturb_a_stable_group() -> None:
    group = GroupWorld()
    ids = group.settle("ann", "bob")
    stored = len(group.log)
    group.join("", protocols={})
    group.join("", protocol_type="")
    group.join("stranger")
    group.join("stranger", instance="x")
    group.join("", protocols={"unheard-of": b""})
    group.join("", session_ms=-1)
    group.join("", session_ms=2**31 - 1)
    group.sync("stranger", 1, dict.fromkeys(ids.values(), b"stolen"))
    group.sync("", 0, {"": b""})
    group.heartbeat("", -1)
    group.leave("", "stranger")
    group.leaves(("", "x"), ("", ""))
    group.commit(2**63 - 1, member_id="stranger", generation=1)
    group.commit(1, generation=2**31 - 1)
    assert len(group.log) == stored
    survives(group, ids)


def test_an_offset_may_be_any_number() -> None:
    group = GroupWorld()
    for offset in (-1, -(2**63), 2**63 - 1, 0):
        assert group.commit(offset) == ErrorCode.NONE
        group.fail_over()
        assert group.committed() == offset


def test_unreadable_subscriptions_do_no_harm() -> None:
    rng = random.Random(1)
    for _ in range(200):
        group = GroupWorld()
        metadata = rng.randbytes(rng.randint(0, 30))
        ids = group.settle("ann", "bob", protocols={"range": metadata})
        group.commit(1, member_id=ids["ann"], generation=1)
        group.delete_offset()
        group.wait(700_000)
        group.fail_over()
        assert group.state() in ("Stable", "Empty")


def test_a_huge_subscription_is_refused_when_it_cannot_be_stored() -> None:
    """An oversized subscription fails its group, not the broker."""
    group = GroupWorld()
    ann, _ = group.enter("ann", protocols={"range": bytes(2_000_000)})
    group.wait(0)
    assert group.code(group.sync(ann, 1, {})) == ErrorCode.UNKNOWN_SERVER_ERROR
    group.leave(ann)
    group.wait(0)
    assert group.state() == "Empty"
    group.settle("bob")


def test_very_many_pending_ids_all_expire() -> None:
    group = GroupWorld()
    for _ in range(1_000):
        group.join(session_ms=6_000)
    group.wait(6_000)
    assert "g" not in group.shard.groups, "nobody has ever joined it"
    group.settle("ann")


def test_a_group_id_may_be_any_text() -> None:
    group = GroupWorld()
    for name in ("g" * 32_767, "é☕\x00\n", " ", "__consumer_offsets"):
        group.settle("ann", group=name)
        group.commit(3, group=name, member_id=group.leader(name), generation=1)
    group.fail_over()
    for name in ("g" * 32_767, "é☕\x00\n", " ", "__consumer_offsets"):
        assert group.committed(group=name) == 3


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "sync", "beat", "leave", "commit", "wait", "move", "delete", "txn", "forget"]),
        st.integers(0, 3),
        st.integers(-1, 4),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_no_sequence_of_requests_breaks_the_coordinator(steps: list[tuple[str, int, int]]) -> None:
    """Whatever the order of requests, each is answered once, and the stored records can be loaded."""
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    names = ["", "stranger"]
    waiting: list[int] = []
    for what, who, number in steps:
        member_id = names[who % len(names)]
        instance = "i" if number == 3 else None
        match what:
            case "join":
                protocols = {"range": subscription("orders")} if number != 2 else {"range": b"?", "sticky": b""}
                request = group.join(member_id, instance=instance, protocols=protocols, version=9 - number % 6)
                waiting.append(request)
                answer = group.answers.get(request)
                if answer is not None and answer.member_id:
                    names.append(answer.member_id)
            case "sync":
                waiting.append(group.sync(member_id, number, dict.fromkeys(names, b"a"), instance=instance))
            case "beat":
                group.heartbeat(member_id, number, instance=instance)
            case "leave":
                group.leaves((member_id, instance))
            case "commit":
                group.commit(number, member_id=member_id, generation=number, instance=instance)
            case "txn":
                group.commit_in_transaction(number, producer_id=who)
                if number % 2:
                    group.end_transaction(who, commit=number == 1)
            case "delete":
                group.delete_offset()
            case "forget":
                group.delete_group()
            case "wait":
                group.wait(number * 7_000)
            case "move":
                group.fail_over()
        names += [m for m in (group.members() if group.state() != "Dead" else ()) if m not in names]
    before = {
        (topic, p): group.committed(topic=topic, partition=p)
        for topic, parts in group.shard.offsets.of("g").items()
        for p in parts
    }
    group.fail_over()
    assert all(group.code(request) is not None for request in waiting), "every request was answered"
    for (topic, partition), offset in before.items():
        assert group.committed(topic=topic, partition=partition) == offset
    group.wait(2_000_000)
    assert group.state() in ("Empty", "Dead", "Stable")


@pytest.mark.parametrize("size", [1, 10, 300])
def test_a_group_of_many_members_becomes_stable(size: int) -> None:
    group = GroupWorld(group_initial_rebalance_delay_ms=1_000)
    members = [group.enter(f"c{number}", rebalance_ms=60_000) for number in range(size)]
    group.wait(2_000)
    ids = {member_id: member_id for member_id, _ in members}
    assert {group.code(request) for _, request in members} == {ErrorCode.NONE}
    group.synchronize(ids)
    assert group.generation() == 1
