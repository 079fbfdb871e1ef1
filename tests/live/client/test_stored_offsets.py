"""StoredOffsets: what happens when the store fails, and when partitions are lost."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from ottla import Admin, AsyncConsumer, Consumer, Producer, RebalanceListener
from ottla.client.stores.database_store import DatabaseOffsetStore
from ottla.client.stores.offset_store import OffsetStore
from ottla.client.stores.stored_offsets import AsyncStoredOffsets, StoredOffsets
from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.testing.world import World
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S

SETTINGS = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
COUNT = 20


class MemoryStore(OffsetStore):
    """Fails to load `failures` times."""

    def __init__(self, offsets: Mapping[TopicPartition, int], failures: int = 0) -> None:
        self.offsets = dict(offsets)
        self.failures = failures

    def load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is away")
        return {partition: self.offsets[partition] for partition in partitions if partition in self.offsets}

    def save(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets.update(offsets)
        self.stored(offsets)


class Recording(RebalanceListener):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", len(partitions)))

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("revoked", len(partitions)))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("lost", len(partitions)))


class OnlyRevoked:
    """Has no on_partitions_lost."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("revoked", len(partitions)))


class Empty:
    """Has none of the methods."""


@pytest.fixture
def place(broker: Any, topic: str) -> TopicPartition:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(topic, f"{number}", partition=0)
    return TopicPartition(topic, 0)


def reading(broker: Any, place: TopicPartition, reset: str = "earliest") -> Consumer:
    settings = SETTINGS | {"auto.offset.reset": reset}
    return Consumer(settings, bootstrap_servers=broker.bootstrap, group_id=place.topic)


def read_to_end(reader: Consumer, errors: list[Exception] | None = None) -> list[int]:
    """The offsets of the records; failures of the store are added to `errors`."""
    deadline = monotonic() + PATIENCE_S
    offsets: list[int] = []
    while COUNT - 1 not in offsets:
        assert monotonic() < deadline, f"only {offsets} came"
        try:
            offsets += [record.offset for record in reader.poll(500)]
        except OSError as error:
            if errors is None:
                raise
            errors.append(error)
    return offsets


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_store_that_fails_to_load_is_retried_before_anything_is_read(
    broker: Any, place: TopicPartition, reset: str
) -> None:
    """If it were read from auto.offset.reset instead, the next save() would overwrite the stored offset."""
    store, following = MemoryStore({place: 15}, failures=3), Recording()
    errors: list[Exception] = []
    with reading(broker, place, reset) as reader:
        offsets = StoredOffsets(reader, store, following)
        reader.subscribe([place.topic], listener=offsets)
        deadline = monotonic() + PATIENCE_S
        while not errors:
            assert monotonic() < deadline
            with contextlib.suppress(OSError):
                reader.poll(500)
                continue
            errors.append(OSError())
            assert reader.assignment() == {place}
        offsets.save()
        reader.commit_async()
        assert store.offsets == {place: 15}
        assert reader.committed([place]) == {place: None}, "no offset is known, so none is committed"
        assert following.calls == []
        assert read_to_end(reader, errors) == list(range(15, COUNT))
        assert len(errors) == 3
        assert store.failures == 0
        offsets.save()
        assert store.offsets == {place: COUNT}
    assert following.calls == [("assigned", 1), ("revoked", 1)]


def test_partitions_lost_before_they_were_loaded_are_not_reported(broker: Any, place: TopicPartition) -> None:
    store, following = MemoryStore({place: 15}, failures=10**6), Recording()
    with reading(broker, place) as reader:
        reader.subscribe([place.topic], listener=StoredOffsets(reader, store, following))
        with pytest.raises(OSError, match="the disk is away"):
            read_to_end(reader)
        with pytest.raises(OSError, match="the disk is away"):
            reader.poll(0)
    assert store.offsets == {place: 15}
    assert following.calls == []
    with reading(broker, place) as reader:
        store.failures = 0
        reader.subscribe([place.topic], listener=StoredOffsets(reader, store))
        assert read_to_end(reader) == list(range(15, COUNT))


def test_partitions_missing_from_the_store_start_as_the_group_would(broker: Any, place: TopicPartition) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_group_offsets(place.topic, {place: 12})
    store = MemoryStore({}, failures=1)
    errors: list[Exception] = []
    with reading(broker, place) as reader:
        reader.subscribe([place.topic], listener=StoredOffsets(reader, store))
        assert read_to_end(reader, errors) == list(range(12, COUNT))
        assert len(errors) == 1
    assert store.offsets == {place: COUNT}


@pytest.mark.parametrize(
    ("kind", "calls"), [(Recording, [("lost", 1)]), (OnlyRevoked, [("revoked", 1)])], ids=["lost", "revoked"]
)
def test_offsets_of_lost_partitions_are_not_stored(
    broker: Any, place: TopicPartition, kind: Any, calls: list[tuple[str, int]]
) -> None:
    """Another member may have stored more by now, or returned records were never processed."""
    store, following = MemoryStore({place: 5}), kind()
    with reading(broker, place) as reader:
        offsets = StoredOffsets(reader, store, following)
        reader.subscribe([place.topic], listener=offsets)
        assert read_to_end(reader) == list(range(5, COUNT))
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.remove_members(place.topic)
        store.offsets[place] = 17  # by its new owner
        deadline = monotonic() + PATIENCE_S
        while calls[-1] not in following.calls:
            assert monotonic() < deadline
            reader.poll(100, max_records=1)
        assert store.offsets == {place: 17}
        assert read_to_end(reader)[-1] == COUNT - 1, "it came back, and is read from where the store says"
        offsets.save()
        assert store.offsets == {place: COUNT}
    assert [each for each in following.calls if each[0] != "assigned"] == [*calls, ("revoked", 1)]


