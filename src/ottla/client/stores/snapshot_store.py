"""Stores a task's state and offsets in topics, in the transactions of its output: incremental and full snapshots.

Every transaction ends with a small record in the incremental topic: the consumed offsets and the offset of the latest
full snapshot. A full snapshot holds the state itself. A restore reads the last incremental record and the full snapshot
it points to; only the input between the two has to be replayed.

With `mirror_group` the consumed offsets are also committed to that group, in the same transaction, so that every Kafka
tool shows the lag. They are never read back. `open()` fails if the group has offsets that were not mirrored.

A store is created by `open()` only. It initializes the transactional id before it reads, so that all transactions of
the previous instance have ended and the snapshot cannot change while it is read.

The key of every record is the transactional id, so stores of several ids may share the two partitions.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple, Self

from ottla.client.admin.group_offsets import list_group_offsets
from ottla.client.blocking.loop import loop_thread
from ottla.client.blocking.producer import Producer
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.arguments import PartitionLike, as_partition, as_positions
from ottla.client.core.model import LATEST, CommittedOffset, ConsumerRecord
from ottla.client.core.offset_lookup import list_offsets
from ottla.client.core.settings import ClientConfig
from ottla.client.producer.producer import AsyncProducer
from ottla.client.stores.client_parts import async_producer, network_of
from ottla.client.stores.mirroring import MARK
from ottla.config import settings_of
from ottla.errors import OttlaError
from ottla.types import TopicPartition, offsets_by_topic, offsets_from_topics

FORMAT = 1
OFFSETS_HEADER = "ottla-offsets"
NO_SNAPSHOT = -1

_OPENED = object()


class Restored(NamedTuple):
    """What a task starts with: the offsets to continue at, and the state."""

    offsets: dict[TopicPartition, int]
    """The next input records whose output is not written yet."""
    state: bytes | None
    """The last full snapshot; None if there is none."""
    state_offsets: dict[TopicPartition, int]
    """The next input records that the state does not include: replay from here to `offsets`, without output."""


class _Snapshots:
    """The part that both stores share: writes the snapshots, through the async producer."""

    def __init__(
        self,
        producer: AsyncProducer,
        incremental: TopicPartition,
        full: TopicPartition,
        mirror_group: str | None,
        found: "_Found",
    ) -> None:
        self.producer = producer
        self.incremental = incremental
        self.full = full
        self.mirror_group = mirror_group
        self.offsets = dict(found.restored.offsets)
        self.full_offset = found.full_offset

    def following(self, offsets: Mapping[Any, int]) -> dict[TopicPartition, int]:
        """The offsets after a transaction that consumed up to `offsets`."""
        return {**self.offsets, **as_positions(offsets)}

    async def send_incremental(self, offsets: Mapping[TopicPartition, int], full_offset: int) -> None:
        value = json.dumps({"format": FORMAT, "offsets": offsets_by_topic(offsets), "full": full_offset})
        topic, partition = self.incremental
        await self.producer.send(topic, value, key=self._key, partition=partition)
        if self.mirror_group is not None:
            shown = {place: CommittedOffset(offset, metadata=MARK) for place, offset in offsets.items()}
            await self.producer.send_offsets_to_transaction(shown, self.mirror_group)

    async def save_full(self, state: bytes) -> None:
        async with self.producer.transaction():
            stored = await self.producer.send_and_wait(
                self.full.topic,
                state,
                key=self._key,
                partition=self.full.partition,
                headers={OFFSETS_HEADER: json.dumps(offsets_by_topic(self.offsets)).encode()},
            )
            await self.send_incremental(self.offsets, stored.offset)
        self.full_offset = stored.offset

    @property
    def _key(self) -> bytes:
        return key_of(self.producer)


def key_of(producer: AsyncProducer) -> bytes:
    """The key of all records of one task: stores with other ids may write to the same partitions."""
    return str(producer.config.transactional_id).encode()


class AsyncSnapshotStore:
    """A transactional producer, and the snapshots that are written in its transactions.

    >>> store = await AsyncSnapshotStore.open(
    ...     {"bootstrap.servers": "127.0.0.1:9092"}, transactional_id="totals-0",
    ...     incremental=("totals-offsets", 0), full=("totals-state", 0))
    >>> state, replay_from = store.restored.state, store.restored.state_offsets
    >>> async with store.transaction({TopicPartition("orders", 0): 43}):
    ...     await store.producer.send("totals", b"...")
    >>> await store.save_full(state)             # from time to time
    """

    def __init__(self, key: object, snapshots: _Snapshots, restored: Restored) -> None:
        _check_opened(key, f"await {type(self).__name__}")
        self.producer = snapshots.producer
        """Send the output through this, inside `transaction()`."""
        self.incremental = snapshots.incremental
        self.full = snapshots.full
        self.mirror_group = snapshots.mirror_group
        self.restored = restored
        self._snapshots = snapshots

    @classmethod
    async def open(
        cls,
        settings: Mapping[str, Any] | None = None,
        *,
        transactional_id: str,
        incremental: PartitionLike,
        full: PartitionLike,
        mirror_group: str | None = None,
        **keywords: Any,
    ) -> Self:
        """Fences the previous instance with this transactional id, then reads what was committed last."""
        producer = AsyncProducer(settings, transactional_id=transactional_id, **keywords)
        places = as_partition(incremental), as_partition(full)
        try:
            await producer.init_transactions()
            found = await _restore(producer, *places, mirror_group)
            return cls(_OPENED, _Snapshots(producer, *places, mirror_group, found), found.restored)
        except BaseException:
            await producer.close(timeout_ms=0)
            raise

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next input records to consume, as of the last commit."""
        return self._snapshots.offsets

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the producer. An open transaction is aborted."""
        await self.producer.close()

    @contextlib.asynccontextmanager
    async def transaction(self, offsets: Mapping[Any, int]) -> AsyncIterator[None]:
        """Commits atomically the records that the block sends, and that the input was consumed up to `offsets`."""
        snapshots = self._snapshots
        following = snapshots.following(offsets)
        async with self.producer.transaction():
            yield
            await snapshots.send_incremental(following, snapshots.full_offset)
        snapshots.offsets = following

    async def save_full(self, state: bytes) -> None:
        """Stores the state that belongs to the offsets of the last commit. Later restores start from it."""
        await self._snapshots.save_full(state)


class SnapshotStore:
    """As AsyncSnapshotStore, for code without an event loop. `producer` is a blocking Producer.

    >>> with SnapshotStore.open(transactional_id="totals-0", incremental=("o", 0), full=("s", 0)) as store:
    ...     with store.transaction({TopicPartition("orders", 0): 43}):
    ...         store.producer.send("totals", b"...")
    """

    def __init__(self, key: object, producer: Producer, snapshots: _Snapshots, restored: Restored) -> None:
        _check_opened(key, type(self).__name__)
        self.producer = producer
        """Send the output through this, inside `transaction()`."""
        self.restored = restored
        self._snapshots = snapshots

    @classmethod
    def open(
        cls,
        settings: Mapping[str, Any] | None = None,
        *,
        transactional_id: str,
        incremental: PartitionLike,
        full: PartitionLike,
        mirror_group: str | None = None,
        **keywords: Any,
    ) -> Self:
        """Fences the previous instance with this transactional id, then reads what was committed last."""
        producer = Producer(settings, transactional_id=transactional_id, **keywords)
        inner = async_producer(producer)
        places = as_partition(incremental), as_partition(full)
        try:
            producer.init_transactions()
            found = loop_thread.call(_restore(inner, *places, mirror_group))
        except BaseException:
            producer.close(timeout_ms=0)
            raise
        return cls(_OPENED, producer, _Snapshots(inner, *places, mirror_group, found), found.restored)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next input records to consume, as of the last commit."""
        return self._snapshots.offsets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the producer. An open transaction is aborted."""
        self.producer.close()

    @contextlib.contextmanager
    def transaction(self, offsets: Mapping[Any, int]) -> Iterator[None]:
        """Commits atomically the records that the block sends, and that the input was consumed up to `offsets`."""
        snapshots = self._snapshots
        following = snapshots.following(offsets)
        with self.producer.transaction():
            yield
            loop_thread.call(snapshots.send_incremental(following, snapshots.full_offset))
        snapshots.offsets = following

    def save_full(self, state: bytes) -> None:
        """Stores the state that belongs to the offsets of the last commit. Later restores start from it."""
        loop_thread.call(self._snapshots.save_full(state))


def _check_opened(key: object, name: str) -> None:
    if key is not _OPENED:
        raise OttlaError(f"{name.split()[-1]}() cannot be called directly", f"Use {name}.open(…).")


# --- reading --------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    restored: Restored
    full_offset: int


async def _restore(
    producer: AsyncProducer, incremental: TopicPartition, full: TopicPartition, mirror_group: str | None = None
) -> _Found:
    if mirror_group is not None:
        await _check_mirror(producer, mirror_group)
    shared = settings_of(ClientConfig).values()
    settings = {known.name: getattr(producer.config, known.attribute) for known in shared}
    reader = AsyncConsumer(
        settings,
        isolation_level="read_committed",
        auto_offset_reset="none",
        allow_auto_create_topics=False,
        clock=network_of(producer).clock,
    )
    async with reader:
        mine = key_of(producer)
        last = await _last_record(reader, incremental, mine)
        if last is None:
            return _Found(Restored({}, None, {}), NO_SNAPSHOT)
        offsets, full_offset = _decode_incremental(last, incremental)
        if full_offset == NO_SNAPSHOT:
            return _Found(Restored(offsets, None, {}), NO_SNAPSHOT)
        snapshot = await _record_at(reader, full, full_offset, mine)
        headers = dict(snapshot.headers)
        if OFFSETS_HEADER not in headers:
            raise OttlaError(
                f"the record at offset {full_offset} of {full} is not a full snapshot",
                "Write nothing else to that topic.",
            )
        state_offsets = offsets_from_topics(json.loads(headers[OFFSETS_HEADER] or b"{}"))
        return _Found(Restored(offsets, snapshot.value, state_offsets), full_offset)


async def _check_mirror(producer: AsyncProducer, group: str) -> None:
    """Fails if the group has offsets that were not mirrored: a consumer may depend on them."""
    for partition, committed in (await list_group_offsets(network_of(producer), group)).items():
        if committed.metadata != MARK:
            raise OttlaError(
                f"group {group} has offsets that were not mirrored: {partition} at {committed.offset}",
                "Pass the name of a group that nothing else uses as mirror_group=.",
            )


async def _last_record(reader: AsyncConsumer, place: TopicPartition, key: bytes) -> ConsumerRecord | None:
    """The last committed record with this key. Usually only the commit marker follows it. Aborted transactions and
    records of other ids may follow too, so the search goes back in growing steps.

    It starts at the high watermark, not at the last stable offset: an open transaction of another id before our last
    record would hide it, and an older snapshot would be restored. `read_between` waits until that transaction ends.
    """
    await reader.assign([place])
    (beginning,) = (await reader.beginning_offsets([place])).values()
    (last,) = (await list_offsets(network_of(reader), {place: LATEST})).values()
    end = last.offset if last is not None else beginning
    step, upper = 2, end
    while upper > beginning:
        lower = max(beginning, end - step)
        for record in reversed(await read_between(reader, place, lower, upper)):
            if record.key == key:
                return record
            _decode_incremental(record, place)  # another id's; raises if it is something else
        upper, step = lower, step * 4
    return None


async def _record_at(reader: AsyncConsumer, place: TopicPartition, offset: int, key: bytes) -> ConsumerRecord:
    await reader.assign([place])
    (beginning,) = (await reader.beginning_offsets([place])).values()
    found = await read_between(reader, place, offset, offset + 1) if offset >= beginning else []
    if not found or found[0].offset != offset:
        raise OttlaError(
            f"the full snapshot at offset {offset} of {place} is gone",
            "Set cleanup.policy=compact for the topic, so that it keeps the latest record of each key.",
        )
    if found[0].key != key:
        raise OttlaError(
            f"the record at offset {offset} of {place} is not a full snapshot of {key.decode()}",
            "The topic was recreated, or something else writes to it.",
        )
    return found[0]


async def read_between(reader: AsyncConsumer, place: TopicPartition, start: int, end: int) -> list[ConsumerRecord]:
    """The committed records from `start` to `end`. Raises if none arrive for `default.api.timeout.ms`."""
    network, patience_ms = network_of(reader), reader.config.default_api_timeout_ms
    await reader.seek(place, start)
    found: list[ConsumerRecord] = []
    position, moved_at = start, network.now()
    while position < end:
        found += [record for record in await reader.poll(100) if record.offset < end]
        before, position = position, await reader.position(place)
        if position != before:
            moved_at = network.now()
        elif network.now() >= moved_at + patience_ms:
            doing = f"reading {place} at offset {position}, where a transaction of another producer may be open,"
            raise network.out_of_time(patience_ms, doing)
    return found


# --- the format of the records ---------------------------------------------------------------------------------------


def _decode_incremental(record: ConsumerRecord, place: TopicPartition) -> tuple[dict[TopicPartition, int], int]:
    try:
        stored = json.loads(record.value or b"")
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']}")
        return offsets_from_topics(stored["offsets"]), int(stored["full"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OttlaError(
            f"the record at offset {record.offset} of {place} is not an incremental snapshot: {error}",
            "Write nothing else to that partition.",
        ) from error
