"""Record batches as brokers, log cleaners and clients use them, with both implementations of the kernels."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.records import _pure, _speedups
from ottla.protocol.records.batch_inspection import inspect_records
from ottla.protocol.records.batch_rewriting import rewrite
from ottla.protocol.records.compression import compress
from ottla.protocol.records.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    Codec,
    ControlType,
    CorruptBatch,
    DecompressedTooLarge,
    Record,
    assemble,
    build_batch,
    check_crc,
    control_batch,
    control_type,
    iter_batches,
    open_batch,
    read_end_marker,
    read_header,
    read_records,
    scan_keys,
    stamp,
    stamped_prefix,
)

NOW = 1_700_000_000_000
GOLDEN = (
    "00000000000000000000003e00000000025e93538d0000000000000000018bcfe568000000018bcfe56800ffffffffffffffff"
    "ffffffffffff0000000118000000026b02760202680278"
)
GOLDEN_COMMIT = (
    "0000000000000005000000420000000002ad320ccb0030000000000000018bcfe568000000018bcfe5680000000000000003e8"
    "0003ffffffff000000012000000008000000010c00000000000700"
)
GOLDEN_ABORT = (
    "0000000000000005000000420000000002590cda830030000000000000018bcfe568000000018bcfe5680000000000000003e8"
    "0003ffffffff000000012000000008000000000c00000000000700"
)
ROWS: list[Any] = [
    (NOW, b"alpha", b"1" * 50, ()),
    (NOW + 5, None, b"2" * 50, [("trace", b"abc"), ("empty", b""), ("null", None)]),
    (NOW - 7, b"alpha", None, ()),
    (NOW + 3, b"", b"", [("ü", "é".encode())]),
    (NOW + 1, b"omega", b"5" * 50, ()),
]
RECORDS = [Record(index, row[0], row[1], row[2], tuple(row[3])) for index, row in enumerate(ROWS)]


@pytest.fixture(params=["native", "pure"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here runs with both implementations, whichever the process has chosen."""
    module: Any = _pure
    if request.param == "native":
        folder = Path(_pure.__file__).parent
        if not any((folder / f"_kernels{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
            pytest.skip("the extension is not built")
        from ottla.protocol.records import _kernels as module
    for name in ("unpack_header", "encode_batch", "encode_records", "decode_records", "scan_keys"):
        monkeypatch.setattr(_speedups, name, getattr(module, name))
    for name in ("inspect_records", "filter_records"):
        monkeypatch.setattr(_speedups, name, getattr(module, name))
    return str(request.param)


def at(offset: int, records: list[Record] = RECORDS) -> list[Record]:
    return [record._replace(offset=offset + record.offset) for record in records]


# Building and reading


def test_the_golden_batch_is_built_and_read() -> None:
    batch = build_batch([(NOW, b"k", b"v", [("h", b"x")])], partition_leader_epoch=0)
    assert batch.hex() == GOLDEN
    assert read_records(bytes.fromhex(GOLDEN)) == [Record(0, NOW, b"k", b"v", (("h", b"x"),))]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_survives_encoding_and_decoding(codec: Codec, kind: type) -> None:
    batch = build_batch(
        ROWS,
        base_offset=1000,
        codec=codec,
        producer_id=42,
        producer_epoch=7,
        base_sequence=90,
        transactional=True,
        partition_leader_epoch=3,
    )
    assert type(batch) is bytes
    buffer = kind(b"\x00" * 5 + batch + b"\x00" * 5)
    header = open_batch(buffer, 5)
    assert header == read_header(buffer, 5)
    assert header == BatchHeader(
        base_offset=1000,
        batch_length=len(batch) - 12,
        partition_leader_epoch=3,
        magic=2,
        crc=header.crc,
        attributes=codec | 0x10,
        last_offset_delta=4,
        base_timestamp=NOW,
        max_timestamp=NOW + 5,
        producer_id=42,
        producer_epoch=7,
        base_sequence=90,
        record_count=5,
    )
    assert (header.codec, header.size_bytes) == (codec, len(batch))
    assert (header.last_offset, header.next_offset, header.last_sequence) == (1004, 1005, 94)
    assert (header.is_transactional, header.is_control) == (True, False)
    assert (header.is_log_append_time, header.has_delete_horizon) == (False, False)
    assert read_records(buffer, 5) == read_records(buffer, 5, header) == at(1000)


@pytest.mark.parametrize("codec", Codec)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 2**45),
            st.none() | st.binary(max_size=50),
            st.none() | st.binary(max_size=300),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=20)), max_size=3),
        ),
        min_size=1,
        max_size=30,
    ),
    base_offset=st.integers(0, 2**62),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_records_survive_encoding_and_decoding(codec: Codec, rows: list[Any], base_offset: int) -> None:
    batch = build_batch(iter(rows), codec=codec, base_offset=base_offset)
    header = open_batch(batch)
    assert (header.record_count, header.max_timestamp) == (len(rows), max(row[0] for row in rows))
    assert read_records(batch, 0, header) == [
        Record(base_offset + index, row[0], row[1], row[2], tuple(row[3])) for index, row in enumerate(rows)
    ]