def test_a_listener_cannot_store_offsets_of_lost_partitions(broker: Any, place: TopicPartition) -> None:
    store = MemoryStore({})

    class Saving(RebalanceListener):
        def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
            offsets.save()

    with reading(broker, place) as reader:
        offsets = StoredOffsets(reader, store, Saving())
        reader.subscribe([place.topic], listener=offsets)
        read_to_end(reader)
        offsets.on_partitions_lost([place])
        assert store.offsets == {}
        offsets.on_partitions_assigned([place])
        read_to_end(reader)
        offsets.save()
        assert store.offsets == {place: COUNT}


@pytest.mark.parametrize(
    ("kind", "calls"), [(Recording, [("assigned", 1), ("lost", 1)]), (OnlyRevoked, [])], ids=["lost", "revoked"]
)
def test_a_with_block_that_fails_stores_only_what_was_saved(
    broker: Any, place: TopicPartition, kind: Any, calls: list[tuple[str, int]]
) -> None:
    """Unprocessed records are read again, and the next listener must not store their offsets either."""
    store, following = MemoryStore({}), kind()

    def process() -> None:
        with reading(broker, place) as reader:
            offsets = StoredOffsets(reader, store, following)
            reader.subscribe([place.topic], listener=offsets)
            deadline = monotonic() + PATIENCE_S
            while True:
                assert monotonic() < deadline
                for record in reader.poll(500, max_records=4):
                    assert 7 // (7 - record.offset)
                offsets.save()

    with pytest.raises(ZeroDivisionError):
        process()
    assert store.offsets == {place: 4}
    assert following.calls == calls


class PlainOrAsync(Recording):
    """on_partitions_revoked is async, the other methods are plain."""

    async def on_partitions_revoked(  # type: ignore[override]
        self, partitions: list[TopicPartition]
    ) -> None:
        await asyncio.sleep(0)
        self.calls.append(("revoked", len(partitions)))


@pytest.mark.parametrize(
    ("following", "calls"),
    [
        (Recording(), [("assigned", 1), ("revoked", 1)]),
        (PlainOrAsync(), [("assigned", 1), ("revoked", 1)]),
        (Empty(), None),
        (None, None),
    ],
    ids=["plain", "async", "empty", "none"],
)
def test_the_next_listener_of_an_async_consumer_may_be_plain_or_async(
    broker: Any, place: TopicPartition, following: Any, calls: Any
) -> None:
    store = MemoryStore({place: 15}, failures=2)
    if calls is not None:
        following.calls.clear()

    async def story() -> tuple[list[int], int]:
        found, failures = [], 0
        settings = {"bootstrap_servers": broker.bootstrap, "group_id": place.topic}
        async with asyncio.timeout(PATIENCE_S), AsyncConsumer(SETTINGS, **settings) as reader:
            offsets = AsyncStoredOffsets(reader, store, following)
            await reader.subscribe([place.topic], listener=offsets)
            while COUNT - 1 not in found:
                try:
                    found += [record.offset for record in await reader.poll(500)]
                except OSError:
                    failures += 1
            await offsets.on_partitions_lost([])
        return found, failures

    assert asyncio.run(story()) == (list(range(15, COUNT)), 2)
    assert store.offsets == {place: COUNT}
    if calls is not None:
        assert following.calls == calls


def test_the_next_listener_of_a_blocking_consumer_must_not_be_async(broker: Any, place: TopicPartition) -> None:
    with reading(broker, place) as reader:
        offsets = StoredOffsets(reader, MemoryStore({}), Empty())
        reader.subscribe([place.topic], listener=offsets)
        read_to_end(reader)
        offsets.on_partitions_lost([place])
        with pytest.raises(OttlaError, match="on_partitions_revoked of the listener is async"):
            StoredOffsets(reader, MemoryStore({}), PlainOrAsync()).on_partitions_revoked([place])


def test_a_transaction_repeated_after_a_rollback_stores_the_offsets_again() -> None:
    """Spec: E10. They are stored with the results. Without them, the second attempt would write every result twice."""
    place = TopicPartition("t", 0)

    async def story(world: World) -> None:
        async with world.admin() as admin:
            await admin.create_topic("t", partitions=1)
        async with world.producer() as producer:
            await producer.send("t", "only", partition=0)
        connection = sqlite3.connect(":memory:")
        connection.execute("create table results (value blob)")
        store = DatabaseOffsetStore(connection)
        async with world.consumer(group_id="g", enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
            offsets = AsyncStoredOffsets(consumer, store)
            await consumer.subscribe(["t"], listener=offsets)
            records: list[Any] = []
            while not records:
                records += await consumer.poll(1_000)
            for is_refused in (True, False):
                with contextlib.suppress(sqlite3.OperationalError), store.transaction() as cursor:
                    cursor.execute("insert into results values (?)", (records[0].value,))
                    offsets.save()
                    if is_refused:
                        raise sqlite3.OperationalError("database is locked")
        assert connection.execute("select value from results").fetchall() == [(b"only",)]
        assert DatabaseOffsetStore(connection).load([place]) == {place: 1}
        connection.close()

    World(1).run(story)
