"""Requests about very many groups: answered in slices, so that no step of the event loop takes long. Spec: B2, C2."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.coordinator import loading, runtime
from ottla.coordinator.group.shard import GroupShard
from ottla.coordinator.replaying import replay_slice
from ottla.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.schema import Message
from tests.support.wire.group_requests import commit_request, offsets_request
from tests.support.worlds.coordinator_world import CoordinatorWorld
from tests.support.worlds.data_world import topic_id_of

MANY = 450
GROUPS = [f"group-{number}" for number in range(MANY)]
FEW = 10
"""So few groups are answered in one step."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorWorld]:
    made = CoordinatorWorld(str(tmp_path_factory.mktemp("many")))
    fill(made)
    yield made
    made.stop()
    made.close()


@pytest.fixture(scope="module")
def wide(world: CoordinatorWorld) -> CoordinatorWorld:
    """With a group that has committed offsets of many topics."""
    for number in range(12):
        name = f"topic-{number:02}"
        world.topic(name, partitions=3)
        world.ask(commit_request({p: 100 + p for p in range(3)}, topic=name, group="wide"), 7)
    return world


def fill(world: CoordinatorWorld) -> None:
    world.topic("orders", partitions=3)
    world.offsets_topic(partitions=5)
    for number, group in enumerate(GROUPS):
        world.ask(commit_request({number % 3: number}, group=group), 7)


def turns(world: CoordinatorWorld, request: Message, version: int) -> tuple[int, Any]:
    """How often other tasks got their turn before the response was ready, and the response."""

    async def count() -> tuple[int, Any]:
        task = asyncio.ensure_future(answer)
        for turn in itertools.count():
            if task.done():
                return turn, task.result()
            await asyncio.sleep(0)
        raise AssertionError

    answer = world.begin(request, version)
    if isinstance(answer, Message):
        return 0, answer
    found: tuple[int, Any] = world.loop.run_until_complete(count())
    return found


@pytest.mark.parametrize("version", ListGroupsRequest.versions)
def test_all_groups_are_listed_in_slices(world: CoordinatorWorld, version: int) -> None:
    count, response = turns(world, ListGroupsRequest(), version)
    assert count > 2
    found = {group.group_id: group for group in response.groups}
    assert set(found) >= set(GROUPS)
    assert len(found) == len(response.groups)
    expected = ListGroupsResponse.ListedGroup(group_id="group-7", protocol_type="")
    if version >= 4:
        expected.group_state = "Empty"
    if version >= 5:
        expected.group_type = "classic"
    assert found["group-7"] == expected


def test_a_filter_that_matches_nothing_lists_nothing(world: CoordinatorWorld) -> None:
    assert turns(world, ListGroupsRequest(states_filter=["Stable"]), 5)[1] == ListGroupsResponse()
    assert turns(world, ListGroupsRequest(types_filter=["share"]), 5)[1] == ListGroupsResponse()


@pytest.mark.parametrize("version", [0, 4, 5, 6])
def test_many_groups_are_described_as_few_are(world: CoordinatorWorld, version: int) -> None:
    count, response = turns(world, DescribeGroupsRequest(groups=[*GROUPS, "nobody", "group-1"]), version)
    assert count > 2
    few = [*GROUPS[: FEW - 1], "nobody"]
    expected = world.ask(DescribeGroupsRequest(groups=few), version).groups
    by_id = {group.group_id: group for group in response.groups}
    assert [by_id[group_id] for group_id in few] == expected
    assert [group.group_id for group in response.groups] == [*GROUPS, "nobody"], "each once"


@pytest.mark.parametrize("version", [8, 9])
def test_offsets_of_many_groups_are_fetched_as_those_of_few_are(world: CoordinatorWorld, version: int) -> None:
    count, response = turns(world, offsets_request(*GROUPS, version=version), version)
    assert count > 2
    expected = world.ask(offsets_request(*GROUPS[:FEW], version=version), version).groups
    assert response.groups[:FEW] == expected
    assert [group.group_id for group in response.groups] == GROUPS


