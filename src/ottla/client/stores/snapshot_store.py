"""A task's state and offsets in topics, in the transactions of its output: incremental and full snapshots.

Every transaction ends with a small record in the incremental topic: how far the input was consumed, and where the
latest full snapshot is. A full snapshot holds the state itself. Restoring reads the last incremental record, the full
snapshot it points to, and leaves only the input in between to be replayed.

With `mirror_group` the consumed offsets are committed to that group in the same transaction, where every tool sees the
lag; nobody reads them back. Offsets of the group that were not mirrored are never replaced: `open()` refuses it.

There is one way to a store, `open()`, and it takes the transactional id over before it reads: whatever the last
instance still had under way is then decided, so the snapshot cannot change behind its reader.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple, Self

from ottla.client.admin.group_model import CommittedOffset
from ottla.client.admin.groups import AsyncGroupAdmin
from ottla.client.blocking import Producer, _io
from ottla.client.consumer.consumer import AsyncConsumer, PartitionLike
from ottla.client.core.documented import documented_by
from ottla.client.core.model import ConsumerRecord
from ottla.client.core.settings import ClientConfig
from ottla.client.producer.producer import AsyncProducer
from ottla.client.stores.mirroring import MARK
from ottla.config import settings_of
from ottla.errors import OttlaError
from ottla.types import TopicPartition

FORMAT = 1
OFFSETS_HEADER = "ottla-offsets"
NO_SNAPSHOT = -1

_OPENED = object()


class Restored(NamedTuple):
    """What a task finds: where its output has come to, and the state to start from."""

    offsets: dict[TopicPartition, int]
    """The next input records whose output is not written yet."""
    state: bytes | None
    """The last full snapshot; None if there is none."""
    state_offsets: dict[TopicPartition, int]
    """The next input records that the state does not know yet: replay from here up to `offsets`, without output."""


class AsyncSnapshotStore:
    """A transactional producer, and the snapshots that go with its transactions.

    >>> store = await AsyncSnapshotStore.open(
    ...     {"bootstrap.servers": "127.0.0.1:9092"}, transactional_id="totals-0",
    ...     incremental=("totals-offsets", 0), full=("totals-state", 0))
    >>> state, replay_from = store.restored.state, store.restored.state_offsets
    >>> async with store.transaction({TopicPartition("orders", 0): 43}):
    ...     await store.producer.send("totals", b"...")
    >>> await store.save_full(state)             # now and then
    """

    def __init__(
        self,
        key: object,
        producer: AsyncProducer,
        incremental: TopicPartition,
        full: TopicPartition,
        found: "_Found",
        mirror_group: str | None = None,
    ) -> None:
        if key is not _OPENED:
            raise OttlaError("a snapshot store is opened, not made", f"Use await {type(self).__name__}.open(…).")
        self.producer = producer
        """Send the output through this, inside `transaction()`."""
        self.incremental = incremental
        self.full = full
        self.mirror_group = mirror_group
        self.restored = found.restored
        self.offsets = dict(found.restored.offsets)
        """How far the input was consumed, as of the last commit."""
        self._full_offset = found.full_offset

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
        """Takes the transactional id over, fencing the instance before, and then reads what was committed last."""
        producer = AsyncProducer(settings, transactional_id=transactional_id, **keywords)
        places = TopicPartition(*incremental), TopicPartition(*full)
        try:
            await producer.init_transactions()
            found = await _restore(producer, *places, mirror_group)
            return cls(_OPENED, producer, *places, found, mirror_group)
        except BaseException:
            await producer.close(timeout_ms=0)
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the producer; a transaction that is still open is aborted."""
        await self.producer.close()

    @contextlib.asynccontextmanager
    async def transaction(self, offsets: Mapping[Any, int]) -> AsyncIterator[None]:
        """What the block sends, and that the input was consumed up to `offsets`, become visible together."""
        following = {**self.offsets, **_partitions(offsets)}
        async with self.producer.transaction():
            yield
            await self._send_incremental(following, self._full_offset)
        self.offsets = following

    async def save_full(self, state: bytes) -> None:
        """Stores the state that belongs to the offsets of the last commit; later restores start from it."""
        async with self.producer.transaction():
            stored = await self.producer.send_and_wait(
                self.full.topic,
                state,
                key=self._key,
                partition=self.full.partition,
                headers={OFFSETS_HEADER: _encode_offsets(self.offsets)},
            )
            await self._send_incremental(self.offsets, stored.offset)
        self._full_offset = stored.offset

    async def _send_incremental(self, offsets: Mapping[TopicPartition, int], full_offset: int) -> None:
        value = json.dumps({"format": FORMAT, "offsets": _by_topic(offsets), "full": full_offset})
        topic, partition = self.incremental
        await self.producer.send(topic, value, key=self._key, partition=partition)
        if self.mirror_group is not None:
            shown = {place: CommittedOffset(offset, metadata=MARK) for place, offset in offsets.items()}
            await self.producer.send_offsets_to_transaction(shown, self.mirror_group)

    @property
    def _key(self) -> bytes:
        return str(self.producer.config.transactional_id).encode()


