"""Frames: sizes, headers, and the special rules of ApiVersions."""

import pytest

from ottla.errors import ErrorCode
from ottla.protocol import framing
from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import (
    LARGE_PART_BYTES,
    decode_request_header,
    decode_response,
    encode_request,
    encode_request_parts,
    encode_response,
)
from ottla.protocol.messages import group_records
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.group_records import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.messages.headers import RequestHeader, ResponseHeader
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.primitives import ProtocolError


def size_and_frame(data: bytes) -> tuple[int, bytes]:
    return int.from_bytes(data[:4], "big"), data[4:]


@pytest.mark.parametrize("version", range(0, 14))
def test_a_request_survives_encoding_and_decoding(version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
    size, frame = size_and_frame(encode_request(ApiKey.METADATA, version, 5, "me", request))
    assert size == len(frame)
    header = decode_request_header(frame)
    assert header[:4] == (ApiKey.METADATA, version, 5, "me")
    assert MetadataRequest.decode(frame, version, header.body_offset) == request


@pytest.mark.parametrize("sizes", [[LARGE_PART_BYTES], [LARGE_PART_BYTES - 1], [20_000, 3, 9_000], [0]])
def test_a_request_in_parts_is_the_same_and_copies_nothing_large(sizes: list[int]) -> None:
    batches = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
    data = [ProduceRequest.PartitionProduceData(index=i, records=batch) for i, batch in enumerate(batches)]
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=data)])
    parts = encode_request_parts(ApiKey.PRODUCE, 9, 5, "me", request)
    assert b"".join(parts) == encode_request(ApiKey.PRODUCE, 9, 5, "me", request)
    large = [batch for batch in batches if len(batch) >= LARGE_PART_BYTES]
    assert len(parts) == 2 * len(large) + 1
    assert all(any(part is batch for part in parts) for batch in large)


@pytest.mark.parametrize("version", range(0, 14))
def test_a_response_survives_encoding_and_decoding(version: int) -> None:
    response = MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic(name="t")])
    size, frame = size_and_frame(encode_response(ApiKey.METADATA, version, -5, response))
    assert size == len(frame)
    assert decode_response(ApiKey.METADATA, version, frame) == (-5, response)


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_a_response_with_records_is_framed_the_same_way(version: int) -> None:
    partition = FetchResponse.PartitionData(partition_index=3, high_watermark=9, records=memoryview(b"b" * 5000))
    topic = FetchResponse.FetchableTopicResponse(partitions=[partition])
    size, frame = size_and_frame(encode_response(ApiKey.FETCH, version, 1, FetchResponse(responses=[topic])))
    assert size == len(frame) > 5000
    correlation_id, response = decode_response(ApiKey.FETCH, version, frame)
    assert (correlation_id, response.responses[0].partitions[0].records) == (1, b"b" * 5000)


def test_headers_agree_with_the_published_tables() -> None:
    for version, key in ((1, ApiKey.SASL_HANDSHAKE), (2, ApiKey.DESCRIBE_CLUSTER)):
        header = RequestHeader(request_api_key=key, request_api_version=0, correlation_id=9, client_id="grün")
        assert decode_request_header(header.encode(version)) == (key, 0, 9, "grün", len(header.encode(version)))
        response = API[key].response()
        assert encode_request(key, 0, 9, "grün", API[key].request())[4:].startswith(header.encode(version))
        assert encode_response(key, 0, 9, response)[4:] == (
            ResponseHeader(correlation_id=9).encode(version - 1) + response.encode(0)
        )


@pytest.mark.parametrize("version", [1, 2])
def test_a_null_client_id_reads_as_empty(version: int) -> None:
    key = (ApiKey.SASL_HANDSHAKE, ApiKey.DESCRIBE_CLUSTER)[version - 1]
    header = RequestHeader(request_api_key=key, correlation_id=1, client_id=None).encode(version)
    assert decode_request_header(header) == (key, 0, 1, "", len(header))
    assert encode_request(key, 0, 1, None, API[key].request())[4:].startswith(header)


def test_unknown_tags_of_a_header_are_skipped() -> None:
    plain = RequestHeader(request_api_key=60, correlation_id=1, client_id="c").encode(2)
    tagged = plain[:-1] + bytes.fromhex("0105026162")
    assert decode_request_header(tagged).body_offset == len(tagged)
    response = API[60].response()
    frame = bytes(4) + bytes.fromhex("0105026162") + response.encode(0)
    assert decode_response(60, 0, frame) == (0, response)


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_the_header_of_an_unknown_api_versions_version_is_readable(version: int) -> None:
    """Spec: R4. It must be answered, so its correlation id must be read."""
    header = RequestHeader(request_api_key=18, request_api_version=version, correlation_id=77, client_id="new")
    frame = header.encode(1) + b"\xff\xff nobody knows what follows"
    assert decode_request_header(frame) == (18, version, 77, "new", 13)


