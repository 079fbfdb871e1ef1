"""Spec: A1, A2, A3, A4. Exact examples, and Kafka's own test cases for the built-in assignors."""

import random
import time

import pytest

from ottla.assignors import (
    BUILT_IN,
    Assignor,
    ClusterMetadata,
    CooperativeStickyAssignor,
    PartitionInfo,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Subscription,
)
from ottla.types import TopicPartition
from tests.support.seeds import each_seed


def parse(text: str) -> list[TopicPartition]:
    """`t0p0 t0p1` or `t1-0,3 t2-1`."""
    found = []
    for word in text.replace("·", " ").split():
        if "-" in word:
            topic, _, indexes = word.partition("-")
            found += [TopicPartition(topic, int(index)) for index in indexes.split(",")]
        else:
            topic, _, index = word.partition("p")
            found.append(TopicPartition(topic, int(index)))
    return found


def share(
    assignor: Assignor, counts: dict[str, int], subscriptions: dict[str, Subscription | list[str]]
) -> dict[str, list[TopicPartition]]:
    full = {m: s if isinstance(s, Subscription) else Subscription(s) for m, s in subscriptions.items()}
    return {m: a.partitions for m, a in assignor.assign(ClusterMetadata.of(counts), full).items()}


def same(shares: dict[str, list[TopicPartition]], **expected: str) -> None:
    assert {m: sorted(p) for m, p in shares.items()} == {m: sorted(parse(text)) for m, text in expected.items()}


def again(
    assignor: Assignor,
    counts: dict[str, int],
    shares: dict[str, list[TopicPartition]],
    members: dict[str, list[str]],
    generation: int = 1,
) -> dict[str, list[TopicPartition]]:
    """The next rebalance: members say what they have."""
    subscriptions: dict[str, Subscription | list[str]] = {
        m: Subscription(topics, owned_partitions=shares.get(m, []), generation_id=generation)
        for m, topics in members.items()
    }
    return share(assignor, counts, subscriptions)


class TestRange:
    """Spec: A1."""

    def test_four_partitions_each(self) -> None:
        shares = share(RangeAssignor(), {"t0": 4, "t1": 4}, {"C0": ["t0", "t1"], "C1": ["t0", "t1"]})
        same(shares, C0="t0p0 t0p1 t1p0 t1p1", C1="t0p2 t0p3 t1p2 t1p3")

    def test_three_partitions_each(self) -> None:
        shares = share(RangeAssignor(), {"t0": 3, "t1": 3}, {"C0": ["t0", "t1"], "C1": ["t0", "t1"]})
        same(shares, C0="t0p0 t0p1 t1p0 t1p1", C1="t0p2 t1p2")

    def test_more_members_than_partitions(self) -> None:
        same(share(RangeAssignor(), {"topic1": 1}, {"c1": ["topic1"], "c2": ["topic1"]}), c1="topic1-0", c2="")

    def test_a_topic_without_partitions_adds_nothing(self) -> None:
        same(share(RangeAssignor(), {}, {"c1": ["nowhere"]}), c1="")

    def test_different_subscriptions(self) -> None:
        shares = share(RangeAssignor(), {"t1": 3, "t2": 2}, {"c1": ["t1"], "c2": ["t1", "t2"], "c3": ["t1"]})
        same(shares, c1="t1-0", c2="t1-1 t2-0,1", c3="t1-2")

    def test_static_members_go_by_their_instance_id(self) -> None:
        subscriptions: dict[str, Subscription | list[str]] = {
            "b": Subscription(["t1", "t2"], group_instance_id="1"),
            "a": Subscription(["t1", "t2"], group_instance_id="2"),
        }
        same(share(RangeAssignor(), {"t1": 3, "t2": 3}, subscriptions), b="t1-0,1 t2-0,1", a="t1-2 t2-2")

    def test_static_members_come_before_dynamic_ones(self) -> None:
        subscriptions: dict[str, Subscription | list[str]] = {
            "z1": Subscription(["t1", "t2"], group_instance_id="i1"),
            "z2": Subscription(["t1", "t2"], group_instance_id="i2"),
            "z3": Subscription(["t1", "t2"], group_instance_id="i3"),
            "consumer4": ["t1", "t2"],
        }
        shares = share(RangeAssignor(), {"t1": 5, "t2": 4}, subscriptions)
        same(shares, z1="t1-0,1 t2-0", z2="t1-2 t2-1", z3="t1-3 t2-2", consumer4="t1-4 t2-3")


