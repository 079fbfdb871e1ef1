"""Fetches: from which broker, in which order of partitions, and when the same one is sent again."""

import pytest

from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from tests.support.worlds.consumer_world import ConsumerWorld

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("why", ["it has left", "its time is over"])
def test_the_leader_is_asked_again_when_the_read_replica_cannot_be(why: str) -> None:
    world = ConsumerWorld()
    world.exchange()
    world.extra[T0] = {"preferred_read_replica": 2, "records": None}
    world.exchange()
    assert world.state().read_replica == 2
    if why == "it has left":
        del world.view.brokers[2]
    else:
        world.now = world.state().read_replica_until
    world.poll()
    ((request, _),) = world.on_the_wire
    assert request.destination == 1
    assert world.state().read_replica == -1


def test_the_leader_is_asked_after_the_connection_to_the_read_replica_was_lost() -> None:
    world = ConsumerWorld()
    world.exchange()
    world.extra[T0] = {"preferred_read_replica": 2, "records": None}
    world.exchange()
    world.poll()
    assert world.on_the_wire[0][0].destination == 2
    world.answer_next(lose=True)
    world.now += 1000
    world.poll()
    assert world.on_the_wire[0][0].destination == 1


def test_an_error_behind_buffered_records_waits_for_the_backoff() -> None:
    """Without it the same fetch would be sent again at once, as often as the network allows."""
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    world.logs[T0].append("a")
    world.logs[T0].append("b")
    world.exchange(2)
    world.errors[T0].append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.exchange()
    fetches = len(world.asked)
    world.exchange(5)
    assert len(world.asked) == fetches
    world.now += 1000
    world.exchange()
    assert len(world.asked) == fetches + 1
    assert world.take() == ["a", "b"]


def test_after_a_take_that_was_undone_records_are_fetched_ahead_as_before() -> None:
    world = ConsumerWorld(max_partition_fetch_bytes=1)
    for value in "abcdef":
        world.logs[T0].append(value)
    world.exchange(10)
    assert len(world.asked) == 2, "READ_AHEAD is 2"
    world.fetcher.begin_to_take()
    assert world.take(1) == ["a"]
    world.fetcher.take_back()
    assert world.position() == 0
    world.exchange(10)
    assert len(world.asked) == 4, "both are fetched again"
    assert world.take() == ["a", "b"]


def test_partitions_take_turns_to_be_the_first_of_a_fetch() -> None:
    """A broker fills the response in the order of the request (KIP-74)."""
    world = ConsumerWorld(partitions=2)
    firsts = set()
    for _ in range(4):
        world.exchange()
        if world.asked:
            firsts.add(world.asked[-1].topics[0].partitions[0].partition)
    assert firsts == {0, 1}


def test_a_fetch_may_take_as_long_as_the_broker_waits_for_records() -> None:
    world = ConsumerWorld(request_timeout_ms=20_000, fetch_max_wait_ms=700)
    world.exchange()
    world.poll()
    ((request, _),) = world.on_the_wire
    assert request.timeout_ms == 20_700