@documented_by(AsyncSnapshotStore)
class SnapshotStore:
    """As AsyncSnapshotStore, but each call waits; `producer` is a blocking Producer.

    >>> with SnapshotStore.open(transactional_id="totals-0", incremental=("o", 0), full=("s", 0)) as store:
    ...     with store.transaction({TopicPartition("orders", 0): 43}):
    ...         store.producer.send("totals", b"...")
    """

    def __init__(self, key: object, producer: Producer, inner: AsyncSnapshotStore) -> None:
        if key is not _OPENED:
            raise OttlaError("a snapshot store is opened, not made", f"Use {type(self).__name__}.open(…).")
        self.producer = producer
        self.restored = inner.restored
        self._async = inner

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
        producer = Producer(settings, transactional_id=transactional_id, **keywords)
        places = TopicPartition(*incremental), TopicPartition(*full)
        try:
            producer.init_transactions()
            found = _io.call(_restore(producer._async, *places, mirror_group))
        except BaseException:
            producer.close(timeout_ms=0)
            raise
        return cls(_OPENED, producer, AsyncSnapshotStore(_OPENED, producer._async, *places, found, mirror_group))

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next input records to consume, as of the last commit."""
        return self._async.offsets

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.producer.close()

    @contextlib.contextmanager
    def transaction(self, offsets: Mapping[Any, int]) -> Iterator[None]:
        following = {**self.offsets, **_partitions(offsets)}
        with self.producer.transaction():
            yield
            _io.call(self._async._send_incremental(following, self._async._full_offset))
        self._async.offsets = following

    def save_full(self, state: bytes) -> None:
        _io.call(self._async.save_full(state))


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
        clock=producer._clock,
    )
    async with reader:
        last = await _last_record(reader, incremental)
        if last is None:
            return _Found(Restored({}, None, {}), NO_SNAPSHOT)
        offsets, full_offset = _decode_incremental(last, incremental)
        if full_offset == NO_SNAPSHOT:
            return _Found(Restored(offsets, None, {}), NO_SNAPSHOT)
        snapshot = await _record_at(reader, full, full_offset)
        headers = dict(snapshot.headers)
        if OFFSETS_HEADER not in headers:
            raise OttlaError(f"the record at offset {full_offset} of {full} is no full snapshot")
        state_offsets = _from_topics(json.loads(headers[OFFSETS_HEADER] or b"{}"))
        return _Found(Restored(offsets, snapshot.value, state_offsets), full_offset)


async def _check_mirror(producer: AsyncProducer, group: str) -> None:
    """A group whose offsets somebody reads back must not be written over."""
    admin = AsyncGroupAdmin()
    admin._network = producer._network
    for partition, committed in (await admin.list_group_offsets(group)).items():
        if committed.metadata != MARK:
            raise OttlaError(
                f"group {group} has offsets of its own ({partition} at {committed.offset}), which are not replaced",
                "Name a group for mirror_group= that nothing else uses.",
            )


async def _last_record(reader: AsyncConsumer, place: TopicPartition) -> ConsumerRecord | None:
    """The last committed record. Usually it is right before the end, behind it only the mark of its transaction;
    aborted transactions may lie in between, so we look further and further back."""
    await reader.assign([place])
    (beginning,) = (await reader.beginning_offsets([place])).values()
    (end,) = (await reader.end_offsets([place])).values()
    step, upper = 2, end
    while upper > beginning:
        lower = max(beginning, end - step)
        found = await read_between(reader, place, lower, end)
        if found:
            return found[-1]
        upper, step = lower, step * 4
    return None


async def _record_at(reader: AsyncConsumer, place: TopicPartition, offset: int) -> ConsumerRecord:
    await reader.assign([place])
    (beginning,) = (await reader.beginning_offsets([place])).values()
    found = await read_between(reader, place, offset, offset + 1) if offset >= beginning else []
    if not found or found[0].offset != offset:
        raise OttlaError(
            f"the full snapshot at offset {offset} of {place} is gone",
            "Let the topic keep at least the latest record of each key: cleanup.policy=compact.",
        )
    return found[0]


async def read_between(reader: AsyncConsumer, place: TopicPartition, start: int, end: int) -> list[ConsumerRecord]:
    """The committed records from `start` to `end`. Raises when nothing has come for `default.api.timeout.ms`."""
    network, patience_ms = reader._network, reader.config.default_api_timeout_ms
    await reader.seek(place, start)
    found: list[ConsumerRecord] = []
    position, moved_at = start, network.now()
    while position < end:
        found += [record for record in await reader.poll(100) if record.offset < end]
        before, position = position, await reader.position(place)
        if position != before:
            moved_at = network.now()
        elif network.now() >= moved_at + patience_ms:
            raise network.out_of_time(patience_ms, f"reading {place} at offset {position}")
    return found


# --- what the records say ---------------------------------------------------------------------------------------


def _decode_incremental(record: ConsumerRecord, place: TopicPartition) -> tuple[dict[TopicPartition, int], int]:
    try:
        stored = json.loads(record.value or b"")
        if stored["format"] != FORMAT:
            raise ValueError(f"format {stored['format']}")
        return _from_topics(stored["offsets"]), int(stored["full"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OttlaError(
            f"the record at offset {record.offset} of {place} is no incremental snapshot: {error}",
            "Nothing else may be written to that partition.",
        ) from error


def _encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return json.dumps(_by_topic(offsets)).encode()


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(offsets.items()):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return topics


def _from_topics(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(name, int(index)): int(at) for name, places in topics.items() for index, at in places.items()
    }


def _partitions(offsets: Mapping[Any, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*partition): offset for partition, offset in offsets.items()}
