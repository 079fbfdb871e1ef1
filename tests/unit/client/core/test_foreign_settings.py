"""The configuration of other Kafka clients can be used unchanged; misspelt names are still rejected."""

from typing import Any

import pytest

from ottla import AsyncConsumer, AsyncProducer
from ottla.assignors.choosing import choose_assignors
from ottla.client.core.settings import AdminConfig, ConsumerConfig, ProducerConfig, build
from ottla.errors import ConfigError

JAVA_PRODUCER = {
    "bootstrap.servers": "localhost:9092",
    "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
    "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "security.protocol": "PLAINTEXT",
    "client.dns.lookup": "use_all_dns_ips",
    "metric.reporters": "",
    "metrics.recording.level": "INFO",
    "connections.max.idle.ms": 540000,
    "send.buffer.bytes": 131072,
    "partitioner.class": "org.apache.kafka.clients.producer.internals.DefaultPartitioner",
    "interceptor.classes": "",
    "linger.ms": 7,
}
JAVA_CONSUMER = {
    "group.id": "g",
    "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
    "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor,"
    "org.apache.kafka.clients.consumer.RangeAssignor",
    "metadata.recovery.strategy": "rebootstrap",
    "enable.metrics.push": True,
}
LIBRDKAFKA_PRODUCER = {
    "metadata.broker.list": "localhost:9092",
    "queue.buffering.max.ms": 7,
    "queue.buffering.max.kbytes": 2048,
    "queue.buffering.max.messages": 100000,
    "message.timeout.ms": 90000,
    "request.required.acks": -1,
    "compression.codec": "zstd",
    "max.in.flight": 3,
    "debug": "broker,topic",
    "error_cb": print,
    "log_level": 7,
    "partitioner": "murmur2_random",
    "socket.keepalive.enable": True,
}
LIBRDKAFKA_CONSUMER = {
    "group.id": "g",
    "auto.offset.reset": "smallest",
    "fetch.wait.max.ms": 200,
    "fetch.message.max.bytes": 4096,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "message.max.bytes": 1000,
}


def test_a_java_producers_configuration_works(caplog: pytest.LogCaptureFixture) -> None:
    config = AsyncProducer(JAVA_PRODUCER).config
    assert (config.linger_ms, config.bootstrap_servers) == (7, ("localhost:9092",))
    (warning,) = caplog.messages
    assert "client.dns.lookup, connections.max.idle.ms, interceptor.classes, key.serializer" in warning
    assert "security.protocol" not in warning, "it has its effect"


def test_a_java_consumers_configuration_works() -> None:
    assert AsyncConsumer(JAVA_CONSUMER).config.partition_assignment_strategy == ("cooperative-sticky", "range")


def test_librdkafkas_names_mean_the_same() -> None:
    config = AsyncProducer(LIBRDKAFKA_PRODUCER).config
    assert (config.linger_ms, config.buffer_memory, config.delivery_timeout_ms) == (7, 2 * 1024 * 1024, 90_000)
    assert (config.acks_code, config.compression_type, config.max_in_flight_requests_per_connection) == (-1, "zstd", 3)
    consumer = AsyncConsumer(LIBRDKAFKA_CONSUMER).config
    assert (consumer.auto_offset_reset, consumer.fetch_max_wait_ms) == ("earliest", 200)
    assert consumer.max_partition_fetch_bytes == 4096


def test_kafka_pythons_and_aiokafkas_keywords_work() -> None:
    common: dict[str, Any] = {
        "bootstrap_servers": ["localhost:9092"],
        "security_protocol": "PLAINTEXT",
        "api_version": "auto",
    }
    others: dict[str, Any] = {"max_batch_size": 1000, "connections_max_idle_ms": 9}
    producer = AsyncProducer(None, **common, **others, acks="all")
    assert producer.config.batch_size == 1000
    others = {"rebalance_timeout_ms": 1000, "consumer_timeout_ms": 200}
    consumer = AsyncConsumer(None, **common, **others, group_id="g")
    assert consumer.config.group_id == "g"


def test_kafka_pythons_assignors_are_ours_of_the_same_name() -> None:
    kafka = pytest.importorskip("kafka.coordinator.assignors.roundrobin")
    assert [each.name for each in choose_assignors([kafka.RoundRobinPartitionAssignor])] == ["roundrobin"]


@pytest.mark.parametrize(
    ("config", "settings", "said"),
    [
        (ProducerConfig, {"lingr.ms": 5}, r"Unknown setting lingr\.ms\. Did you mean linger\.ms"),
        (ProducerConfig, {"queue.buffering.max.msec": 5}, "Unknown setting"),
        (ProducerConfig, {"security.protocol": "SSL", "ssl.crl.location": "x"}, r"Unknown setting ssl\.crl\.location"),
        (
            AdminConfig,
            {"ssl.ca.location": "ca.pem"},
            "connections would not be secured",
        ),
        (ProducerConfig, {"linger.ms": 1, "queue.buffering.max.ms": 2}, r"linger\.ms is set twice: queue\.buff"),
        (
            ProducerConfig,
            {"queue.buffering.max.kbytes": "many"},
            r"Invalid value many for configuration queue\.buffering\.max\.kbytes\. Use a whole number\.",
        ),
        (ProducerConfig, {"partitioner": "consistent_random"}, "keys would go to other partitions"),
        (ConsumerConfig, {"value.deserializer": len}, "DeserializingConsumer takes value_deserializer="),
        (ProducerConfig, {"key.serializer": str}, "SerializingProducer takes key_serializer="),
        (ConsumerConfig, {"linger.ms": 5}, r"linger\.ms is a setting of the producer"),
    ],
)
def test_settings_that_cannot_be_ignored_are_rejected(
    config: type[AdminConfig], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        build(config, settings, {})


def test_security_settings_are_ignored_only_next_to_plaintext(caplog: pytest.LogCaptureFixture) -> None:
    unknown = {"ssl.crl.location": "revoked.pem", "enable.ssl.revocation": "true"}
    build(AdminConfig, {**unknown, "security.protocol": "plaintext"}, {})
    assert "settings without effect in this client: enable.ssl.revocation, ssl.crl.location" in caplog.text
