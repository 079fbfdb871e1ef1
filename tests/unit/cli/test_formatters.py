"""Spec: C5. The records of `__consumer_offsets` in words, in every version that was ever written."""

import json
from typing import Any

import pytest

from ottla.cli.consume.formatters import FORMATTERS, _group_json, _group_text, check_formatter, offsets_formatter
from ottla.client.core.model import ConsumerRecord
from ottla.errors import OttlaError
from ottla.protocol.framing import decode_versioned, encode_record_key, encode_versioned
from ottla.protocol.messages.group_records import (
    VALUES,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.primitives import ProtocolError
from ottla.types import TopicPartition
from tests.support.wire.raw_group import assignment, subscription

WEEK_MS = 604_800_000
OFFSETS = offsets_formatter(WEEK_MS)
COMMITTED_AT = 1_538_843_128_354


def record(key: bytes | None, value: bytes | None) -> ConsumerRecord:
    return ConsumerRecord("__consumer_offsets", 20, 7, COMMITTED_AT, key, value, ())


def offset_record(value: bytes | None, *, group: str = "consumerGroupId", partition: int = 30) -> ConsumerRecord:
    key = OffsetCommitKey(group=group, topic="topic-offsets", partition=partition)
    return record(encode_record_key(key), value)


def offset_value(version: int, *, metadata: str = "", **more: Any) -> bytes:
    return encode_versioned(
        OffsetCommitValue(offset=2130, metadata=metadata, commit_timestamp=COMMITTED_AT, **more), version
    )


@pytest.mark.parametrize("version", range(5))
def test_a_commit_is_printed_in_kafkas_format(version: int) -> None:
    """Spec: C5. With the default retention, commits expire after a week."""
    assert OFFSETS.to_text(offset_record(offset_value(version))) == (
        "[consumerGroupId,topic-offsets,30]::[OffsetMetadata[2130,NO_METADATA],"
        "CommitTime 1538843128354,ExpirationTime 1539447928354]"
    )


def test_commit_metadata_is_shown() -> None:
    line = OFFSETS.to_text(offset_record(offset_value(4, metadata="node-7, žluť")))
    assert line is not None
    assert "[OffsetMetadata[2130,node-7, žluť]," in line


def test_a_tombstone_is_shown_as_null() -> None:
    assert OFFSETS.to_text(offset_record(None, partition=21)) == "[consumerGroupId,topic-offsets,21]::null"


def test_a_commit_with_its_own_retention_expires_then() -> None:
    """Only stored version 1 has an expiry time (OffsetCommit v2 to v4 with a retention time)."""
    value = offset_value(1, expire_timestamp=COMMITTED_AT + 1000)
    line = OFFSETS.to_text(offset_record(value))
    assert line is not None
    assert line.endswith(f"ExpirationTime {COMMITTED_AT + 1000}]")


def test_the_retention_of_the_cluster_is_used() -> None:
    line = offsets_formatter(60_000).to_text(offset_record(offset_value(3)))
    assert line is not None
    assert line.endswith(f"ExpirationTime {COMMITTED_AT + 60_000}]")


def test_the_oldest_key_version_is_read() -> None:
    key = LegacyOffsetCommitKey(group="g", topic="t", partition=0)
    line = OFFSETS.to_text(record(encode_record_key(key), offset_value(0)))
    assert line is not None
    assert line.startswith("[g,t,0]::[OffsetMetadata[2130,NO_METADATA]")


def test_a_commit_as_json() -> None:
    value = offset_value(4, metadata="m", leader_epoch=5, topic_id=bytes(range(16)))
    shown = OFFSETS.to_json(offset_record(value))
    assert shown == {
        "group": "consumerGroupId",
        "topic": "topic-offsets",
        "partition": 30,
        "committed": {
            "offset": 2130,
            "leader_epoch": 5,
            "metadata": "m",
            "commit_timestamp": COMMITTED_AT,
            "expiration_timestamp": COMMITTED_AT + WEEK_MS,
            "topic_id": "AAECAwQFBgcICQoLDA0ODw",
        },
        "record": {"partition": 20, "offset": 7, "timestamp": COMMITTED_AT},
    }
    tombstone = OFFSETS.to_json(offset_record(None))
    assert tombstone is not None
    assert tombstone["committed"] is None


# Groups


def group_record(version: int | None, **more: Any) -> ConsumerRecord:
    member = GroupMetadataValue.MemberMetadata(
        member_id="ann-1",
        client_id="ann",
        client_host="/127.0.0.1",
        session_timeout=45_000,
        subscription=subscription(["orders"]),
        assignment=assignment([TopicPartition("orders", 1), TopicPartition("orders", 0)]),
        group_instance_id=more.pop("instance", None),
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="ann-1",
        current_state_timestamp=COMMITTED_AT,
        members=[member],
    )
    blob = None if version is None else encode_versioned(value, version)
    return record(encode_record_key(GroupMetadataKey(group="g")), blob)


@pytest.mark.parametrize("version", range(5))
def test_a_group_is_shown_with_members_and_assignments(version: int) -> None:
    state_time = COMMITTED_AT if version >= 2 else -1  # older ones did not store it
    instance = "desk-1" if version >= 3 else "NO_INSTANCE_ID"
    assert _group_text(group_record(version, instance="desk-1")) == (
        f"[g]::[GroupMetadata[3,consumer,range,ann-1],StateTime {state_time},"
        f"Members[[ann-1,{instance},ann,/127.0.0.1,[orders-0 orders-1]]]]"
    )


def test_a_deleted_group_and_an_empty_one() -> None:
    assert _group_text(group_record(None)) == "[g]::null"
    empty = GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None, members=[])
    key = encode_record_key(GroupMetadataKey(group="g"))
    assert _group_text(record(key, encode_versioned(empty, 3))) == (
        "[g]::[GroupMetadata[0,NO_PROTOCOL_TYPE,NO_PROTOCOL,NO_LEADER],StateTime -1,Members[]]"
    )


