"""The sparse indexes in Kafka's file formats."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.segments.index import CorruptIndex, OffsetIndex, TimeIndex


def offset_index(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex()
    for entry in entries:
        index.append(*entry)
    return index


def test_an_offset_entry_is_two_big_endian_ints() -> None:
    assert offset_index((3, 4096), (9, 8300)).to_bytes() == struct.pack(">iiii", 3, 4096, 9, 8300)


def test_a_time_entry_is_a_long_and_an_int() -> None:
    index = TimeIndex()
    index.append(1_700_000_000_000, 7)
    index.append(1_700_000_000_500, 9)
    assert index.to_bytes() == struct.pack(">qiqi", 1_700_000_000_000, 7, 1_700_000_000_500, 9)
    assert index.to_bytes(1) == struct.pack(">qi", 1_700_000_000_500, 9)


def test_a_lookup_returns_the_last_entry_at_or_before() -> None:
    index = offset_index((3, 100), (9, 200))
    assert [index.entry_at_or_before_offset(offset) for offset in (0, 2, 3, 8, 9, 50)] == [-1, -1, 0, 0, 1, 1]
    assert [index.entry_at_or_before_position(at) for at in (0, 99, 100, 199, 200)] == [-1, -1, 0, 0, 1]


def test_the_time_index_only_increases() -> None:
    index = TimeIndex()
    for timestamp, offset in ((10, 1), (10, 2), (5, 3), (20, 4)):
        index.append(timestamp, offset)
    assert list(index.timestamps) == [10, 20]
    assert list(index.offsets) == [1, 4]


def test_a_timestamp_lookup_skips_only_earlier_batches() -> None:
    index = TimeIndex()
    index.append(10, 1)
    index.append(20, 4)
    assert [index.find_before(timestamp) for timestamp in (5, 10, 15, 20, 99)] == [0, 1, 1, 4, 4]


def test_truncation_removes_entries_at_or_after_the_new_end() -> None:
    index = offset_index((3, 100), (9, 200), (12, 300))
    index.truncate(200)
    assert list(index.positions) == [100]
    times = TimeIndex()
    times.append(10, 3)
    times.append(20, 9)
    times.truncate(9)
    assert list(times.offsets) == [3]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 7,
        struct.pack(">iiii", 9, 100, 3, 200),
        struct.pack(">iiii", 3, 200, 9, 100),
        struct.pack(">iiii", 3, 100, 3, 200),
        struct.pack(">ii", -1, 100),
        struct.pack(">ii", 3, 5000),
        bytes(16),
    ],
    ids=["half an entry", "offsets fall", "positions fall", "twice", "negative", "outside the log", "zeros"],
)
def test_an_invalid_offset_index_is_rejected(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        OffsetIndex.from_bytes(data, 5000)


@pytest.mark.parametrize(
    "data",
    [b"\x00" * 11, struct.pack(">qiqi", 20, 1, 10, 2), struct.pack(">qiqi", 10, 2, 20, 1), struct.pack(">qi", 10, -1)],
    ids=["half an entry", "times fall", "offsets fall", "negative"],
)
def test_an_invalid_time_index_is_rejected(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        TimeIndex.from_bytes(data)


@given(st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 2**20)), max_size=30))
def test_an_offset_index_round_trips(steps: list[tuple[int, int]]) -> None:
    index, offset, position = OffsetIndex(), -1, -1
    for offset_step, position_step in steps:
        offset, position = offset + offset_step, position + position_step
        index.append(offset, position)
    back = OffsetIndex.from_bytes(index.to_bytes(), 2**31)
    assert (back.offsets, back.positions) == (index.offsets, index.positions)


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(0, 2**20)), max_size=30))
def test_a_time_index_round_trips(steps: list[tuple[int, int]]) -> None:
    index, timestamp, offset = TimeIndex(), 0, 0
    for time_step, offset_step in steps:
        timestamp, offset = timestamp + time_step, offset + offset_step
        index.append(timestamp, offset)
    back = TimeIndex.from_bytes(index.to_bytes())
    assert (back.timestamps, back.offsets) == (index.timestamps, index.offsets)
