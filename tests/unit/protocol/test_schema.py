"""Message tables and the code generated from them: defaults, null, tags, versions, errors."""

import copy
import pickle
import struct
from collections.abc import Callable
from typing import Any

import pytest

from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.schema import Message, Struct, Versions, field
from ottla.types import ZERO_UUID
from tests.support.wire.messages import reference_encode


class Sample(Message, versions=range(0, 4), flexible_since=2):
    """One field of each type, and each rule that depends on the version."""

    flag: bool = field("bool")
    tiny: int = field("int8", default=3)
    port: int = field("uint16")
    wide: int = field("uint32")
    ratio: float = field("float64")
    name: str = field("string", nullable="1+")
    data: bytes | None = field("bytes", nullable="0+", default=None)
    later: int = field("int32", "1+", default=-1)
    dropped: str = field("string", "0-1", ignorable=True)
    ids: list[bytes] = field("[]uuid", "1+")
    labels: list[str] | None = field("[]string", "1+", nullable="2+", ignorable=True)
    inner: "Sample.Inner | None" = field("Inner", "2+", nullable="2+", default=None)
    tagged: int = field("int64", "2+", default=-1, tag=1)
    tagged_first: "Sample.Inner" = field("Inner", "2+", tag=0)
    listing: "Sample.Listing" = field("Listing", "3+")

    class Inner(Struct):
        a: int = field("int16", default=-1)
        b: str = field("string")

    class Listing(Struct):
        items: list[int] = field("[]int16")
        more: "list[Sample.Inner]" = field("[]Inner")


Wrong: Any = Sample
"""The same class, for arguments of wrong types."""


def round_trip(message: Sample, version: int) -> Sample:
    encoded = message.encode(version)
    decoded, end = type(message).read(encoded + b"more", version)
    assert end == len(encoded), "the position after a message is its end, not the buffer's"
    assert type(message).decode(memoryview(encoded), version) == decoded
    assert type(message).decode(bytearray(encoded), version) == decoded
    assert type(message).decode(b"before" + encoded, version, 6) == decoded
    return decoded


def test_an_omitted_argument_is_the_published_default() -> None:
    message = Sample()
    assert (message.flag, message.tiny, message.later, message.name, message.data) == (False, 3, -1, "", None)
    assert (message.ids, message.labels, message.inner, message.ratio) == ([], [], None, 0.0)
    assert message.tagged_first == Sample.Inner(a=-1, b="")
    assert ProduceRequest.TopicProduceData().topic_id == ZERO_UUID


def test_an_unknown_argument_is_an_error() -> None:
    with pytest.raises(TypeError):
        Wrong(nmae="x")
    with pytest.raises(TypeError):
        Wrong("x")


def test_messages_do_not_share_their_lists() -> None:
    first, second = Sample(), Sample()
    first.ids.append(bytes(16))
    first.listing.items.append(1)
    first.listing.more.append(Sample.Inner())
    assert (second.ids, second.listing.items, second.listing.more) == ([], [], [])
    assert Sample.decode(Sample().encode(2), 2).listing.items == []


def test_a_shared_default_cannot_be_changed_by_accident() -> None:
    message = Sample()
    with pytest.raises(AttributeError, match="assign a new one"):
        message.tagged_first.a = 1
    message.tagged_first = Sample.Inner(a=1)
    assert Sample().tagged_first.a == -1


def test_messages_compare_by_value_and_show_what_is_not_default() -> None:
    assert Sample(tiny=1) == Sample(tiny=1) != Sample(tiny=2)
    assert Sample() != Sample.Inner()
    assert repr(Sample(name="x", inner=Sample.Inner(a=7))) == "Sample(name='x', inner=Sample.Inner(a=7))"


def test_a_misspelt_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError):
        Sample().nmae = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_messages_can_be_copied_and_pickled(copied: Callable[[Struct], Struct]) -> None:
    message = FetchResponse.PartitionData(partition_index=1, high_watermark=5)
    assert copied(message) == message


@pytest.mark.parametrize("version", Sample.versions)
def test_defaults_survive_every_version(version: int) -> None:
    assert round_trip(Sample(), version) == Sample()


def test_every_type_survives_a_flexible_version() -> None:
    message = Sample(
        flag=True, tiny=-128, port=65535, wide=2**32 - 1, ratio=-0.25, name="naïve", data=b"\0\xff", later=5,
        ids=[bytes(range(16))], labels=["", "x" * 300], inner=Sample.Inner(a=1, b="in"), tagged=-(2**63),
        tagged_first=Sample.Inner(a=2, b="first"),
        listing=Sample.Listing(items=list(range(40)), more=[Sample.Inner(b="y" * 126), Sample.Inner(b="y" * 127)]),
    )  # fmt: skip
    assert round_trip(message, 3) == message


