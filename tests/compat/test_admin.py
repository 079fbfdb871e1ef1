"""Administration through each foreign client: topics, partitions, settings, offsets, deleted records."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla import Broker
from tests.support.clients import ClientError, ForeignClient, Found, Message
from tests.support.waiting import until


def test_a_topic_is_created_seen_and_deleted(broker: Any, client: ForeignClient, topic: str) -> None:
    assert client.create_topic(broker.bootstrap, topic, partitions=3) == "ok"
    assert until(lambda: client.partition_count(broker.bootstrap, topic) == 3)
    assert until(lambda: topic in client.topics(broker.bootstrap))
    assert client.create_topic(broker.bootstrap, topic) == "TOPIC_ALREADY_EXISTS"
    assert client.delete_topic(broker.bootstrap, topic) == "ok"
    assert until(lambda: topic not in client.topics(broker.bootstrap))
    assert client.delete_topic(broker.bootstrap, topic) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_recreated_topic_is_empty(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic)
    assert client.produce(broker.bootstrap, topic, [Message(b"old")] * 3) == [0, 1, 2]
    assert client.delete_topic(broker.bootstrap, topic) == "ok"
    assert until(lambda: topic not in client.topics(broker.bootstrap))
    assert until(lambda: client.create_topic(broker.bootstrap, topic) == "ok")
    assert client.produce(broker.bootstrap, topic, [Message(b"new")]) == [0]
    assert [r.value for r in client.consume(broker.bootstrap, topic, 1)] == [b"new"]


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "error"),
    [
        ("no spaces allowed", 1, {}, "INVALID_TOPIC_EXCEPTION"),
        ("x" * 250, 1, {}, "INVALID_TOPIC_EXCEPTION"),
        ("..", 1, {}, "INVALID_TOPIC_EXCEPTION"),
        ("fine", 0, {}, "INVALID_PARTITIONS"),
        ("fine", 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
        ("fine", 1, {"no.such.setting": "1"}, "INVALID_CONFIG"),
        ("fine", 1, {"cleanup.policy": "shred"}, "INVALID_CONFIG"),
        ("fine", 1, {"min.insync.replicas": "0"}, "INVALID_CONFIG"),
    ],
)
def test_an_invalid_topic_is_rejected(
    broker: Any, client: ForeignClient, name: str, partitions: int, configs: dict[str, str], error: str
) -> None:
    if client.name == "confluent-kafka" and partitions == 0:
        pytest.skip("librdkafka refuses it by itself")
    assert client.create_topic(broker.bootstrap, name, partitions=partitions, configs=configs) == error


def test_partitions_can_be_added_but_not_removed(broker: Any, client: ForeignClient, topic: str) -> None:
    """Spec: R4. The CreatePartitions response."""
    client.create_topic(broker.bootstrap, topic, partitions=2)
    assert until(lambda: client.partition_count(broker.bootstrap, topic) == 2)
    assert client.create_partitions(broker.bootstrap, topic, 5) == "ok"
    assert until(lambda: client.partition_count(broker.bootstrap, topic) == 5)
    assert client.produce(broker.bootstrap, topic, [Message(b"v")], partition=4) == [0]
    assert client.create_partitions(broker.bootstrap, topic, 3) == "INVALID_PARTITIONS"
    assert client.create_partitions(broker.bootstrap, topic, 5) == "INVALID_PARTITIONS"
    assert client.create_partitions(broker.bootstrap, f"{topic}-not", 5) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_settings_are_described_and_changed(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic, configs={"retention.ms": "3600000"})
    assert until(lambda: topic in client.topics(broker.bootstrap))
    described = client.describe_config(broker.bootstrap, topic)
    assert described["retention.ms"] == ("3600000", False)
    assert described["cleanup.policy"] == ("delete", True)
    assert described["max.message.bytes"] == ("1048588", True)
    changed = {"retention.ms": "7200000", "max.message.bytes": "2000000"}
    assert client.alter_config(broker.bootstrap, topic, changed) == "ok"
    assert until(lambda: client.describe_config(broker.bootstrap, topic)["retention.ms"] == ("7200000", False))
    assert client.describe_config(broker.bootstrap, topic)["max.message.bytes"] == ("2000000", False)
    assert client.alter_config(broker.bootstrap, topic, {"retention.ms": "soon"}) == "INVALID_CONFIG"
    assert client.describe_config(broker.bootstrap, topic)["retention.ms"] == ("7200000", False)


def test_a_changed_limit_applies_immediately(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic)
    big = Message(b"x" * 50_000)
    assert client.produce(broker.bootstrap, topic, [big]) == [0]
    assert client.alter_config(broker.bootstrap, topic, {"max.message.bytes": "20000"}) == "ok"
    assert until(lambda: client.produce(broker.bootstrap, topic, [big]) == ["MESSAGE_TOO_LARGE"])
    assert client.produce(broker.bootstrap, topic, [Message(b"x" * 10_000)])[0] != "MESSAGE_TOO_LARGE"


def test_deleted_records_are_gone_and_later_ones_stay(broker: Any, client: ForeignClient, topic: str) -> None:
    client.create_topic(broker.bootstrap, topic)
    client.produce(broker.bootstrap, topic, [Message(b"%d" % i) for i in range(10)])
    assert client.delete_records(broker.bootstrap, topic, 6) == 6
    assert client.list_offsets(broker.bootstrap, topic, ["earliest", "latest"]) == {
        "earliest": Found(6),
        "latest": Found(10),
    }
    assert [r.value for r in client.consume(broker.bootstrap, topic, 4, start=6)] == [b"6", b"7", b"8", b"9"]
    with pytest.raises(ClientError, match=r"OFFSET_OUT_OF_RANGE|OffsetOutOfRangeException"):
        client.consume(broker.bootstrap, topic, 1, start=5)
    with pytest.raises(ClientError, match="OFFSET_OUT_OF_RANGE"):
        client.delete_records(broker.bootstrap, topic, 11)
    # -1 stands for the high watermark: everything.
    assert client.delete_records(broker.bootstrap, topic, -1) == 10
    assert client.list_offsets(broker.bootstrap, topic, ["earliest"]) == {"earliest": Found(10)}
    assert client.produce(broker.bootstrap, topic, [Message(b"next")]) == [10]


def test_offsets_are_found_by_time(broker: Any, client: ForeignClient, topic: str) -> None:
    """Spec: R4. ListOffsets by timestamp; out-of-order timestamps included."""
    at = 1_700_000_000_000
    client.create_topic(broker.bootstrap, topic)
    for step in (0, 1000, 5000, 2000, 3000):
        client.produce(broker.bootstrap, topic, [Message(b"v", None, (), at + step)])
    asked = [at - 1, at, at + 1, at + 1000, at + 1001, at + 5000, at + 5001]
    found = client.list_offsets(broker.bootstrap, topic, ["earliest", "latest", *asked])
    assert [found[spec].offset for spec in ("earliest", "latest")] == [0, 5]
    assert [found[spec].offset for spec in asked] == [0, 0, 1, 1, 2, 2, -1]
    if client.name != "kafka-python":
        assert [found[spec].timestamp_ms for spec in asked] == [
            at, at, at + 1000, at + 1000, at + 5000, at + 5000, -1,
        ]  # fmt: skip
    if "max_timestamp" in client.offset_specs:
        newest = client.list_offsets(broker.bootstrap, topic, ["max_timestamp"])["max_timestamp"]
        assert newest == Found(2, at + 5000)


def test_offsets_by_time_look_inside_batches(broker: Any, client: ForeignClient, topic: str) -> None:
    at = 1_700_000_000_000
    client.create_topic(broker.bootstrap, topic)
    batch = [Message(b"v%d" % i, None, (), at + 10 * i) for i in range(20)]
    client.produce(broker.bootstrap, topic, batch, codec="lz4")
    found = client.list_offsets(broker.bootstrap, topic, [at + 55, at + 60, at + 190, at + 191])
    assert [answer.offset for answer in found.values()] == [6, 6, 19, -1]


def test_an_empty_partition_has_offsets(
    broker: Any, client: ForeignClient, topic: str, await_leaders: Callable[..., None]
) -> None:
    client.create_topic(broker.bootstrap, topic)
    await_leaders(topic)
    found = client.list_offsets(broker.bootstrap, topic, ["earliest", "latest", 1_700_000_000_000])
    assert [answer.offset for answer in found.values()] == [0, 0, -1]
    if "max_timestamp" in client.offset_specs:
        assert client.list_offsets(broker.bootstrap, topic, ["max_timestamp"])["max_timestamp"].offset == -1


def test_a_missing_topic_is_created_on_the_first_write(broker: Any, client: ForeignClient, topic: str) -> None:
    """auto.create.topics.enable is true by default."""
    assert client.produce(broker.bootstrap, topic, [Message(b"first")], partition=None) == [0]
    assert [r.value for r in client.consume(broker.bootstrap, topic, 1)] == [b"first"]


@pytest.fixture(scope="module")
def strict_ottla() -> Iterator[Any]:
    with Broker.embedded(settings={"auto.create.topics.enable": "false"}) as running:
        yield running


def test_no_topic_is_created_if_auto_creation_is_off(strict_ottla: Any, client: ForeignClient, topic: str) -> None:
    """auto.create.topics.enable=false: a metadata request creates no topic, even if the client allows it."""
    assert client.partition_count(strict_ottla.bootstrap, topic) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert topic not in client.topics(strict_ottla.bootstrap)
    assert client.create_topic(strict_ottla.bootstrap, topic) == "ok"
    assert client.produce(strict_ottla.bootstrap, topic, [Message(b"v")], partition=None) == [0]
