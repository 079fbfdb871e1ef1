"""Kafka's own command-line tools: against both brokers, and on the files that Ottla writes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker
from tests.support.clients import Message
from tests.support.clients.java import JavaClient
from tests.support.waiting import until

pytestmark = pytest.mark.java

TOOLS = "org.apache.kafka.tools."


class Tools:
    """Runs a tool as its script does, and returns its output."""

    def __init__(self, java: JavaClient, bootstrap: str = "") -> None:
        self.java = java
        self.bootstrap = bootstrap

    def run(self, main: str, *arguments: str, status: int = 0) -> str:
        if self.bootstrap:
            arguments = ("--bootstrap-server", self.bootstrap, *arguments)
        answer = self.java.call("tool", "", main=main, arguments=list(arguments))
        assert answer["status"] == status, answer["output"]
        return str(answer["output"])

    def topics(self, *arguments: str, status: int = 0) -> str:
        return self.run(TOOLS + "TopicCommand", *arguments, status=status)

    def configs(self, *arguments: str) -> str:
        return self.run("kafka.admin.ConfigCommand", *arguments)


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    client = JavaClient()
    reason = client.unavailable()
    if reason is not None:
        pytest.skip(reason)
    yield client
    client.close()


@pytest.fixture
def tools(java: JavaClient, broker: Any) -> Tools:
    return Tools(java, broker.bootstrap)


def test_kafka_topics(tools: Tools, topic: str) -> None:
    created = tools.topics("--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=9999")
    assert created == f"Created topic {topic}.\n"
    assert "already exists" in tools.topics("--create", "--topic", topic, status=1)
    tools.topics("--alter", "--topic", topic, "--partitions", "3")
    assert until(lambda: "PartitionCount: 3" in tools.topics("--describe", "--topic", topic))
    heading, *partitions = tools.topics("--describe", "--topic", topic).splitlines()
    assert f"Topic: {topic}\t" in heading
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: " in heading
    assert "retention.ms=9999" in heading
    assert [line.split("\t")[2] for line in partitions] == [f"Partition: {p}" for p in range(3)]
    assert topic in tools.topics("--list").splitlines()
    tools.topics("--delete", "--topic", topic)
    assert until(lambda: topic not in tools.topics("--list").splitlines())


def test_kafka_configs(tools: Tools, topic: str) -> None:
    tools.topics("--create", "--topic", topic)
    target = ("--entity-type", "topics", "--entity-name", topic)
    tools.configs("--alter", *target, "--add-config", "max.message.bytes=5000,cleanup.policy=[compact,delete]")
    assert until(lambda: "max.message.bytes" in tools.configs("--describe", *target))
    described = tools.configs("--describe", *target)
    assert "max.message.bytes=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=5000, " in described
    assert "cleanup.policy=compact,delete sensitive=false" in described
    tools.configs("--alter", *target, "--delete-config", "max.message.bytes")
    assert until(lambda: "max.message.bytes" not in tools.configs("--describe", *target))


def test_kafka_configs_of_loggers_and_groups(tools: Tools) -> None:
    (broker, *_) = [line.split()[-2] for line in tools.configs("--describe", "--entity-type", "brokers").splitlines()]
    loggers = ("--entity-type", "broker-loggers", "--entity-name", broker)
    level = next(line.split("=")[1] for line in tools.configs("--describe", *loggers).splitlines() if " root=" in line)
    tools.configs("--alter", *loggers, "--add-config", f"root={level.split()[0]}")
    described = tools.configs("--describe", "--entity-type", "groups", "--entity-name", "no-such-group")
    assert "doesn't exist" in described
    assert "No partition reassignments" in tools.run(TOOLS + "reassign.ReassignPartitionsCommand", "--list")


def test_kafka_features(java: JavaClient, tmp_path: Path) -> None:
    """A level is changed, kept over a restart, and changed back."""
    features = TOOLS + "FeatureCommand"
    for level, commands in ((1, ["downgrade"]), (2, ["describe", "upgrade"])):
        with Broker.embedded(tmp_path / "data") as broker:
            tools = Tools(java, broker.bootstrap)
            for command in commands:
                change = () if command == "describe" else ("--feature", f"transaction.version={level}")
                printed = tools.run(features, command, *change)
                if command == "describe":
                    assert "FinalizedVersionLevel: 1" in printed, "stored"
            assert f"FinalizedVersionLevel: {level}" in tools.run(features, "describe")
            refused = tools.run(features, "upgrade", "--feature", "no.such=1", status=1)
            assert "no.such" in refused


def test_kafka_get_offsets(tools: Tools, java: JavaClient, topic: str) -> None:
    java.create_topic(tools.bootstrap, topic, partitions=2)
    java.produce(tools.bootstrap, topic, [Message(b"v")] * 7, partition=1)
    assert tools.run(TOOLS + "GetOffsetShell", "--topic", topic) == f"{topic}:0:0\n{topic}:1:7\n"
    earliest = tools.run(TOOLS + "GetOffsetShell", "--topic", topic, "--time", "earliest")
    assert earliest == f"{topic}:0:0\n{topic}:1:0\n"


def test_kafka_log_dirs(tools: Tools, java: JavaClient, topic: str) -> None:
    """The size of a log is the size of its batches, to the byte."""
    java.create_topic(tools.bootstrap, topic)
    # One record without key or headers: 61 bytes of batch, 7 of record, and its value.
    java.produce(tools.bootstrap, topic, [Message(b"v" * 32, None, (), 1_700_000_000_000)])
    printed = tools.run(TOOLS + "LogDirsCommand", "--describe", "--topic-list", topic)
    (broker,) = json.loads(printed.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    assert directory["error"] is None
    assert directory["partitions"] == [{"partition": f"{topic}-0", "size": 100, "offsetLag": 0, "isFuture": False}]


def test_kafka_dump_log_reads_what_ottla_writes(java: JavaClient, tmp_path: Path) -> None:
    """Segments, both indexes and producer snapshots are in Kafka's formats, and its checker finds no error."""
    tools = Tools(java)
    with Broker.embedded(tmp_path / "data") as broker:
        java.create_topic(broker.bootstrap, "files", configs={"segment.bytes": "1048576"})
        codecs = ("none", "gzip", "snappy", "lz4", "zstd")
        for part in range(10):
            messages = [Message(b"%d" % i * 600, b"k", (("h", b"v"),)) for i in range(300)]
            java.produce(broker.bootstrap, "files", messages, codec=codecs[part % 5], idempotent=True)
        broker.stop()
        directory = tmp_path / "data" / "files-0"
        by_kind = {kind: sorted(directory.glob(f"*.{kind}")) for kind in ("log", "index", "timeindex", "snapshot")}
        assert all(len(found) >= 1 for found in by_kind.values()), by_kind
        assert len(by_kind["log"]) >= 2
        offsets = []
        for segment in by_kind["log"]:
            printed = tools.run(TOOLS + "DumpLogSegments", "--deep-iteration", "--files", str(segment))
            batches = [line for line in printed.splitlines() if line.startswith("baseOffset")]
            assert batches
            assert all("isvalid: true" in line for line in batches)
            records = [line for line in printed.splitlines() if line.startswith("| offset: ")]
            offsets += [int(line.split()[2]) for line in records]
        assert offsets == list(range(3000))
        for kind in ("index", "timeindex"):
            for index in by_kind[kind]:
                printed = tools.run(TOOLS + "DumpLogSegments", "--files", str(index))
                assert "ismatch" not in printed, printed
                assert "not found" not in printed, printed
                tools.run(TOOLS + "DumpLogSegments", "--index-sanity-check", "--files", str(index))
        printed = tools.run(TOOLS + "DumpLogSegments", "--files", str(by_kind["snapshot"][-1]))
        assert printed.count("producerEpoch: 0") >= 10


def test_kafka_acls(java: JavaClient) -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    acls = TOOLS + "AclCommand"
    alice = ("--allow-principal", "User:alice", "--producer", "--topic", "orders")
    with Broker.embedded(settings=settings) as broker:
        tools = Tools(java, broker.bootstrap)
        tools.run(acls, "--add", *alice)
        prefixed = ("--topic", "sh", "--resource-pattern-type", "prefixed")
        tools.run(
            acls, "--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.7", "--operation", "Read", *prefixed
        )
        listed = tools.run(acls, "--list")
        assert listed.count("principal=User:alice") == 3
        matching = tools.run(acls, "--list", "--topic", "shop", "--resource-pattern-type", "match")
        assert "(principal=User:eve, host=10.0.0.7, operation=READ, permissionType=DENY)" in matching
        assert "alice" not in matching
        tools.run(acls, "--remove", "--force", *alice)
        assert "alice" not in tools.run(acls, "--list")