@pytest.mark.parametrize("version", [2, 5, 7, 8, 10])
@pytest.mark.parametrize("asks_for_all", [True, False], ids=["all", "named"])
def test_a_group_with_many_partitions_is_fetched_in_slices(
    wide: CoordinatorWorld, version: int, asks_for_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(name for name in wide.image.topics if name.startswith("topic-"))
    request = offsets_request(
        "wide",
        version=version,
        topics=None if asks_for_all else {name: [0, 1, 2] for name in names},
        topic_ids={name: topic_id_of(name) for name in names} if version >= 10 and not asks_for_all else None,
    )
    expected = turns(wide, request, version)[1]
    monkeypatch.setattr("ottla.broker.handlers.offset_fetch.PARTITIONS_PER_SLICE", 10)
    count, sliced = turns(wide, request, version)
    assert count > 2
    assert sliced == expected
    found = sliced.topics if version < 8 else sliced.groups[0].topics
    assert len(found) == 12
    assert [part.committed_offset for part in found[3].partitions] == [100, 101, 102]


def test_coordinators_of_many_groups_are_found_in_slices(world: CoordinatorWorld) -> None:
    count, response = turns(world, FindCoordinatorRequest(coordinator_keys=GROUPS, key_type=0), 4)
    assert count > 2
    assert [found.key for found in response.coordinators] == GROUPS
    few = world.ask(FindCoordinatorRequest(coordinator_keys=GROUPS[:FEW], key_type=0), 4)
    assert response.coordinators[:FEW] == few.coordinators


@pytest.mark.parametrize("version", [1, 2])
def test_many_groups_are_deleted_in_slices(tmp_path: Path, version: int) -> None:
    world = CoordinatorWorld(str(tmp_path))
    fill(world)
    count, response = turns(world, DeleteGroupsRequest(groups_names=[*GROUPS, "nobody"]), version)
    assert count > 2
    codes = {result.group_id: result.error_code for result in response.results}
    assert codes == {**dict.fromkeys(GROUPS, 0), "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
    assert world.ask(ListGroupsRequest(), 4).groups == []
    world.stop()
    world.close()


# --- background work ----------------------------------------------------------------------------------------


def test_shards_are_loaded_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty loads in the same turn of the event loop block it as one long step does."""
    world = CoordinatorWorld(str(tmp_path))
    fill(world)
    world.stop()
    loaded = []

    def note(shard: GroupShard, data: bytes, start: int) -> tuple[int, int]:
        loaded.append(id(shard))
        return replay_slice(shard, data, start)

    monkeypatch.setattr(loading, "replay_slice", note)
    monkeypatch.setattr(loading, "SLICE_BYTES", 2_000)
    world.start()
    while world.groups.is_loading():
        world.wait()
    in_a_row = [shard for shard, _ in itertools.groupby(loaded)]
    assert len(loaded) > len(in_a_row) == len(set(in_a_row)) == 5
    assert sum(len(hosted.shard.groups) for hosted in world.groups.active_shards()) == MANY
    world.stop()
    world.close()


def test_a_shard_that_clients_ask_for_is_loaded_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = CoordinatorWorld(str(tmp_path))
    fill(world)
    last = 4
    group = next(group for group in GROUPS if world.groups.partition_of(group) == last)
    for offset in range(10):
        # The longest log would be the last.
        world.ask(commit_request({0: offset}, group=group), 7)
    world.stop()
    monkeypatch.setattr(loading, "SLICE_BYTES", 500)
    world.start()

    def loaded() -> list[int]:
        return [hosted.partition for hosted in world.groups.active_shards()]

    assert last not in loaded()
    before = len(loaded())
    answer = world.ask(commit_request({0: 5}, group=group), 8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    while len(loaded()) == before:
        world.wait()
    assert last in loaded()
    world.stop()
    world.close()


def test_shards_do_not_all_expire_offsets_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "90000"}
    world = CoordinatorWorld(str(tmp_path), settings=settings)
    fill(world)
    steps = [0]
    tick = GroupShard.tick

    def note(shard: GroupShard, now: int, held_ms: int) -> Any:
        if not steps[-1]:
            world.loop.call_soon(steps.append, 0)
        steps[-1] += 1
        return tick(shard, now, held_ms)

    monkeypatch.setattr(GroupShard, "tick", note)
    world.wait(100_000)
    assert sum(steps) >= 5
    assert max(steps) <= runtime.SHARDS_PER_TICK
    world.wait(100_000)
    assert world.ask(ListGroupsRequest(), 4).groups == [], "groups without members and offsets are removed"
    world.stop()
    world.close()
