"""The record kernels: the compiled and the Python implementation return and reject the same."""

import gc
import os
import sys
import tracemalloc
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.records import _pure, _speedups
from ottla.protocol.records.record_batch import BatchHeader, Headers, Record, build_batch

INT32_MAX, INT64_MAX, INT64_MIN = 2**31 - 1, 2**63 - 1, -(2**63)


def compiled() -> ModuleType | None:
    """The extension, even with OTTLA_PURE, so that one run tests both implementations."""
    folder = Path(_pure.__file__).parent
    if not any((folder / f"_kernels{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        return None
    from ottla.protocol.records import _kernels

    return _kernels


NATIVE = compiled()
needs_both = pytest.mark.skipif(NATIVE is None, reason="the extension is not built")
IMPLEMENTATIONS = [pytest.param(NATIVE, id="native", marks=needs_both), pytest.param(_pure, id="pure")]
both = pytest.mark.parametrize("kernels", IMPLEMENTATIONS)

text = st.text(st.characters(codec="utf-8"), max_size=10)
blob = st.none() | st.binary(max_size=200)
rows_of = st.tuples(
    st.integers(-(2**62), 2**62) | st.integers(1_700_000_000_000, 1_700_000_100_000),
    blob,
    blob,
    st.lists(st.tuples(text, blob), max_size=3),
)


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a kernel returns, or the kind of error it raises."""
    try:
        return function(*arguments)
    except (ValueError, OverflowError) as error:
        return type(error)


def section_of(rows: list[Any]) -> tuple[bytes, int, int]:
    section, count, base, _ = _pure.encode_records(rows)
    return section, count, base


def record(body: bytes) -> bytes:
    return _pure.encode_varint(len(body)) + body


# Numbers


@both
@given(value=st.integers(INT64_MIN, INT64_MAX))
@settings(max_examples=200)
def test_varints_survive_encoding_and_decoding(kernels: ModuleType, value: int) -> None:
    encoded = kernels.encode_varint(value)
    assert len(encoded) <= 10
    assert kernels.decode_varint(b"??" + encoded + b"!", 2) == (value, 2 + len(encoded))


@both
def test_varints_have_kafkas_bytes(kernels: ModuleType) -> None:
    known = {0: "00", -1: "01", 1: "02", 63: "7e", -64: "7f", 64: "8001", 300: "d804", 2**31 - 1: "feffffff0f"}
    known |= {INT64_MAX: "fe" + "ff" * 8 + "01", INT64_MIN: "ff" * 9 + "01"}
    for value, encoded in known.items():
        assert kernels.encode_varint(value).hex() == encoded
        assert kernels.decode_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


@both
def test_truncated_or_endless_varints_are_an_error(kernels: ModuleType) -> None:
    for encoded in (b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\xff" * 20):
        with pytest.raises(ValueError, match=r"a number (ends early|is too long)"):
            kernels.decode_varint(encoded, 0)
    with pytest.raises(OverflowError):
        kernels.encode_varint(2**63)


# Records both ways


@both
@given(rows=st.lists(rows_of, min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_records_survive_encoding_and_decoding(kernels: ModuleType, rows: list[Any]) -> None:
    section, count, base, highest = kernels.encode_records(rows)
    assert (count, base, highest) == (len(rows), rows[0][0], max(row[0] for row in rows))
    found = kernels.decode_records(Record, section, 0, len(section), count, 1000, count - 1, base, None)
    assert found == [
        Record(1000 + index, timestamp, key, value, tuple(headers))
        for index, (timestamp, key, value, headers) in enumerate(rows)
    ]
    assert all(type(item) is Record for item in found)


class PlacedRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@both
@given(rows=st.lists(rows_of, min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_records_may_start_with_extra_fields(kernels: ModuleType, rows: list[Any]) -> None:
    section, count, base, _ = kernels.encode_records(rows)
    place = (section, 0, len(section), count, 1000, count - 1, base, None)
    found = kernels.decode_records(PlacedRecord, *place, ("orders", 3))
    assert found == [PlacedRecord("orders", 3, *record) for record in kernels.decode_records(Record, *place)]
    assert all(type(item) is PlacedRecord for item in found)


@needs_both
def test_the_extra_fields_of_a_record_cannot_be_containers() -> None:
    """The compiled kernel hides records from the garbage collector, so they must not be part of a cycle."""
    assert NATIVE is not None
    section, count, base, _ = NATIVE.encode_records([(0, None, b"v", ())])
    with pytest.raises(TypeError, match="not list"):
        NATIVE.decode_records(PlacedRecord, section, 0, len(section), count, 0, 0, base, None, ([], 3))


@needs_both
@given(rows=st.lists(rows_of, min_size=1, max_size=20), shift=st.integers(-(2**40), 2**40), data=st.data())
@settings(max_examples=100, deadline=None)
def test_both_implementations_return_the_same(rows: list[Any], shift: int, data: st.DataObject) -> None:
    section, count, base = section_of(rows)
    assert NATIVE is not None
    assert NATIVE.encode_records(rows) == _pure.encode_records(rows)
    deltas = sorted(data.draw(st.sets(st.integers(0, INT32_MAX), min_size=count, max_size=count)))
    # An OverflowError, if a timestamp is 2**63 milliseconds from the base.
    moved = (rows, deltas, base + 5)
    assert outcome(NATIVE.encode_records, *moved) == outcome(_pure.encode_records, *moved)
    keep = data.draw(st.none() | st.sets(st.integers(0, count)))
    whole = b"before" + section + b"after"
    place = (whole, 6, 6 + len(section), count)
    assert NATIVE.scan_keys(*place) == _pure.scan_keys(*place)
    null_keys: tuple[list[int], list[int]] = [], []
    inspected = [
        kernels.inspect_records(*place, base, 0, True, found)
        for kernels, found in zip((NATIVE, _pure), null_keys, strict=True)
    ]
    assert inspected[0] == inspected[1]
    assert null_keys[0] == null_keys[1] == [index for index, row in enumerate(rows) if row[1] is None]
    assert outcome(NATIVE.filter_records, *place, keep, shift) == outcome(_pure.filter_records, *place, keep, shift)
    fields = (-1, 7, 0x10, 99, 3, 12, _speedups.crc32c)
    assert NATIVE.encode_batch(rows, *fields) == _pure.encode_batch(rows, *fields)


@needs_both
@given(st.data())
@settings(max_examples=400, deadline=None)
def test_both_implementations_reject_the_same_corruption(data: st.DataObject) -> None:
    """Spec: R8. For any corruption, both return equal records or both raise ValueError."""
    assert NATIVE is not None
    rows = data.draw(st.lists(rows_of, min_size=1, max_size=4))
    section, count, base = section_of(rows)
    damaged = bytearray(section)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    start = data.draw(st.integers(0, 3))
    end = data.draw(st.just(len(damaged)) | st.integers(0, len(damaged) + 2))
    count = data.draw(st.just(count) | st.integers(-1, 20))
    last = data.draw(st.just(count - 1) | st.integers(0, 1000))
    place = (bytes(damaged), start, end, count)
    times = (data.draw(st.sampled_from([base, 0, INT64_MAX, INT64_MIN])), data.draw(st.none() | st.just(5)))
    for first in (0, INT64_MAX):
        section_arguments = (Record, *place, first, last, *times)
        assert outcome(NATIVE.decode_records, *section_arguments) == outcome(_pure.decode_records, *section_arguments)
    assert outcome(NATIVE.scan_keys, *place) == outcome(_pure.scan_keys, *place)
    for is_last in (True, False):
        inspected = (*place, times[0], data.draw(st.integers(0, 2)), is_last)
        assert outcome(NATIVE.inspect_records, *inspected) == outcome(_pure.inspect_records, *inspected)
    for shift in (0, -5, INT64_MAX):
        arguments = (*place, {0, 2}, shift)
        assert outcome(NATIVE.filter_records, *arguments) == outcome(_pure.filter_records, *arguments)


@both
@given(garbage=st.binary(max_size=300), count=st.integers(0, 40))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_only_value_errors(kernels: ModuleType, garbage: bytes, count: int) -> None:
    """Spec: R8."""
    place = (garbage, 0, len(garbage), count)
    outcome(kernels.decode_records, Record, *place, 0, 100, 0, None)
    outcome(kernels.scan_keys, *place)
    outcome(kernels.inspect_records, *place, 0)
    outcome(kernels.inspect_records, *place, 0, 3, False)
    outcome(kernels.filter_records, *place, None, 0)
    outcome(kernels.unpack_header, BatchHeader, garbage, 0, _speedups.crc32c)


@both
def test_keys_and_values_may_be_any_bytes_like(kernels: ModuleType) -> None:
    plain = kernels.encode_records([(1, b"key", b"value", [("h", b"x")])])
    for kind in (bytearray, memoryview):
        rows = [[1, kind(b"key"), kind(b"value"), iter([["h", kind(b"x")]])]]
        assert kernels.encode_records(iter(rows)) == plain
    assert kernels.encode_records(((1, b"key", b"value", (("h", b"x"),)),)) == plain
    assert kernels.encode_records([(1, b"k", None, None)]) == kernels.encode_records([(1, b"k", None, ())])


@both
@pytest.mark.parametrize(
    "row",
    [
        (1, "text", b"", ()),
        (1, 5, b"", ()),
        (1, b"", "text", ()),
        ("1", b"", b"", ()),
        (1.5, b"", b"", ()),
        (None, b"", b"", ()),
        (1, b"", b"", [(b"name", b"")]),
        (1, b"", b"", [(None, b"")]),
        (1, b"", b"", [("name", "text")]),
        (1, b"", b"", 5),
        (1, b"", b""),
        (1, b"", b"", (), ()),
        (1, b"", b"", [("a", b"", b"")]),
        5,
    ],
    ids=repr,
)
def test_invalid_rows_are_an_error(kernels: ModuleType, row: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        kernels.encode_records([(1, b"", b"", ()), row])
    with pytest.raises((TypeError, ValueError)):
        kernels.encode_batch([row], 0, 0, 0, 0, 0, 0, _speedups.crc32c)


@both
@pytest.mark.parametrize("pair", [(0, 2**63), (2**63, 0), (0, INT64_MIN - 1), (INT64_MIN, INT64_MAX), (-2, INT64_MAX)])
def test_timestamps_too_far_apart_are_an_error(kernels: ModuleType, pair: tuple[int, int]) -> None:
    with pytest.raises(OverflowError):
        kernels.encode_records([(timestamp, None, None, ()) for timestamp in pair])


@both
def test_extreme_timestamps_are_kept(kernels: ModuleType) -> None:
    for times in ([INT64_MIN, INT64_MIN + 5, -1], [INT64_MAX, INT64_MAX - 5, 0], [0, INT64_MAX], [-1, INT64_MIN]):
        section, count, base, _ = kernels.encode_records([(timestamp, None, None, ()) for timestamp in times])
        found = kernels.decode_records(Record, section, 0, len(section), count, 0, count - 1, base, None)
        assert [item.timestamp for item in found] == times


@both
def test_values_that_do_not_fit_the_header_are_an_error(kernels: ModuleType) -> None:
    for fields in ((2**63, 0, 0, 0, 0, 0), (0, 2**31, 0, 0, 0, 0), (0, 0, 0, 0, 2**15, 0), (0, 0, 0, 0, 0, 2**31)):
        with pytest.raises(OverflowError):
            kernels.encode_batch([(1, None, None, ())], *fields, _speedups.crc32c)


@both
def test_explicit_offset_deltas_must_fit(kernels: ModuleType) -> None:
    rows = [(1, None, b"a", ()), (2, None, b"b", ())]
    section, count, base, _ = kernels.encode_records(rows, [3, INT32_MAX])
    found = kernels.decode_records(Record, section, 0, len(section), count, 10, INT32_MAX, base, None)
    assert [item.offset for item in found] == [13, 10 + INT32_MAX]
    for deltas in ([1], [1, 2, 3], [0, -1], [0, 2**31]):
        with pytest.raises(ValueError, match="offset delta"):
            kernels.encode_records(rows, deltas)


@both
def test_header_names_that_are_not_utf8_are_readable(kernels: ModuleType) -> None:
    section = record(b"\x00\x00\x00\x01\x01\x02" + b"\x04\xffx" + b"\x01")
    found = kernels.decode_records(Record, section, 0, len(section), 1, 0, 0, 0, None)
    assert found[0].headers == (("\ufffdx", None),)


# Every length is checked

GOOD = b"\x00\x00\x00\x02k\x02v\x02\x02h\x02x"
BROKEN = {
    "an empty record": record(b"") + b"\x00" * 6,
    "a record longer than the data": b"\x7e" + GOOD,
    "a negative record length": b"\x01" + GOOD,
    "a key longer than the record": record(b"\x00\x00\x00\x40k\x02v\x00"),
    "a key length of -2": record(b"\x00\x00\x00\x03k\x02v\x00"),
    "a value longer than the record": record(b"\x00\x00\x00\x02k\x40v\x00"),
    "a value length of -2": record(b"\x00\x00\x00\x02k\x03v\x00"),
    "a key that reaches into the next record": record(b"\x00\x00\x00\x10k\x02v\x00") + record(GOOD),
    "a value that leaves no header count": record(b"\x00\x00\x00\x02k\x02v"),
    "more headers than bytes": record(b"\x00\x00\x00\x02k\x02v\xfe\xff\xff\xff\x0f"),
    "a negative header count": record(b"\x00\x00\x00\x02k\x02v\x01"),
    "a null header name": record(b"\x00\x00\x00\x02k\x02v\x02\x01\x02x"),
    "a header value longer than the record": record(b"\x00\x00\x00\x02k\x02v\x02\x02h\x20x"),
    "a byte after the headers": record(GOOD + b"\x00"),
    "a byte after the last record": record(GOOD) + b"\x00",
    "a negative offset delta": record(b"\x00\x00\x01\x02k\x02v\x00"),
    "a length of six bytes": b"\x80\x80\x80\x80\x80\x00" + GOOD,
    "a length over 32 bits": b"\xff\xff\xff\xff\x1f" + GOOD,
}


MALFORMED = "out of bounds|ends? early|too long|does not match|out of order|follow the last record|do not fit"


# The Python kernels blame the value for a header count that is missing, the compiled ones the count.
@needs_both
@pytest.mark.parametrize("name", sorted(BROKEN.keys() - {"a value that leaves no header count"}))
def test_both_implementations_report_a_malformed_record_in_the_same_words(name: str) -> None:
    """Brokers with and without compiled modules send the same errors and log the same lines."""
    assert NATIVE is not None
    section = BROKEN[name]
    said = []
    for kernels in (NATIVE, _pure):
        with pytest.raises(ValueError, match=MALFORMED) as raised:
            kernels.inspect_records(section, 0, len(section), 1, 0)
        said.append(str(raised.value))
    assert said[0] == said[1]


@both
@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_record_is_an_error(kernels: ModuleType, name: str) -> None:
    """Spec: R8."""
    section = BROKEN[name]
    with pytest.raises(ValueError, match=MALFORMED):
        kernels.decode_records(Record, section, 0, len(section), 1, 0, 10, 0, None)
    with pytest.raises(ValueError, match=MALFORMED):
        kernels.inspect_records(section, 0, len(section), 1, 0)


@both
def test_a_well_formed_record_is_accepted(kernels: ModuleType) -> None:
    section = record(GOOD)
    (found,) = kernels.decode_records(Record, section, 0, len(section), 1, 0, 10, 0, None)
    assert found == Record(0, 0, b"k", b"v", (("h", b"x"),))


@both
def test_counts_larger_than_the_data_are_an_error_before_allocation(kernels: ModuleType) -> None:
    """Spec: R8. A claim of two billion records in a hundred bytes allocates nothing."""
    section, _, _ = section_of([(1, None, b"v" * 90, ())])
    many_headers = record(b"\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f" + b"\x00" * 50)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="do not fit in"):
            kernels.scan_keys(section, 0, len(section), INT32_MAX)
        with pytest.raises(ValueError, match="do not fit in"):
            kernels.inspect_records(section, 0, len(section), INT32_MAX, 0)
        with pytest.raises(ValueError, match="do not fit in"):
            kernels.decode_records(Record, section, 0, len(section), INT32_MAX, 0, INT32_MAX, 0, None)
        with pytest.raises(ValueError, match="do not fit in"):
            kernels.filter_records(section, 0, len(section), INT32_MAX, None, 0)
        with pytest.raises(ValueError, match="header count is out of bounds"):
            kernels.decode_records(Record, many_headers, 0, len(many_headers), 1, 0, 0, 0, None)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@both
@pytest.mark.parametrize("deltas", [[0, 0], [1, 0], [0, 6]])
def test_offsets_must_increase_within_the_batch(kernels: ModuleType, deltas: list[int]) -> None:
    section, count, base, _ = kernels.encode_records([(1, None, b"", ()), (1, None, b"", ())], deltas)
    with pytest.raises(ValueError, match="out of order"):
        kernels.decode_records(Record, section, 0, len(section), count, 0, 5, base, None)


@both
def test_records_are_summarised_for_the_broker(kernels: ModuleType) -> None:
    rows = [(100, b"k", b"v", ()), (90, None, b"v", [("h", None)]), (120, b"", None, ()), (100, None, None, ())]
    section, count, base, _ = kernels.encode_records(rows)
    end = len(section)
    null_keys: list[int] = []
    assert kernels.inspect_records(section, 0, end, count, base, 0, True, null_keys) == (-1, 90, 120, end, 4)
    assert null_keys == [1, 3]
    section, count, _, _ = kernels.encode_records(rows, [0, 1, 3, 4])
    assert kernels.inspect_records(section, 0, end, count, base) == (2, 90, 120, end, 4)
    assert kernels.inspect_records(b"", 0, 0, 0, base) == (-1, INT64_MAX, INT64_MIN, 0, 0)
    section, count, base, _ = kernels.encode_records([(-1, None, b"", ()), (7, None, b"", ())])
    assert kernels.inspect_records(section, 0, len(section), count, base)[:3] == (-1, 7, 7)


@both
def test_the_number_of_reported_null_keys_is_bounded(kernels: ModuleType) -> None:
    section, count, base, _ = kernels.encode_records([(1, None, b"", ())] * 1500)
    null_keys: list[int] = []
    kernels.inspect_records(section, 0, len(section), count, base, 0, True, null_keys)
    assert null_keys == list(range(1000))


@both
def test_an_invalid_record_is_named_by_its_index(kernels: ModuleType) -> None:
    section, count, base, _ = kernels.encode_records([(1, b"k", b"v", ())] * 3)
    damaged = section[:-2] + b"w\x01"
    with pytest.raises(ValueError, match="record 2: a record's header count is out of bounds"):
        kernels.inspect_records(damaged, 0, len(section), count, base)
    with pytest.raises(ValueError, match="record 12: a record's header count is out of bounds"):
        kernels.inspect_records(damaged, 0, len(section), count, base, 10)


@both
@given(rows=st.lists(rows_of, min_size=1, max_size=12), data=st.data())
@settings(max_examples=100, deadline=None)
def test_records_are_inspected_in_pieces(kernels: ModuleType, rows: list[Any], data: st.DataObject) -> None:
    """The data may be cut anywhere: each call stops before the first record that is not complete."""
    section, count, base = section_of(rows)
    whole = kernels.inspect_records(section, 0, len(section), count, base)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(section)), max_size=4)))
    lows: list[int] = []
    highs: list[int] = []
    position = index = 0
    for cut in (*cuts, None):
        end = len(section) if cut is None else max(cut, position)
        misplaced, lowest, highest, position, index = kernels.inspect_records(
            section, position, end, count - index, base, index, cut is None
        )
        assert misplaced == -1
        lows.append(lowest)
        highs.append(highest)
    assert (-1, min(lows), max(highs), position, index) == whole


@both
def test_keys_are_scanned_without_their_values(kernels: ModuleType) -> None:
    rows = [(1, b"k", b"v" * 500, ()), (1, None, b"", [("h", b"x")]), (1, b"", None, ()), (1, b"k", None, ())]
    section, count, _, _ = kernels.encode_records(rows, [2, 3, 5, 8])
    assert kernels.scan_keys(section, 0, len(section), count) == [
        (2, b"k", False),
        (3, None, False),
        (5, b"", True),
        (8, b"k", True),
    ]


@both
def test_kept_records_are_copied_byte_for_byte(kernels: ModuleType) -> None:
    not_utf8 = record(b"\x00\x02\x02\x02k\x02v\x02\x04\xff\xfe\x02x")  # a header name no str could carry
    section = record(GOOD) + not_utf8
    assert kernels.filter_records(section, 0, len(section), 2, {1}, 0) == (not_utf8, 1, 1)
    assert kernels.filter_records(section, 0, len(section), 2, None, 0) == (section, 2, 1)
    assert kernels.filter_records(section, 0, len(section), 2, (), 0) == (b"", 0, 0)
    moved, kept, highest = kernels.filter_records(section, 0, len(section), 2, None, 1000)
    assert (kept, highest) == (2, 1001)
    assert kernels.filter_records(moved, 0, len(moved), 2, None, -1000) == (section, 2, 1)


# Headers


@both
def test_a_header_is_read_at_any_position(kernels: ModuleType) -> None:
    batch = build_batch([(5, b"k", b"v", ())], base_offset=77, producer_id=9, producer_epoch=2, base_sequence=40)
    for buffer in (batch, bytearray(batch), memoryview(batch)):
        header = kernels.unpack_header(BatchHeader, b"..." + bytes(buffer), 3)
        assert header == kernels.unpack_header(BatchHeader, buffer, 0, _speedups.crc32c)
        assert type(header) is BatchHeader
        assert header == BatchHeader(77, len(batch) - 12, -1, 2, header.crc, 0, 0, 5, 5, 9, 2, 40, 1)


@both
@pytest.mark.parametrize("position", [-1, -100, 20, 10_000, 2**62])
def test_a_header_outside_the_buffer_is_an_error(kernels: ModuleType, position: int) -> None:
    with pytest.raises(ValueError, match=r"a batch (cannot begin|header takes)"):
        kernels.unpack_header(BatchHeader, bytes(16) + b"\x02" + bytes(60), position)


@needs_both
@given(data=st.binary(min_size=61, max_size=90), magic=st.booleans())
@settings(max_examples=300)
def test_both_implementations_agree_on_headers(data: bytes, magic: bool) -> None:
    assert NATIVE is not None
    if magic:
        data = data[:16] + b"\x02" + data[17:]
    for crc32c in (None, _speedups.crc32c):
        arguments = (BatchHeader, data, 0, crc32c)
        assert outcome(NATIVE.unpack_header, *arguments) == outcome(_pure.unpack_header, *arguments)


# Rules for compiled code only


@needs_both
def test_records_of_the_kernel_behave_like_named_tuples() -> None:
    """They compare, hash, unpack, replace and free like instances that the class creates."""
    assert NATIVE is not None
    section, count, base = section_of([(1, b"k", b"v", [("h", b"x")]), (2, None, None, ())])
    found = NATIVE.decode_records(Record, section, 0, len(section), count, 0, 1, base, None)
    made = [Record(0, 1, b"k", b"v", (("h", b"x"),)), Record(1, 2, None, None, ())]
    assert found == made
    assert [hash(item) for item in found] == [hash(item) for item in made]
    assert found[0]._replace(offset=9) == made[0]._replace(offset=9)
    assert repr(found) == repr(made)
    offset, _, key, *_ = found[0]
    assert (offset, key) == (0, b"k")
    del found, made
    gc.collect()


@needs_both
def test_records_are_not_tracked_by_the_garbage_collector() -> None:
    assert NATIVE is not None
    section, count, base = section_of([(1, b"k", b"v", [("h", b"x")])] * 100)
    found = NATIVE.decode_records(Record, section, 0, len(section), count, 0, count - 1, base, None)
    assert not any(gc.is_tracked(item) or gc.is_tracked(item.headers) for item in found)


@both
def test_no_memory_leaks(kernels: ModuleType) -> None:
    """Good and bad input, a thousand times."""
    rows = [(1, b"k" * 300, b"v" * 300, [("name", b"x" * 300)])] * 5
    section, count, base = section_of(rows)
    broken = section[:-1] + b"\x02"

    def work(times: int) -> None:
        for _ in range(times):
            kernels.encode_batch(rows, 0, 0, 0, 0, 0, 0, _speedups.crc32c)
            kernels.decode_records(Record, section, 0, len(section), count, 0, count - 1, base, None)
            outcome(kernels.decode_records, Record, broken, 0, len(broken), count, 0, count - 1, base, None)
            kernels.filter_records(section, 0, len(section), count, {1}, 5)
            kernels.scan_keys(section, 0, len(section), count)
            with pytest.raises(TypeError):
                kernels.encode_records([*rows, (1, "text", b"", ())])

    work(20)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work(200)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


@needs_both
def test_buffers_are_released_after_each_call() -> None:
    assert NATIVE is not None
    buffer = bytearray(build_batch([(1, b"k", b"v", ())]))
    NATIVE.unpack_header(BatchHeader, buffer, 0, _speedups.crc32c)
    outcome(NATIVE.decode_records, Record, buffer, 61, len(buffer), 1, 0, 0, 0, None)
    outcome(NATIVE.decode_records, Record, buffer, 61, len(buffer), 3, 0, 0, 0, None)
    buffer.extend(b"more")  # BufferError while anyone holds it


# The choice


def test_the_source_of_a_kernel_is_not_used_without_a_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_kernels.py").write_text("INTERFACE = 'never run'\nraise AssertionError")
    monkeypatch.delenv("OTTLA_PURE", raising=False)
    monkeypatch.setattr(sys.modules["ottla.protocol.records"], "__path__", [str(tmp_path)])
    assert _speedups.compiled_kernels() is None


@needs_both
def test_a_build_older_than_the_source_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_PURE", raising=False)
    assert _speedups.compiled_kernels() is NATIVE
    monkeypatch.setattr(_pure, "INTERFACE", _pure.INTERFACE + 1)
    assert _speedups.compiled_kernels() is None


@needs_both
def test_both_implementations_have_the_same_kernels() -> None:
    def kernels_in(module: ModuleType) -> set[str]:
        found = {name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))}
        return {name for name in found if getattr(module, name).__module__ == module.__name__}

    assert NATIVE is not None
    assert kernels_in(NATIVE) == kernels_in(_pure) - {"crc32c"}
    assert all(hasattr(_speedups, name) for name in kernels_in(_pure))


# The checksum


@pytest.mark.parametrize("crc32c", [_speedups.crc32c, _pure.crc32c], ids=["chosen", "pure"])
def test_the_checksum_is_crc32c(crc32c: Callable[..., int]) -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0
    data = os.urandom(1000)
    for kind in (bytes, bytearray, memoryview):
        assert crc32c(kind(data)) == crc32c(data)
    assert crc32c(data[123:], crc32c(data[:123])) == crc32c(data) == _pure.crc32c(data)


def test_the_checksum_falls_back_to_pure_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastcrc.crc32", None)
    assert _speedups.checksum() is _pure.crc32c
