"""A broker's answer that leaves out what was asked for: told to the user, and asked for again."""

from ottla.protocol.messages.list_offsets import ListOffsetsResponse
from ottla.testing.consumer_world import VERSION, ConsumerWorld


def test_a_place_to_begin_that_the_leader_says_nothing_of_is_looked_up_again() -> None:
    """Otherwise nobody would ever read the partition, nor hear of it."""
    world = ConsumerWorld()
    world.logs[next(iter(world.logs))].append("a")
    world.poll()
    request, _ = world.on_the_wire.popleft()
    request.on_response(ListOffsetsResponse(topics=[]), VERSION, world.now)
    (error,) = world.positions.errors
    assert "t-0" in str(error)
    world.poll()
    assert not world.on_the_wire, "not in a tight loop"
    world.now += 1_000
    world.exchange(3)
    assert world.take() == ["a"]
