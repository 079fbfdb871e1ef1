"""GroupMirror: offsets stored outside the group show as a group's lag, and never overwrite other offsets."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, AsyncConsumer, Consumer, DatabaseOffsetStore, Producer, SnapshotStore
from ottla.assignors.broadcast import BroadcastAssignor
from ottla.cli.main import main
from ottla.client.core.model import CommittedOffset
from ottla.client.stores.group_mirror import GroupMirror
from ottla.client.stores.mirroring import MARK
from ottla.client.stores.offset_store import FileOffsetStore
from ottla.client.stores.stored_offsets import AsyncStoredOffsets, StoredOffsets
from ottla.clock import monotonic
from ottla.errors import ArgumentError, OttlaError
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S, eventually

SETTINGS = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}


@pytest.fixture
def admin(broker: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def filled(admin: Admin, broker: Any, topic: str) -> str:
    """Two partitions with 10 records each."""
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(20):
            producer.send(topic, f"{number}", partition=number % 2)
    return topic


def offsets_of(admin: Admin, group: str) -> dict[int, int]:
    return {p.partition: c.offset for p, c in admin.list_group_offsets(group).items()}


def read(reader: Consumer, count: int) -> None:
    deadline, found = monotonic() + PATIENCE_S, 0
    while found < count:
        assert monotonic() < deadline, f"{found} of {count} records came"
        found += len(reader.poll(200))


def test_offsets_in_a_file_show_as_the_groups_lag(
    broker: Any, filled: str, admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `ottla group describe`, and in the last offset before the consumer closes."""
    with Consumer(SETTINGS, bootstrap_servers=broker.bootstrap, group_id=filled) as reader:
        offsets = StoredOffsets(reader, FileOffsetStore(tmp_path / "positions.json"))
        reader.subscribe([filled], listener=offsets)
        read(reader, 20)
        offsets.save()
        eventually(lambda: offsets_of(admin, filled) == {0: 10, 1: 10})
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for number in range(3):
                producer.send(filled, f"{number}", partition=0)
        main(["group", "describe", filled, "--bootstrap", broker.bootstrap, "--json"])
        shown = {row["partition"]: row for row in json.loads(capsys.readouterr().out)["partitions"]}
        assert {index: row["lag"] for index, row in shown.items()} == {0: 3, 1: 0}
        assert shown[0]["metadata"] == MARK
        read(reader, 3)  # saved when close() revokes the partitions
    assert offsets_of(admin, filled) == {0: 13, 1: 10}
    stored = FileOffsetStore(tmp_path / "positions.json").load([TopicPartition(filled, 0)])
    assert stored == {TopicPartition(filled, 0): 13}


def test_the_lag_stays_visible_when_a_store_object_is_used_again(
    broker: Any, filled: str, admin: Admin, tmp_path: Path
) -> None:
    """By a consumer after the first one has closed, and by two at the same time."""
    store = FileOffsetStore(tmp_path / "positions.json")
    settings = {**SETTINGS, "bootstrap.servers": broker.bootstrap, "group.id": filled, "max.poll.records": 4}
    settings |= {"heartbeat.interval.ms": 200}

    with Consumer(settings) as first:
        offsets = StoredOffsets(first, store)
        first.subscribe([filled], listener=offsets)
        read(first, 4)
    assert sum(offsets_of(admin, filled).values()) >= 4
    with Consumer(settings) as second:
        offsets = StoredOffsets(second, store)
        second.subscribe([filled], listener=offsets)
        read(second, 4)
        with Consumer(settings, partition_assignment_strategy="range") as third:
            third_offsets = StoredOffsets(third, store)
            third.subscribe([filled], listener=third_offsets)
            eventually(lambda: bool(second.poll(50) and False) or bool(third.poll(50) or third.assignment()))
            eventually(lambda: bool(second.poll(50) and False) or len(second.assignment()) == 1)
            for each in (offsets, third_offsets):
                each.save()
            stored = store.load([TopicPartition(filled, number) for number in (0, 1)])
            eventually(lambda: offsets_of(admin, filled) == {p.partition: at for p, at in stored.items()})
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send(filled, b"one more", partition=0)
        read(second, 1)
    stored = store.load([TopicPartition(filled, number) for number in (0, 1)])
    assert offsets_of(admin, filled) == {p.partition: at for p, at in stored.items()}


def test_members_of_a_broadcast_mirror_their_offsets_separately(
    broker: Any, filled: str, admin: Admin, tmp_path: Path
) -> None:
    """Spec: A7. Neither commits to the group itself, where they would overwrite each other."""
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": filled}
    with (
        Consumer(SETTINGS, **settings, partition_assignment_strategy=[BroadcastAssignor]) as ahead,
        Consumer(SETTINGS, **settings, partition_assignment_strategy=[BroadcastAssignor]) as behind,
    ):
        quiet = FileOffsetStore(tmp_path / "quiet.json")
        StoredOffsets(ahead, quiet)
        assert quiet.mirror is None, "by default a broadcast mirrors nothing"
        with pytest.raises(OttlaError, match="would overwrite each other's offsets"):
            GroupMirror(ahead)
        stores = [
            StoredOffsets(each, FileOffsetStore(tmp_path / f"{name}.json"), mirror=f"{filled}.{name}")
            for each, name in ((ahead, "ahead"), (behind, "behind"))
        ]
        found = {ahead: 0, behind: 0}
        # One after the other: the rebalance for a second member would wait for a first one that no longer polls.
        ahead.subscribe([filled], listener=stores[0])
        deadline = monotonic() + PATIENCE_S
        while found[ahead] < 20:
            assert monotonic() < deadline, found
            found[ahead] += len(ahead.poll(100))
        behind.subscribe([filled], listener=stores[1])
        while found[behind] < 7:
            assert monotonic() < deadline, found
            assert not ahead.poll(100)
            found[behind] += len(behind.poll(100, max_records=7 - found[behind]))
        for stored in stores:
            stored.save()
        eventually(lambda: sum(offsets_of(admin, f"{filled}.ahead").values()) == 20)
        eventually(lambda: sum(offsets_of(admin, f"{filled}.behind").values()) == 7)
        assert offsets_of(admin, filled) == {}