class TestRoundRobin:
    """Spec: A2."""

    def test_three_partitions_each(self) -> None:
        shares = share(RoundRobinAssignor(), {"t0": 3, "t1": 3}, {"C0": ["t0", "t1"], "C1": ["t0", "t1"]})
        assert shares == {"C0": parse("t0p0 t0p2 t1p1"), "C1": parse("t0p1 t1p0 t1p2")}

    def test_different_subscriptions(self) -> None:
        counts = {"t0": 1, "t1": 2, "t2": 3}
        members: dict[str, Subscription | list[str]] = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}
        same(share(RoundRobinAssignor(), counts, members), C0="t0p0", C1="t1p0", C2="t1p1 t2p0 t2p1 t2p2")
        del members["C0"]
        same(share(RoundRobinAssignor(), counts, members), C1="t0p0 t1p1", C2="t1p0 t2p0 t2p1 t2p2")

    def test_the_turn_continues_from_topic_to_topic(self) -> None:
        members: dict[str, Subscription | list[str]] = {"c1": ["t1"], "c2": ["t1", "t2"], "c3": ["t1"]}
        same(share(RoundRobinAssignor(), {"t1": 3, "t2": 2}, members), c1="t1-0", c2="t1-1 t2-0,1", c3="t1-2")


class TestSticky:
    """Spec: A3."""

    def test_a_balanced_start_and_a_leaving_member(self) -> None:
        counts = dict.fromkeys(["t0", "t1", "t2", "t3"], 2)
        everyone = {key: list(counts) for key in ["C0", "C1", "C2"]}
        first = again(StickyAssignor(), counts, {}, everyone)
        same(first, C0="t0p0 t1p1 t3p0", C1="t0p1 t2p0 t3p1", C2="t1p0 t2p1")
        second = again(StickyAssignor(), counts, first, {m: t for m, t in everyone.items() if m != "C1"})
        assert set(first["C0"]) <= set(second["C0"])
        assert set(first["C2"]) <= set(second["C2"])
        assert {len(second["C0"]), len(second["C2"])} == {4}
        assert sorted(second["C0"] + second["C2"]) == [TopicPartition(topic, i) for topic in counts for i in range(2)]

    def test_different_subscriptions(self) -> None:
        counts = {"t0": 1, "t1": 2, "t2": 3}
        members = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}
        first = again(StickyAssignor(), counts, {}, members)
        same(first, C0="t0p0", C1="t1p0 t1p1", C2="t2p0 t2p1 t2p2")
        del members["C0"]
        same(again(StickyAssignor(), counts, first, members), C1="t0p0 t1p0 t1p1", C2="t2p0 t2p1 t2p2")

    def test_members_come_and_go(self) -> None:
        counts = {"t1": 3, "t2": 4}
        first = again(StickyAssignor(), counts, {}, {key: ["t1", "t2"] for key in ["c1", "c2"]})
        same(first, c1="t1-0,2 t2-1,3", c2="t1-1 t2-0,2")
        second = again(StickyAssignor(), counts, first, {key: ["t1", "t2"] for key in ["c1", "c2", "c3", "c4"]}, 2)
        same(second, c1="t1-0 t2-1", c2="t2-0 t1-1", c3="t1-2 t2-3", c4="t2-2")
        third = again(StickyAssignor(), counts, second, {key: ["t1", "t2"] for key in ["c3", "c4"]}, 3)
        same(third, c3="t1-2 t2-3 t1-0 t2-1", c4="t2-2 t1-1 t2-0")

    @pytest.mark.parametrize("zombie", ["c0", "c2"])
    def test_a_zombies_claim_of_an_older_generation_is_ignored(self, zombie: str) -> None:
        """The claims overlap: if both counted, neither member would keep b-1."""
        subscriptions: dict[str, Subscription | list[str]] = {
            "c1": Subscription(["a", "b"], owned_partitions=parse("a-0,2 b-1"), generation_id=10),
            zombie: Subscription(["a", "b"], owned_partitions=parse("b-1,2"), generation_id=9),
        }
        same(share(StickyAssignor(), {"a": 3, "b": 3}, subscriptions), c1="a-0,2 b-1", **{zombie: "a-1 b-0,2"})

    def test_user_data_replaces_fields_that_old_subscriptions_lack(self) -> None:
        counts = {"t": 4}
        before = StickyAssignor()
        before.on_assignment(StickyAssignor().assign(ClusterMetadata.of(counts), {"x": Subscription(["t"])})["x"], 3)
        subscriptions: dict[str, Subscription | list[str]] = {"b": before.subscription(["t"]), "a": ["t"]}
        shares = share(StickyAssignor(), counts, subscriptions)
        assert sorted(shares["b"]) == parse("t-0,1")

    def test_cooperative_assigns_moving_partitions_in_the_second_rebalance(self) -> None:
        """Spec: A4. KIP-429."""
        counts = {"t": 3}
        first = again(CooperativeStickyAssignor(), counts, {}, {"c1": ["t"]})
        same(first, c1="t-0,1,2")
        same(again(StickyAssignor(), counts, first, {"c1": ["t"], "c2": ["t"]}, 2), c1="t-0,1", c2="t-2")
        second = again(CooperativeStickyAssignor(), counts, first, {key: ["t"] for key in ["c1", "c2"]}, 2)
        same(second, c1="t-0,1", c2="")
        third = again(CooperativeStickyAssignor(), counts, second, {key: ["t"] for key in ["c1", "c2"]}, 3)
        same(third, c1="t-0,1", c2="t-2")
        same(again(CooperativeStickyAssignor(), counts, third, {"c2": ["t"]}, 4), c2="t-0,1,2")

    @each_seed(60)
    def test_any_group_ends_up_balanced_and_sticky(self, seed: int) -> None:
        rng = random.Random(seed)
        counts = {f"t{i}": rng.randint(1, 8) for i in range(rng.randint(1, 8))}
        members = {
            f"m{i:02}": rng.sample(sorted(counts), rng.randint(1, len(counts))) for i in range(rng.randint(1, 9))
        }
        shares = again(StickyAssignor(), counts, {}, members)
        balanced(counts, members, shares)
        for generation in range(2, 5):
            before = shares
            if rng.random() < 0.5 and len(members) > 1:
                members = {m: t for m, t in members.items() if m != rng.choice(sorted(members))}
            else:
                members = members | {f"n{generation}": rng.sample(sorted(counts), rng.randint(1, len(counts)))}
            shares = again(StickyAssignor(), counts, before, members, generation)
            balanced(counts, members, shares)
        unchanged = again(StickyAssignor(), counts, shares, members, 9)
        assert {m: set(p) for m, p in unchanged.items()} == {m: set(p) for m, p in shares.items()}


