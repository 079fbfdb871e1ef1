"""A consumer whose positions live in an OffsetStore: read when partitions come, stored when the user says so."""

from collections.abc import Iterable
from typing import Any

from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.consumer.positions import FetchState
from ottla.client.group.member_state import MemberState
from ottla.client.group.rebalance_listener import RebalanceListener, has_own_lost, notify, notify_blocking
from ottla.client.stores.group_mirror import GroupMirror, shares_partitions
from ottla.client.stores.offset_store import OffsetStore
from ottla.types import TopicPartition


class StoredOffsets(RebalanceListener):
    """For a blocking Consumer: seeks to the stored offset of every partition that is assigned.

    Turn `enable.auto.commit` off, and call `save()` after what poll() gave has been processed. `next_listener` hears
    of everything too, after the seek and before the store.

    When the store cannot say where a partition begins, poll() raises its error, and the partition is neither read nor
    stored before the store has answered: every poll() asks again. What was lost without warning is not stored.

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
        self._inner: AsyncConsumer = getattr(consumer, "_async", consumer)
        self._store = store
        self._next = next_listener
        self._saved: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()
        """Where these begin, the store has not said yet."""
        self._lost: set[TopicPartition] = set()
        self._asks_again = False
        if isinstance(mirror, str):
            store.mirror = GroupMirror(consumer, mirror)
        elif (
            mirror
            and store.mirror is None
            and self._inner.config.group_id is not None
            and not shares_partitions(self._inner)
        ):
            store.mirror = GroupMirror(consumer)

    def save(self) -> None:
        """Stores how far poll() (or the iterator) has come. What it gave out must have been processed."""
        left_out = self._held | self._lost
        saved = self._saved if self._store.known is None else self._store.known
        consumed = self._inner._reader.consumed().items()
        moved = {p: at for p, at in consumed if p not in left_out and saved.get(p) != at}
        if moved:
            self._store.save(moved)
            self._saved.update(moved)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._consumer._call(self._hold(partitions))
            try:
                for partition, offset in self._store.load(partitions).items():
                    self._consumer.seek(partition, offset)
                    self._saved[partition] = offset
            except BaseException:
                if self._is_to_ask_again():
                    self._consumer.commit_async({}, callback=self._ask_again)
                raise
            self._consumer._call(self._release(partitions))
        notify_blocking(self._next, "on_partitions_assigned", partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        # Inside poll(), so all that the poll() before it gave has been processed.
        try:
            if known := self._known_to_next(partitions):
                notify_blocking(self._next, "on_partitions_revoked", known)
            self.save()
        finally:
            self._forget(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        # They may be somebody else's by now, or nobody knows whether what was given out has been processed.
        known = self._note_lost(partitions)
        if known:
            notify_blocking(self._next, "on_partitions_lost", known)

    def _ask_again(self, *_: Any) -> None:
        self._asks_again = False
        if self._held:
            self.on_partitions_assigned(sorted(self._held))

    async def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        """On the loop: nothing is read until the store has answered, whatever happens meanwhile."""
        for partition in partitions:
            self._inner._positions.hold(partition)
            self._held.add(partition)
            self._lost.discard(partition)

    async def _release(self, partitions: Iterable[TopicPartition]) -> None:
        """On the loop: what the store does not know begins where it would begin without one."""
        positions, group = self._inner._positions, self._inner._group
        for partition in partitions:
            state = positions.state(partition)
            if state.fetch_state is FetchState.HELD:
                if group is not None:
                    group.lookup.begin(partition)
                else:
                    positions.reset(partition, state)
            self._held.discard(partition)
        self._inner._network.wake()

    def _is_to_ask_again(self) -> bool:
        """Whether the next poll() has to be told to."""
        if self._asks_again or self._inner._group is None:
            return False
        self._asks_again = True
        return True

    def _known_to_next(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [partition for partition in partitions if partition not in self._held]

    def _note_lost(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """What the next listener has to hear of. Out of the group by an error of the user's, one that only knows of
        being revoked hears nothing, as if it were the first: it might store what was not processed."""
        known, group = self._known_to_next(partitions), self._inner._group
        self._forget(partitions)
        self._lost.update(partitions)
        if group is not None and group.membership.state is MemberState.UNSUBSCRIBED and not has_own_lost(self._next):
            return []
        return known

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._saved.pop(partition, None)
            self._held.discard(partition)


class AsyncStoredOffsets(StoredOffsets):
    """The same for an AsyncConsumer. The store is small and local: it is written on the loop.

    >>> offsets = AsyncStoredOffsets(consumer, FileOffsetStore("positions.json"))
    >>> await consumer.subscribe(["prices"], listener=offsets)
    """

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:  # type: ignore[override]
        if partitions:
            await self._hold(partitions)
            try:
                for partition, offset in self._store.load(partitions).items():
                    await self._consumer.seek(partition, offset)
                    self._saved[partition] = offset
            except BaseException:
                if self._is_to_ask_again():
                    await self._consumer.commit_async({}, callback=self._ask_again)
                raise
            await self._release(partitions)
        await notify(self._next, "on_partitions_assigned", partitions)

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:  # type: ignore[override]
        try:
            if known := self._known_to_next(partitions):
                await notify(self._next, "on_partitions_revoked", known)
            self.save()
        finally:
            self._forget(partitions)

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:  # type: ignore[override]
        known = self._note_lost(partitions)
        if known:
            await notify(self._next, "on_partitions_lost", known)

    async def _ask_again(self, *_: Any) -> None:  # type: ignore[override]
        self._asks_again = False
        if self._held:
            await self.on_partitions_assigned(sorted(self._held))
