"""Transactions of other clients behind one small interface, so that one script runs with each of them.

Errors are ClientError under Kafka's published name, or under the client's own where it hides that.
"""

import asyncio
import base64
import contextlib
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from tests.support.clients import TIMEOUT_S, ClientError, error_name
from tests.support.waiting import slowness, stretched


class TransactionalClient:
    """One transactional producer of one client library."""

    def init(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        raise NotImplementedError

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Sends and waits for all of them."""
        raise NotImplementedError

    def send_offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class ConfluentTransactions(TransactionalClient):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        from confluent_kafka import Producer

        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                # librdkafka requires delivery reports to be served within the transaction.
                "message.timeout.ms": timeout_ms,
                "linger.ms": 1,
                "log_level": 0,
            }
        )

    def _call(self, method: Any, *arguments: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return method(*arguments)
        except (KafkaException, SystemError) as failure:
            # A fatal error that comes up while a callback runs is raised wrapped.
            cause = failure if isinstance(failure, KafkaException) else failure.__cause__ or failure.__context__
            if not isinstance(cause, KafkaException):
                raise
            error = cause.args[0]
            raise ClientError(_confluent_name(error), error.str()) from None

    def init(self) -> None:
        self._call(self._producer.init_transactions, TIMEOUT_S)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        failures: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for value in values:
            self._call(lambda v: self._producer.produce(topic, v, partition=partition, on_delivery=delivered), value)
        self._call(self._producer.flush, TIMEOUT_S)
        if failures:
            raise ClientError(_confluent_name(failures[0]), failures[0].str())

    def send_offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group, "log_level": 0})
        try:
            self._call(
                self._producer.send_offsets_to_transaction,
                [TopicPartition(topic, partition, offset)],
                consumer.consumer_group_metadata(),
                TIMEOUT_S,
            )
        finally:
            consumer.close()

    def commit(self) -> None:
        self._call(self._producer.commit_transaction, TIMEOUT_S)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction, TIMEOUT_S)

    def close(self) -> None:
        del self._producer


def _confluent_name(error: Any) -> str:
    """Kafka's name; librdkafka's own for the codes below zero that it made up."""
    return error_name(error.code(), error.name()) if error.code() >= 0 else str(error.name())


class KafkaPythonTransactions(TransactionalClient):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        from kafka import KafkaProducer

        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=1,
            max_block_ms=int(TIMEOUT_S * 1000),
            bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
        )

    def _call(self, method: Any, *arguments: Any) -> Any:
        from kafka.errors import KafkaError

        try:
            return method(*arguments)
        except KafkaError as failure:
            raise ClientError(_kafka_python_name(failure), str(failure)) from None

    def init(self) -> None:
        self._call(self._producer.init_transactions)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        futures = [self._call(lambda v: self._producer.send(topic, v, partition=partition), v) for v in values]
        for future in futures:
            self._call(future.get, TIMEOUT_S)

    def send_offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        offsets = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._call(self._producer.send_offsets_to_transaction, offsets, group)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=1)


def _kafka_python_name(failure: Any) -> str:
    cause = failure
    for _ in range(5):
        if isinstance(getattr(cause, "errno", None), int) and cause.errno > 0:
            return error_name(cause.errno, type(failure).__name__)
        cause = cause.__cause__ or (cause.args[0] if cause.args and isinstance(cause.args[0], Exception) else None)
        if cause is None:
            break
    return type(failure).__name__


class AioKafkaTransactions(TransactionalClient):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        from aiokafka import AIOKafkaProducer

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> Any:
            return AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )

        self._producer = self._call(make())

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        from aiokafka.errors import KafkaError

        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)
        except KafkaError as failure:
            raise ClientError(_kafka_python_name(failure), str(failure)) from None

    def init(self) -> None:
        self._call(self._producer.start())

    def begin(self) -> None:
        self._call(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        async def send() -> None:
            futures = [await self._producer.send(topic, value, partition=partition) for value in values]
            for future in futures:
                await future

        self._call(send())

    def send_offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        from aiokafka.structs import OffsetAndMetadata, TopicPartition

        offsets = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "")}
        self._call(self._producer.send_offsets_to_transaction(offsets, group))

    def commit(self) -> None:
        self._call(self._producer.commit_transaction())

    def abort(self) -> None:
        self._call(self._producer.abort_transaction())

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with contextlib.suppress(Exception):  # closing a fenced producer raises
            asyncio.run_coroutine_threadsafe(self._producer.stop(), self._loop).result(5)
        asyncio.run_coroutine_threadsafe(_cancel_other_tasks(), self._loop).result(TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


async def _cancel_other_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class JavaTransactions(TransactionalClient):
    _handles = 0

    def __init__(self, java: Any, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        JavaTransactions._handles += 1
        self._java, self._bootstrap = java, bootstrap
        self._handle = f"producer {JavaTransactions._handles}"
        limit_ms = int(TIMEOUT_S * 1000)
        self._call(
            "open",
            config={
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "max.block.ms": limit_ms,
                "request.timeout.ms": limit_ms // 2,
                "delivery.timeout.ms": limit_ms,
                "linger.ms": 1,
            },
        )

    def _call(self, op: str, **arguments: Any) -> Any:
        return self._java.call(f"txn_{op}", self._bootstrap, handle=self._handle, **arguments)

    def init(self) -> None:
        self._call("init")

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        encoded = [base64.b64encode(value).decode() for value in values]
        self._call("send", topic=topic, partition=partition, values=encoded)

    def send_offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        self._call("offsets", group=group, topic=topic, partition=partition, offset=offset)

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def close(self) -> None:
        self._call("close")


def open_transactional(client: Any, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> Any:
    """A transactional producer of this client library."""
    if client.name == "java":
        return JavaTransactions(client, bootstrap, transactional_id, timeout_ms)
    made = {
        "confluent-kafka": ConfluentTransactions,
        "kafka-python": KafkaPythonTransactions,
        "aiokafka": AioKafkaTransactions,
    }
    return made[client.name](bootstrap, transactional_id, timeout_ms)


def read_committed(client: Any, bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    """What a read_committed consumer of the client sees of a partition, from its start to its current end."""
    if client.name == "java":
        end = client.call(
            "positions", bootstrap, topic=topic, partition=partition, config={"isolation.level": "read_committed"}
        )["latest"]
        return _read_java(client, bootstrap, topic, partition, end)
    if client.name == "kafka-python":
        return _read_kafka_python(bootstrap, topic, partition)
    if client.name == "aiokafka":
        return asyncio.run(_read_aiokafka(bootstrap, topic, partition))
    return _read_confluent(bootstrap, topic, partition)


def _read_java(java: Any, bootstrap: str, topic: str, partition: int, end: int) -> list[bytes]:
    # It stops after `count` records, and control records do not count: the timeout stops it after the last record. On a
    # busy machine that may be too early, so a longer look must find the same.
    def look(timeout_ms: int) -> list[bytes]:
        records = java.call(
            "consume",
            bootstrap,
            topic=topic,
            partition=partition,
            start=0,
            count=end,
            timeout_ms=timeout_ms,
            config={"isolation.level": "read_committed", "auto.offset.reset": "none", "fetch.max.wait.ms": 100},
        )
        return [base64.b64decode(record["value"]) for record in records]

    if slowness() < 2:
        return look(1_500)
    found, timeout_ms = look(1_500), stretched(3_000)
    while (again := look(timeout_ms)) != found:
        found, timeout_ms = again, 2 * timeout_ms
    return found


def _read_confluent(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return found
                raise ClientError(_confluent_name(error))
            found.append(message.value() or b"")
    finally:
        consumer.close()
    raise ClientError("TIMED_OUT", f"no end after {len(found)} records")


def _read_kafka_python(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    from kafka import KafkaConsumer, TopicPartition

    where = TopicPartition(topic, partition)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        group_id=None,
        bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
    )
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.assign([where])
        consumer.seek(where, 0)
        end = consumer.end_offsets([where])[where]
        while consumer.position(where) < end:
            if time.monotonic() > deadline:
                raise ClientError("TIMED_OUT", f"position {consumer.position(where)} of {end}")
            found += [record.value for records in consumer.poll(500).values() for record in records]
        return found
    finally:
        consumer.close()


async def _read_aiokafka(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.structs import TopicPartition

    where = TopicPartition(topic, partition)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False)
    await consumer.start()
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.assign([where])
        consumer.seek(where, 0)
        end = (await consumer.end_offsets([where]))[where]
        while await consumer.position(where) < end:
            if time.monotonic() > deadline:
                raise ClientError("TIMED_OUT", f"position {await consumer.position(where)} of {end}")
            batches = await consumer.getmany(timeout_ms=500)
            found += [record.value or b"" for records in batches.values() for record in records]
        return found
    finally:
        await consumer.stop()
