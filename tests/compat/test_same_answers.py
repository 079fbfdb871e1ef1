"""The same requests to Ottla and to Apache Kafka get equal responses.

Ids, addresses, times and the words of error texts differ between any two brokers and are left out.
"""

import time
from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.api import API, ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.delete_records import DeleteRecordsRequest
from ottla.protocol.messages.describe_producers import DescribeProducersRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from ottla.protocol.records.record_batch import Codec, build_batch
from tests.support.waiting import eventually
from tests.support.wire.raw import AT, RawConnection, Side, batch

pytestmark = pytest.mark.oracle

BOTH_SERVE = {
    # What Apache Kafka 4.3 and we both serve; later versions than 4.3's are ours alone.
    ApiKey.PRODUCE: range(3, 14),
    ApiKey.LIST_OFFSETS: range(1, 12),
    ApiKey.METADATA: range(0, 14),
}


# ---- ApiVersions and Metadata ----------------------------------------------------------------------------


def test_offered_versions_are_within_kafkas(sides: list[Side]) -> None:
    ours, theirs = (
        {
            key.api_key: (key.min_version, key.max_version)
            for key in side.connection.ask(
                ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3
            ).api_keys
        }
        for side in sides
    )
    for key, (minimum, maximum) in ours.items():
        assert key in API
        assert key in theirs, f"{ApiKey(key).name} is not for clients in Kafka"
        their_minimum, their_maximum = theirs[key]
        assert their_minimum <= minimum, ApiKey(key).name
        # Every client of Apache Kafka finds a version in common with Ottla.
        assert minimum <= their_maximum, ApiKey(key).name
        assert maximum >= their_minimum, ApiKey(key).name
    assert ours[ApiKey.PRODUCE][0] == theirs[ApiKey.PRODUCE][0] == 0


def test_an_unknown_version_of_api_versions_is_answered_in_v0(sides: list[Side]) -> None:
    """Spec: R4. ApiVersions in an unknown version."""
    for side in sides:
        side.connection.send(bytes.fromhex("0000000f0012007f00000007000363 6c69000000".replace(" ", "")))
        frame = side.connection.receive()
        assert frame is not None, side.name
        assert frame[:6] == bytes.fromhex("000000070023"), side.name
        # The entry for key 18 itself is included, so that the client can choose.
        entries = [frame[10 + 6 * i : 16 + 6 * i] for i in range(int.from_bytes(frame[6:10], "big"))]
        assert any(entry[:2] == b"\x00\x12" for entry in entries), side.name


@pytest.mark.parametrize(
    ("name", "version"), [("", ""), ("-bad", "1"), ("good", "1.0-"), ("a b", "1"), ("good", "1.0")]
)
def test_client_software_names_are_validated_the_same(same: Any, name: str, version: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    same(lambda side: side.connection.ask(request, 3).error_code)


@pytest.mark.parametrize("version", BOTH_SERVE[ApiKey.METADATA])
def test_metadata_of_known_unknown_and_impossible_topics(same: Any, version: int) -> None:
    def script(side: Side) -> Any:
        # Version 0 cannot ask for "none", and before 4 asking means creating where that is allowed.
        names = [side.topic] if version < 4 else [side.topic, side.topic + "-not", "im possible"]
        answer = side.ask(
            MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=version < 4,
            ),
            version,
        )
        answer["topics"].sort(key=lambda topic: topic["name"] or "")
        for topic in answer["topics"]:
            topic["partitions"].sort(key=lambda partition: partition["partition_index"])
        return answer

    same(script)


def test_metadata_by_unknown_id(same: Any) -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(topic_id=bytes(15) + b"\x07", name=None)])
    same(lambda side: side.ask(request, 12))


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_metadata_without_name_and_id_fails_for_all_topics(same: Any, version: int) -> None:
    def script(side: Side) -> Any:
        names = [side.topic, None]
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])
        answer = side.ask(request, version)
        # From v12 on, Kafka notices the missing name too late and may only return UNKNOWN_SERVER_ERROR.
        errors = {answer.pop("error_code"), *(topic.pop("error_code") for topic in answer["topics"])}
        assert errors <= {ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR}
        return answer, len(errors)

    same(script)