def test_a_batch_of_many_blocks_survives_encoding_and_decoding() -> None:
    """Snappy comes in blocks of 32 kB and lz4 in blocks of 64 kB; records lie across their borders."""
    rows = [(NOW + n, b"key %d" % n, b"value %d " % n * 20, ()) for n in range(5000)]
    for codec in Codec:
        found = read_records(build_batch(rows, codec=codec))
        assert [(record.timestamp, record.key, record.value, record.headers) for record in found] == rows


def test_building_an_empty_batch_is_an_error() -> None:
    for codec in (Codec.NONE, Codec.ZSTD):
        with pytest.raises(ValueError, match="at least one"):
            build_batch([], codec=codec)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_fields_out_of_range_are_an_error(codec: Codec) -> None:
    wrong: list[dict[str, Any]] = [{"base_offset": 2**63}, {"producer_epoch": 2**15}, {"base_sequence": 2**31}]
    for fields in wrong:
        with pytest.raises(OverflowError):
            build_batch(ROWS, codec=codec, **fields)


def test_sequences_wrap_after_the_largest_int() -> None:
    """The next sequence number after 2**31 - 1 is 0."""
    header = read_header(build_batch(ROWS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 3))
    assert header.last_sequence == 1
    assert read_header(build_batch(ROWS)).last_sequence == -1


@pytest.mark.parametrize("codec", Codec)
def test_with_log_append_time_every_record_has_the_batchs_time(codec: Codec) -> None:
    batch = build_batch(ROWS, codec=codec, log_append_time=True)
    assert read_header(batch).is_log_append_time
    assert {record.timestamp for record in read_records(batch)} == {NOW + 5}


# Checksums and damage


def test_every_flipped_bit_after_the_checksum_is_detected() -> None:
    batch = build_batch(ROWS, base_offset=9)
    for position in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(CorruptBatch) as caught:
            open_batch(damaged)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_the_checksum_needs_the_whole_batch() -> None:
    batch = build_batch(ROWS)
    header = read_header(batch)
    check_crc(b"xx" + batch, 2, header)
    with pytest.raises(CorruptBatch):
        check_crc(batch[:-1], 0, header)
    with pytest.raises(CorruptBatch):
        open_batch(batch[:-1])
    with pytest.raises(CorruptBatch, match="checksum"):
        check_crc(batch[:-1] + b"\x55", 0, header)


@pytest.mark.parametrize(
    ("position", "field"),
    [
        (8, b"\x00\x00\x00\x30"),
        (8, b"\xff\xff\xff\xff"),
        (16, b"\x00"),
        (16, b"\x01"),
        (16, b"\x03"),
        (21, b"\x00\x05"),
        (21, b"\x00\x07"),
        (23, b"\xff\xff\xff\xff"),
        (57, b"\xff\xff\xff\xff"),
    ],
    ids=["short", "negative", "magic 0", "magic 1", "magic 3", "codec 5", "codec 7", "delta -1", "count -1"],
)
def test_an_impossible_header_is_an_error(position: int, field: bytes) -> None:
    batch = bytearray(build_batch(ROWS))
    batch[position : position + len(field)] = field
    with pytest.raises(CorruptBatch):
        read_header(batch)
    with pytest.raises(CorruptBatch):
        list(iter_batches(batch))
    with pytest.raises(CorruptBatch):
        read_header(batch[: HEADER_SIZE - 1])