def test_offsets_that_were_not_mirrored_are_never_overwritten(broker: Any, filled: str, admin: Admin) -> None:
    place, group = TopicPartition(filled, 0), f"{filled}-real"
    admin.alter_group_offsets(group, {place: 3})
    with Consumer(bootstrap_servers=broker.bootstrap) as reader:
        mirror = GroupMirror(reader, group)
        mirror.show({place: 9, TopicPartition(filled, 1): 9})
        eventually(lambda: mirror.refusal is not None)
        assert f"offsets that were not mirrored, for {filled}" in (mirror.refusal or "")
        mirror.show({place: 10})
    assert admin.list_group_offsets(group) == {place: CommittedOffset(3)}


def test_a_group_with_members_is_not_mirrored_to(broker: Any, filled: str, admin: Admin) -> None:
    group = f"{filled}-busy"
    with (
        Consumer(SETTINGS, bootstrap_servers=broker.bootstrap, group_id=group) as member,
        Consumer(bootstrap_servers=broker.bootstrap) as reader,
    ):
        member.subscribe([filled])
        read(member, 1)
        mirror = GroupMirror(reader, group)
        mirror.show({TopicPartition(filled, 0): 9})
        eventually(lambda: mirror.refusal is not None)
        assert "does the group have members" in (mirror.refusal or "")
        assert offsets_of(admin, group) == {}


def test_a_database_mirrors_only_committed_offsets(broker: Any, filled: str, admin: Admin) -> None:
    """Spec: E10."""
    place, group = TopicPartition(filled, 0), f"{filled}-lag"
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as connection,
        contextlib.closing(sqlite3.connect(":memory:")) as another,
    ):
        with Consumer(SETTINGS, bootstrap_servers=broker.bootstrap) as reader:
            store = DatabaseOffsetStore(connection)
            store.mirror = GroupMirror(reader, group)
            reader.assign([place])
            with store.transaction():
                store.save({place: 4})
            with contextlib.suppress(ZeroDivisionError), store.transaction():
                store.save({place: 8})
                raise ZeroDivisionError
            with store.transaction():
                pass
            eventually(lambda: offsets_of(admin, group) == {0: 4})
            with store.transaction():
                store.save({place: 6})
            late = DatabaseOffsetStore(another)
            late.mirror = store.mirror
        assert offsets_of(admin, group) == {0: 6}, "close() waits for it"
        with late.transaction():
            late.save({place: 9})  # stored, although the consumer is closed by now
        assert late.load([place]) == {place: 9}
        assert offsets_of(admin, group) == {0: 6}


def test_snapshots_mirror_their_offsets_in_their_transactions(broker: Any, filled: str, admin: Admin) -> None:
    """Spec: E10."""
    place, group = TopicPartition(filled, 0), f"{filled}-lag"
    names = {f"{filled}-offsets", f"{filled}-state"}
    for name in names:
        admin.create_topic(name, partitions=1)
    settings: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "transactional_id": filled}
    settings |= {"incremental": (f"{filled}-offsets", 0), "full": (f"{filled}-state", 0)}
    with SnapshotStore.open(**settings, mirror_group=group) as store:
        with store.transaction({place: 4}):
            pass
        store.save_full(b"four")
        with pytest.raises(ZeroDivisionError), store.transaction({place: 8}):
            raise ZeroDivisionError
        eventually(lambda: offsets_of(admin, group) == {0: 4})
    with SnapshotStore.open(**settings, mirror_group=group) as store, store.transaction({place: 9}):
        pass
    eventually(lambda: offsets_of(admin, group) == {0: 9})
    admin.alter_group_offsets(f"{group}-real", {place: 3})
    with pytest.raises(OttlaError, match="has offsets that were not mirrored"):
        SnapshotStore.open(**settings, mirror_group=f"{group}-real")


def test_an_async_consumer_mirrors_its_offsets(broker: Any, filled: str, admin: Admin, tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncConsumer(SETTINGS, bootstrap_servers=broker.bootstrap, group_id=filled) as reader:
            offsets = AsyncStoredOffsets(reader, FileOffsetStore(tmp_path / "positions.json"))
            await reader.subscribe([filled], listener=offsets)
            found = 0
            async with asyncio.timeout(PATIENCE_S):
                while found < 20:
                    found += len(await reader.poll(200))
            offsets.save()

    asyncio.run(story())
    assert offsets_of(admin, filled) == {0: 10, 1: 10}


def test_a_mirror_needs_another_group_than_the_consumers_own(broker: Any) -> None:
    with Consumer(bootstrap_servers=broker.bootstrap) as alone:
        with pytest.raises(ArgumentError, match=r"you must provide a valid group\.id") as caught:
            GroupMirror(alone)
        assert "GroupMirror(consumer, group)" in caught.value.hint
        with pytest.raises(ArgumentError, match=r"you must provide a valid group\.id"):
            alone.commit()
        with pytest.raises(OttlaError, match="is blank"):
            GroupMirror(alone, " ")
    with (
        Consumer(bootstrap_servers=broker.bootstrap, group_id="own") as member,
        pytest.raises(OttlaError, match="own group"),
    ):
        GroupMirror(member, "own")