@pytest.mark.parametrize("version", [0, 1, 4, 9, 13])
def test_metadata_creates_a_topic_when_asked(same: Any, version: int) -> None:
    """The first response does not have it: the topic is created in the background."""

    def script(side: Side) -> Any:
        name = side.topic + "-auto"
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=True
        )
        first = side.ask(request, version)["topics"]
        side.await_leader(name, 1)
        return first, side.ask(request, version)["topics"]

    same(script)


# ---- Produce ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH_SERVE[ApiKey.PRODUCE])
def test_produce_in_every_version(same: Any, version: int) -> None:
    def script(side: Side) -> Any:
        data = batch(b"a", b"b")
        return [side.produce(data, version=version), side.produce(data, version=version, partition=1, acks=1)]

    same(script)


def spoiled(data: bytes, position: int, value: int) -> bytes:
    changed = bytearray(data)
    changed[position] = value
    return bytes(changed)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(b"", id="empty"),
        pytest.param(batch(b"a") + batch(b"b"), id="two batches"),
        pytest.param(spoiled(batch(b"a"), 17, 0), id="crc"),
        pytest.param(spoiled(batch(b"a"), 66, 0xFF), id="body"),
        pytest.param(spoiled(batch(b"a"), 16, 1), id="magic 1"),
        pytest.param(spoiled(batch(b"a"), 16, 9), id="magic 9"),
        pytest.param(spoiled(batch(b"a"), 11, 5), id="length too small"),
        pytest.param(batch(b"a")[:-3], id="cut short"),
        pytest.param(batch(b"a")[:20], id="cut in the header"),
    ],
)
def test_malformed_batches_get_the_same_errors(same: Any, records: Any) -> None:
    same(lambda side: error_of(side.produce(records)))


def error_of(answer: Any) -> Any:
    """The error of a Produce answer by name, and the offset; records' own errors by their place."""
    if isinstance(answer, str):
        return answer
    partition = answer["responses"][0]["partition_responses"][0]
    places = [error["batch_index"] for error in partition["record_errors"]]
    return ErrorCode(partition["error_code"]).name, partition["base_offset"], places


def reheaded(data: bytes, **changes: int) -> bytes:
    """A batch with other header fields and a checksum that fits them."""
    from ottla.protocol.records._speedups import crc32c

    places = {
        "attributes": (21, 2),
        "last_offset_delta": (23, 4),
        "producer_id": (43, 8),
        "base_sequence": (53, 4),
        "record_count": (57, 4),
    }
    changed = bytearray(data)
    for name, value in changes.items():
        position, size = places[name]
        changed[position : position + size] = value.to_bytes(size, "big", signed=True)
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize(
    "changes",
    [
        {"record_count": 0},
        {"record_count": 2},
        {"last_offset_delta": 5},
        {"attributes": 0x20},
        {"producer_id": 5},
    ],
    ids=str,
)
def test_inconsistent_batches_get_the_same_errors(same: Any, changes: dict[str, int]) -> None:
    same(lambda side: error_of(side.produce(reheaded(batch(b"a"), **changes))))


@pytest.mark.parametrize("version", [3, 6, 7])
def test_zstd_needs_a_version_that_supports_it(same: Any, version: int) -> None:
    data = batch(b"a" * 100, codec=Codec.ZSTD)
    same(lambda side: error_of(side.produce(data, version=version)))


def test_produce_to_missing_partitions(same: Any) -> None:
    def script(side: Side) -> Any:
        return [
            side.produce(batch(b"a"), topic=side.topic + "-not"),
            side.produce(batch(b"a"), partition=7),
            side.produce(batch(b"a"), topic="im possible"),
            error_of(side.produce(batch(b"a"), acks=2)),
        ]

    same(script)


