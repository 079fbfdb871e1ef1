"""A consumer whose positions live in an OffsetStore: read when partitions come, stored when the user says so."""

from collections.abc import Iterable
from typing import Any

from ottla.client.group_mirror import GroupMirror, shares_partitions
from ottla.client.offset_store import OffsetStore
from ottla.client.rebalance_listener import RebalanceListener
from ottla.types import TopicPartition


class StoredOffsets(RebalanceListener):
    """For a blocking Consumer: seeks to the stored offset of every partition that is assigned.

    Turn `enable.auto.commit` off, and call `save()` after what poll() gave has been processed. `next_listener` hears
    of everything too, after the seek and before the store.

    What is stored is also shown as the group's offsets, so that lag appears in every Kafka tool: unless the store has
    a `mirror` already, or the assignor gives one partition to several members. `mirror="caches.worker-1"` shows it as
    a group of that name instead, which is what each member of a broadcast needs; `mirror=False` shows nothing.

    >>> offsets = StoredOffsets(consumer, FileOffsetStore("positions.json"))
    >>> consumer.subscribe(["prices"], listener=offsets)
    >>> while True:
    ...     process(consumer.poll(1000))
    ...     offsets.save()
    """

    def __init__(
        self, consumer: Any, store: OffsetStore, next_listener: Any = None, *, mirror: bool | str = True
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._next = next_listener
        self._saved: dict[TopicPartition, int] = {}
        inner = getattr(consumer, "_async", consumer)
        if isinstance(mirror, str):
            store.mirror = GroupMirror(consumer, mirror)
        elif mirror and store.mirror is None and inner.config.group_id is not None and not shares_partitions(inner):
            store.mirror = GroupMirror(consumer)

    def save(self) -> None:
        """Stores how far poll() (or the iterator) has come. What it gave out must have been processed."""
        moved = self._moved(self._consumer._async._consumed())
        if moved:
            self._store.save(moved)
            self._saved.update(moved)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for partition, offset in self._load(partitions).items():
            self._consumer.seek(partition, offset)
        if self._next is not None:
            self._next.on_partitions_assigned(partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        # Inside poll(), so all that the poll() before it gave has been processed.
        if self._next is not None:
            self._next.on_partitions_revoked(partitions)
        self.save()

    def _load(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        stored = self._store.load(partitions)
        self._saved.update(stored)
        return stored

    def _moved(self, consumed: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {partition: at for partition, at in consumed.items() if self._saved.get(partition) != at}


class AsyncStoredOffsets(StoredOffsets):
    """The same for an AsyncConsumer. The store is small and local: it is written on the loop.

    >>> offsets = AsyncStoredOffsets(consumer, FileOffsetStore("positions.json"))
    >>> await consumer.subscribe(["prices"], listener=offsets)
    """

    def save(self) -> None:
        moved = self._moved(self._consumer._consumed())
        if moved:
            self._store.save(moved)
            self._saved.update(moved)

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:  # type: ignore[override]
        for partition, offset in self._load(partitions).items():
            await self._consumer.seek(partition, offset)
        if self._next is not None:
            await self._next.on_partitions_assigned(partitions)

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:  # type: ignore[override]
        if self._next is not None:
            await self._next.on_partitions_revoked(partitions)
        self.save()