def balanced(counts: dict[str, int], members: dict[str, list[str]], shares: dict[str, list[TopicPartition]]) -> None:
    given = [partition for share_ in shares.values() for partition in share_]
    wanted = {TopicPartition(t, i) for topics in members.values() for t in topics for i in range(counts[t])}
    assert len(given) == len(set(given))
    assert set(given) == wanted
    for member, share_ in shares.items():
        assert {partition.topic for partition in share_} <= set(members[member])
        for other in shares:
            if len(share_) - len(shares[other]) >= 2:
                assert not {partition.topic for partition in share_} & set(members[other]), (member, other)


# --- racks ----------------------------------------------------------------------------------------------------


def racked(counts: dict[str, int], replication: int, broker_racks: str) -> ClusterMetadata:
    infos, k = [], 0
    for topic in sorted(counts):
        for index in range(counts[topic]):
            racks = frozenset(broker_racks[(k + j) % len(broker_racks)] for j in range(replication))
            infos.append(PartitionInfo(topic, index, racks))
            k += 1
    return ClusterMetadata(infos)


def rack_share(
    assignor: Assignor,
    counts: dict[str, int],
    replication: int,
    broker_racks: str,
    subscriptions: list[list[str]],
    member_racks: str = "abc",
    owned: list[str] | None = None,
) -> tuple[list[list[TopicPartition]], int]:
    cluster = racked(counts, replication, broker_racks)
    members = {
        f"consumer{i}": Subscription(
            topics,
            rack_id=rack,
            owned_partitions=parse(owned[i]) if owned else [],
            generation_id=1 if owned else -1,
        )
        for i, (topics, rack) in enumerate(zip(subscriptions, member_racks, strict=True))
    }
    shares = {m: a.partitions for m, a in assignor.assign(cluster, members).items()}
    racks = {(i.topic, i.partition): i.racks for t in counts for i in cluster.infos_of(t)}
    mismatches = sum(members[m].rack_id not in racks[p] for m, share_ in shares.items() for p in share_)
    return [sorted(shares[m]) for m in sorted(shares)], mismatches


