"""The clients with a running broker."""

# ruff: noqa: SLF001  (sets up or checks internal state)

import asyncio
import sys
import types
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ottla import (
    Admin,
    ArgumentError,
    AsyncConsumer,
    AsyncProducer,
    Broker,
    ConfigError,
    Consumer,
    ErrorCode,
    KafkaError,
    OttlaError,
    Producer,
)
from ottla.client.core.model import EARLIEST, LATEST, MAX_TIMESTAMP, ConfigEntry, NewTopic
from ottla.protocol.records.record_batch import Codec
from ottla.types import TopicPartition
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def admin(broker: Any) -> Any:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


def read_all(bootstrap: str, topic: str, partitions: int = 1, **settings: Any) -> list[Any]:
    """Every record up to the end, in order per partition."""
    assigned = [TopicPartition(topic, i) for i in range(partitions)]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        records: list[Any] = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            records.extend(consumer.poll(5_000))
        return records


def await_topic(admin: Admin, topic: str) -> None:
    """Apache Kafka's controller answers before the broker has the new metadata."""
    eventually(lambda: topic in [known.name for known in admin.list_topics()])


# Admin


def test_a_topic_is_created_described_extended_and_deleted(admin: Admin, topic: str) -> None:
    made = admin.create_topic(topic, partitions=2, configs={"retention.ms": "60000"})
    assert (made.partitions, made.replication_factor, len(made.topic_id)) == (2, 1, 16)
    await_topic(admin, topic)
    (described,) = admin.describe_topics([topic])
    assert described.topic_id == made.topic_id
    assert [p.partition for p in described.partitions] == [0, 1]
    assert all(p.leader >= 0 and p.leader in p.in_sync_replicas for p in described.partitions)
    admin.create_partitions({topic: 5})
    eventually(lambda: len(admin.describe_topics([topic])[0].partitions) == 5)
    admin.delete_topics([topic])
    eventually(lambda: topic not in [known.name for known in admin.list_topics()])