def test_a_group_as_json() -> None:
    shown = _group_json(group_record(3))
    assert shown is not None
    assert shown["group"] == "g"
    assert shown["metadata"]["generation"] == 3
    (member,) = shown["metadata"]["members"]
    assert (member["topics"], member["assignment"]) == (["orders"], {"orders": [0, 1]})
    assert json.loads(json.dumps(shown)) == shown


def test_each_formatter_skips_records_of_the_other() -> None:
    assert _group_text(offset_record(offset_value(4))) is None
    assert OFFSETS.to_text(group_record(3)) is None
    assert OFFSETS.to_json(group_record(3)) is None
    from_the_future = record(b"\x00\x63whatever", b"\x00\x00")
    assert OFFSETS.to_text(from_the_future) is None
    assert _group_text(from_the_future) is None


def test_records_of_kip_848_groups_are_shown() -> None:
    """The bytes were written by Apache Kafka 4.3."""
    group, member = "00036e6577", "00166446542f42476f595141474147724461364152704977"
    stored = [
        ("0005" + group + member, "0000000004626f620b2f3132372e302e302e3102076f726465727301000493e00001000100"),
        ("0003" + group, "0000000000020100080545151db80464a8"),
        ("0006" + group, "000000000002010008000001a1e1348ded"),
        ("0007" + group + member, "0000024e5de3c3e9ce4a5cbbaf65cb25ceb0e00300000000000000010000"),
        ("0008" + group + member, "0000000000020000000000010100"),
    ]
    shown = []
    for key_hex, value_hex in stored:
        key, value = bytes.fromhex(key_hex), bytes.fromhex(value_hex)
        line = _group_text(record(key, value))
        assert line is not None
        shown.append(line)
        kind = VALUES[int(key_hex[:4], 16)]
        assert encode_versioned(decode_versioned(kind, value), 0) == value
    who = "dFT/BGoYQAGAGrDa6ARpIw"
    assert shown[0] == (
        f'[new,{who}]::ConsumerGroupMemberMetadata {{"instance_id": null, "rack_id": null, "client_id": "bob", '
        '"client_host": "/127.0.0.1", "subscribed_topic_names": ["orders"], "subscribed_topic_regex": "", '
        '"rebalance_timeout_ms": 300000, "server_assignor": null, "classic_member_metadata": null}'
    )
    assert shown[1].startswith('[new]::ConsumerGroupMetadata {"epoch": 2,')
    assert '{"topic_id": "Tl3jw-nOSly7r2XLJc6w4A", "partitions": [0, 1]}' in shown[3]
    assert _group_text(record(bytes.fromhex(stored[1][0]), None)) == "[new]::ConsumerGroupMetadata null"


# Mistakes


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"", b""), (b"\x00\x01\x00", b""), (b"text", b"text"), (b"\x00\x01\x7f\xff", None)]
)
def test_malformed_bytes_raise(key: bytes | None, value: bytes | None) -> None:
    if key == b"text":  # an unknown record type
        assert OFFSETS.to_text(record(key, value)) is None
        return
    with pytest.raises(ProtocolError):
        OFFSETS.to_text(record(key, value))


def test_a_value_of_an_unknown_version_raises() -> None:
    with pytest.raises(ProtocolError):
        OFFSETS.to_text(offset_record(b"\x00\x09" + bytes(30)))


def test_an_unknown_formatter_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(OttlaError) as caught:
        check_formatter("ofsets")
    assert all(name in caught.value.hint for name in FORMATTERS)
