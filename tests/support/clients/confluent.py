"""confluent-kafka: librdkafka, the newest of the foreign protocol generations."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.support.clients import (
    MAX_REQUEST_BYTES,
    TIMEOUT_S,
    ClientError,
    ForeignClient,
    Found,
    Message,
    Received,
    error_name,
)


def _name(error: Any) -> str:
    return error_name(error.code(), error.name())


def _settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    # Clients print what they retry; tests look at outcomes only.
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "socket.timeout.ms": int(TIMEOUT_S * 1000),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class Confluent(ForeignClient):
    name = "confluent-kafka"
    offset_specs = frozenset({"earliest", "latest", "timestamp", "max_timestamp"})

    def unavailable(self) -> str | None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            return "confluent-kafka is not installed"
        return None

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int | None = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> list[int | str]:
        from confluent_kafka import KafkaException, Producer

        producer = Producer(
            _settings(
                bootstrap,
                acks=acks,
                compression_type=codec,
                enable_idempotence=idempotent,
                message_max_bytes=max_request_bytes,
                message_timeout_ms=int(TIMEOUT_S * 1000),
                linger_ms=5,
            )
        )
        results: list[int | str] = ["unanswered"] * len(messages)

        def delivered(index: int) -> Any:
            def on_delivery(error: Any, message: Any) -> None:
                if error is not None:
                    results[index] = _name(error)
                else:
                    # With acks=0 there is no offset in the response; librdkafka reports 0.
                    results[index] = -1 if acks == "0" else message.offset()

            return on_delivery

        for index, message in enumerate(messages):
            more: dict[str, Any] = {} if partition is None else {"partition": partition}
            if message.timestamp_ms is not None:
                more["timestamp"] = message.timestamp_ms
            try:
                producer.produce(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    on_delivery=delivered(index),
                    **more,
                )
            except KafkaException as failure:
                results[index] = _name(failure.args[0])
        producer.flush(TIMEOUT_S)
        return results

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, start: int = 0) -> list[Received]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            _settings(
                bootstrap,
                group_id="assigned",
                enable_auto_commit=False,
                auto_offset_reset="error",
                fetch_wait_max_ms=100,
            )
        )
        received: list[Received] = []
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            deadline = time.monotonic() + TIMEOUT_S
            while len(received) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(received), 0.2):
                    if message.error() is not None:
                        raise ClientError(_reset_cause(message.error()), str(message.error()))
                    received.append(_received(message))
        finally:
            consumer.close()
        return received

    def _admin(self, bootstrap: str) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient(_settings(bootstrap))

    def _result(self, bootstrap: str, call: Callable[..., Any]) -> Any:
        """What one administrative call gives. The client must live until its future is done."""
        from confluent_kafka import KafkaException

        admin = self._admin(bootstrap)
        try:
            return call(admin).result(TIMEOUT_S)
        except KafkaException as failure:
            raise ClientError(_name(failure.args[0]), str(failure.args[0])) from None

    def _outcome(self, bootstrap: str, call: Callable[..., Any]) -> str:
        try:
            self._result(bootstrap, call)
        except ClientError as failure:
            return failure.name
        return "ok"

    def create_topic(
        self, bootstrap: str, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
        return self._outcome(bootstrap, lambda admin: admin.create_topics([wanted])[topic])

    def delete_topic(self, bootstrap: str, topic: str) -> str:
        return self._outcome(bootstrap, lambda admin: admin.delete_topics([topic])[topic])

    def create_partitions(self, bootstrap: str, topic: str, count: int) -> str:
        from confluent_kafka.admin import NewPartitions

        wanted = NewPartitions(topic, count)
        return self._outcome(bootstrap, lambda admin: admin.create_partitions([wanted])[topic])

    def partition_count(self, bootstrap: str, topic: str) -> int | str:
        described = self._admin(bootstrap).list_topics(topic, TIMEOUT_S).topics[topic]
        return len(described.partitions) if described.error is None else _name(described.error)

    def topics(self, bootstrap: str) -> set[str]:
        return set(self._admin(bootstrap).list_topics(timeout=TIMEOUT_S).topics)

    def describe_config(self, bootstrap: str, topic: str) -> dict[str, tuple[str | None, bool]]:
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._result(bootstrap, lambda admin: admin.describe_configs([resource])[resource])
        return {name: (entry.value, entry.is_default) for name, entry in entries.items()}

    def alter_config(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> str:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        return self._outcome(bootstrap, lambda admin: admin.incremental_alter_configs([resource])[resource])

    def delete_records(self, bootstrap: str, topic: str, before: int, *, partition: int = 0) -> int:
        from confluent_kafka import TopicPartition

        wanted = TopicPartition(topic, partition, before)
        deleted = self._result(bootstrap, lambda admin: admin.delete_records([wanted])[wanted])
        return int(deleted.low_watermark)

    def list_offsets(
        self, bootstrap: str, topic: str, specs: Iterable[str | int], *, partition: int = 0
    ) -> dict[str | int, Found]:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        named: dict[str, Any] = {
            "earliest": OffsetSpec.earliest,
            "latest": OffsetSpec.latest,
            "max_timestamp": OffsetSpec.max_timestamp,
        }
        wanted = TopicPartition(topic, partition)
        found: dict[str | int, Found] = {}
        for spec in specs:
            query: Any = named[spec]() if isinstance(spec, str) else OffsetSpec.for_timestamp(spec)
            asked = {wanted: query}
            result = self._result(bootstrap, functools.partial(_list_offsets, wanted=wanted, asked=asked))
            found[spec] = Found(result.offset, result.timestamp)
        return found


def _list_offsets(admin: Any, *, wanted: Any, asked: Any) -> Any:
    return admin.list_offsets(asked)[wanted]


def _reset_cause(error: Any) -> str:
    """librdkafka wraps OFFSET_OUT_OF_RANGE into its own error when there is no reset policy."""
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return "OFFSET_OUT_OF_RANGE"
    return _name(error)


def _received(message: Any) -> Received:
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Received(message.offset(), message.timestamp()[1], message.key(), message.value(), headers)