def test_a_refusal_of_the_broker_is_an_error_with_its_code(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    mistakes: list[tuple[Callable[[], object], ErrorCode]] = [
        (lambda: admin.create_topic(topic), ErrorCode.TOPIC_ALREADY_EXISTS),
        (lambda: admin.create_topic("bad name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda: admin.create_topic(f"{topic}-x", replication_factor=99), ErrorCode.INVALID_REPLICATION_FACTOR),
        (lambda: admin.create_topic(f"{topic}-x", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (lambda: admin.describe_topics(["no-such-topic"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda: admin.delete_topics(["no-such-topic"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda: admin.create_partitions({topic: 1}), ErrorCode.INVALID_PARTITIONS),
        (lambda: admin.list_offsets({TopicPartition(topic, 9): LATEST}), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    for mistake, code in mistakes:
        with pytest.raises(KafkaError) as caught:
            mistake()
        assert caught.value.code == code


def test_describing_a_topic_does_not_create_it(admin: Admin, topic: str) -> None:
    with pytest.raises(KafkaError):
        admin.describe_topics([topic])
    assert topic not in [known.name for known in admin.list_topics()]


def test_validating_changes_nothing(admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 3)], validate_only=True)
    assert topic not in [known.name for known in admin.list_topics()]


def test_settings_are_described_changed_and_reset(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    await_topic(admin, topic)
    admin.alter_configs("topic", topic, {"retention.ms": "1234"})

    def retention() -> ConfigEntry:
        (entry,) = admin.describe_configs("topic", topic, names=["retention.ms"])
        return entry

    eventually(lambda: retention().value == "1234" and not retention().is_default)
    admin.alter_configs("topic", topic, {"retention.ms": None})
    eventually(lambda: retention().value != "1234")
    assert len(admin.describe_configs("topic", topic)) > 10, "without names all of them"
    with pytest.raises(KafkaError, match="INVALID_CONFIG"):
        admin.alter_configs("topic", topic, {"retention.ms": "soon"})


def test_the_cluster_is_described(admin: Admin, broker: Any) -> None:
    cluster = admin.describe_cluster()
    assert [str(node.endpoint) for node in cluster.brokers] == [broker.bootstrap]
    assert cluster.controller_id == cluster.brokers[0].node_id
    assert cluster.cluster_id
    served = {api.name: api for api in admin.describe_api_versions(cluster.controller_id)}
    assert served["Fetch"].max_version >= 12
    (directory,) = admin.describe_log_dirs()
    assert directory.error == ErrorCode.NONE


def test_records_are_deleted_up_to_an_offset(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(10):
            producer.send(topic, f"{i}")
    partition = TopicPartition(topic, 0)
    assert admin.delete_records({partition: 4}) == {partition: 4}
    first, last = admin.list_offsets({partition: EARLIEST}), admin.list_offsets({partition: LATEST})
    assert (first[partition].offset, last[partition].offset) == (4, 10)  # type: ignore[union-attr]
    assert [record.value for record in read_all(broker.bootstrap, topic)] == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert admin.count_records([topic]) == {topic: 6}


def test_new_partitions_have_offsets(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    await_topic(admin, topic)
    assert admin.list_offsets({TopicPartition(topic, 0): LATEST})
    admin.create_partitions({topic: 2})
    eventually(lambda: len(admin.describe_topics([topic])[0].partitions) == 2)
    found = admin.list_offsets({TopicPartition(topic, 1): LATEST})[TopicPartition(topic, 1)]
    assert found is not None
    assert found.offset == 0


# Producer and consumer


def test_records_can_be_sent_to_new_partitions(admin: Admin, broker: Any, topic: str) -> None:
    """A producer updates metadata every five minutes, and also for an unknown partition."""

    def grown_to(count: int) -> Producer:
        admin.create_partitions({topic: count})
        eventually(lambda: len(admin.describe_topics([topic])[0].partitions) == count)
        return producer

    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send_and_wait(topic, "before")
        assert grown_to(2).send(topic, "v", partition=1).result(PATIENCE_S).partition == 1
        row = pa.table({"value": ["v", "w"], "partition": pa.array([2, None], pa.int32())})
        assert TopicPartition(topic, 2) in grown_to(3).send_arrow(row, topic).result(PATIENCE_S)
        with pytest.raises(KafkaError, match="partitions 0 to 2, not 3"):
            grown_to(4).try_send(topic, "v", partition=3)  # it does not wait for the answer, but it has asked
        eventually(lambda: len(producer.partitions_for(topic).partitions) == 4)
        assert producer.try_send(topic, "v", partition=3) is not None


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_every_record_is_read_back_as_it_was_sent(admin: Admin, broker: Any, topic: str, codec: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap, compression_type=codec) as producer:
        sent = [
            producer.send(topic, "žluť", key="k", headers={"h": b"\xff", "none": None}, timestamp=1_700_000_000_000),
            producer.send(topic, None, key=b"tombstone"),
            producer.send(topic, b"", headers=[("a", "1"), ("a", "2")]),
            producer.send(topic, bytearray(b"x" * 10_000)),
        ]
        offsets = [delivery.result(PATIENCE_S).offset for delivery in sent]
    first, second, third, fourth = read_all(broker.bootstrap, topic)
    assert offsets == [0, 1, 2, 3]
    assert (first.key, first.value, first.timestamp) == (b"k", "žluť".encode(), 1_700_000_000_000)
    assert first.headers == (("h", b"\xff"), ("none", None))
    assert (second.key, second.value) == (b"tombstone", None)
    assert (third.key, third.value, third.headers) == (None, b"", (("a", b"1"), ("a", b"2")))
    assert fourth.value == b"x" * 10_000


def test_many_records_over_many_partitions_arrive_exactly_once_and_in_order(
    admin: Admin, broker: Any, topic: str
) -> None:
    admin.create_topic(topic, partitions=4)
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=1, batch_size=2_000) as producer:
        for i in range(20_000):
            producer.send(topic, f"{i}", key=f"key-{i % 100}")
    records = read_all(broker.bootstrap, topic, 4)
    assert sorted(int(record.value) for record in records) == list(range(20_000))
    for key in {record.key for record in records}:
        values = [int(record.value) for record in records if record.key == key]
        assert values == sorted(values)
        assert len({record.partition for record in records if record.key == key}) == 1


def test_with_acks_1_and_0_records_arrive_too(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    for acks, offset in (("1", 0), ("0", -1)):
        with Producer(bootstrap_servers=broker.bootstrap, acks=acks) as producer:
            assert producer.send_and_wait(topic, acks).offset == offset
    assert [record.value for record in read_all(broker.bootstrap, topic)] == [b"1", b"0"]


def test_an_invalid_record_is_refused_at_once(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.partitions_for(topic)
        with pytest.raises(KafkaError, match=r"partitions 0 to 1, not 7"):
            producer.send(topic, "v", partition=7)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            producer.send(topic, b"x" * 2_000_000)
        with pytest.raises(TypeError, match="value must be bytes, text or None, not int"):
            producer.send(topic, 42)  # type: ignore[arg-type]
        with pytest.raises(KafkaError, match="INVALID_TIMESTAMP"):
            producer.send(topic, "v", timestamp=-5)
        with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
            producer.send("bad name", "v")
    with pytest.raises(OttlaError, match="this producer is closed"):
        producer.send(topic, "v")


def test_a_record_refused_by_the_broker_fails_its_delivery(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1, configs={"cleanup.policy": "compact"})
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        keyless = producer.send(topic, "v")
        with pytest.raises(KafkaError) as caught:
            keyless.result(PATIENCE_S)
        assert caught.value.code == ErrorCode.INVALID_RECORD
        assert producer.send_and_wait(topic, "v", key="k").offset == 0


def test_a_small_buffer_blocks_send_but_loses_nothing(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap, buffer_memory=20_000, batch_size=5_000) as producer:
        for i in range(500):
            producer.send(topic, f"{i:04}" + "x" * 400)
    assert [int(record.value[:4]) for record in read_all(broker.bootstrap, topic)] == list(range(500))


def test_a_missing_topic_is_reported_after_max_block_ms(topic: str) -> None:
    with (
        Broker.embedded(settings={"auto.create.topics.enable": "false"}) as quiet,
        Producer(bootstrap_servers=quiet.bootstrap, max_block_ms=5_000) as producer,
        pytest.raises(KafkaError) as caught,
    ):
        producer.send(topic, "v")
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_positions_are_looked_up_moved_and_reported(admin: Admin, broker: Any, topic: str) -> None:
    """Spec: B9."""
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(10):
            producer.send(topic, f"{i}", partition=0, timestamp=1_000 + i)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([first, (topic, 1)])
        assert consumer.assignment() == {first, second}
        assert consumer.position(first) == 10, "latest is the default"
        consumer.seek_to_beginning([first])
        assert consumer.position(first) == 0
        consumer.seek(first, 8)
        assert [record.value for record in consumer.poll(300_000)] == [b"8", b"9"]
        assert consumer.position(first) == 10
        assert consumer.lag(first) == 0
        eventually(consumer.is_at_end)  # as of the last fetch, and the other one's may be on its way
        consumer.seek(first, 7)
        assert not consumer.is_at_end()
        assert consumer.lag(first) == 3
        assert consumer.beginning_offsets([first, second]) == {first: 0, second: 0}
        assert consumer.end_offsets([first, second]) == {first: 10, second: 0}
        found = consumer.offsets_for_times({first: 1_005, second: 0})
        at_1005 = found[first]
        assert at_1005 is not None
        assert (at_1005.offset, at_1005.timestamp) == (5, 1_005)
        assert found[second] is None
        assert consumer.offsets_for_times({first: 5_000})[first] is None
        consumer.pause([first])
        consumer.seek(first, 0)
        assert consumer.paused() == {first}
        assert not consumer.poll(300)
        consumer.resume([first])
        assert len(consumer.poll(300_000, max_records=3)) == 3
        with pytest.raises(ArgumentError, match="must be at least 0, not -1"):
            consumer.seek(first, -1)
        with pytest.raises(OttlaError, match="is not assigned"):
            consumer.seek((topic, 9), 0)
        with pytest.raises(OttlaError, match="not a partition"):
            consumer.assign(["orders"])  # type: ignore[list-item]
    (largest,) = admin.list_offsets({first: MAX_TIMESTAMP}).values()
    assert largest is not None
    assert (largest.offset, largest.timestamp) == (9, 1_009)


def test_poll_raises_without_a_position_and_a_reset_policy(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(OttlaError, match=r"no position for .*, and auto\.offset\.reset is none"):
            consumer.poll(300_000)
        consumer.seek((topic, 0), 99)
        with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
            consumer.poll(300_000)


def test_a_recreated_topic_is_read_from_its_beginning(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for i in range(5):
            producer.send(topic, f"old {i}")
    settings = {"auto.offset.reset": "earliest", "allow.auto.create.topics": False}
    with Consumer({"bootstrap.servers": broker.bootstrap, **settings}) as consumer:
        consumer.assign([(topic, 0)])
        assert len(consumer.poll(300_000)) == 5
        admin.delete_topics([topic])
        made = admin.create_topic(topic, partitions=1)
        # Records written before the broker has the new metadata are deleted with the old topic.
        eventually(lambda: made.topic_id in [known.topic_id for known in admin.list_topics()])
        with Producer(bootstrap_servers=broker.bootstrap) as another:
            another.send_and_wait(topic, "new")
        records: list[Any] = []

        def has_records() -> bool:
            records.extend(consumer.poll(200))
            return bool(records)

        eventually(has_records)
        assert [record.value for record in records] == [b"new"]


def test_a_poll_returns_with_the_first_records(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=1)

    async def story() -> None:
        async with (
            AsyncConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer,
            AsyncProducer(bootstrap_servers=broker.bootstrap) as producer,
        ):
            await consumer.assign([(topic, 0)])
            waiting = asyncio.ensure_future(consumer.poll(300_000))
            await producer.send(topic, "a")
            assert [record.value for record in await waiting] == [b"a"]
            await producer.send(topic, "b")
            await producer.send(topic, "c")
            seen = []
            async for record in consumer:
                seen.append(record.value)
                if len(seen) == 2:
                    break
            assert seen == [b"b", b"c"]

    asyncio.run(story())


def test_a_client_belongs_to_one_event_loop() -> None:
    producer = AsyncProducer(bootstrap_servers="127.0.0.1:1")

    async def touch() -> None:
        producer._network.start()

    asyncio.run(touch())
    with pytest.raises(OttlaError, match="belongs to another event loop"):
        asyncio.run(touch())


# Brokers that restart


def test_a_producer_survives_a_broker_crash_without_loss_or_duplicates(topic: str) -> None:
    """Spec: R6. Idempotent retries across kill -9 and restart."""
    with Broker.embedded() as mortal:
        with Admin(bootstrap_servers=mortal.bootstrap) as admin:
            admin.create_topic(topic, partitions=2)
        with Producer(bootstrap_servers=mortal.bootstrap, linger_ms=1, batch_size=500) as producer:
            deliveries = []
            for i in range(3_000):
                deliveries.append(producer.send(topic, f"{i}"))
                if i == 1_000:
                    deliveries[500].result(PATIENCE_S)
                    mortal.kill()
                    mortal.restart()
            producer.flush()
            assert all(delivery.exception() is None for delivery in deliveries)
        values = [int(record.value) for record in read_all(mortal.bootstrap, topic, 2)]
        assert sorted(values) == list(range(3_000))


def test_close_with_timeout_0_fails_unsent_records(topic: str) -> None:
    with Broker.embedded() as mortal:
        producer = Producer(bootstrap_servers=mortal.bootstrap)
        producer.send_and_wait(topic, "stored")
        mortal.kill()
        waiting = [producer.send(topic, "not stored") for _ in range(10)]
        producer.close(timeout_ms=0)
        for delivery in waiting:
            with pytest.raises(KafkaError, match="closed before the record was stored"):
                delivery.result(PATIENCE_S)


def test_a_consumer_continues_after_a_broker_restart(topic: str) -> None:
    with (
        Broker.embedded() as mortal,
        Producer(bootstrap_servers=mortal.bootstrap) as producer,
        Consumer(bootstrap_servers=mortal.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        producer.send_and_wait(topic, "before")
        consumer.assign([(topic, 0)])
        assert [record.value for record in consumer.poll(300_000)] == [b"before"]
        mortal.restart()
        producer.send_and_wait(topic, "after")
        records: list[Any] = []

        def has_records() -> bool:
            records.extend(consumer.poll(200))
            return bool(records)

        eventually(has_records)
        assert [record.value for record in records] == [b"after"]


def test_an_unreachable_broker_is_reported_with_its_address() -> None:
    refused = r"cannot connect to 127\.0\.0\.1:1: connection refused"
    with (
        Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=3_000) as admin,
        pytest.raises(KafkaError, match=refused),
    ):
        admin.list_topics()
    with (
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=3_000) as producer,
        pytest.raises(KafkaError, match=refused),
    ):
        producer.send("t", "v")


# Custom partitioners


def by_number(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int | None:
    """Records without a key by their value, others by key."""
    return int(value or b"0") % partition_count if key is None else None


@pytest.mark.parametrize("given", [by_number, f"{__name__}:by_number"], ids=["function", "by name"])
def test_a_custom_partitioner_is_called_for_every_record(
    admin: Admin, broker: Any, topic: str, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, types.ModuleType(__name__)))
    monkeypatch.setattr(sys.modules[__name__], "by_number", by_number, raising=False)
    admin.create_topic(topic, partitions=3)
    named = {"partitioner.class": given} if isinstance(given, str) else {}
    passed = {"partitioner": given} if callable(given) else {}
    with Producer(named, bootstrap_servers=broker.bootstrap, **passed) as producer:
        sent = [producer.send(topic, f"{number}") for number in range(30)]
        keyed = [producer.send(topic, "0", key="same") for _ in range(10)]
        fixed = producer.send(topic, "0", partition=2)
    assert [delivery.result(PATIENCE_S).partition for delivery in sent] == [number % 3 for number in range(30)]
    assert len({delivery.result(PATIENCE_S).partition for delivery in keyed}) == 1
    assert fixed.result(PATIENCE_S).partition == 2


def test_an_invalid_result_of_a_partitioner_is_an_error(admin: Admin, broker: Any, topic: str) -> None:
    admin.create_topic(topic, partitions=3)
    answers: list[Any] = [3, -1, "one", True, ZeroDivisionError("no partitions")]

    def wrong(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with Producer(bootstrap_servers=broker.bootstrap, partitioner=wrong) as producer:
        for said in (
            r"returned 3, but topic .* has partitions 0 to 2",
            "returned -1",
            "returned 'one'",
            "returned True",
        ):
            with pytest.raises((OttlaError, KafkaError), match=said):
                producer.send(topic, "v")
        with pytest.raises(ZeroDivisionError):
            producer.send(topic, "v")
    with pytest.raises(ArgumentError, match="partitioner is not a function: "):
        Producer(partitioner="mine")  # type: ignore[arg-type]
    with pytest.raises(OttlaError, match=r"no\.such:function cannot be imported"):
        Producer({"partitioner.class": "no.such:function"})
    with pytest.raises(ConfigError, match=r"partitioner\.class is not a function: sys:path is "):
        Producer({"partitioner.class": "sys:path"})
    pa = pytest.importorskip("pyarrow")
    with Producer(bootstrap_servers=broker.bootstrap, partitioner=by_number) as producer:
        with pytest.raises(OttlaError, match="cannot call a custom partitioner"):
            producer.send_arrow(pa.table({"value": [b"1"]}), topic)
        producer.send_arrow(pa.table({"value": [b"1"], "partition": pa.array([2], pa.int32())}), topic)