def test_a_large_batch_and_one_older_than_allowed(same: Any) -> None:
    def script(side: Side) -> Any:
        side.create(side.topic + "-small", 1, max_message_bytes="500")
        side.create(side.topic + "-young", 1, message_timestamp_before_max_ms="1000")
        side.create(side.topic + "-past", 1, message_timestamp_after_max_ms="1000")
        side.create(side.topic + "-keyed", 1, cleanup_policy="compact")
        now = int(time.time() * 1000)
        keyless = build_batch([(AT, None, b"v", ()), (AT, b"k", b"v", ()), (AT, None, b"v", ())])
        return [
            error_of(side.produce(batch(b"x" * 600), topic=side.topic + "-small")),
            error_of(side.produce(batch(b"a", at=now - 60_000), topic=side.topic + "-young")),
            error_of(side.produce(batch(b"a", at=now + 600_000), topic=side.topic + "-past")),
            error_of(side.produce(keyless, topic=side.topic + "-keyed")),
        ]

    same(script)


def test_with_acks_zero_an_error_closes_the_connection(same: Any) -> None:
    def script(side: Side) -> Any:
        outcomes = []
        for name in (side.topic, side.topic + "-not"):
            with RawConnection(side.bootstrap) as connection:
                connection.post(side.produce_request(batch(b"a"), topic=name, acks=0), 9)
                try:
                    connection.ask(MetadataRequest(topics=[]), 4)
                    outcomes.append("open")
                except ConnectionError:
                    outcomes.append("closed")
        return outcomes

    same(script)


# ---- idempotence -----------------------------------------------------------------------------------------


