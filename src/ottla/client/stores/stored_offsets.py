"""StoredOffsets: a consumer whose offsets are in an OffsetStore, loaded on assignment and saved by save()."""

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.consumer.positions import FetchState
from ottla.client.group.member_state import MemberState
from ottla.client.group.rebalance_listener import RebalanceListener, has_own_lost, notify, notify_blocking
from ottla.client.stores.client_parts import async_consumer, consumed, find_group, network_of, positions_of, run
from ottla.client.stores.group_mirror import GroupMirror, MemberMirrors, shares_partitions
from ottla.client.stores.offset_store import OffsetStore
from ottla.types import TopicPartition


class StoredOffsets(RebalanceListener):
    """For a blocking Consumer: seeks to the stored offset of every partition that is assigned.

    Set `enable.auto.commit` to false, and call `save()` after the records of poll() have been processed.
    `next_listener` is called too: after the seek and before the save.

    If the store fails to load an offset, poll() raises its error. The partition is neither read nor saved until a
    later poll() has loaded it. Offsets of lost partitions are not saved.

    Saved offsets are also committed to the group, so that every Kafka tool shows the lag; unless the store has a
    `mirror` already, or the assignor assigns a partition to several members. `mirror="caches.worker-1"` commits them to
    that group instead, which is what each member of a broadcast needs. `mirror=False` commits nothing.

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
        self._progress = _Progress(consumer, store, next_listener, mirror)

    def save(self) -> None:
        """Saves the position of poll() or the iterator. All records they returned must have been processed."""
        self._progress.save()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            run(self._consumer, self._progress.hold(partitions))
            try:
                run(self._consumer, self._progress.begin(partitions, self._store.load(partitions)))
            except BaseException:
                if self._progress.should_schedule_reload():
                    self._consumer.commit_async({}, callback=self._reload)
                raise
        notify_blocking(self._next, "on_partitions_assigned", partitions)

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        # Called in poll(), so the records of the poll() before it have been processed.
        try:
            if known := self._progress.known_to_next(partitions):
                notify_blocking(self._next, "on_partitions_revoked", known)
            self.save()
        finally:
            self._progress.forget(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        # Another member may own them by now, or the records returned may not have been processed.
        if known := self._progress.note_lost(partitions):
            notify_blocking(self._next, "on_partitions_lost", known)

    def _reload(self, *_: Any) -> None:
        if held := self._progress.to_reload():
            self.on_partitions_assigned(held)


class AsyncStoredOffsets(RebalanceListener):
    """StoredOffsets for an AsyncConsumer. The store is called on the event loop, so it should be fast.

    >>> offsets = AsyncStoredOffsets(consumer, FileOffsetStore("positions.json"))
    >>> await consumer.subscribe(["prices"], listener=offsets)
    """

    def __init__(
        self, consumer: Any, store: OffsetStore, next_listener: Any = None, *, mirror: bool | str = True
    ) -> None:
        self._consumer = consumer
        self._store = store
        self._next = next_listener
        self._progress = _Progress(consumer, store, next_listener, mirror)

    def save(self) -> None:
        """Saves the position of poll() or the iterator. All records they returned must have been processed."""
        self._progress.save()

    async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            await self._progress.hold(partitions)
            try:
                await self._progress.begin(partitions, self._store.load(partitions))
            except BaseException:
                if self._progress.should_schedule_reload():
                    await self._consumer.commit_async({}, callback=self._reload)
                raise
        await notify(self._next, "on_partitions_assigned", partitions)

    async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        try:
            if known := self._progress.known_to_next(partitions):
                await notify(self._next, "on_partitions_revoked", known)
            self.save()
        finally:
            self._progress.forget(partitions)

    async def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        if known := self._progress.note_lost(partitions):
            await notify(self._next, "on_partitions_lost", known)

    async def _reload(self, *_: Any) -> None:
        if held := self._progress.to_reload():
            await self.on_partitions_assigned(held)


class _Progress:
    """What both listeners know about the assigned partitions, and how their offsets get from the store and into it."""

    def __init__(self, consumer: Any, store: OffsetStore, next_listener: Any, mirror: bool | str) -> None:
        self._inner = async_consumer(consumer)
        self._store = store
        self._next = next_listener
        self._saved: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()
        """Partitions whose offset is not loaded yet."""
        self._lost: set[TopicPartition] = set()
        self._is_reload_scheduled = False
        if isinstance(mirror, str):
            store.mirror = GroupMirror(consumer, mirror)
        elif mirror and self._inner.config.group_id is not None and not shares_partitions(self._inner):
            if store.mirror is None:
                store.mirror = MemberMirrors()
            if isinstance(store.mirror, MemberMirrors):
                store.mirror.add(GroupMirror(consumer))

    def save(self) -> None:
        left_out = self._held | self._lost
        saved = self._saved if self._store.known is None else self._store.known
        moved = {p: at for p, at in consumed(self._inner).items() if p not in left_out and saved.get(p) != at}
        if moved:
            self._store.save(moved)
            self._saved.update(moved)

    async def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """On the loop: stops reading these partitions until their offsets are loaded."""
        for partition in partitions:
            positions_of(self._inner).hold(partition)
            self._held.add(partition)
            self._lost.discard(partition)

    async def begin(self, partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        """On the loop: seeks to the loaded offsets. The other partitions start as they would without a store."""
        for partition, offset in offsets.items():
            await self._inner.seek(partition, offset)
            self._saved[partition] = offset
        positions, group = positions_of(self._inner), find_group(self._inner)
        for partition in partitions:
            state = positions.state(partition)
            if state.fetch_state is FetchState.HELD:
                if group is not None:
                    group.lookup.begin(partition)
                else:
                    positions.reset(state)
            self._held.discard(partition)
        network_of(self._inner).wake()

    def should_schedule_reload(self) -> bool:
        """Whether to schedule another load in the next poll(). False if one is scheduled, or without a group."""
        if self._is_reload_scheduled or find_group(self._inner) is None:
            return False
        self._is_reload_scheduled = True
        return True

    def to_reload(self) -> list[TopicPartition]:
        """The partitions to load when the scheduled load begins."""
        self._is_reload_scheduled = False
        return sorted(self._held)

    def known_to_next(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [partition for partition in partitions if partition not in self._held]

    def note_lost(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions to report to the next listener.

        None after an error of the user, if the listener does not override on_partitions_lost: on_partitions_revoked
        might save the offsets of records that were not processed.
        """
        known, group = self.known_to_next(partitions), find_group(self._inner)
        self.forget(partitions)
        self._lost.update(partitions)
        if group is not None and group.membership.state is MemberState.UNSUBSCRIBED and not has_own_lost(self._next):
            return []
        return known

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._saved.pop(partition, None)
            self._held.discard(partition)
