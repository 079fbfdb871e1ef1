"""kafka-python and aiokafka read our messages, and we read theirs."""

import importlib
import pkgutil
from typing import Any

import pytest

from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.schema import Message
from tests.support.wire.messages import every_message, full

kafka_protocol = pytest.importorskip("kafka.protocol", reason="kafka-python is not installed")


def kafka_python_classes() -> dict[str, Any]:
    """kafka-python's messages by name; it builds them from its own copy of the schemas with its own codecs."""
    api_message = importlib.import_module("kafka.protocol.api_message").ApiMessage
    found: dict[str, Any] = {}
    for package in ("admin", "consumer", "metadata", "producer"):
        for module in pkgutil.iter_modules(importlib.import_module(f"kafka.protocol.{package}").__path__):
            loaded = importlib.import_module(f"kafka.protocol.{package}.{module.name}")
            classes = {name: value for name, value in vars(loaded).items() if isinstance(value, type)}
            found |= {name: cls for name, cls in classes.items() if issubclass(cls, api_message)}
    return found


THEIRS = kafka_python_classes()
SHARED = [cls for cls in every_message() if cls.__name__ in THEIRS]


def test_most_of_kafka_python_is_compared() -> None:
    assert len(SHARED) > 80


@pytest.mark.parametrize("cls", SHARED, ids=lambda cls: cls.__name__)
def test_kafka_python_reads_our_bytes_and_writes_the_same(cls: type[Message]) -> None:
    theirs = THEIRS[cls.__name__]
    for version in cls.versions:
        if version > theirs.max_version:
            break
        for message in (cls(), full(cls, version)):
            if isinstance(message, ApiVersionsResponse):
                message.error_code = 0  # kafka-python reads any error as a body of version 0
            ours = message.encode(version)
            read = theirs.decode(ours, version=version)
            read._header = None  # noqa: SLF001 - a decoded message lacks it, and cannot be encoded without
            assert read.encode(version=version) == ours, f"v{version}"


def test_aiokafka_writes_what_we_read() -> None:
    produce = importlib.import_module("aiokafka.protocol.produce")
    request = produce.ProduceRequest_v7(
        transactional_id="tx", required_acks=-1, timeout=1500, topics=[("t", [(0, b"batch"), (1, b"other")])]
    )
    read = ProduceRequest.decode(request.encode(), 7)
    assert (read.transactional_id, read.acks, read.timeout_ms) == ("tx", -1, 1500)
    assert [(p.index, bytes(p.records or b"")) for p in read.topic_data[0].partition_data] == [
        (0, b"batch"),
        (1, b"other"),
    ]
    assert read.encode(7) == request.encode()

    group = importlib.import_module("aiokafka.protocol.group")
    join = group.JoinGroupRequest_v5("g", 10_000, 60_000, "", None, "consumer", [("range", b"meta")])
    assert JoinGroupRequest.decode(join.encode(), 5) == JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"meta")],
    )

    commit = importlib.import_module("aiokafka.protocol.commit")
    stored = commit.OffsetCommitRequest_v3("g", 4, "m", -1, [("t", [(0, 42, "note")])])
    position = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=42, committed_metadata="note")
    assert OffsetCommitRequest.decode(stored.encode(), 3) == OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=4,
        member_id="m",
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[position])],
    )

    fetch = importlib.import_module("aiokafka.protocol.fetch")
    asked = fetch.FetchRequest_v11(-1, 500, 1, 1000, 1, 0, -1, [("t", [(0, -1, 7, -1, 100)])], [], "rack")
    assert FetchRequest.decode(asked.encode(), 11).encode(11) == asked.encode()


def test_aiokafka_reads_what_we_write() -> None:
    metadata = importlib.import_module("aiokafka.protocol.metadata")
    partition = MetadataResponse.MetadataResponsePartition(
        partition_index=2, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1], offline_replicas=[2]
    )
    response = MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=1, host="localhost", port=9092)],
        cluster_id="c",
        controller_id=1,
        topics=[MetadataResponse.MetadataResponseTopic(name="t", partitions=[partition])],
    )
    read = metadata.MetadataResponse_v5.decode(response.encode(5))
    assert read.brokers == [(1, "localhost", 9092, None)]
    assert (read.cluster_id, read.controller_id) == ("c", 1)
    assert read.topics == [(0, "t", False, [(0, 2, 1, [1, 2], [1], [2])])]

    produce = importlib.import_module("aiokafka.protocol.produce")
    answer = ProduceResponse.PartitionProduceResponse(index=3, base_offset=7, log_start_offset=1)
    written = ProduceResponse(
        responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=[answer])], throttle_time_ms=9
    )
    read = produce.ProduceResponse_v7.decode(written.encode(7))
    assert (read.topics, read.throttle_time_ms) == ([("t", [(3, 0, 7, -1, 1)])], 9)
