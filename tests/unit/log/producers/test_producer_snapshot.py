"""Producer snapshots in Kafka's file format. Spec: D3. Duplicates are recognised after a restart."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.producers.producer_snapshot import CorruptSnapshot, decode_rows, decode_snapshot, encode_snapshot
from ottla.log.producers.producer_state import BatchMetadata, ProducerEntry
from ottla.protocol.records._speedups import crc32c


def entry(
    producer_id: int = 7, *batches: BatchMetadata, epoch: int = 3, first_offset: int | None = None
) -> ProducerEntry:
    made = ProducerEntry(producer_id, epoch)
    for batch in batches:
        made.add_batch(batch)
    made.last_timestamp = batches[-1].timestamp if batches else 99
    made.coordinator_epoch = 4
    made.transaction_first_offset = first_offset
    return made


def state(entries: list[ProducerEntry]) -> list[tuple[object, ...]]:
    return [
        (e.producer_id, e.producer_epoch, e.batches, e.coordinator_epoch, e.transaction_first_offset, e.last_timestamp)
        for e in entries
    ]


def test_the_file_format_is_kafkas() -> None:
    data = encode_snapshot([entry(7, BatchMetadata(11, 42, 2, 1000), first_offset=40)])
    row = struct.pack(">qhiqiqiq", 7, 3, 11, 42, 2, 1000, 4, 40)
    covered = struct.pack(">i", 1) + row
    assert data == struct.pack(">hI", 1, crc32c(covered)) + covered


def test_a_producer_with_only_a_marker_is_restored() -> None:
    (back,) = decode_snapshot(encode_snapshot([entry(9)]), monotonic_ms=5)
    assert state([back]) == state([entry(9)])
    assert back.last_seen_ms == 5
    assert back.next_sequence == 0
    (row,) = decode_rows(encode_snapshot([entry(9)]))
    assert (row.last_sequence, row.last_offset, row.offset_delta, row.transaction_first_offset) == (-1, -1, 0, -1)


def test_offset_0_is_an_offset() -> None:
    at_the_start = [entry(0, BatchMetadata(0, 0, 0, 5), first_offset=0)]
    assert state(decode_snapshot(encode_snapshot(at_the_start), 0)) == state(at_the_start)


def test_a_partition_without_producers_has_a_valid_snapshot() -> None:
    assert decode_snapshot(encode_snapshot([]), 0) == []


def test_all_five_batches_are_restored_and_the_last_entry_is_the_one_kafka_keeps() -> None:
    batches = [BatchMetadata(s, 10 + s, 0, 100 + s) for s in range(5)]
    data = encode_snapshot([entry(7, *batches, first_offset=12)])
    assert state(decode_snapshot(data, 0)) == state([entry(7, *batches, first_offset=12)])
    last = decode_rows(data)[-1]
    assert (last.last_sequence, last.last_offset, last.transaction_first_offset) == (4, 14, 12)


@given(st.binary(max_size=80))
def test_garbage_is_rejected(data: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(data, 0)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_is_detected(position: int, change: int) -> None:
    data = bytearray(encode_snapshot([entry(7, BatchMetadata(1, 2, 0, 3)), entry(8, BatchMetadata(1, 2, 0, 3))]))
    data[position % len(data)] ^= change
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(data), 0)


def test_a_truncated_snapshot_is_rejected_at_every_length() -> None:
    data = encode_snapshot([entry(7, BatchMetadata(1, 2, 0, 3))])
    for length in range(len(data)):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(data[:length], 0)