T672 = {"t1": 6, "t2": 7, "t3": 2}
T555 = {"t1": 5, "t2": 5, "t3": 5}
ALL = [["t1", "t2", "t3"]] * 3
WITHOUT_T2 = [["t1", "t2", "t3"], ["t1", "t2", "t3"], ["t1", "t3"]]
PLAIN_672 = "t1-0,1 t2-0,1,2 t3-0 | t1-2,3 t2-3,4 t3-1 | t1-4,5 t2-5,6"


@pytest.mark.parametrize(
    ("counts", "replication", "racks", "subscriptions", "expected", "mismatches"),
    [
        (T672, 3, "abc", ALL, PLAIN_672, 0),
        (T672, 1, "abc", ALL, "t1-0,3 t2-0,3,6 | t1-1,4 t2-1,4 t3-0 | t1-2,5 t2-2,5 t3-1", 0),
        (T672, 2, "abc", ALL, "t1-0,2 t2-0,2,3 t3-1 | t1-1,3 t2-1,4 t3-0 | t1-4,5 t2-5,6", 1),
        (T672, 3, "ab", ALL, PLAIN_672, 4),
        (T672, 1, "abc", WITHOUT_T2, "t1-0,3 t2-0,2,3,6 | t1-1,4 t2-1,4,5 t3-0 | t1-2,5 t3-1", 2),
        (T672, 2, "abc", WITHOUT_T2, "t1-0,2 t2-0,2,3,5 t3-1 | t1-1,3 t2-1,4,6 t3-0 | t1-4,5", 0),
        (T555, 1, "abc", ALL, "t1-0,1 t2-0,1 t3-0,1 | t1-2,3 t2-2,3 t3-2,3 | t1-4 t2-4 t3-4", 10),
        (T555, 2, "abc", ALL, "t1-0,1 t2-0,1 t3-0,1 | t1-2,3 t2-2,3 t3-2,3 | t1-4 t2-4 t3-4", 5),
        (T555, 3, "ab", ALL, "t1-0,1 t2-0,1 t3-0,1 | t1-2,3 t2-2,3 t3-2,3 | t1-4 t2-4 t3-4", 3),
        (T555, 1, "abc", WITHOUT_T2, "t1-0,1 t2-0,1,4 t3-0,1 | t1-2,3 t2-2,3 t3-2,3 | t1-4 t3-4", 9),
        (T555, 2, "abc", WITHOUT_T2, "t1-2 t2-0,1,3 t3-2 | t1-0,3 t2-2,4 t3-0,3 | t1-1,4 t3-1,4", 0),
    ],
)
def test_range_follows_racks(
    counts: dict[str, int], replication: int, racks: str, subscriptions: list[list[str]], expected: str, mismatches: int
) -> None:
    """Spec: A4. KIP-881."""
    shares, missed = rack_share(RangeAssignor(), counts, replication, racks, subscriptions)
    assert shares == [sorted(parse(part)) for part in expected.split("|")]
    assert missed == mismatches


