"""kafka-python 3: the protocol from schema tables, negotiated by ApiVersions."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


def _name(error: BaseException) -> str:
    return error_name(getattr(error, "errno", -1), type(error).__name__)


class KafkaPython(ForeignClient):
    name = "kafka-python"
    offset_specs = frozenset({"earliest", "latest", "timestamp", "max_timestamp"})

    def unavailable(self) -> str | None:
        try:
            import kafka  # noqa: F401
        except ImportError:
            return "kafka-python is not installed"
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
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            max_request_size=max_request_bytes,
            max_block_ms=int(TIMEOUT_S * 1000),
            delivery_timeout_ms=int(TIMEOUT_S * 1000),
            request_timeout_ms=int(TIMEOUT_S * 1000) - 5000,
            linger_ms=5,
            bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
        )
        results: list[int | str] = []
        try:
            futures: list[Any] = []
            for message in messages:
                try:
                    futures.append(
                        producer.send(
                            topic,
                            value=message.value,
                            key=message.key,
                            headers=list(message.headers),
                            partition=partition,
                            timestamp_ms=message.timestamp_ms,
                        )
                    )
                except KafkaError as failure:
                    futures.append(failure)
            producer.flush(timeout=TIMEOUT_S)
            for future in futures:
                try:
                    if isinstance(future, Exception):
                        raise future
                    offset = future.get(TIMEOUT_S).offset
                    # With acks=0 there is no offset in the response; it makes one up.
                    results.append(-1 if acks == "0" else offset)
                except KafkaError as failure:
                    results.append(_name(failure))
        finally:
            producer.close(timeout=TIMEOUT_S)
        return results

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, start: int = 0) -> list[Received]:
        from kafka import KafkaConsumer, TopicPartition
        from kafka.errors import KafkaError

        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
            bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
        )
        received: list[Received] = []
        try:
            wanted = TopicPartition(topic, partition)
            consumer.assign([wanted])
            consumer.seek(wanted, start)
            deadline = time.monotonic() + TIMEOUT_S
            while len(received) < count and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=200).values():
                    received.extend(
                        Received(r.offset, r.timestamp, r.key, r.value, tuple((n, v) for n, v in r.headers))
                        for r in records
                    )
        except KafkaError as failure:
            raise ClientError(_name(failure), str(failure)) from None
        finally:
            consumer.close()
        return received

    @contextmanager
    def _admin(self, bootstrap: str) -> Iterator[Any]:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError
        from kafka.net.manager import KafkaConnectionManager

        limit_ms = int(TIMEOUT_S * 1000)
        # The admin client has no setting for the ten seconds that a connection may take to open.
        KafkaConnectionManager.DEFAULT_CONFIG.update(
            socket_connection_setup_timeout_ms=limit_ms, socket_connection_setup_timeout_max_ms=limit_ms
        )
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap, request_timeout_ms=limit_ms, bootstrap_timeout_ms=limit_ms
        )
        try:
            yield admin
        except KafkaError as failure:
            raise ClientError(_name(failure), str(failure)) from None
        finally:
            admin.close()

    def create_topic(
        self, bootstrap: str, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        wanted = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs or {})}}
        with self._admin(bootstrap) as admin:
            answer = admin.create_topics(wanted, raise_errors=False)
        return _outcome(answer["topics"][0]["error_code"])

    def delete_topic(self, bootstrap: str, topic: str) -> str:
        with self._admin(bootstrap) as admin:
            answer = admin.delete_topics([topic], raise_errors=False)
        return _outcome(answer["topics"][0]["error_code"])

    def create_partitions(self, bootstrap: str, topic: str, count: int) -> str:
        with self._admin(bootstrap) as admin:
            answer = admin.create_partitions({topic: count}, raise_errors=False)
        return _outcome(answer.results[0].error_code)

    def partition_count(self, bootstrap: str, topic: str) -> int | str:
        with self._admin(bootstrap) as admin:
            described = admin.describe_topics([topic])[0]
        if described["error_code"]:
            return error_name(described["error_code"], "unknown")
        return len(described["partitions"])

    def topics(self, bootstrap: str) -> set[str]:
        with self._admin(bootstrap) as admin:
            return set(admin.list_topics())

    def describe_config(self, bootstrap: str, topic: str) -> dict[str, tuple[str | None, bool]]:
        from kafka.admin import ConfigResource

        with self._admin(bootstrap) as admin:
            described = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
        entries = (described[0] if isinstance(described, list) else described["topic"][topic]).items()
        return {name: (entry["value"], _is_default(entry)) for name, entry in entries}

    def alter_config(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> str:
        from kafka.admin import ConfigResource

        resource = ConfigResource("TOPIC", topic, dict(configs))
        try:
            with self._admin(bootstrap) as admin:
                answer = admin.alter_configs([resource], raise_on_unknown=False)
        except ClientError as failure:
            return failure.name
        # "OK", or words that begin with the number: "[Error 40] InvalidConfigurationError: …"
        outcome = str(answer["topic"][topic])
        numbered = re.match(r"\[Error (\d+)\]", outcome)
        return error_name(int(numbered[1]), outcome) if numbered else outcome.lower()

    def delete_records(self, bootstrap: str, topic: str, before: int, *, partition: int = 0) -> int:
        from kafka import TopicPartition

        wanted = TopicPartition(topic, partition)
        with self._admin(bootstrap) as admin:
            return int(admin.delete_records({wanted: before})[wanted]["low_watermark"])

    def list_offsets(
        self, bootstrap: str, topic: str, specs: Iterable[str | int], *, partition: int = 0
    ) -> dict[str | int, Found]:
        from kafka import TopicPartition

        # The protocol's own numbers; kafka-python passes them through.
        named = {"latest": -1, "earliest": -2, "max_timestamp": -3}
        wanted = TopicPartition(topic, partition)
        found: dict[str | int, Found] = {}
        with self._admin(bootstrap) as admin:
            for spec in specs:
                asked = named[spec] if isinstance(spec, str) else spec
                result = admin.list_partition_offsets({wanted: asked})[wanted]
                found[spec] = Found(result.offset, result.timestamp)
        return found


def _outcome(code: int) -> str:
    return "ok" if code == 0 else error_name(code, str(code))


def _is_default(entry: Mapping[str, Any]) -> bool:
    source = entry.get("config_source", entry.get("source"))
    return getattr(source, "name", str(source)).upper() in ("DEFAULT_CONFIG", "5")
