"""Requests that only the Java client sends: its admin calls, its newest protocol versions, its default producer."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.clients import ClientError, Message
from tests.support.clients.java import JavaClient
from tests.support.waiting import until

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def java() -> Any:
    client = JavaClient()
    reason = client.unavailable()
    if reason is not None:
        pytest.skip(reason)
    yield client
    client.close()


def test_the_cluster_describes_itself(broker: Any, java: JavaClient) -> None:
    assert java.call("describe_cluster", broker.bootstrap) == {
        "nodes": 1,
        "controller_is_a_node": True,
        "has_cluster_id": True,
    }


def test_a_topic_is_described_page_by_page(broker: Any, java: JavaClient, topic: str) -> None:
    """DescribeTopicPartitions, where the broker offers it."""
    assert java.create_topic(broker.bootstrap, topic, partitions=3) == "ok"
    assert until(lambda: java.partition_count(broker.bootstrap, topic) == 3)
    described = java.call("describe_topics", broker.bootstrap, topics=[topic, f"{topic}-not"])
    assert described[topic] == {
        "internal": False,
        "has_topic_id": True,
        "partitions": [{"partition": p, "has_leader": True, "replicas": 1, "in_sync": 1} for p in range(3)],
    }
    assert described[f"{topic}-not"]["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_topics_of_one_call_fail_and_succeed_separately(broker: Any, java: JavaClient, topic: str) -> None:
    wanted = [
        {"name": f"{topic}-a", "partitions": 1, "replication_factor": 1},
        {"name": f"{topic}-b"},
        {"name": f"{topic} c", "partitions": 1, "replication_factor": 1},
        {"name": f"{topic}-d", "partitions": 1, "replication_factor": 5},
        {"name": f"{topic}-e", "partitions": 1, "replication_factor": 1, "configs": {"segment.bytes": "x"}},
    ]
    assert java.call("create_topics", broker.bootstrap, topics=wanted) == {
        f"{topic}-a": "ok",
        f"{topic}-b": "ok",
        f"{topic} c": "INVALID_TOPIC_EXCEPTION",
        f"{topic}-d": "INVALID_REPLICATION_FACTOR",
        f"{topic}-e": "INVALID_CONFIG",
    }


def test_validating_creates_nothing(broker: Any, java: JavaClient, topic: str) -> None:
    wanted = [{"name": topic, "partitions": 1, "replication_factor": 1}]
    assert java.call("create_topics", broker.bootstrap, topics=wanted, validate_only=True) == {topic: "ok"}
    assert topic not in java.topics(broker.bootstrap)


def test_settings_are_set_deleted_appended_and_subtracted(
    broker: Any, java: JavaClient, topic: str, await_leaders: Callable[..., None]
) -> None:
    java.create_topic(broker.bootstrap, topic, configs={"retention.ms": "1000"})
    await_leaders(topic)

    def alter(*operations: list[str | None]) -> None:
        java.call("alter_configs", broker.bootstrap, type="TOPIC", name=topic, operations=operations)

    def described(name: str) -> tuple[str, str]:
        entry = java.call("describe_configs", broker.bootstrap, type="TOPIC", name=topic)[name]
        return entry["value"], entry["source"]

    alter(["DELETE", "retention.ms", None], ["APPEND", "cleanup.policy", "compact"])
    assert until(lambda: described("retention.ms") == ("604800000", "DEFAULT_CONFIG"))
    assert described("cleanup.policy") == ("delete,compact", "DYNAMIC_TOPIC_CONFIG")
    alter(["SUBTRACT", "cleanup.policy", "delete"])
    assert until(lambda: described("cleanup.policy") == ("compact", "DYNAMIC_TOPIC_CONFIG"))
    with pytest.raises(ClientError, match="INVALID_CONFIG"):
        alter(["APPEND", "retention.ms", "1"])
    with pytest.raises(ClientError, match="INVALID_CONFIG"):
        alter(["SET", "no.such.setting", "1"])


def test_an_unknown_resource_is_an_error(broker: Any, java: JavaClient, topic: str) -> None:
    with pytest.raises(ClientError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        java.call("describe_configs", broker.bootstrap, type="TOPIC", name=topic)
    with pytest.raises(ClientError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        java.call(
            "alter_configs",
            broker.bootstrap,
            type="TOPIC",
            name=topic,
            operations=[["SET", "retention.ms", "1000"]],
        )


def test_the_default_producer_is_idempotent_and_its_state_is_described(
    broker: Any, java: JavaClient, topic: str
) -> None:
    """Spec: D3. Producer id and sequences are kept per partition; DescribeProducers shows them."""
    java.create_topic(broker.bootstrap, topic)
    assert java.produce(broker.bootstrap, topic, [Message(b"v")] * 7, idempotent=True) == list(range(7))
    assert java.call("describe_producers", broker.bootstrap, topic=topic, partition=0) == [
        {"producer_epoch": 0, "last_sequence": 6}
    ]


def test_records_carry_the_leaders_epoch(broker: Any, java: JavaClient, topic: str) -> None:
    java.create_topic(broker.bootstrap, topic)
    java.produce(broker.bootstrap, topic, [Message(b"v")])
    (record,) = java.call(
        "consume", broker.bootstrap, topic=topic, partition=0, count=1, config={"auto.offset.reset": "none"}
    )
    assert record["leader_epoch"] >= 0
    assert record["timestamp_type"] == "CreateTime"


def test_a_consumer_gets_end_offsets_and_offsets_for_times(broker: Any, java: JavaClient, topic: str) -> None:
    java.create_topic(broker.bootstrap, topic)
    sent = [Message(b"v", None, (), 1_700_000_000_000 + i) for i in range(10)]
    java.produce(broker.bootstrap, topic, sent)
    assert java.call("positions", broker.bootstrap, topic=topic, partition=0, timestamp=1_700_000_000_004) == {
        "earliest": 0,
        "latest": 10,
        "by_timestamp": 4,
    }


def test_offsets_of_missing_storage_tiers(broker: Any, java: JavaClient, topic: str) -> None:
    java.create_topic(broker.bootstrap, topic)
    java.produce(broker.bootstrap, topic, [Message(b"v")] * 3)
    found = java.call(
        "list_offsets",
        broker.bootstrap,
        topic=topic,
        partition=0,
        specs=["earliest_local", "latest_tiered"],
    )
    assert [found[spec]["offset"] for spec in ("earliest_local", "latest_tiered")] == [0, -1]
