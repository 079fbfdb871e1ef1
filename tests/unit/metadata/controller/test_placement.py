"""Placement of new replicas."""

from collections import Counter

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.controller.placement import place_replicas, position_of


def test_leaders_and_replicas_are_distributed_evenly() -> None:
    placed = place_replicas(dict.fromkeys(range(6)), 120, 3)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {20}
    assert set(Counter(broker for replicas in placed for broker in replicas).values()) == {60}
    assert all(len(set(replicas)) == 3 for replicas in placed)


def test_the_partitions_of_one_leader_have_different_followers() -> None:
    """When a broker fails, its leadership is spread over the others."""
    placed = place_replicas(dict.fromkeys(range(5)), 20, 2)
    followers_of_0 = {replicas[1] for replicas in placed if replicas[0] == 0}
    assert followers_of_0 == {1, 2, 3, 4}


def test_replicas_are_in_different_racks_if_there_are_enough() -> None:
    racks = {broker: "abc"[broker % 3] for broker in range(9)}
    for replicas in place_replicas(racks, 50, 3, start=7):
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}
    for replicas in place_replicas(racks, 50, 5):
        assert sorted(Counter(racks[broker] for broker in replicas).values()) == [1, 2, 2]


def test_racks_of_unequal_size_are_supported() -> None:
    assert {frozenset(replicas) for replicas in place_replicas({0: "a", 1: "a", 2: "a", 3: "b"}, 9, 4)} == {
        frozenset({0, 1, 2, 3})
    }


def test_brokers_without_a_rack_count_as_one_rack() -> None:
    placed = place_replicas({0: None, 1: "a", 2: None}, 12, 2)
    assert all(1 in replicas for replicas in placed)


def test_more_replicas_than_brokers_cannot_be_placed() -> None:
    with pytest.raises(KafkaError) as caught:
        place_replicas({0: None, 1: None}, 1, 3)
    assert caught.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "only 2 broker(s)" in caught.value.detail
    with pytest.raises(KafkaError):
        place_replicas({}, 1, 1)


def test_added_partitions_continue_the_placement() -> None:
    brokers = dict.fromkeys(range(3))
    at_once = place_replicas(brokers, 7, 2, start=2)
    start = position_of(at_once[0][0], brokers)
    assert place_replicas(brokers, 4, 2, start=start, first_partition=3) == at_once[3:]
