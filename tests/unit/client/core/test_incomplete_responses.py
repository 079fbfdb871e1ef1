"""A response that does not include everything requested is reported to the user, and requested again."""

import pytest

from ottla.client.core.offset_requests import read_list_offsets
from ottla.errors import KafkaError
from ottla.protocol.messages.list_offsets import ListOffsetsResponse
from ottla.testing.world import World
from tests.support.worlds.consumer_world import VERSION, ConsumerWorld


def test_an_offset_missing_from_a_response_is_looked_up_again() -> None:
    """Otherwise the partition would never be read, without any error."""
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


def test_looking_up_offsets_names_those_missing_from_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_out(response: ListOffsetsResponse) -> list[object]:
        return [found for found in read_list_offsets(response) if found[0].partition != 1]

    monkeypatch.setattr("ottla.client.core.offset_lookup.read_list_offsets", leave_out)

    async def story(world: World) -> None:
        async with world.admin() as admin, world.consumer() as consumer:
            await admin.create_topic("t", partitions=2)
            with pytest.raises(KafkaError, match="does not include t-1"):
                await consumer.end_offsets([("t", 0), ("t", 1)])

    World(1).run(story)