@pytest.mark.parametrize("codec", Codec)
@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_corruption_raises_only_corrupt_batch(codec: Codec, data: st.DataObject) -> None:
    """Spec: R8. Without the checksum, a corrupted batch raises CorruptBatch or reads as other records."""
    batch = bytearray(build_batch(ROWS, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(batch[: data.draw(st.just(len(batch)) | st.integers(0, len(batch)))])
    for reader in (read_records, scan_keys, inspect_records, open_batch, read_end_marker):
        try:
            reader(cut)
        except CorruptBatch:
            pass
    try:
        rewrite(cut, keep_offsets={1, 3}, delete_horizon_ms=NOW)
    except CorruptBatch:
        pass


def test_a_decompression_bomb_in_a_batch_is_an_error() -> None:
    """Spec: R8."""
    rows = [(NOW, None, bytes(2_000_000), ())]
    for codec in Codec:
        batch = build_batch(rows, codec=codec)
        assert read_records(batch)[0].value == bytes(2_000_000)
        if codec:
            assert len(batch) < 200_000
            for reader in (read_records, scan_keys, inspect_records):
                with pytest.raises(CorruptBatch):
                    reader(batch, max_bytes=1_000_000)
            with pytest.raises(CorruptBatch):
                rewrite(batch, keep_offsets=(), max_bytes=1_000_000)


# Several batches in one buffer


def test_iteration_ends_before_a_truncated_batch() -> None:
    batches = [build_batch(ROWS, base_offset=base, codec=codec) for base, codec in ((0, 0), (5, 1), (10, 4))]
    buffer = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    assert [(position, header.base_offset) for position, header in iter_batches(buffer)] == [
        (starts[0], 0),
        (starts[1], 5),
        (starts[2], 10),
    ]
    for cut in range(1, len(batches[2])):
        assert [position for position, _ in iter_batches(memoryview(buffer)[:-cut])] == starts[:2]
    assert list(iter_batches(b"")) == []
    assert [record for position, header in iter_batches(buffer) for record in read_records(buffer, position)] == [
        *at(0),
        *at(5),
        *at(10),
    ]


# Stamping


def test_stamping_keeps_the_checksum_valid() -> None:
    batch = build_batch(ROWS)
    stamped = bytearray(batch)
    stamp(stamped, 123_456_789_012, 17)
    header = open_batch(stamped)
    assert (header.base_offset, header.partition_leader_epoch) == (123_456_789_012, 17)
    assert read_records(stamped) == at(123_456_789_012)
    assert stamped_prefix(123_456_789_012, header.batch_length, 17) + batch[16:] == stamped
    view = memoryview(bytearray(b"..." + batch))
    stamp(view[3:], 5, 6)
    assert open_batch(view, 3)[:3] == (5, header.batch_length, 6)


# Rewriting


def test_rewriting_nothing_gives_the_same_bytes() -> None:
    for codec in Codec:
        batch = build_batch(ROWS, codec=codec)
        assert rewrite(batch) == batch


@pytest.mark.parametrize("codec", Codec)
def test_compaction_keeps_log_append_time(codec: Codec) -> None:
    batch = build_batch(ROWS, base_offset=3, codec=codec, log_append_time=True)
    kept = rewrite(batch, keep_offsets={3, 5})
    header = open_batch(kept)
    assert (header.is_log_append_time, header.base_timestamp, header.max_timestamp) == (True, NOW, NOW + 5)
    assert read_records(kept) == [at(3)[index]._replace(timestamp=NOW + 5) for index in (0, 2)]


@pytest.mark.parametrize("codec", Codec)
def test_compaction_keeps_records_at_their_offsets(codec: Codec) -> None:
    batch = build_batch(
        ROWS, base_offset=100, codec=codec, producer_id=5, producer_epoch=2, base_sequence=30, partition_leader_epoch=9
    )
    kept = rewrite(batch, keep_offsets={101, 103, 104, 999})
    header = open_batch(kept)
    assert read_records(kept) == [at(100)[1], at(100)[3], at(100)[4]]
    assert (header.base_offset, header.last_offset, header.record_count) == (100, 104, 3)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (5, 2, 34)
    assert header.partition_leader_epoch == 9
    assert header.max_timestamp == NOW + 5
    assert read_header(rewrite(batch, keep_offsets=[100, 102])).max_timestamp == NOW
    again = rewrite(kept, keep_offsets={103})
    assert read_records(again) == [at(100)[3]]
    assert (open_batch(again).base_offset, open_batch(again).last_offset) == (100, 104)


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_without_records_keeps_its_offsets(codec: Codec) -> None:
    batch = build_batch(ROWS, base_offset=50, codec=codec, producer_id=5, producer_epoch=2, base_sequence=30)
    empty = rewrite(batch, keep_offsets=())
    assert len(empty) == HEADER_SIZE
    header = open_batch(empty)
    assert (header.record_count, header.base_offset, header.next_offset) == (0, 50, 55)
    assert (header.producer_id, header.base_sequence, header.last_sequence) == (5, 30, 34)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 5)
    assert read_records(empty) == []
    assert scan_keys(empty) == []
    assert rewrite(empty, keep_offsets=()) == rewrite(empty) == empty


def test_an_empty_batch_may_keep_its_codec() -> None:
    empty = bytearray(rewrite(build_batch(ROWS), keep_offsets=()))
    empty[22] = Codec.LZ4
    assert read_header(empty).codec is Codec.LZ4
    assert read_records(empty) == []
    assert read_header(rewrite(empty, keep_offsets=())).record_count == 0


@pytest.mark.parametrize("codec", Codec)
def test_a_delete_horizon_changes_the_base_timestamp_but_no_record(codec: Codec) -> None:
    """KIP-534: the base timestamp becomes the time from which tombstones may be removed."""
    batch = build_batch(ROWS, base_offset=20, codec=codec)
    horizon = NOW + 86_400_000
    marked = rewrite(batch, delete_horizon_ms=horizon)
    header = open_batch(marked)
    assert (header.has_delete_horizon, header.base_timestamp, header.max_timestamp) == (True, horizon, NOW + 5)
    assert read_records(marked) == at(20)
    assert read_records(rewrite(marked, keep_offsets={22})) == [at(20)[2]]
    assert open_batch(rewrite(marked, keep_offsets={22})).has_delete_horizon
    assert rewrite(marked, delete_horizon_ms=horizon) == marked
    both = rewrite(batch, keep_offsets={21, 22}, delete_horizon_ms=horizon)
    assert read_records(both) == at(20)[1:3]
    assert inspect_records(both).max_timestamp == NOW + 5


def test_only_one_whole_batch_is_rewritten() -> None:
    batch = build_batch(ROWS)
    for wrong in (batch[:-1], batch + b"\x00", batch + batch, batch[:70]):
        with pytest.raises(CorruptBatch):
            rewrite(wrong, keep_offsets=())


# Looking over


@pytest.mark.parametrize("codec", Codec)
def test_keys_and_tombstones_are_found_without_values(codec: Codec) -> None:
    batch = build_batch(ROWS, base_offset=30, codec=codec)
    everything = [(0, b"alpha", False), (1, None, False), (2, b"alpha", True), (3, b"", False), (4, b"omega", False)]
    assert scan_keys(batch) == everything
    assert scan_keys(rewrite(batch, keep_offsets={31, 32})) == everything[1:3]


@pytest.mark.parametrize("codec", Codec)
def test_records_are_summarised_for_validation(codec: Codec) -> None:
    """Null keys, offset deltas from 0 to n-1, timestamps."""
    batch = build_batch(ROWS, codec=codec)
    assert inspect_records(batch)[:4] == ([1], -1, NOW - 7, NOW + 5)
    assert inspect_records(rewrite(batch, keep_offsets={0, 2, 3}))[:4] == ([], 1, NOW - 7, NOW + 3)
    assert inspect_records(build_batch(ROWS, codec=codec, log_append_time=True))[:4] == ([1], -1, NOW + 5, NOW + 5)
    assert inspect_records(batch).size_bytes == len(build_batch(ROWS)) - HEADER_SIZE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_large_compressed_records_are_inspected_in_pieces(codec: Codec) -> None:
    """One record spans many pieces, others end within one, and the last is cut off."""
    rows = [(NOW + n, None if n == 5 else b"k", bytes(size), ()) for n, size in enumerate((3_000_000, *range(9000)))]
    section, count, base, latest = _speedups.encode_records(rows)
    summary = inspect_records(build_batch(rows, codec=codec))
    assert summary == ([5], -1, base, latest, len(section))
    header = read_header(build_batch(rows[:1]))._replace(attributes=int(codec), record_count=count)
    for wrong in (section[:-1], section + b"x" * 300_000):
        batch = assemble(header, compress(codec, wrong))
        with pytest.raises(CorruptBatch, match=r"record \d+: |bytes follow the last record"):
            inspect_records(batch)
    with pytest.raises(DecompressedTooLarge, match="limit of 1000000 bytes"):
        inspect_records(build_batch(rows, codec=codec), max_bytes=1_000_000)


def test_a_wrong_record_count_is_detected() -> None:
    batch = bytearray(build_batch(ROWS))
    for count in (0, 4, 6, 2**31 - 1):
        batch[57:61] = count.to_bytes(4, "big")
        for reader in (read_records, inspect_records):
            with pytest.raises(CorruptBatch):
                reader(batch)


# Control batches


@pytest.mark.parametrize(("commit", "golden"), [(True, GOLDEN_COMMIT), (False, GOLDEN_ABORT)])
def test_the_golden_markers_are_built_and_read(commit: bool, golden: str) -> None:
    """Spec: E7."""
    batch = control_batch(
        commit=commit,
        producer_id=1000,
        producer_epoch=3,
        coordinator_epoch=7,
        timestamp=NOW,
        base_offset=5,
        partition_leader_epoch=0,
    )
    assert batch.hex() == golden
    header = open_batch(batch)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert read_end_marker(batch) == (ControlType.COMMIT if commit else ControlType.ABORT, 7)
    (record,) = read_records(batch)
    assert control_type(record.key or b"") == (ControlType.COMMIT if commit else ControlType.ABORT)


def test_newer_control_records_are_skipped() -> None:
    """Unknown types are ignored; newer versions are read as the newest known one."""
    assert control_type(b"\x00\x00\x00\x02") is ControlType.LEADER_CHANGE
    assert control_type(b"\x00\x00\x00\x63") is ControlType.UNKNOWN
    assert control_type(b"\x00\x00\xff\xff") is ControlType.UNKNOWN
    assert control_type(b"\x00\x09\x00\x01more") is ControlType.COMMIT

    def marker(key: bytes, value: bytes | None) -> bytes:
        batch = bytearray(build_batch([(NOW, key, value, ())]))
        batch[22] = 0x30
        return bytes(batch)

    assert read_end_marker(marker(b"\x00\x01\x00\x01", b"\x00\x05\x00\x00\x00\x07more")) == (ControlType.COMMIT, 7)
    assert read_end_marker(marker(b"\x00\x00\x00\x04", None)) == (ControlType.SNAPSHOT_FOOTER, -1)
    for broken in (
        marker(b"\x00\x00\x00", b"\x00\x00\x00\x00\x00\x07"),
        marker(b"\xff\xff\x00\x01", b"\x00\x00\x00\x00\x00\x07"),
        marker(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00"),
        marker(b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x07"),
        marker(b"\x00\x00\x00\x01", None),
        build_batch(ROWS),
        rewrite(
            control_batch(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW),
            keep_offsets=(),
        ),
    ):
        with pytest.raises(CorruptBatch):
            read_end_marker(broken)


def test_a_corrupt_batch_is_a_retriable_kafka_error() -> None:
    error = CorruptBatch("why")
    assert isinstance(error, KafkaError)
    assert (error.code, error.detail, error.retriable) == (ErrorCode.CORRUPT_MESSAGE, "why", True)


def test_a_batch_of_several_gzip_members_is_read() -> None:
    """Two gzip members, as a producer that flushes in between writes them."""
    section = read_section(build_batch(ROWS))
    packed = compress(Codec.GZIP, section[:40]) + compress(Codec.GZIP, section[40:])
    header = read_header(build_batch(ROWS, codec=Codec.GZIP))
    length = HEADER_SIZE - 12 + len(packed)
    head = stamped_prefix(0, length, -1) + build_batch(ROWS, codec=Codec.GZIP)[16:HEADER_SIZE]
    assert read_records(head + packed, 0, header._replace(batch_length=length)) == at(0)


def read_section(batch: bytes) -> bytes:
    return batch[HEADER_SIZE:]
