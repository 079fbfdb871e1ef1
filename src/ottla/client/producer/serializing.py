"""AsyncSerializingProducer: sends objects, serialized by functions of the user."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack

from ottla.client.core.arguments import as_headers, check_callable, parameters_by_name
from ottla.client.core.interceptors import ProducerInterceptor
from ottla.client.core.metrics import Metrics
from ottla.client.core.model import HeadersLike, RecordMetadata
from ottla.client.core.setting_types import ProducerSettings
from ottla.client.producer.partitioner import Partitioner
from ottla.client.producer.producer import AsyncProducer
from ottla.client.producer.speedups import Delivery
from ottla.errors import OttlaError, error_text_with_type


class RecordSerializationError(OttlaError):
    """A serializer failed, or returned something other than bytes or text. The record was not sent."""

    def __init__(self, topic: str, part: str, problem: str) -> None:
        self.topic = topic
        self.part = part
        """"key" or "value"."""
        super().__init__(f"the {part} of a record to {topic} cannot be serialized: {problem}")


class Serializers:
    """The two functions. Each is called with the object, and with `topic` and `headers` if it has such parameters."""

    def __init__(self, key: Callable[..., Any] | None, value: Callable[..., Any] | None) -> None:
        self._parts: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {}
        for part, function in (("key", key), ("value", value)):
            if function is None:
                continue
            check_callable(function, f"{part}_serializer", "It is called with the object.")
            self._parts[part] = function, parameters_by_name(function)

    def apply(
        self, topic: str, key: Any, value: Any, headers: HeadersLike
    ) -> tuple[Any, Any, list[tuple[str, bytes | None]] | None]:
        """Key, value and headers to send. A serializer may append to the headers, for example the id of a schema."""
        if any(names for _, names in self._parts.values()):
            changeable = list(as_headers(headers))
            made = self._one("key", topic, key, changeable), self._one("value", topic, value, changeable)
            return *made, changeable or None
        given: Any = headers
        return self._one("key", topic, key, None), self._one("value", topic, value, None), given

    def _one(self, part: str, topic: str, content: Any, headers: Any) -> Any:
        if content is None or part not in self._parts:
            return content
        function, names = self._parts[part]
        available = {"topic": topic, "headers": headers}
        try:
            made = function(content, **{name: available[name] for name in names})
        except Exception as error:
            raise RecordSerializationError(topic, part, error_text_with_type(error)) from error
        if made is not None and not isinstance(made, bytes | str | bytearray | memoryview):
            raise RecordSerializationError(topic, part, f"the serializer returned {type(made).__name__}, not bytes")
        return made


class SerializingArguments(ProducerSettings, total=False):
    """The keyword arguments that are passed on to the producer."""

    partitioner: Partitioner | None
    interceptors: Iterable[ProducerInterceptor]
    on_statistics: Callable[[Metrics], Any] | None


class AsyncSerializingProducer(AsyncProducer):
    """An AsyncProducer whose send() takes objects. None stays None, so that tombstones can be sent.

    A serializer with parameters named `topic` or `headers` gets them too; `headers` is a list that it may append to.
    send_arrow() sends columns as they are.

    >>> async with AsyncSerializingProducer(value_serializer=json.dumps) as producer:
    ...     await producer.send("orders", {"customer": 7})
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        key_serializer: Callable[..., Any] | None = None,
        value_serializer: Callable[..., Any] | None = None,
        **keywords: Unpack[SerializingArguments],
    ) -> None:
        self._serializers: Serializers = Serializers(key_serializer, value_serializer)
        super().__init__(settings, **keywords)

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = None,
    ) -> Delivery:
        """As AsyncProducer.send(), for objects. Raises RecordSerializationError if a serializer fails."""
        with self._transactional.rejections:
            made_key, made_value, made_headers = self._serializers.apply(topic, key, value, headers)
        return await super().send(
            topic, made_value, key=made_key, partition=partition, timestamp=timestamp, headers=made_headers
        )

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = None,
    ) -> RecordMetadata:
        """Sends one object and waits until it is stored: RecordMetadata(topic, partition, offset, timestamp)."""
        return await super().send_and_wait(
            topic, value, key=key, partition=partition, timestamp=timestamp, headers=headers
        )

    def try_send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: HeadersLike = None,
    ) -> Delivery | None:
        """As send(), but never waits: None if the topic is not known yet or the buffer is full. Thread-safe."""
        with self._transactional.rejections:
            made_key, made_value, made_headers = self._serializers.apply(topic, key, value, headers)
        return super().try_send(
            topic, made_value, key=made_key, partition=partition, timestamp=timestamp, headers=made_headers
        )
