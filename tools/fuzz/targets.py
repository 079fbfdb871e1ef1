"""Fuzz targets: for any bytes, a decoder decodes or raises the one error it documents (docs/specification.md#r8).

Each target takes bytes and returns nothing. Any exception is a finding. The fuzzer (decoders.py) generates input
guided by coverage; a test generates random input in every test run.
"""

import struct
from collections.abc import Callable

from ottla.errors import KafkaError
from ottla.log.checkpoints import CorruptCheckpoint, decode_epochs, decode_offsets, decode_partition_metadata
from ottla.log.producers.producer_snapshot import CorruptSnapshot, decode_snapshot
from ottla.log.segments.index import CorruptIndex, OffsetIndex, TimeIndex
from ottla.log.segments.transaction_index import decode_entries
from ottla.protocol import framing
from ottla.protocol.api import API
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.records import compression, record_batch
from ottla.protocol.records._speedups import crc32c
from ottla.protocol.records.compression import CompressionError
from ottla.types import TopicPartition
from tests.support.wire.columns import columns_from
from tests.support.wire.messages import every_message

MAX_BYTES = 1 << 20
MESSAGES = every_message()
KEYS = [key for key, api in API.items() if api.package is not None]


def requests(data: bytes) -> None:
    """What a broker does with a frame: header, then body."""
    try:
        header = framing.decode_request_header(data)
        if header.api_key in KEYS:
            API[header.api_key].request.decode(data, header.api_version, header.body_offset)
    except ProtocolError:
        pass


def responses(data: bytes) -> None:
    """What a client does with a frame."""
    if len(data) < 2:
        return
    api = API[KEYS[data[0] % len(KEYS)]]
    try:
        framing.decode_response(api.key, api.versions[data[1] % len(api.versions)], data[2:])
    except ProtocolError:
        pass


def messages(data: bytes) -> None:
    """Any message class in any of its versions, and back: a decoded message can be encoded again."""
    if len(data) < 3:
        return
    cls = MESSAGES[int.from_bytes(data[:2], "big") % len(MESSAGES)]
    version = cls.versions[data[2] % len(cls.versions)]
    try:
        message = cls.decode(data[3:], version)
    except ProtocolError:
        return
    # Compared as bytes, because NaN does not equal itself.
    written = message.encode(version)
    assert cls.decode(written, version).encode(version) == written


def batches(data: bytes) -> None:
    """Record batches as in a Produce request or a Fetch response."""
    try:
        for position, header in record_batch.iter_batches(data):
            record_batch.read_records(data, position, header, max_bytes=MAX_BYTES)
    except KafkaError:
        pass


def true_batches(data: bytes) -> None:
    """Records after a matching header and checksum, so that the record decoder itself is reached."""
    if len(data) < 2:
        return
    body = struct.pack(">hiqqqhii", data[0] & 0x0F, 0, 0, 0, -1, -1, -1, data[1]) + data[2:]
    whole = struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body
    try:
        record_batch.read_records(whole, max_bytes=MAX_BYTES)
    except KafkaError:
        pass


def columns(data: bytes) -> None:
    """The same as Arrow columns: they hold the same values as the objects, or both decoders reject the bytes."""
    if len(data) < 2:
        return
    body = struct.pack(">hiqqqhii", data[0] & 0x0F, data[1], 0, 0, -1, -1, -1, data[1]) + data[2:]
    whole = struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body
    expected: list[record_batch.Record] | None = None
    try:
        expected = record_batch.read_records(whole)
    except KafkaError:
        pass
    try:
        batch, next_offset = columns_from(TopicPartition("t", 0), whole)
    except KafkaError:
        assert expected is None
        return
    assert expected is not None
    assert next_offset == data[1] + 1
    batch.validate(full=True)
    for name in ("key", "value", "offset"):
        assert batch.column(name).to_pylist() == [getattr(record, name) for record in expected]
    headers = [tuple((pair["key"], pair["value"]) for pair in row) for row in batch.column("headers").to_pylist()]
    assert headers == [record.headers for record in expected]


def codecs(data: bytes) -> None:
    """Each codec's decompressor."""
    if not data:
        return
    codec = record_batch.Codec(1 + data[0] % 4)
    try:
        unpacked = compression.decompress(codec, data[1:], MAX_BYTES)
    except CompressionError:
        return
    assert len(unpacked) <= MAX_BYTES


def stored(data: bytes) -> None:
    """The small files beside a log, as a crash may leave them."""
    readers: list[Callable[[bytes], object]] = [
        decode_offsets,
        decode_epochs,
        decode_partition_metadata,
        decode_entries,
        lambda content: decode_snapshot(content, 0),
        lambda content: OffsetIndex.from_bytes(content, 1 << 30),
        lambda content: TimeIndex.from_bytes(content),
    ]
    if not data:
        return
    try:
        readers[data[0] % len(readers)](data[1:])
    except (CorruptCheckpoint, CorruptIndex, CorruptSnapshot):
        pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "requests": requests,
    "responses": responses,
    "messages": messages,
    "batches": batches,
    "true_batches": true_batches,
    "columns": columns,
    "codecs": codecs,
    "stored": stored,
}