@pytest.mark.parametrize("length", [0, 1, 15, 16, 125, 126, 127, 128, 1000, 16_383, 16_384])
def test_arrays_of_numbers_may_be_of_any_length(length: int) -> None:
    listing = Sample.Listing(items=[n % 1000 - 500 for n in range(length)], more=[Sample.Inner()])
    assert round_trip(Sample(listing=listing), 3).listing == listing
    assert Sample(listing=listing).encode(3) == reference_encode(Sample(listing=listing), 3)
    partition = MetadataResponse.MetadataResponsePartition(
        replica_nodes=list(range(length)), isr_nodes=[1], offline_replicas=list(range(length))
    )
    topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=[partition, partition])
    for version in (8, 12):
        encoded = MetadataResponse(topics=[topic]).encode(version)
        assert encoded == reference_encode(MetadataResponse(topics=[topic]), version)
        assert MetadataResponse.decode(encoded, version).topics == [topic]


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 2**21 - 2, 2**21 - 1, 2**21])
def test_strings_and_records_may_be_of_any_length_up_to_their_limit(length: int) -> None:
    partition = FetchResponse.PartitionData(records=b"r" * length, aborted_transactions=None)
    topic = FetchResponse.FetchableTopicResponse(topic="t" * min(length, 32767), partitions=[partition])
    for version in (11, 12):
        encoded = FetchResponse(responses=[topic]).encode(version)
        assert encoded == reference_encode(FetchResponse(responses=[topic]), version)
        assert FetchResponse.decode(encoded, version).responses == [topic]


def test_null_and_empty_are_different() -> None:
    for version in (2, 3):
        assert round_trip(Wrong(labels=None, data=None, name=None), version).labels is None
        assert round_trip(Sample(labels=[], data=b"", name=""), version).labels == []
        assert round_trip(Sample(data=b""), version).data == b""
        assert round_trip(Wrong(name=None), version).name is None


def test_null_is_an_error_in_versions_without_it() -> None:
    null: Any = None
    with pytest.raises(ProtocolError):
        Wrong(name=None).encode(0)
    with pytest.raises(ProtocolError):
        Sample(labels=None).encode(1)
    with pytest.raises(ProtocolError):
        MetadataRequest(topics=None).encode(0)
    with pytest.raises(ProtocolError):
        ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(partition_responses=null)]).encode(9)
    partition = ProduceResponse.PartitionProduceResponse(record_errors=null)
    topic = ProduceResponse.TopicProduceResponse(partition_responses=[partition])
    with pytest.raises(ProtocolError):
        ProduceResponse(responses=[topic]).encode(9)
    with pytest.raises(ProtocolError, match="topics: must not be null"):
        MetadataRequest.decode(struct.pack(">i", -1), 0)


def test_a_field_that_a_version_lacks_reads_as_its_default() -> None:
    assert round_trip(Sample(dropped="seen"), 1).dropped == "seen"
    assert round_trip(Sample(dropped="seen"), 2).dropped == ""


@pytest.mark.parametrize(
    "message",
    [Sample(later=0), Sample(ids=[ZERO_UUID]), Sample(tagged=0), Sample(inner=Sample.Inner()),
     Sample(tagged_first=Sample.Inner(a=0)), Sample(listing=Sample.Listing(items=[1]))],
    ids=repr,
)  # fmt: skip
def test_a_value_that_a_version_cannot_carry_is_an_error(message: Sample) -> None:
    with pytest.raises(ProtocolError, match="v0 has no"):
        message.encode(0)


def test_an_ignorable_value_is_dropped_in_versions_without_it() -> None:
    assert round_trip(Sample(labels=["x"]), 0).labels == []


def test_a_tagged_default_takes_no_bytes() -> None:
    plain = Sample().encode(2)
    assert plain.endswith(b"\0")
    assert len(Sample(tagged=-2).encode(2)) == len(plain) + 10
    assert Sample(tagged_first=Sample.Inner(a=-1, b="")).encode(2) == plain


def test_tags_are_written_in_ascending_order() -> None:
    encoded = Sample(tagged=1, tagged_first=Sample.Inner(a=1)).encode(2)
    assert encoded.endswith(bytes.fromhex("02" + "0004" + "0001" + "01" + "00" + "0108" + "0000000000000001"))