def new_producer(side: Side, version: int = 4) -> Any:
    """The response to InitProducerId. Apache Kafka may first fetch a block of ids and answer with an error."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answers: list[Any] = []

    def is_loaded() -> bool:
        answers.append(side.connection.ask(request, version))
        return bool(answers[-1].error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    eventually(is_loaded)
    return answers[-1]


def producer_id(side: Side) -> int:
    """A new producer id."""
    answer = new_producer(side)
    assert answer.error_code == 0
    return int(answer.producer_id)


def test_a_new_producer_id_has_epoch_zero(same: Any) -> None:
    def script(side: Side) -> Any:
        answers = [new_producer(side, version) for version in (0, 1, 2, 3, 4, 4)]
        ids = [answer.producer_id for answer in answers]
        assert len(set(ids)) == len(ids), side.name
        return [(answer.error_code, answer.producer_epoch, answer.producer_id >= 0) for answer in answers]

    same(script)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([(0, 0, 2), (0, 2, 2), (0, 4, 1)], id="in order"),
        pytest.param([(0, 0, 2), (0, 0, 2)], id="the last again"),
        pytest.param([(0, i, 1) for i in range(6)] + [(0, 1, 1), (0, 5, 1)], id="one of the last five again"),
        pytest.param([(0, i, 1) for i in range(7)] + [(0, 0, 1)], id="too old to remember"),
        pytest.param([(0, 0, 2), (0, 5, 1), (0, 2, 1)], id="a gap"),
        pytest.param([(0, 7, 1)], id="unknown producer in the middle"),
        pytest.param([(3, 0, 1)], id="unknown producer at a later epoch"),
        pytest.param([(1, 0, 1), (0, 1, 1)], id="an older epoch"),
        pytest.param([(0, 0, 3), (1, 0, 1)], id="a newer epoch starts at zero"),
        pytest.param([(0, 0, 3), (1, 3, 1)], id="a newer epoch not at zero"),
        pytest.param([(0, 0, 3), (0, 1, 2)], id="part of the last"),
        pytest.param([(0, 2**31 - 2, 2)], id="unknown producer at the end of the numbers"),
    ],
)
def test_sequences_are_checked_the_same(same: Any, steps: list[tuple[int, int, int]]) -> None:
    """Spec: D3. The next sequence, a duplicate with its old offset, or an error."""

    def script(side: Side) -> Any:
        identity = producer_id(side)
        return [
            error_of(
                side.produce(batch(*[b"v"] * count, producer_id=identity, producer_epoch=epoch, base_sequence=sequence))
            )
            for epoch, sequence, count in steps
        ]

    same(script)


def test_producers_are_described_the_same(same: Any) -> None:
    def script(side: Side) -> Any:
        identity = producer_id(side)
        side.produce(batch(b"a", b"b", producer_id=identity, producer_epoch=0, base_sequence=0))
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(name=side.topic, partition_indexes=[0, 1, 9]),
                DescribeProducersRequest.TopicRequest(name=side.topic + "-not", partition_indexes=[0]),
            ]
        )
        answer = side.ask(request, 0, hide=frozenset({"last_timestamp"}))
        answer["topics"].sort(key=lambda topic: topic["name"])
        return answer

    same(script)


# ---- ListOffsets, OffsetForLeaderEpoch, DeleteRecords ----------------------------------------------------


@pytest.mark.parametrize("version", BOTH_SERVE[ApiKey.LIST_OFFSETS])
def test_offsets_are_listed_the_same_in_every_version(same: Any, version: int) -> None:
    timestamps = [-1, -2, AT - 5, AT, AT + 1, AT + 2, AT + 100]
    timestamps += [-3] if version >= 7 else []
    timestamps += [-4] if version >= 8 else []
    timestamps += [-5] if version >= 9 else []
    timestamps += [-6] if version >= 11 else []

    def script(side: Side) -> Any:
        side.produce(batch(b"a", b"b"))
        side.produce(batch(b"c", at=AT + 50))
        return [
            list_offset(side, timestamp, version, partition=partition)
            for partition in (0, 1)
            for timestamp in timestamps
        ]

    same(script)


def list_offset(side: Side, timestamp: int, version: int, *, topic: str = "", partition: int = 0, **more: int) -> Any:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=topic or side.topic,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **more)
                ],
            )
        ],
    )
    return side.ask(request, version)


def twice(side: Side) -> ListOffsetsRequest:
    """A request for the same partition twice."""
    partitions = [ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 0)]
    topic = ListOffsetsRequest.ListOffsetsTopic(name=side.topic, partitions=partitions)
    return ListOffsetsRequest(replica_id=-1, topics=[topic])


def test_offsets_of_missing_partitions_and_other_epochs(same: Any) -> None:
    def script(side: Side) -> Any:
        side.produce(batch(b"a"))
        return [
            list_offset(side, -1, 7, topic=side.topic + "-not"),
            list_offset(side, -1, 7, partition=9),
            list_offset(side, -1, 7, current_leader_epoch=99),
            list_offset(side, -1, 7, current_leader_epoch=0),
            list_offset(side, -99, 7),
            side.ask(twice(side), 7),
        ]

    same(script)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_end_offsets_of_leader_epochs(same: Any, version: int) -> None:
    request = OffsetForLeaderEpochRequest

    def script(side: Side) -> Any:
        side.produce(batch(b"a", b"b"))
        return [
            side.ask(
                request(
                    replica_id=-1,
                    topics=[
                        request.OffsetForLeaderTopic(
                            topic=name,
                            partitions=[
                                request.OffsetForLeaderPartition(
                                    partition=partition, current_leader_epoch=current, leader_epoch=epoch
                                )
                            ],
                        )
                    ],
                ),
                version,
            )
            for name, partition, current, epoch in [
                (side.topic, 0, -1, 0),
                (side.topic, 0, 0, 0),
                (side.topic, 0, -1, 5),
                (side.topic, 0, 9, 0),
                (side.topic, 1, -1, 0),
                (side.topic, 9, -1, 0),
                (side.topic + "-not", 0, -1, 0),
            ]
        ]

    same(script)


def test_records_are_deleted_the_same(same: Any) -> None:
    request = DeleteRecordsRequest

    def script(side: Side) -> Any:
        for _ in range(4):
            side.produce(batch(b"a", b"b"))
        return [
            side.ask(
                request(
                    topics=[
                        request.DeleteRecordsTopic(
                            name=name,
                            partitions=[request.DeleteRecordsPartition(partition_index=partition, offset=offset)],
                        )
                    ],
                    timeout_ms=30_000,
                ),
                2,
            )
            for name, partition, offset in [
                (side.topic, 0, 3),
                (side.topic, 0, 2),
                (side.topic, 0, 99),
                (side.topic, 0, -2),
                (side.topic, 0, -1),
                (side.topic, 1, 0),
                (side.topic, 9, 0),
                (side.topic + "-not", 0, 0),
            ]
        ] + [list_offset(side, -2, 7)]

    same(script)
