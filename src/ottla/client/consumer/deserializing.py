"""Consumers that hand out objects: keys and values go through functions of the user's own."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, overload

from ottla.client.blocking import Consumer
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.consumer.positions import PartitionState
from ottla.client.core.model import ConsumerRecord, Headers, Records
from ottla.errors import OttlaError
from ottla.types import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class DeserializedRecord(NamedTuple, Generic[K, V]):
    """One record with the place it came from, its key and value as objects. None stays None (a tombstone)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
    headers: Headers


class RecordDeserializationError(OttlaError):
    """A user's function failed on a record. It was not consumed: poll() comes to it again, unless one seeks past it.

    >>> except RecordDeserializationError as error:
    ...     consumer.seek(error.topic_partition, error.offset + 1)
    """

    def __init__(self, record: ConsumerRecord, part: str, cause: Exception) -> None:
        self.record = record
        """As it is stored, in bytes."""
        self.part = part
        """"key" or "value"."""
        self.topic_partition = TopicPartition(record.topic, record.partition)
        self.offset = record.offset
        where = f"{self.topic_partition} at offset {record.offset}"
        super().__init__(
            f"the {part} of {where} cannot be deserialized: {type(cause).__name__}: {cause}",
            "consumer.seek(error.topic_partition, error.offset + 1) goes past it.",
        )
        self.__cause__ = cause


class _Deserializers(Generic[K, V]):
    """Applies the two functions, and keeps the failure that the next call has to raise."""

    def __init__(self, key: Callable[[bytes], Any] | None, value: Callable[[bytes], Any] | None) -> None:
        for name, function in (("key_deserializer", key), ("value_deserializer", value)):
            if function is not None and not callable(function):
                raise OttlaError(f"{name} is not a function: {function!r}", "It is called with bytes.")
        self._key = key
        self._value = value
        self._failure: RecordDeserializationError | None = None

    def raise_failure(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Raises it, if the consumer is still where it happened. Whoever was sent elsewhere has no use for it."""
        failure, self._failure = self._failure, None
        if failure is None:
            return
        state = states.get(failure.topic_partition)
        if state is not None and state.position == failure.offset and not state.is_paused:
            raise failure

    def one(self, record: ConsumerRecord) -> DeserializedRecord[K, V]:
        key: Any = record.key
        value: Any = record.value
        part = "key"
        try:
            if self._key is not None and key is not None:
                key = self._key(key)
            part = "value"
            if self._value is not None and value is not None:
                value = self._value(value)
        except Exception as error:
            raise RecordDeserializationError(record, part, error) from error
        return DeserializedRecord(*record[:4], key, value, record.headers)

    def all(self, records: Records) -> tuple[list[DeserializedRecord[K, V]], dict[TopicPartition, int]]:
        """What can be read, and where partitions with a record that cannot have to go back to."""
        read: list[DeserializedRecord[K, V]] = []
        back: dict[TopicPartition, int] = {}
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if partition in back:
                continue  # it comes after the one that cannot be read
            try:
                read.append(self.one(record))
            except RecordDeserializationError as failure:
                back[partition] = failure.offset
                self._failure = self._failure or failure
        return read, back


class DeserializingConsumer(Consumer, Generic[K, V]):
    """A Consumer whose poll() and iterator give objects. The functions get bytes, and run in the calling thread.

    What came before a record that cannot be read is given out first; then poll() raises RecordDeserializationError.

    >>> with DeserializingConsumer({"bootstrap.servers": "127.0.0.1:9092"}, value_deserializer=json.loads) as consumer:
    ...     consumer.assign([("orders", 0)])
    ...     for record in consumer.poll(1000):
    ...         print(record.value["customer"])
    """

    @overload
    def __init__(
        self: "DeserializingConsumer[K, V]",
        settings: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        **keywords: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: "DeserializingConsumer[bytes, V]",
        settings: Mapping[str, Any] | None = None,
        *,
        value_deserializer: Callable[[bytes], V],
        **keywords: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: "DeserializingConsumer[K, bytes]",
        settings: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], K],
        **keywords: Any,
    ) -> None: ...

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
        **keywords: Any,
    ) -> None:
        self._deserializers: _Deserializers[K, V] = _Deserializers(key_deserializer, value_deserializer)
        super().__init__(settings, **keywords)

    def poll(  # type: ignore[override]
        self, timeout_ms: int = 0, *, max_records: int | None = None
    ) -> list[DeserializedRecord[K, V]]:
        """As Consumer.poll(), in a list."""
        self._deserializers.raise_failure(self._async._positions.states)
        records = super().poll(timeout_ms, max_records=max_records)
        try:
            read, back = self._deserializers.all(records)
        except BaseException:  # Ctrl-C: none of them has reached the caller
            for partition, batch in records.by_partition.items():
                self.seek(partition, batch[0].offset)
            raise
        for partition, offset in back.items():
            self.seek(partition, offset)
        if not read:
            self._deserializers.raise_failure(self._async._positions.states)
        return read

    def __iter__(self) -> Iterator[DeserializedRecord[K, V]]:  # type: ignore[override]
        for record in super().__iter__():
            try:
                read = self._deserializers.one(record)
            except BaseException:  # or Ctrl-C: it has not reached the caller
                self.seek((record.topic, record.partition), record.offset)
                raise
            yield read


class AsyncDeserializingConsumer(AsyncConsumer, Generic[K, V]):
    """The same for asyncio. The functions are plain ones and run on the loop, so they should be quick.

    >>> async with AsyncDeserializingConsumer(group_id="billing", value_deserializer=json.loads) as consumer:
    ...     await consumer.subscribe(["orders"])
    ...     async for record in consumer:
    ...         print(record.value["customer"])
    """

    @overload
    def __init__(
        self: "AsyncDeserializingConsumer[K, V]",
        settings: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        **keywords: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: "AsyncDeserializingConsumer[bytes, V]",
        settings: Mapping[str, Any] | None = None,
        *,
        value_deserializer: Callable[[bytes], V],
        **keywords: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: "AsyncDeserializingConsumer[K, bytes]",
        settings: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], K],
        **keywords: Any,
    ) -> None: ...

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
        **keywords: Any,
    ) -> None:
        self._deserializers: _Deserializers[K, V] = _Deserializers(key_deserializer, value_deserializer)
        super().__init__(settings, **keywords)

    async def poll(  # type: ignore[override]
        self, timeout_ms: int = 0, *, max_records: int | None = None
    ) -> list[DeserializedRecord[K, V]]:
        """As AsyncConsumer.poll(), in a list."""
        self._deserializers.raise_failure(self._positions.states)
        read, back = self._deserializers.all(await super().poll(timeout_ms, max_records=max_records))
        for partition, offset in back.items():
            await self.seek(partition, offset)
        if not read:
            self._deserializers.raise_failure(self._positions.states)
        return read

    async def __aiter__(self) -> AsyncIterator[DeserializedRecord[K, V]]:  # type: ignore[override]
        async for record in super().__aiter__():
            try:
                yield self._deserializers.one(record)
            except RecordDeserializationError as failure:
                await self.seek(failure.topic_partition, failure.offset)
                raise