def test_range_follows_racks_of_four() -> None:
    counts = {"t1": 6, "t2": 6, "t3": 2, "t4": 2}
    halves = [["t1", "t2"], ["t1", "t2"], ["t3", "t4"], ["t3", "t4"]]
    shares, missed = rack_share(RangeAssignor(), counts, 1, "ab", halves, "abba")
    expected = "t1-0,2,4 t2-0,2,4 | t1-1,3,5 t2-1,3,5 | t3-1 t4-1 | t3-0 t4-0"
    assert (shares, missed) == ([sorted(parse(part)) for part in expected.split("|")], 0)
    shares, _ = rack_share(RangeAssignor(), counts, 1, "ab", [list(counts)] * 4, "abba")
    expected = "t1-0,2 t2-0,2 t3-0 t4-0 | t1-1,3 t2-1,3 t3-1 t4-1 | t1-5 t2-5 | t1-4 t2-4"
    assert shares == [sorted(parse(part)) for part in expected.split("|")]


UNIFORM = "t1-0,3 t2-0,3,6 | t1-1,4 t2-1,4 t3-0 | t1-2,5 t2-2,5 t3-1"


@pytest.mark.parametrize(
    ("replication", "racks", "subscriptions", "expected", "mismatches"),
    [
        (1, "abc", ALL, UNIFORM, 0),
        (2, "abc", ALL, UNIFORM, 0),
        (3, "ab", ALL, UNIFORM, 5),
        (1, "abc", WITHOUT_T2, "t1-3 t2-0,2,3,6 | t1-4 t2-1,4,5 t3-0 | t1-0,1,2,5 t3-1", 4),
        (2, "abc", WITHOUT_T2, "t1-3 t2-0,2,5,6 | t1-0 t2-1,3,4 t3-0 | t1-1,2,4,5 t3-1", 0),
    ],
)
def test_sticky_follows_racks(
    replication: int, racks: str, subscriptions: list[list[str]], expected: str, mismatches: int
) -> None:
    """Spec: A4. KIP-881."""
    shares, missed = rack_share(StickyAssignor(), T672, replication, racks, subscriptions)
    assert shares == [sorted(parse(part)) for part in expected.split("|")]
    assert missed == mismatches


def test_sticky_without_racks_and_different_subscriptions() -> None:
    members = {"c0": ["t1", "t2", "t3"], "c1": ["t1", "t2", "t3"], "c2": ["t1", "t3"]}
    shares = again(StickyAssignor(), T672, {}, members)
    same(shares, c0="t1-5 t2-0,2,4,6", c1="t1-3 t2-1,3,5 t3-0", c2="t1-0,1,2,4 t3-1")


def test_sticky_moves_partitions_to_the_right_rack() -> None:
    owned = ["t1-0,1,2,3,4", "t1-5 t2-0,1,2,3", "t2-4,5,6 t3-0,1"]
    shares, _ = rack_share(StickyAssignor(), T672, 1, "abc", ALL, owned=owned)
    assert shares == [sorted(parse(part)) for part in UNIFORM.split("|")]
    shares, _ = rack_share(CooperativeStickyAssignor(), T672, 1, "abc", ALL, owned=owned)
    assert shares == [sorted(parse(part)) for part in ["t1-0,3 ", " t2-1 ", " t2-5 t3-1"]]


def test_names_are_kafkas() -> None:
    """Spec: A5, A6."""
    assert set(BUILT_IN) == {"range", "roundrobin", "sticky", "cooperative-sticky"}


@pytest.mark.slow
def test_a_large_uniform_group_is_assigned_twice_in_seconds() -> None:
    """A tenth of upstream's own measure (1,000,000 partitions, 2,000 members, 30 s); the whole is in the benchmarks."""
    counts = {f"topic{i}": 200 for i in range(500)}
    members = dict.fromkeys([f"m{i:04}" for i in range(200)], sorted(counts))
    started = time.thread_time()  # of this thread: other processes do not count
    first = again(StickyAssignor(), counts, {}, members)
    second = again(StickyAssignor(), counts, first, members, 2)
    assert time.thread_time() - started < 15
    assert {m: set(p) for m, p in first.items()} == {m: set(p) for m, p in second.items()}
