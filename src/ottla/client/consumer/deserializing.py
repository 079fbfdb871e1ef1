"""AsyncDeserializingConsumer: returns objects, deserialized from keys and values by functions of the user."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, Unpack, overload

from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.consumer.positions import PartitionState
from ottla.client.core.arguments import Timeout, check_callable, parameters_by_name
from ottla.client.core.interceptors import ConsumerInterceptor
from ottla.client.core.metrics import Metrics
from ottla.client.core.model import ConsumerRecord, Headers, Records
from ottla.client.core.setting_types import ConsumerSettings
from ottla.errors import OttlaError
from ottla.types import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class DeserializedRecord(NamedTuple, Generic[K, V]):
    """One record with its topic, partition and offset, and its key and value as objects. None stays None."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K | None
    value: V | None
    headers: Headers


class RecordDeserializationError(OttlaError):
    """A deserializer failed on a record. The record was not consumed: poll() returns to it unless you seek past it.

    >>> except RecordDeserializationError as error:
    ...     consumer.seek(error.topic_partition, error.offset + 1)
    """

    def __init__(self, record: ConsumerRecord, part: str, cause: Exception) -> None:
        self.record = record
        """The record as stored, in bytes."""
        self.part = part
        """"key" or "value"."""
        self.topic_partition = TopicPartition(record.topic, record.partition)
        self.offset = record.offset
        where = f"{self.topic_partition} at offset {record.offset}"
        super().__init__(
            f"the {part} of {where} cannot be deserialized: {type(cause).__name__}: {cause}",
            "Skip it with consumer.seek(error.topic_partition, error.offset + 1).",
        )
        self.__cause__ = cause


class Deserializers(Generic[K, V]):
    """The two functions, and the failure that the next call has to raise."""

    def __init__(self, key: Callable[..., Any] | None, value: Callable[..., Any] | None) -> None:
        for name, function in (("key_deserializer", key), ("value_deserializer", value)):
            check_callable(function, name, "It is called with bytes.")
        self._key = key
        self._value = value
        self._key_names = () if key is None else parameters_by_name(key)
        self._value_names = () if value is None else parameters_by_name(value)
        self._failure: RecordDeserializationError | None = None

    def raise_failure(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Raises the failure, unless the consumer has been moved elsewhere since."""
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
                key = self._key(key, **_named(record, self._key_names)) if self._key_names else self._key(key)
            part = "value"
            if self._value is not None and value is not None:
                names = self._value_names
                value = self._value(value, **_named(record, names)) if names else self._value(value)
        except Exception as error:
            raise RecordDeserializationError(record, part, error) from error
        return DeserializedRecord(*record[:4], key, value, record.headers)

    def all(self, records: Records) -> tuple[list[DeserializedRecord[K, V]], dict[TopicPartition, int]]:
        """The deserialized records, and the offsets to seek back to in partitions with a record that failed."""
        read: list[DeserializedRecord[K, V]] = []
        back: dict[TopicPartition, int] = {}
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if partition in back:
                continue  # it comes after the record that failed
            try:
                read.append(self.one(record))
            except RecordDeserializationError as failure:
                back[partition] = failure.offset
                self._failure = self._failure or failure
        return read, back


def _named(record: ConsumerRecord, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


class DeserializingArguments(ConsumerSettings, total=False):
    """The keyword arguments that are passed on to the consumer."""

    interceptors: Iterable[ConsumerInterceptor]
    on_statistics: Callable[[Metrics], Any] | None


class AsyncDeserializingConsumer(AsyncConsumer, Generic[K, V]):
    """An AsyncConsumer whose poll() and iterator return objects. The functions take bytes, and should be fast.

    A deserializer with parameters named `topic` or `headers` gets them too.

    Records before one that cannot be deserialized are returned first; then poll() raises RecordDeserializationError.

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
        key_deserializer: Callable[..., K],
        value_deserializer: Callable[..., V],
        **keywords: Unpack[DeserializingArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: "AsyncDeserializingConsumer[bytes, V]",
        settings: Mapping[str, Any] | None = None,
        *,
        value_deserializer: Callable[..., V],
        **keywords: Unpack[DeserializingArguments],
    ) -> None: ...

    @overload
    def __init__(
        self: "AsyncDeserializingConsumer[K, bytes]",
        settings: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[..., K],
        **keywords: Unpack[DeserializingArguments],
    ) -> None: ...

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        key_deserializer: Callable[..., Any] | None = None,
        value_deserializer: Callable[..., Any] | None = None,
        **keywords: Unpack[DeserializingArguments],
    ) -> None:
        self._deserializers: Deserializers[K, V] = Deserializers(key_deserializer, value_deserializer)
        super().__init__(settings, **keywords)

    async def poll(  # type: ignore[override]
        self, timeout_ms: Timeout = 0, *, max_records: int | None = None
    ) -> list[DeserializedRecord[K, V]]:
        """As AsyncConsumer.poll(), but returns a list of deserialized records."""
        self._deserializers.raise_failure(self._positions.states)
        read, back = self._deserializers.all(await super().poll(timeout_ms, max_records=max_records))
        for partition, offset in back.items():
            await self.seek(partition, offset)
        if not read:
            self._deserializers.raise_failure(self._positions.states)
        return read

    async def __aiter__(self) -> AsyncIterator[DeserializedRecord[K, V]]:  # type: ignore[override]
        """Yields record after record, and waits for new ones forever."""
        async for record in super().__aiter__():
            try:
                yield self._deserializers.one(record)
            except RecordDeserializationError as failure:
                await self.seek(failure.topic_partition, failure.offset)
                raise
