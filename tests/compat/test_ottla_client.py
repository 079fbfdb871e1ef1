"""Ottla's own client against Ottla and against Apache Kafka: the same calls, the same outcomes."""

from collections.abc import Callable
from typing import Any

import pytest

from ottla import Admin, Consumer, ErrorCode, KafkaError, Producer
from ottla.client.core.model import EARLIEST, LATEST, MAX_TIMESTAMP
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture
def admin(broker: Any) -> Any:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


def read_all(bootstrap: str, topic: str, **settings: Any) -> list[Any]:
    partition = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([partition])
        (end,) = consumer.end_offsets([partition]).values()
        records: list[Any] = []
        for _ in range(200):
            if consumer.position(partition) >= end:
                return records
            records.extend(consumer.poll(1_000))
        raise AssertionError(f"stuck at {consumer.position(partition)} of {end}")


def take(consumer: Consumer, count: int) -> list[Any]:
    """At least `count` records: all that were polled up to then."""
    records: list[Any] = []

    def enough() -> bool:
        records.extend(consumer.poll(200))
        return len(records) >= count

    eventually(enough)
    return records


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(admin: Admin, broker: Any, topic: str, codec: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap, compression_type=codec, batch_size=4_000) as producer:
        sent = [producer.send(topic, f"value {i}", key=f"{i}", headers={"n": f"{i}"}) for i in range(2_000)]
    assert [delivery.result(PATIENCE_S).offset for delivery in sent] == list(range(2_000))
    records = read_all(broker.bootstrap, topic)
    assert [(r.key, r.value, r.headers) for r in records] == [
        (b"%d" % i, b"value %d" % i, (("n", b"%d" % i),)) for i in range(2_000)
    ]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(
    admin: Admin, broker: Any, topic: str, acks: str, await_leaders: Callable[..., None]
) -> None:
    admin.create_topic(topic, partitions=1)
    await_leaders(topic)  # with acks=0 there is no response that could report a rejected record
    with Producer(bootstrap_servers=broker.bootstrap, acks=acks) as producer:
        for i in range(100):
            producer.send(topic, f"{i}")
    settings = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest"}
    with Consumer(None, **settings) as consumer:
        consumer.assign([(topic, 0)])
        assert [int(record.value) for record in take(consumer, 100)] == list(range(100))


def test_aborted_transactions_of_other_clients_are_not_read(admin: Admin, broker: Any, topic: str) -> None:
    """Spec: E8. The transactions are written by librdkafka."""
    from confluent_kafka import Producer as Librdkafka

    admin.create_topic(topic, partitions=1)
    writer = Librdkafka({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    writer.init_transactions(60)
    for number in range(6):
        writer.begin_transaction()
        for part in range(3):
            writer.produce(topic, f"{number}-{part}".encode())
        writer.flush(PATIENCE_S)  # so that records are stored before they are aborted
        if number % 2:
            writer.abort_transaction(60)
        else:
            writer.commit_transaction(60)
    committed = [r.value.decode() for r in read_all(broker.bootstrap, topic, isolation_level="read_committed")]
    everything = [r.value.decode() for r in read_all(broker.bootstrap, topic)]
    assert committed == [f"{number}-{part}" for number in (0, 2, 4) for part in range(3)]
    assert everything == [f"{number}-{part}" for number in range(6) for part in range(3)]


def test_offsets_by_position_and_by_time(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(10):
            producer.send(topic, f"{i}", timestamp=1_700_000_000_000 + i * 1_000)
    for wanted, offset in [(EARLIEST, 0), (LATEST, 10), (MAX_TIMESTAMP, 9), (1_700_000_003_500, 4)]:
        found = admin.list_offsets({partition: wanted})[partition]
        assert found is not None
        assert found.offset == offset
    assert admin.list_offsets({partition: 1_800_000_000_000})[partition] is None
    assert admin.delete_records({partition: 6}) == {partition: 6}
    assert [int(record.value) for record in read_all(broker.bootstrap, topic)] == [6, 7, 8, 9]


def test_topics_and_their_settings(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2, configs={"retention.ms": "60000"})
    admin.create_partitions({topic: 4})
    eventually(lambda: len(admin.describe_topics([topic])[0].partitions) == 4)
    admin.alter_configs("topic", topic, {"retention.ms": None, "segment.bytes": "1048576"})

    def changed() -> dict[str, str | None]:
        return {entry.name: entry.value for entry in admin.describe_configs("topic", topic) if entry.source == "topic"}

    eventually(lambda: changed() == {"segment.bytes": "1048576"})
    admin.delete_topics([topic])
    eventually(lambda: topic not in [known.name for known in admin.list_topics()])
    with pytest.raises(KafkaError) as caught:
        admin.describe_topics([topic])
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("mistake", "code"),
    [
        (lambda admin, topic: admin.create_topic("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda admin, topic: admin.create_topic(topic), ErrorCode.TOPIC_ALREADY_EXISTS),
        (lambda admin, topic: admin.create_topic("x", replication_factor=9), ErrorCode.INVALID_REPLICATION_FACTOR),
        (lambda admin, topic: admin.create_topic("x", configs={"no": "1"}), ErrorCode.INVALID_CONFIG),
        (lambda admin, topic: admin.create_partitions({topic: 1}), ErrorCode.INVALID_PARTITIONS),
        (lambda admin, topic: admin.delete_topics(["no-such-topic"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda admin, topic: admin.delete_records({TopicPartition(topic, 0): 99}), ErrorCode.OFFSET_OUT_OF_RANGE),
        (lambda admin, topic: admin.alter_configs("topic", topic, {"retention.ms": "x"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_mistakes_get_the_same_error_codes(
    admin: Admin, topic: str, await_leaders: Callable[..., None], mistake: Any, code: ErrorCode
) -> None:
    admin.create_topic(topic, partitions=1)
    await_leaders(topic)
    with pytest.raises(KafkaError) as caught:
        mistake(admin, topic)
    assert caught.value.code == code


def test_a_recreated_topic_is_read_from_its_beginning(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    settings = {"bootstrap.servers": broker.bootstrap, "allow.auto.create.topics": False}
    with Consumer(settings, auto_offset_reset="latest") as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.position((topic, 0)) == 0
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for i in range(5):
                producer.send(topic, f"old {i}")
        assert len(take(consumer, 5)) == 5
        admin.delete_topics([topic])
        admin.create_topic(topic, partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap) as another:
            another.send_and_wait(topic, "new")
        assert [record.value for record in take(consumer, 1)] == [b"new"]
