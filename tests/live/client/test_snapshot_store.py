"""Snapshot stores on a running broker. Spec: E10."""

import asyncio
from typing import Any

import pytest

from ottla import Admin, Producer
from ottla.client.blocking.loop import loop_thread
from ottla.client.stores import snapshot_store as topic_store
from ottla.client.stores.snapshot_store import AsyncSnapshotStore, SnapshotStore
from ottla.client.transactions.errors import TransactionFatal
from ottla.errors import KafkaError, OttlaError
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def places(broker: Any, topic: str) -> dict[str, Any]:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        names = {f"{topic}-offsets", f"{topic}-state", topic}
        for name in names:
            admin.create_topic(name, partitions=1)
    return {
        "bootstrap_servers": broker.bootstrap,
        "transactional_id": topic,
        "incremental": (f"{topic}-offsets", 0),
        "full": (f"{topic}-state", 0),
    }


def test_the_blocking_store_does_the_same(places: dict[str, Any], topic: str) -> None:
    with SnapshotStore.open(**places) as store:
        assert store.restored == ({}, None, {})
        with store.transaction({("in", 0): 5}):
            store.producer.send(topic, b"out")
        store.save_full(b"five")
        with store.transaction({("in", 0): 8}):
            store.producer.send(topic, b"more")
    with SnapshotStore.open(**places) as store:
        assert store.restored.offsets == {TopicPartition("in", 0): 8}
        assert store.restored.state == b"five"
        assert store.restored.state_offsets == {TopicPartition("in", 0): 5}


def test_the_previous_instance_is_fenced_before_anything_is_read(places: dict[str, Any], topic: str) -> None:
    """Spec: E10. Init the transactional producer first, read the snapshot second."""
    zombie = SnapshotStore.open(**places)
    with zombie.transaction({("in", 0): 5}):
        zombie.producer.send(topic, b"out")
    zombie.producer.begin_transaction()
    zombie.producer.send(topic, b"under way")
    zombie.producer.flush()
    with SnapshotStore.open(**places) as store:
        assert store.offsets == {TopicPartition("in", 0): 5}
        with pytest.raises(TransactionFatal):
            zombie.producer.commit_transaction()
        with pytest.raises(TransactionFatal), zombie.transaction({("in", 0): 6}):
            pass
    with SnapshotStore.open(**places) as store:
        assert store.offsets == {TopicPartition("in", 0): 5}
    zombie.close()


def test_no_other_instance_can_commit_while_a_snapshot_is_read(
    places: dict[str, Any], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the old instance could commit after the read, and its input would be processed twice.

    Spec: E10.
    """
    read = topic_store._restore  # noqa: SLF001 - the moment that the test is about
    zombies: list[SnapshotStore] = []
    attempts: list[BaseException | None] = []

    async def read_late(*arguments: Any) -> Any:
        """The old instance commits at the worst moment: just when the new one has read."""
        found = await read(*arguments)
        for zombie in zombies:
            try:
                inner = zombie._snapshots  # noqa: SLF001 - the blocking API cannot be used on its own loop
                async with inner.producer.transaction():
                    await inner.producer.send(topic, b"behind its back")
                    await inner.send_incremental(inner.following({("in", 0): 6}), inner.full_offset)
                attempts.append(None)
            except KafkaError as error:
                attempts.append(error)
        return found

    monkeypatch.setattr(topic_store, "_restore", read_late)
    zombies.append(SnapshotStore.open(**places))
    with SnapshotStore.open(**places) as successor:
        assert isinstance(attempts[-1], TransactionFatal)
        assert successor.offsets == {}

    async def open_async() -> None:
        async with await AsyncSnapshotStore.open(**places):
            pass

    zombies[0].close()
    zombies[:] = [SnapshotStore.open(**places)]
    asyncio.run_coroutine_threadsafe(open_async(), loop_thread.running_loop()).result(PATIENCE_S)
    assert isinstance(attempts[-1], TransactionFatal)
    zombies[0].close()


def test_stores_with_different_ids_share_their_topics(places: dict[str, Any], topic: str) -> None:
    """Spec: E10. Each restores its own state and offsets, and overwrites nobody else's."""
    first, second = {**places, "transactional_id": f"{topic}-A"}, {**places, "transactional_id": f"{topic}-Bee"}
    with SnapshotStore.open(**first) as store:
        with store.transaction({("in", 0): 5}):
            store.producer.send(topic, b"out")
        store.save_full(b"five")
    with SnapshotStore.open(**second) as store:
        assert store.restored == ({}, None, {})
        with store.transaction({("in", 0): 1}):
            store.producer.send(topic, b"out")
        store.save_full(b"one")
    for settings, offset, state in ((first, 5, b"five"), (second, 1, b"one")):
        with SnapshotStore.open(**settings) as store:
            assert store.offsets == {TopicPartition("in", 0): offset}
            assert store.restored.state == state


def test_a_store_cannot_be_created_without_open() -> None:
    """Spec: E10. The wrong order is impossible by construction."""
    with pytest.raises(OttlaError, match=r"AsyncSnapshotStore\(\) cannot be called directly"):
        AsyncSnapshotStore(None, None, None)  # type: ignore[arg-type]
    with pytest.raises(OttlaError, match=r"SnapshotStore\(\) cannot be called directly"):
        SnapshotStore(None, None, None, None)  # type: ignore[arg-type]


def test_a_foreign_record_in_the_incremental_topic_is_named(broker: Any, places: dict[str, Any], topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(f"{topic}-offsets", b"hello", partition=0)
    with pytest.raises(OttlaError, match=r"offset 0 of .*-offsets-0 is not an incremental snapshot"):
        SnapshotStore.open(**places)


def test_a_missing_full_snapshot_is_an_error(broker: Any, places: dict[str, Any], topic: str) -> None:
    with SnapshotStore.open(**places) as store:
        store.save_full(b"state")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(f"{topic}-state", 0): 1})
    with pytest.raises(OttlaError, match="is gone"):
        SnapshotStore.open(**places)