@pytest.mark.parametrize("version", range(0, 6))
def test_api_versions_always_answers_with_the_oldest_header(version: int) -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, max_version=5)])
    frame = encode_response(ApiKey.API_VERSIONS, version, 7, response)[4:]
    assert frame == ResponseHeader(correlation_id=7).encode(0) + response.encode(version)
    assert decode_response(ApiKey.API_VERSIONS, version, frame) == (7, response)


@pytest.mark.parametrize("asked", range(0, 6))
def test_a_rejected_api_versions_request_is_answered_in_version_0(asked: int) -> None:
    refusal = bytes.fromhex("00000007002300000001001200000004")
    correlation_id, response = decode_response(ApiKey.API_VERSIONS, asked, refusal)
    assert (correlation_id, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert response.api_keys == [ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)]


def test_only_flexible_api_versions_requests_have_a_flexible_header() -> None:
    request = ApiVersionsRequest()
    assert decode_request_header(encode_request(18, 2, 1, "c", request)[4:]).body_offset == 11
    assert decode_request_header(encode_request(18, 3, 1, "c", request)[4:]).body_offset == 12


MALFORMED_HEADERS = {
    "empty": "",
    "two bytes": "0012",
    "client id cut": "00120003000000070005636c69",
    "client id cut, classic": "00120000000000070005636c69",
    "negative length": "0012000300000007fffe",
    "not UTF-8": "00120003000000070002fffe",
    "an API that is gone": "0004000000000007ffff",
    "unknown API": "7fff000000000007ffff",
    "negative API": "ffff000000000007ffff",
    "a version that is gone": "0000000200000007ffff",
    "no tag section": "003c000000000007ffff",
    "a tag section cut": "003c000000000007ffff01",
}


@pytest.mark.parametrize("frame", MALFORMED_HEADERS.values(), ids=MALFORMED_HEADERS)
def test_a_malformed_request_header_is_a_protocol_error(frame: str) -> None:
    """Spec: R8. The connection is closed, nothing else happens."""
    for kind in (bytes, bytearray, memoryview):
        with pytest.raises(ProtocolError):
            decode_request_header(kind(bytes.fromhex(frame)))


@pytest.mark.parametrize("frame", ["", "000000", "00000001", "0000000101", "00000001010005"])
def test_a_malformed_response_is_a_protocol_error(frame: str) -> None:
    with pytest.raises(ProtocolError):
        decode_response(ApiKey.DESCRIBE_CLUSTER, 0, bytes.fromhex(frame))


def test_a_header_that_cannot_be_encoded_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        encode_request(18, 0, 2**31, "c", ApiVersionsRequest())
    with pytest.raises(ProtocolError):
        encode_request(18, 0, 1, "x" * 40_000, ApiVersionsRequest())
    with pytest.raises(ProtocolError):
        encode_response(18, 0, 2**31, ApiVersionsResponse())
    with pytest.raises(ProtocolError, match="auth_bytes holds 'text'"):
        encode_request(36, 0, 1, "c", API[36].request(auth_bytes="text"))
    with pytest.raises(ProtocolError, match="auth_bytes holds 'text'"):
        encode_response(36, 0, 1, API[36].response(auth_bytes="text"))


def test_a_newer_version_of_the_consumer_protocol_reads_as_the_newest_known() -> None:
    newest = framing.encode_versioned(ConsumerProtocolSubscription(topics=["t"], rack_id="r"), 3)
    newer = b"\0\x09" + newest[2:] + b"fields of the future"
    read = framing.decode_versioned(ConsumerProtocolSubscription, newer, accept_newer=True)
    assert (read.topics, read.rack_id) == (["t"], "r")


def test_a_stored_value_of_an_unknown_version_is_an_error() -> None:
    stored = framing.encode_versioned(OffsetCommitValue(offset=1), 3)
    with pytest.raises(ProtocolError, match="has no version 9"):
        framing.decode_versioned(OffsetCommitValue, b"\0\x09" + stored[2:])
    with pytest.raises(ProtocolError):
        framing.decode_versioned(OffsetCommitValue, b"\0")


def test_a_stored_key_of_an_unknown_type_is_skipped() -> None:
    key = framing.encode_record_key(OffsetCommitKey(group="g", topic="t", partition=1))
    assert framing.decode_record_key(group_records.KEYS, b"\x03\xe7" + key[2:]) is None
    with pytest.raises(ProtocolError):
        framing.decode_record_key(group_records.KEYS, b"\0")
    with pytest.raises(ProtocolError):
        framing.decode_record_key(group_records.KEYS, key[:-1])
