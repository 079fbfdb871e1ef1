"""Spec: R8. Hostile bytes decode to a message or raise ProtocolError, and allocate no more than their own size.

The tests cover every decoder. The random seed is the name of the test, so a failure repeats.
"""

import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.primitives import REQUEST_ITEMS_MAX, TAGS_MAX, ProtocolError, uvarint
from ottla.protocol.schema import Message, Struct, field
from tests.support.wire.messages import every_message, full

each_message = pytest.mark.parametrize("cls", every_message(), ids=lambda cls: cls.__name__)

GIANTS = [
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x08",
]


def edges(cls: type[Message]) -> set[int]:
    """The oldest, the newest and the first flexible version."""
    return {cls.versions[0], cls.versions[-1], cls.flexible_since or cls.versions[0]} & set(cls.versions)


def try_to_decode(cls: type[Message], data: bytes, version: int) -> bool:
    """Whether the bytes are a message. Any exception but ProtocolError fails the test."""
    try:
        message, end = cls.read(data, version)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            cls.read(memoryview(data), version)
        return False
    assert end <= len(data)
    message.encode(version)
    return True


@each_message
def test_a_truncated_message_is_an_error(cls: type[Message]) -> None:
    for version in edges(cls):
        encoded = full(cls, version).encode(version)
        for cut in sorted({*range(min(len(encoded), 40)), *range(0, len(encoded), 1 + len(encoded) // 40)}):
            assert not try_to_decode(cls, encoded[:cut], version), f"v{version} cut at {cut}"


@each_message
def test_corrupt_bytes_are_a_message_or_an_error(cls: type[Message]) -> None:
    chance = random.Random(cls.__name__)
    for version in edges(cls):
        encoded = full(cls, version).encode(version)
        for _ in range(15 if encoded else 0):
            changed = bytearray(encoded)
            for _ in range(chance.choice([1, 1, 1, 4])):
                changed[chance.randrange(len(changed))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            try_to_decode(cls, bytes(changed), version)


@each_message
def test_random_bytes_are_a_message_or_an_error(cls: type[Message]) -> None:
    chance = random.Random(cls.__name__)
    for _ in range(15):
        try_to_decode(cls, chance.randbytes(chance.randrange(200)), chance.choice(cls.versions))


def takes_at_most(limit_bytes: int, cls: type[Message], data: bytes, version: int) -> bool:
    """Whether decoding stays below the limit. Threads of earlier tests allocate, too, so it has a few attempts."""
    for _ in range(20):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        try_to_decode(cls, data, version)
        _, peak = tracemalloc.get_traced_memory()
        if peak - before < limit_bytes:
            return True
    return False


@each_message
def test_a_giant_count_or_length_anywhere_allocates_nothing(cls: type[Message]) -> None:
    chance = random.Random(cls.__name__)
    version = cls.versions[-1]
    encoded = full(cls, version).encode(version)
    try_to_decode(cls, encoded, version)  # compiles the decoders, so that only the data is measured below
    tracemalloc.start()
    try:
        for _ in range(10):
            at = chance.randrange(len(encoded) + 1)
            giant = chance.choice(GIANTS)
            hostile = encoded[:at] + giant + encoded[at + chance.choice([0, 1, len(giant)]) :] + bytes(200)
            # A few hundred bytes cannot become more than a few hundred small objects.
            assert takes_at_most(500 * len(hostile), cls, hostile, version), f"v{version} {giant.hex()} at {at}"
    finally:
        tracemalloc.stop()


class Hollow(Message, versions=range(0, 3), flexible_since=2):
    """An array whose elements take no bytes in version 0."""

    items: "list[Hollow.Nothing]" = field("[]Nothing")

    class Nothing(Struct):
        later: int = field("int8", "1+")


def test_a_giant_count_of_empty_elements_is_an_error_too() -> None:
    assert len(Hollow.decode(struct.pack(">i", 3) + b"xyz", 0).items) == 3
    tracemalloc.start()
    try:
        for count in (4, 1000, 2**31 - 1):
            with pytest.raises(ProtocolError, match="do not fit"):
                Hollow.decode(struct.pack(">i", count) + b"xyz", 0)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("length", [6, 100, 2**31 - 2])
def test_records_longer_than_the_frame_are_an_error(version: int, length: int) -> None:
    partition = ProduceRequest.PartitionProduceData(records=b"batch")
    topic = ProduceRequest.TopicProduceData(partition_data=[partition])
    encoded = ProduceRequest(topic_data=[topic]).encode(version)
    flexible = ProduceRequest.is_flexible(version)
    tail = b"batch" + (bytes(3) if flexible else b"")
    honest = (uvarint(6) if flexible else struct.pack(">i", 5)) + tail
    assert encoded.endswith(honest)
    lying = (uvarint(length + 1) if flexible else struct.pack(">i", length)) + tail
    with pytest.raises(ProtocolError):
        ProduceRequest.decode(encoded.removesuffix(honest) + lying, version)


@pytest.mark.parametrize(
    ("data", "version"),
    [
        ("00000001" + "0002" + "7a", 0),
        ("00000001" + "0001" + "ff", 0),
        ("00000001" + "ffff", 0),
        ("02" + "00" * 16 + "02ff" + "00" * 4, 12),
        ("02" + "00" * 16 + uvarint(32_769).hex() + "61" * 32_768 + "00" * 4, 12),
    ],
    ids=["a byte is missing", "not UTF-8", "null where there is none", "not UTF-8, compact", "longer than 32767"],
)
def test_a_malformed_string_is_an_error(data: str, version: int) -> None:
    with pytest.raises(ProtocolError):
        MetadataRequest.decode(bytes.fromhex(data), version)


def test_the_longest_string_is_accepted() -> None:
    data = "02" + "00" * 16 + uvarint(32_768).hex() + "61" * 32_767 + "00" * 4
    topics = MetadataRequest.decode(bytes.fromhex(data), 12).topics
    assert topics is not None
    assert topics[0].name == "a" * 32_767


def test_an_array_of_numbers_longer_than_the_frame_is_an_error() -> None:
    topic = MetadataResponse.MetadataResponseTopic(
        name="t", partitions=[MetadataResponse.MetadataResponsePartition(replica_nodes=list(range(1000)))]
    )
    encoded = MetadataResponse(topics=[topic]).encode(8)
    count = struct.pack(">i", 1000)
    assert encoded.count(count) == 1
    for claimed in (1001, 2**29, 2**31 - 1):
        with pytest.raises(ProtocolError):
            MetadataResponse.decode(encoded.replace(count, struct.pack(">i", claimed)), 8)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(4, 18))
def test_the_most_used_decoders_raise_only_protocol_errors(data: bytes, version: int) -> None:
    try_to_decode(FetchRequest, data, version)
    try_to_decode(FetchResponse, data, version)
    try_to_decode(ProduceRequest, data, min(version, 13))


def test_a_request_has_a_limited_number_of_items() -> None:
    """A name of zero bytes takes two bytes on the wire and a hundred times that in memory."""
    allowed = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="")] * REQUEST_ITEMS_MAX)
    assert len(MetadataRequest.decode(allowed.encode(9), 9).topics or ()) == REQUEST_ITEMS_MAX
    allowed.topics = [*(allowed.topics or ()), MetadataRequest.MetadataRequestTopic(name="")]
    for version in (4, 9):
        with pytest.raises(
            ProtocolError, match=f"topics: {REQUEST_ITEMS_MAX + 1} items .* at most {REQUEST_ITEMS_MAX}"
        ):
            MetadataRequest.decode(allowed.encode(version), version)


