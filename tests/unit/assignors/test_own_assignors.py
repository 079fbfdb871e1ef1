"""Custom assignors: the shipped examples, how they are chosen, and how their results are checked."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from ottla.assignors import Assignment, Assignor, ClusterMetadata, PartitionAssignor, PartitionInfo, Subscription
from ottla.assignors.broadcast import BroadcastAssignor
from ottla.assignors.checking import announce, run_assignor, subscription_of
from ottla.assignors.choosing import choose_assignors, left_over, shared_protocol
from ottla.assignors.rack_by_user_data import RackByUserDataAssignor
from ottla.assignors.random import RandomAssignor
from ottla.errors import ConfigError, OttlaError
from ottla.types import TopicPartition

CLUSTER = ClusterMetadata.of({"t0": 3, "t1": 2})
BOTH = {"a": Subscription(["t0", "t1"]), "b": Subscription(["t0"])}


def names(shares: Mapping[str, Assignment]) -> dict[str, list[str]]:
    return {member: [str(p) for p in share.partitions] for member, share in shares.items()}


def test_random_assigns_every_partition_once_to_a_subscriber() -> None:
    """Spec: A6."""
    seen = set()
    for seed in range(50):
        shares = names(run_assignor(RandomAssignor(random.Random(seed)), CLUSTER, BOTH))
        assert sorted(shares["a"] + shares["b"]) == ["t0-0", "t0-1", "t0-2", "t1-0", "t1-1"]
        assert not [partition for partition in shares["b"] if partition.startswith("t1")]
        seen.add(tuple(shares["b"]))
    assert len(seen) == 8, "every subset of t0 comes to b at some time"


def test_a_partition_goes_to_a_member_in_the_rack_of_its_leader() -> None:
    """Spec: A6. Racks travel as user data."""
    cluster = ClusterMetadata(
        PartitionInfo("t", index, leader_rack=rack) for index, rack in enumerate(["r1", "r1", "r2", "r2", "r3", None])
    )
    racks = {"a": "r1", "b": "r1", "c": "r2", "d": "r9"}
    subscriptions = {member: RackByUserDataAssignor(rack).subscription(["t"]) for member, rack in racks.items()}
    assert {s.user_data for s in subscriptions.values()} == {b"r1", b"r2", b"r9"}
    shares = names(run_assignor(RackByUserDataAssignor(), cluster, subscriptions))
    # r3 has no member and the last has no leader: they go to the members with the fewest partitions, first d, then a.
    assert shares == {"a": ["t-0", "t-5"], "b": ["t-1"], "c": ["t-2", "t-3"], "d": ["t-4"]}


def test_a_member_with_other_user_data_still_gets_partitions() -> None:
    subscriptions = {"a": Subscription(["t0"], user_data=b"\xff\xfe"), "b": Subscription(["t0"])}
    shares = names(run_assignor(RackByUserDataAssignor(), CLUSTER, subscriptions))
    assert sorted(shares["a"] + shares["b"]) == ["t0-0", "t0-1", "t0-2"]


def test_broadcast_assigns_all_partitions_to_every_subscriber() -> None:
    """Spec: A7."""
    shares = names(run_assignor(BroadcastAssignor(), CLUSTER, BOTH))
    assert shares == {"a": ["t0-0", "t0-1", "t0-2", "t1-0", "t1-1"], "b": ["t0-0", "t0-1", "t0-2"]}


# --- choosing ---------------------------------------------------------------------------------------------


class Mine(PartitionAssignor):
    name = "mine"

    def __init__(self, shares: Any = None) -> None:
        self.shares = shares

    def assign_partitions(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> Any:
        return self.shares


def test_assignors_are_chosen_by_name_by_path_by_class_and_by_instance() -> None:
    """Spec: A5. Several, in order of preference."""
    mine = Mine()
    chosen = choose_assignors(["roundrobin", "ottla.assignors.random:RandomAssignor", BroadcastAssignor, mine])
    assert [assignor.name for assignor in chosen] == ["roundrobin", "random", "broadcast", "mine"]
    assert chosen[3] is mine
    assert [assignor.name for assignor in choose_assignors(Mine)] == ["mine"]


class Thief(Mine):
    name = "range"


class Nameless(PartitionAssignor):
    def assign_partitions(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> Any:
        return {}


class Demanding(Mine):
    name = "demanding"

    def __init__(self, something: int) -> None:
        super().__init__(something)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("rnage", "unknown assignor rnage"),
        ("nowhere.at.all:Thing", "assignor nowhere.at.all:Thing cannot be imported"),
        ("ottla.assignors.random:Nothing", "cannot be imported"),
        ("ottla.errors:OttlaError", "not an assignor"),
        ([], "partition.assignment.strategy is empty"),
        (" , ", "partition.assignment.strategy is empty"),
        ("range,range", "has range twice"),
        (Thief, "has the name of a built-in one: range"),
        (Nameless, "Nameless has no name"),
        (Demanding, "Demanding cannot be instantiated"),
        ([42], "not an assignor: 42"),
    ],
)
def test_an_invalid_assignor_is_an_error_with_the_reason(chosen: Any, message: str) -> None:
    """Spec: A6. A name may not clash with a built-in one."""
    with pytest.raises(ConfigError, match=message):
        choose_assignors(chosen)


def test_a_group_is_cooperative_only_if_every_assignor_is() -> None:
    """Spec: A5."""
    assert shared_protocol(choose_assignors("cooperative-sticky")) == "COOPERATIVE"
    assert shared_protocol(choose_assignors("range,cooperative-sticky")) == "EAGER"


# --- what an assignor gives back --------------------------------------------------------------------------

A0, A1 = TopicPartition("t0", 0), TopicPartition("t0", 1)


class Raw(Assignor):
    name = "raw"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ZeroDivisionError("by zero"), "assignor raw failed: ZeroDivisionError: by zero"),
        (None, "assignor raw returned NoneType"),
        ({"a": Assignment([])}, "assignor raw left out b"),
        ({"a": [A0], "b": Assignment([])}, "assignor raw returned list for a"),
        ({"a": Assignment([A0]), "b": Assignment([A1, A0])}, "assignor raw assigned t0-0 to both a and b"),
        ({"a": Assignment([A0, A0]), "b": Assignment([])}, "assignor raw assigned t0-0 twice to a"),
        ({"a": Assignment([]), "b": Assignment([]), "x": Assignment([])}, "raw .*'x', which is not a member"),
        ({"a": Assignment(None), "b": Assignment([])}, "assignor raw returned None for a, not a list"),  # type: ignore[arg-type]
        ({"a": Assignment("t0"), "b": Assignment([])}, "assignor raw returned 't0' for a, not a list"),  # type: ignore[arg-type]
        ({"a": Assignment(["t0"]), "b": Assignment([])}, "assignor raw assigned 't0' to a, which is not a partition"),  # type: ignore[list-item]
        ({"a": Assignment([("t0", "0")]), "b": Assignment([])}, r"raw assigned \('t0', '0'\) to a, .* not a partition"),  # type: ignore[list-item]
        ({"a": Assignment([TopicPartition("t0", 3)]), "b": Assignment([])}, "t0-3 to a, but t0 has 3 partitions"),
        ({"a": Assignment([TopicPartition("t0", -1)]), "b": Assignment([])}, "t0--1 to a, but t0 has 3 partitions"),
        ({"a": Assignment([]), "b": Assignment([TopicPartition("t1", 0)])}, "t1-0 to b, .* not subscribed to t1"),
        ({"a": Assignment([TopicPartition("x", 0)]), "b": Assignment([])}, "x-0 to a, .* not subscribed to x"),
        ({"a": Assignment([], "text"), "b": Assignment([])}, "assignor raw: the user data for a is str, not bytes"),  # type: ignore[arg-type]
    ],
)
def test_an_assignor_with_an_invalid_result_is_an_error_with_its_name(answer: Any, message: str) -> None:
    """Spec: A6."""
    with pytest.raises(OttlaError, match=message):
        run_assignor(Raw(answer), CLUSTER, BOTH)


def test_a_partition_of_a_topic_that_does_not_exist_cannot_be_assigned() -> None:
    """Spec: A6."""
    raw = Raw({"a": Assignment([TopicPartition("new", 0)])})
    with pytest.raises(OttlaError, match="assignor raw assigned new-0 to a, but the topic does not exist"):
        run_assignor(raw, CLUSTER, {"a": Subscription(["new"])})


def test_plain_pairs_are_partitions_too() -> None:
    """Spec: A6."""
    shares = run_assignor(Raw({"a": Assignment([("t0", 0)]), "b": Assignment([A1])}), CLUSTER, BOTH)  # type: ignore[list-item]
    assert shares["a"].partitions[0].topic == "t0"


def test_on_assignment_may_be_written_with_or_without_the_generation() -> None:
    """Spec: A6."""

    class Documented(Raw):
        def on_assignment(self, assignment: Assignment) -> None:  # type: ignore[override]
            self.answer = assignment.partitions

    class Full(Raw):
        def on_assignment(self, assignment: Assignment, generation: int = -1) -> None:
            self.answer = generation

    class Broken(Raw):
        def on_assignment(self, assignment: Assignment) -> None:  # type: ignore[override]
            raise KeyError("rack")

    documented, full = Documented(None), Full(None)
    announce(documented, Assignment([A0]), 7)
    announce(full, Assignment([A0]), 7)
    assert (documented.answer, full.answer) == ([A0], 7)
    with pytest.raises(OttlaError, match=r"on_assignment\(\) of assignor raw failed: KeyError: 'rack'"):
        announce(Broken(None), Assignment([A0]), 7)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned NoneType, not a Subscription"),
        (Subscription("t0"), "returned 't0' as topics"),  # type: ignore[arg-type]
        (Subscription(["t0"], "text"), "the user data is str, not bytes"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_subscription_is_an_error_with_the_assignors_name(returned: Any, message: str) -> None:
    """Spec: A6."""

    class Sender(Raw):
        def subscription(self, topics: list[str]) -> Subscription:
            answer: Subscription = self.answer
            return answer

    with pytest.raises(OttlaError, match=r"subscription\(\) of assignor raw.*" + message):
        subscription_of(Sender(returned), ["t0"])


def test_unassigned_partitions_are_found() -> None:
    shares = run_assignor(Raw({"a": Assignment([A0]), "b": Assignment([A1])}), CLUSTER, BOTH)
    assert [str(p) for p in left_over(CLUSTER, BOTH, shares)] == ["t0-2", "t1-0", "t1-1"]


def test_the_claim_of_an_eager_sticky_member_comes_from_its_user_data() -> None:
    """It owns nothing when it joins, like Java's, but sends a generation: its previous assignment must count."""
    from ottla.assignors import StickyAssignor

    member = StickyAssignor()
    member.on_assignment(Assignment([A0, A1]), 7)
    sent = member.subscription(["t0"])
    joined = Subscription(["t0"], user_data=sent.user_data, generation_id=7)
    assert member.claim(joined) == ([A0, A1], 7)


