"""Interceptors of producers and consumers, and objects instead of bytes, with the blocking API."""

import json
from typing import Any

import pytest

from ottla import (
    Admin,
    Consumer,
    ConsumerInterceptor,
    DeserializingConsumer,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    SerializingProducer,
)
from ottla.client.core.model import Records
from ottla.errors import ArgumentError, KafkaError, OttlaError
from tests.support.waiting import PATIENCE_S, eventually


class Tracing(ProducerInterceptor):
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.done: list[Any] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.sent.append(record.value)
        return record._replace(headers=[*(record.headers or ()), ("trace", str(len(self.sent)))])

    def on_acknowledgement(self, metadata: Any, error: OttlaError | None) -> None:
        self.done.append(metadata.offset if error is None else error)


class Failing(ProducerInterceptor, ConsumerInterceptor):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise ZeroDivisionError

    def on_consume(self, records: Records) -> Records:
        return None  # type: ignore[return-value]


class Auditing(ConsumerInterceptor):
    def __init__(self) -> None:
        self.committed: dict[Any, int] = {}

    def on_consume(self, records: Records) -> Records:
        return Records({p: [r for r in batch if r.value != b"hidden"] for p, batch in records.by_partition.items()})

    def on_commit(self, offsets: Any) -> None:
        self.committed.update({partition.partition: committed.offset for partition, committed in offsets.items()})


def read(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []

    def has_all() -> bool:
        found.extend(consumer.poll(200))
        return len(found) >= count

    eventually(has_all)
    return found


@pytest.fixture
def one_partition(broker: Any, topic: str) -> str:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    return topic


def test_interceptors_see_every_record(broker: Any, one_partition: str, caplog: pytest.LogCaptureFixture) -> None:
    tracing, auditing = Tracing(), Auditing()
    with Producer(bootstrap_servers=broker.bootstrap, interceptors=[Failing(), tracing]) as producer:
        for value in (b"a", b"hidden", b"c"):
            producer.send(one_partition, value)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            producer.send(one_partition, bytes(2_000_000))
        producer.flush()
        eventually(lambda: len(tracing.done) == 4)
    assert tracing.sent[:3] == [b"a", b"hidden", b"c"]
    assert sorted(done for done in tracing.done if isinstance(done, int)) == [0, 1, 2]
    assert "on_send() of Failing failed; the record is sent unchanged" in caplog.text
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": one_partition, "auto.offset.reset": "earliest"}
    with Consumer(settings, interceptors=[Failing(), auditing]) as consumer:
        consumer.subscribe([one_partition])
        found = read(consumer, 2)
        assert [(record.value, dict(record.headers)) for record in found] == [
            (b"a", {"trace": b"1"}),
            (b"c", {"trace": b"3"}),
        ]
        consumer.commit()
        assert auditing.committed == {0: 3}, "records that were left out count as consumed"
        consumer.seek((one_partition, 0), 0)
        assert next(iter(consumer)).value == b"a"
    assert "on_consume() of Failing failed" in caplog.text


def test_only_interceptors_are_accepted() -> None:
    with pytest.raises(ArgumentError, match="not a ProducerInterceptor"):
        Producer(interceptors=[Auditing()])  # type: ignore[list-item]


def test_objects_with_the_blocking_api(broker: Any, one_partition: str) -> None:
    with SerializingProducer(bootstrap_servers=broker.bootstrap, value_serializer=json.dumps) as producer:
        producer.send(one_partition, {"n": 1}).result(PATIENCE_S)
        assert producer.send_and_wait(one_partition, {"n": 2}).offset == 1
        sent = producer.try_send(one_partition, {"n": 3})
        assert sent is not None
    settings = {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"}
    with DeserializingConsumer(settings, value_deserializer=json.loads) as consumer:
        consumer.assign([(one_partition, 0)])
        found = read(consumer, 3)
        assert [record.value["n"] for record in found] == [1, 2, 3]