def test_the_items_of_nested_arrays_count_together() -> None:
    half = REQUEST_ITEMS_MAX // 2
    topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=[0] * half) for name in "abc"]
    request = AddPartitionsToTxnRequest(v3_and_below_transactional_id="t", v3_and_below_topics=topics)
    for version in (0, 3):
        with pytest.raises(ProtocolError, match=r"partitions: .* items"):
            AddPartitionsToTxnRequest.decode(request.encode(version), version)
    request.v3_and_below_topics = topics[:1]
    AddPartitionsToTxnRequest.decode(request.encode(3), 3)


def test_responses_have_no_limit_of_items() -> None:
    """A client asked for them."""
    topics = [MetadataResponse.MetadataResponseTopic(name="") for _ in range(REQUEST_ITEMS_MAX + 1)]
    encoded = MetadataResponse(topics=topics).encode(9)
    assert len(MetadataResponse.decode(encoded, 9).topics) == REQUEST_ITEMS_MAX + 1


def test_a_struct_has_a_limited_number_of_tagged_fields() -> None:
    """Unknown tagged fields are skipped one by one."""
    encoded = MetadataRequest(topics=[]).encode(12)[:-1]
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(TAGS_MAX + 1))
    MetadataRequest.decode(encoded + uvarint(TAGS_MAX) + tags, 12)
    with pytest.raises(ProtocolError, match=f"{TAGS_MAX + 1} tagged fields .* at most {TAGS_MAX}"):
        MetadataRequest.decode(encoded + uvarint(TAGS_MAX + 1) + tags, 12)


def test_tagged_fields_count_as_items() -> None:
    tags = uvarint(TAGS_MAX) + b"".join(uvarint(tag) + b"\0" for tag in range(TAGS_MAX))
    count = REQUEST_ITEMS_MAX // TAGS_MAX
    encoded = uvarint(count + 1) + (b"\x01" + tags) * count + b"\x01\0\0\0"
    with pytest.raises(ProtocolError, match=r"topics\.tags: .* too many"):
        MetadataRequest.decode(encoded, 9)
