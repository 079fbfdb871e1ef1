"""Spec: R8. Batches with a correct checksum and damaged records: no broker may store what readers cannot decode."""

from typing import Any

import pytest

from ottla.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.records.batch_layout import HEADER_SIZE
from ottla.protocol.records.compression import Codec
from ottla.protocol.records.record_batch import BatchHeader, assemble, read_header
from tests.support.wire.damaged import damaged, record
from tests.support.wire.raw import AT, Side, batch

pytestmark = pytest.mark.oracle

KAFKA_IS_CARELESS = frozenset(
    {
        # Apache Kafka does not check offset deltas if records are uncompressed, nor a record's length if they are not.
        "offset deltas that repeat",
        "offset deltas with a gap",
        "offset deltas below zero",
        "offset deltas in reverse",
        "a record longer than its batch",
        "a record shorter than its content",
        "a record of negative length",
    }
)


def error_of(side: Side, records: bytes, topic: str) -> ErrorCode:
    answer = side.produce(records, topic=topic)
    return ErrorCode(answer["responses"][0]["partition_responses"][0]["error_code"])


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", Codec)
def test_damaged_records_are_rejected(sides: list[Side], codec: Codec, timestamp_type: str) -> None:
    ours, theirs = sides
    topic = f"{ours.topic}-damaged"
    for side in sides:
        side.create(topic, 1, message_timestamp_type=timestamp_type)
    for name, records in damaged(codec).items():
        assert error_of(ours, records, topic) is ErrorCode.INVALID_RECORD, name
        their_error = error_of(theirs, records, topic)
        if name in KAFKA_IS_CARELESS:
            assert their_error in (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_RECORD), name
        else:
            # An exception that its request handler does not expect is UNKNOWN_SERVER_ERROR.
            assert their_error in (ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_SERVER_ERROR), name
    # None of this was stored, and the partition accepts valid batches.
    answer = ours.produce(batch(b"a", b"b", codec=codec), topic=topic)
    assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("announced", [AT + 10**12, AT - 5, -1, AT + 1])
def test_a_wrong_max_timestamp_is_corrected(same: Any, codec: Codec, announced: int) -> None:
    """The largest timestamp of a batch is that of its records, whatever its header says."""
    whole = batch(b"a", b"b", codec=codec)
    records = assemble(read_header(whole)._replace(max_timestamp=announced), whole[HEADER_SIZE:])

    def script(side: Side) -> Any:
        answer = side.produce(records)
        header = stored_header(side)
        return answer, header.max_timestamp, header.attributes

    assert same(script)[1:] == (AT + 1, int(codec))


def test_record_attributes_have_no_meaning(same: Any) -> None:
    section = record()
    strange = section[:1] + b"\xff" + section[2:]
    header = BatchHeader(0, 0, -1, 2, 0, 0, 0, AT, AT, -1, -1, -1, 1)
    assert same(lambda side: error_of(side, assemble(header, strange), side.topic)) is ErrorCode.NONE


def stored_header(side: Side) -> BatchHeader:
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=side.topic, partitions=[wanted])],
    )
    answer = side.connection.ask(request, 11)
    return read_header(bytes(answer.responses[0].partitions[0].records))