def test_unknown_tags_are_skipped_between_known_ones() -> None:
    encoded = bytearray(Sample(tagged=7).encode(2))
    assert encoded[-11:-8] == b"\x01\x01\x08"
    encoded[-11] = 3
    encoded += bytes.fromhex("05 00 63 02 aabb".replace(" ", ""))
    assert Sample.decode(encoded, 2) == Sample(tagged=7)


@pytest.mark.parametrize("sections", ["0108 0108", "0400 0108", "0109"], ids=["twice", "descending", "wrong size"])
def test_tags_out_of_order_or_with_a_wrong_size_are_an_error(sections: str) -> None:
    tags = b"".join(bytes.fromhex(s) + (bytes(int(s[2:], 16))) for s in sections.split())
    body = Sample().encode(2)[:-1] + bytes([len(sections.split())]) + tags
    with pytest.raises(ProtocolError):
        Sample.decode(body, 2)


def test_records_are_a_view_of_the_received_bytes() -> None:
    for kind in (bytes, bytearray, memoryview):
        partition = ProduceRequest.PartitionProduceData(index=1, records=kind(b"batch"))
        topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
        frame = bytearray(ProduceRequest(acks=1, topic_data=[topic]).encode(7))
        records = ProduceRequest.decode(frame, 7).topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert bytes(records) == b"batch"
        frame[-1:] = b"H"
        assert bytes(records) == b"batcH", "no copy was made"


@pytest.mark.parametrize(
    "message",
    [Sample(tiny=128), Sample(port=-1), Sample(wide=2**32), Wrong(name=5), Sample(name="\ud800"), Sample(ids=[b"x"]),
     Sample(name="x" * 32768), Wrong(data="text"), Wrong(ratio="1"), Wrong(ids=5), Wrong(later=None)],
    ids=lambda m: repr(m)[:40],
)  # fmt: skip
@pytest.mark.parametrize("version", [1, 2])
def test_a_value_that_does_not_fit_its_field_is_a_protocol_error(message: Sample, version: int) -> None:
    with pytest.raises(ProtocolError):
        message.encode(version)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [(Sample(tiny=128), "tiny holds 128"), (Wrong(name=5), "name holds 5"), (Wrong(data="text"), "data holds 'text'"),
     (Wrong(ids=5), "ids holds 5"), (Wrong(labels=["a", None]), "labels holds None"),
     (Wrong(inner=Wrong.Inner(a="1")), "inner.a holds '1'"), (Wrong(inner=Sample.Listing()), "inner holds"),
     (Wrong(listing=Wrong.Listing(more=[Wrong.Inner(b=b"x")])), "listing.more.b holds b'x'")],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_error_names_the_field_that_does_not_fit(message: Sample, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=f"^Sample v3: {complaint}"):
        message.encode(3)


def test_an_id_of_the_wrong_length_is_not_padded() -> None:
    topic = FetchResponse.FetchableTopicResponse(topic_id=b"short")
    with pytest.raises(ProtocolError, match="is not 16 bytes"):
        FetchResponse(responses=[topic]).encode(13)


@pytest.mark.parametrize("version", [-1, 4, 99])
def test_an_unknown_version_is_an_error(version: int) -> None:
    with pytest.raises(ProtocolError, match="has no version"):
        Sample().encode(version)
    with pytest.raises(ProtocolError, match="has no version"):
        Sample.decode(b"", version)


def test_bytes_after_the_end_are_ignored_like_in_kafka() -> None:
    assert Sample.decode(Sample(name="x").encode(1) + b"trailing", 1) == Sample(name="x")


def test_a_negative_length_other_than_null_is_an_error() -> None:
    encoded = bytearray(Sample().encode(0))
    at = encoded.index(b"\xff\xff\xff\xff")
    encoded[at : at + 4] = b"\xff\xff\xff\xfe"
    with pytest.raises(ProtocolError, match="negative length"):
        Sample.decode(encoded, 0)


def test_a_table_with_an_unknown_struct_is_an_error() -> None:
    with pytest.raises(TypeError, match="no struct Missing"):

        class Broken(Message, versions=range(0, 1)):
            x: int = field("Missing")


def test_a_field_that_would_hide_a_method_is_an_error() -> None:
    with pytest.raises(TypeError, match="would hide"):

        class Broken(Message, versions=range(0, 1)):
            encode: int = field("int8")  # type: ignore[assignment]


def test_versions_are_written_like_in_kafkas_schemas() -> None:
    assert [v for v in range(6) if v in Versions.parse("3+")] == [3, 4, 5]
    assert [v for v in range(6) if v in Versions.parse("1-2")] == [1, 2]
    assert [v for v in range(6) if v in Versions.parse("4")] == [4]
    assert [v for v in range(6) if v in Versions.parse("")] == []
