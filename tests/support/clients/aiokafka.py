"""aiokafka: the oldest of the foreign protocol generations still in wide use."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

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

T = TypeVar("T")


def _name(error: BaseException) -> str:
    return error_name(getattr(error, "errno", -1), type(error).__name__)


class AioKafka(ForeignClient):
    name = "aiokafka"

    def unavailable(self) -> str | None:
        try:
            import aiokafka  # noqa: F401
        except ImportError:
            return "aiokafka is not installed"
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
        return asyncio.run(
            _produce(
                bootstrap,
                topic,
                messages,
                partition,
                acks="all" if acks == "all" else int(acks),
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                max_request_size=max_request_bytes,
            )
        )

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, start: int = 0) -> list[Received]:
        return asyncio.run(_consume(bootstrap, topic, count, partition, start))

    def _with_admin(self, bootstrap: str, call: Callable[[Any], Awaitable[T]]) -> T:
        from aiokafka.admin import AIOKafkaAdminClient
        from aiokafka.errors import KafkaError

        async def run() -> T:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=int(TIMEOUT_S * 1000))
            await admin.start()
            try:
                return await call(admin)
            except KafkaError as failure:
                raise ClientError(_name(failure), str(failure)) from None
            finally:
                await admin.close()

        return asyncio.run(run())

    def create_topic(
        self, bootstrap: str, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        from aiokafka.admin import NewTopic

        wanted = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        answer = self._with_admin(bootstrap, lambda admin: admin.create_topics([wanted]))
        return _outcome(answer.topic_errors[0][1])

    def delete_topic(self, bootstrap: str, topic: str) -> str:
        answer = self._with_admin(bootstrap, lambda admin: admin.delete_topics([topic]))
        return _outcome(answer.topic_error_codes[0][1])

    def create_partitions(self, bootstrap: str, topic: str, count: int) -> str:
        from aiokafka.admin import NewPartitions

        wanted = {topic: NewPartitions(count)}
        try:
            answer = self._with_admin(bootstrap, lambda admin: admin.create_partitions(wanted))
        except ClientError as failure:
            return failure.name
        return _outcome(answer.topic_errors[0][1])

    def partition_count(self, bootstrap: str, topic: str) -> int | str:
        described = self._with_admin(bootstrap, lambda admin: admin.describe_topics([topic]))[0]
        if described["error_code"]:
            return error_name(described["error_code"], "unknown")
        return len(described["partitions"])

    def topics(self, bootstrap: str) -> set[str]:
        return set(self._with_admin(bootstrap, lambda admin: admin.list_topics()))

    def describe_config(self, bootstrap: str, topic: str) -> dict[str, tuple[str | None, bool]]:
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        answers = self._with_admin(bootstrap, lambda admin: admin.describe_configs([resource]))
        code, _, _, _, entries = answers[0].resources[0]
        if code:
            raise ClientError(error_name(code, str(code)))
        # DescribeConfigs v1 and later: name, value, read only, source (5: default), sensitive, synonyms.
        return {entry[0]: (entry[1], entry[3] == 5) for entry in entries}

    def alter_config(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> str:
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        answers = self._with_admin(bootstrap, lambda admin: admin.alter_configs([resource]))
        return _outcome(answers[0].resources[0][0])

    def delete_records(self, bootstrap: str, topic: str, before: int, *, partition: int = 0) -> int:
        from aiokafka import TopicPartition
        from aiokafka.admin import RecordsToDelete

        wanted = TopicPartition(topic, partition)
        answer = self._with_admin(bootstrap, lambda admin: admin.delete_records({wanted: RecordsToDelete(before)}))
        return int(answer[wanted])

    def list_offsets(
        self, bootstrap: str, topic: str, specs: Iterable[str | int], *, partition: int = 0
    ) -> dict[str | int, Found]:
        return asyncio.run(_list_offsets(bootstrap, topic, list(specs), partition))


async def _produce(
    bootstrap: str, topic: str, messages: Sequence[Message], partition: int | None, **settings: Any
) -> list[int | str]:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, request_timeout_ms=int(TIMEOUT_S * 1000), linger_ms=5, **settings
    )
    results: list[int | str] = []
    await producer.start()
    try:
        futures: list[Any] = []
        for message in messages:
            try:
                futures.append(
                    await producer.send(
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
        for future in futures:
            try:
                if isinstance(future, Exception):
                    raise future
                metadata = await asyncio.wait_for(future, TIMEOUT_S)
                results.append(-1 if metadata is None else metadata.offset)
            except KafkaError as failure:
                results.append(_name(failure))
    finally:
        await producer.stop()
    return results


async def _consume(bootstrap: str, topic: str, count: int, partition: int, start: int) -> list[Received]:
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.errors import KafkaError

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        fetch_max_wait_ms=100,
    )
    received: list[Received] = []
    await consumer.start()
    try:
        wanted = TopicPartition(topic, partition)
        consumer.assign([wanted])
        consumer.seek(wanted, start)
        deadline = time.monotonic() + TIMEOUT_S
        while len(received) < count and time.monotonic() < deadline:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                received.extend(
                    Received(r.offset, r.timestamp, r.key, r.value, tuple((n, v) for n, v in r.headers))
                    for r in records
                )
    except KafkaError as failure:
        raise ClientError(_name(failure), str(failure)) from None
    finally:
        await consumer.stop()
    return received


async def _list_offsets(bootstrap: str, topic: str, specs: list[str | int], partition: int) -> dict[str | int, Found]:
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.errors import KafkaError

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    wanted = TopicPartition(topic, partition)
    found: dict[str | int, Found] = {}
    await consumer.start()
    try:
        for spec in specs:
            if spec == "earliest":
                found[spec] = Found((await consumer.beginning_offsets([wanted]))[wanted])
            elif spec == "latest":
                found[spec] = Found((await consumer.end_offsets([wanted]))[wanted])
            else:
                by_time = (await consumer.offsets_for_times({wanted: spec}))[wanted]
                found[spec] = Found(by_time.offset, by_time.timestamp) if by_time else Found(-1)
    except KafkaError as failure:
        raise ClientError(_name(failure), str(failure)) from None
    finally:
        await consumer.stop()
    return found


def _outcome(code: int) -> str:
    return "ok" if code == 0 else error_name(code, str(code))
