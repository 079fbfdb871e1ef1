"""Compaction keeps `__consumer_offsets` small without losing state. Spec: C1, C4."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.coordinator.group.records import CommittedOffset, offset_key, offset_value
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.records.record_batch import build_batch, control_batch
from tests.support.wire.group_requests import (
    commit_request,
    delete_offsets_request,
    join_request,
    leave_request,
    sync_request,
)
from tests.support.worlds.coordinator_world import CoordinatorWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CoordinatorWorld]:
    made = CoordinatorWorld(str(tmp_path))
    made.topic("orders", partitions=3)
    made.offsets_topic(configs={"min.cleanable.dirty.ratio": "0.01"})
    yield made
    made.stop()
    made.close()


def settle(world: CoordinatorWorld, group: str) -> str:
    member_id = world.ask(join_request(group=group, session_ms=1_800_000), 9).member_id
    assert world.ask(join_request(member_id, group=group, session_ms=1_800_000), 9).error_code == 0
    world.ask(sync_request(member_id, 1, {member_id: b"all"}, group=group), 5)
    return str(member_id)


def knowledge(world: CoordinatorWorld) -> dict[str, Any]:
    """The stored part of a coordinator's state."""
    shard = world.shard()
    known: dict[str, Any] = {}
    for group_id, group in shard.groups.items():
        record = group.to_record()
        offsets = {
            (topic, partition): shard.offsets.find(group_id, topic, partition)
            for topic, partitions in shard.offsets.of(group_id).items()
            for partition in partitions
        }
        pending = [p for p in range(3) if shard.offsets.is_pending(group_id, "orders", p)]
        known[group_id] = (record.generation, record.leader, record.protocol_type, offsets, pending)
    return known


def compact(world: CoordinatorWorld) -> None:
    """Rolls the active segment and runs the cleaner."""
    world.call(world.log("__consumer_offsets").roll)
    world.ask(commit_request({0: 1}, group="other"), 8)
    for _ in range(3):
        world.wait(20_000)


def test_a_thousand_commits_of_few_partitions_are_few_records(world: CoordinatorWorld) -> None:
    for number in range(2_000):
        world.ask(commit_request({number % 3: number}, group=f"g{number % 4}"), 8)
    size = world.log("__consumer_offsets").size_bytes
    compact(world)
    assert world.log("__consumer_offsets").size_bytes < size / 50
    assert len(world.stored()) == 13, "four groups with three partitions each, and one commit since"
    before = knowledge(world)
    world.restart()
    world.wait(1_000)
    assert knowledge(world) == before


def test_compaction_and_a_load_change_nothing_about_groups(world: CoordinatorWorld) -> None:
    """Members, leavers, deletions, and transactions that are committed, aborted and still open."""
    rng = random.Random(5)
    members: dict[str, str] = {}
    for number in range(1_500):
        group = f"g{rng.randrange(6)}"
        member_id = members.get(group, "")
        options: dict[str, Any] = {"member_id": member_id, "generation": 1} if member_id else {}
        match rng.random():
            case x if x < 0.03 and not member_id:
                world.ask(DeleteGroupsRequest(groups_names=[group]), 2)
                members[group] = settle(world, group)
            case x if x < 0.05 and member_id:
                world.ask(leave_request((members.pop(group), None), group=group), 5)
            case x if x < 0.08 and not member_id:
                world.ask(delete_offsets_request([rng.randrange(3)], group=group), 0)
            case x if x < 0.12:
                transaction(world, group, rng.randrange(3), number, rng.choice((True, False)))
            case _:
                world.ask(commit_request({rng.randrange(3): number}, group=group, **options), 8)
        if number % 400 == 399:
            compact(world)
    # Records of an open transaction are not compacted before it ends, so they get a separate segment.
    world.call(world.log("__consumer_offsets").roll)
    world.append_raw(offset_batch("g0", 1, 77, producer_id=99_999))
    world.ask(commit_request({0: 1}, group="other"), 8)
    before = knowledge_after_restart(world)
    assert any(pending for *_, pending in before.values()), "the last transaction is open"
    records = len(world.stored())
    compact(world)
    assert len(world.stored()) < records / 2
    after = knowledge_after_restart(world)
    assert without_times(after) == without_times(before)


def without_times(known: dict[str, Any]) -> dict[str, Any]:
    """Without the commit of the other group, made only to roll the segment."""
    return {group: known[group] for group in known if group != "other"}


def knowledge_after_restart(world: CoordinatorWorld) -> dict[str, Any]:
    world.restart()
    world.wait(1_000)
    return knowledge(world)


def offset_batch(group: str, partition: int, offset: int, *, producer_id: int) -> bytes:
    key = offset_key(group, "orders", partition)
    value = offset_value(CommittedOffset(offset, -1, "", 1_700_000_000_000))
    return build_batch(
        [(1_700_000_000_000, key, value, ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def transaction(world: CoordinatorWorld, group: str, partition: int, number: int, commit: bool) -> None:
    """A transactional commit and its marker, with plain commits in between that must win."""
    world.append_raw(offset_batch(group, partition, number, producer_id=number))
    if number % 2:
        world.append_raw(build_batch(_plain_rows(group, partition, number)))
    marker = control_batch(commit=commit, producer_id=number, producer_epoch=0, coordinator_epoch=0, timestamp=1)
    world.append_raw(marker)


def _plain_rows(group: str, partition: int, number: int) -> list[Any]:
    value = offset_value(CommittedOffset(-number, -1, "plain", 1_700_000_000_000))
    return [(1_700_000_000_000, offset_key(group, "orders", partition), value, ())]