def test_a_new_member_without_partitions_does_not_make_other_claims_stale() -> None:
    """Two members join in quick succession, so that the first rebalance never reaches an assignment.

    The first member then has a newer generation and no partitions. The claims of the others must still count.
    """
    from ottla.assignors import StickyAssignor

    cluster = ClusterMetadata.of({"t0": 6})
    joined: dict[str, Subscription] = {"c": Subscription(["t0"], generation_id=2), "d": Subscription(["t0"])}
    for name, indexes in (("a", (1, 3, 5)), ("b", (0, 2, 4))):
        member = StickyAssignor()
        member.on_assignment(Assignment([TopicPartition("t0", index) for index in indexes]), 1)
        joined[name] = Subscription(["t0"], user_data=member.subscription(["t0"]).user_data, generation_id=2)
    shares = names(StickyAssignor().assign(cluster, joined))
    assert {*shares["a"]} <= {"t0-1", "t0-3", "t0-5"}
    assert {*shares["b"]} <= {"t0-0", "t0-2", "t0-4"}


def test_a_zombies_claim_does_not_take_a_partition_from_its_owner() -> None:
    from ottla.assignors import CooperativeStickyAssignor

    cluster = ClusterMetadata.of({"t0": 6})
    had = {"a": (2, (0, 1, 2)), "b": (1, (0, 3))}
    joined = {
        member: Subscription(
            ["t0"], owned_partitions=[TopicPartition("t0", i) for i in indexes], generation_id=generation
        )
        for member, (generation, indexes) in had.items()
    }
    shares = names(CooperativeStickyAssignor().assign(cluster, joined))
    assert shares == {"a": ["t0-0", "t0-1", "t0-2"], "b": ["t0-3", "t0-4", "t0-5"]}


def test_a_partition_claimed_by_two_members_is_first_revoked_from_both() -> None:
    from ottla.assignors import CooperativeStickyAssignor

    cluster = ClusterMetadata.of({"t0": 4})
    joined = {
        "a": Subscription(["t0"], owned_partitions=[TopicPartition("t0", i) for i in (1, 2)], generation_id=2),
        "b": Subscription(["t0"], owned_partitions=[TopicPartition("t0", i) for i in (2, 3)], generation_id=2),
    }
    shares = names(CooperativeStickyAssignor().assign(cluster, joined))
    assert "t0-2" not in shares["a"] + shares["b"]
