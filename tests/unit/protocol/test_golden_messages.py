"""Golden bytes: what other implementations read and write, byte for byte."""

from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.protocol import framing
from ottla.protocol.api import ApiKey
from ottla.protocol.messages import group_records
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.messages.control_records import ControlRecordTypeSchema, EndTxnMarker
from ottla.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.protocol.messages.transaction_records import AbortedTxn, TransactionLogKey, TransactionLogValue
from ottla.protocol.schema import Message

NOW = 1_700_000_000_000

MEMBER = GroupMetadataValue.MemberMetadata(
    member_id="m1", group_instance_id=None, client_id="c", client_host="/127.0.0.1", rebalance_timeout=300_000,
    session_timeout=45_000, subscription=b"\x01", assignment=b"\x02",
)  # fmt: skip
ONGOING: dict[str, Any] = {
    "producer_id": 1000, "producer_epoch": 3, "transaction_timeout_ms": 60_000, "transaction_status": 1,
    "transaction_partitions": [TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[0, 1])],
    "transaction_last_update_timestamp_ms": NOW + 500, "transaction_start_timestamp_ms": NOW,
}  # fmt: skip

VALUES: dict[str, tuple[Message, int, str]] = {
    "offset value v3": (
        OffsetCommitValue(offset=42, leader_epoch=5, metadata="m", commit_timestamp=NOW), 3,
        "0003000000000000002a0000000500016d0000018bcfe56800",
    ),
    "offset value v4 without a topic id": (
        OffsetCommitValue(offset=42, leader_epoch=5, metadata="m", commit_timestamp=NOW), 4,
        "0004000000000000002a00000005026d0000018bcfe5680000",
    ),
    "offset value v4 with a topic id": (
        OffsetCommitValue(offset=42, leader_epoch=5, metadata="m", commit_timestamp=NOW, topic_id=bytes(range(16))), 4,
        "0004000000000000002a00000005026d0000018bcfe56800010010000102030405060708090a0b0c0d0e0f",
    ),
    "group value with a member": (
        GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", leader="m1",
                           current_state_timestamp=NOW, members=[MEMBER]), 3,
        "00030008636f6e73756d657200000001000572616e676500026d310000018bcfe568000000000100026d31ffff000163000a2f313237"
        "2e302e302e31000493e00000afc800000001010000000102",
    ),
    "group value of an empty group": (
        GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=NOW), 3,
        "0003000000000000ffffffff0000018bcfe5680000000000",
    ),
    "transaction value v0, empty": (
        TransactionLogValue(producer_id=1000, producer_epoch=0, transaction_timeout_ms=60_000, transaction_status=0,
                            transaction_partitions=None, transaction_last_update_timestamp_ms=NOW,
                            transaction_start_timestamp_ms=-1), 0,
        "000000000000000003e800000000ea6000ffffffff0000018bcfe56800ffffffffffffffff",
    ),
    "transaction value v0, ongoing": (
        TransactionLogValue(**ONGOING), 0,
        "000000000000000003e800030000ea6001000000010001740000000200000000000000010000018bcfe569f40000018bcfe56800",
    ),
    "transaction value v1 with tags": (
        TransactionLogValue(**ONGOING, previous_producer_id=1000, client_transaction_version=2), 1,
        "000100000000000003e800030000ea6001020274030000000000000001000000018bcfe569f40000018bcfe5680002000800000000"
        "000003e802020002",
    ),
    "consumer subscription v3": (
        ConsumerProtocolSubscription(
            topics=["t"], user_data=None, generation_id=4, rack_id="rackA",
            owned_partitions=[ConsumerProtocolSubscription.TopicPartition(topic="t", partitions=[0])]), 3,
        "000300000001000174ffffffff0000000100017400000001000000000000000400057261636b41",
    ),
    "consumer assignment v0": (
        ConsumerProtocolAssignment(
            assigned_partitions=[ConsumerProtocolAssignment.TopicPartition(topic="t", partitions=[0, 1])],
            user_data=None), 0,
        "000000000001000174000000020000000000000001ffffffff",
    ),
    "end marker of a transaction": (EndTxnMarker(coordinator_epoch=7), 0, "000000000007"),
    "control record key, commit": (ControlRecordTypeSchema(type=1), 0, "00000001"),
    "aborted transaction": (
        AbortedTxn(producer_id=1000, first_offset=1, last_offset=5, last_stable_offset=6), 0,
        "0000" "00000000000003e8" "0000000000000001" "0000000000000005" "0000000000000006",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_stored_value_has_the_golden_bytes(name: str) -> None:
    message, version, golden = VALUES[name]
    assert framing.encode_versioned(message, version).hex() == golden
    assert framing.decode_versioned(type(message), bytes.fromhex(golden)) == message


@pytest.mark.parametrize(
    ("key", "golden"),
    [
        (OffsetCommitKey(group="g", topic="t", partition=0), "000100016700017400000000"),
        (GroupMetadataKey(group="g"), "0002000167"),
    ],
)
def test_a_group_key_has_the_golden_bytes(key: Message, golden: str) -> None:
    assert framing.encode_record_key(key).hex() == golden
    assert framing.decode_record_key(group_records.KEYS, bytes.fromhex(golden)) == key


def test_a_transaction_key_has_the_golden_bytes() -> None:
    key = TransactionLogKey(transactional_id="txn")
    assert framing.encode_record_key(key).hex() == "0000000374786e"
    assert framing.decode_record_key({0: TransactionLogKey}, bytes.fromhex("0000000374786e")) == key


def test_an_api_versions_request_has_the_golden_bytes() -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    golden = "00120003000000070003636c69000278023100"
    assert framing.encode_request(ApiKey.API_VERSIONS, 3, 7, "cli", request).hex() == "00000013" + golden
    header = framing.decode_request_header(bytes.fromhex(golden))
    assert tuple(header) == (ApiKey.API_VERSIONS, 3, 7, "cli", 14)
    assert ApiVersionsRequest.decode(bytes.fromhex(golden), 3, header.body_offset) == request


def test_the_response_to_an_unknown_version_of_api_versions_has_the_golden_bytes() -> None:
    """Spec: R4. ApiVersions in an unknown version is answered in v0."""
    entry = ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)
    response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[entry])
    encoded = framing.encode_response(ApiKey.API_VERSIONS, 0, 7, response)
    assert encoded.hex() == "0000001000000007002300000001001200000004"
