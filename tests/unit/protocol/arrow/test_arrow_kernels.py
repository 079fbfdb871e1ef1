"""The Arrow kernels: the compiled and the Python implementation return and reject the same."""

import random
from array import array
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.producer.partitioner import murmur2 as client_murmur2
from ottla.protocol.arrow import _arrow_pure
from ottla.protocol.arrow.arrow_rows import open_rows
from ottla.protocol.records import _pure
from ottla.protocol.records.record_batch import Record

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def compiled() -> Any:
    """The extensions, even with OTTLA_PURE, so that one run tests both implementations."""
    folder = Path(_arrow_pure.__file__).parent
    for name in ("_arrow_decode", "_arrow_encode"):
        if not any((folder / f"{name}{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
            return None
    from ottla.protocol.arrow import _arrow_decode, _arrow_encode

    return SimpleNamespace(
        RecordColumns=_arrow_decode.RecordColumns, RowColumns=_arrow_encode.RowColumns, murmur2=_arrow_encode.murmur2
    )


NATIVE = compiled()
needs_both = pytest.mark.skipif(NATIVE is None, reason="the extensions are not built")
IMPLEMENTATIONS = [pytest.param(NATIVE, id="native", marks=needs_both), pytest.param(_arrow_pure, id="pure")]
both = pytest.mark.parametrize("kernels", IMPLEMENTATIONS)

text = st.text(st.characters(codec="utf-8"), max_size=8)
blob = st.none() | st.binary(max_size=80)
headers_of = st.lists(st.tuples(text, blob), max_size=3)
rows_of = st.tuples(st.integers(0, 2**53) | st.integers(1_700_000_000_000, 1_700_000_100_000), blob, blob, headers_of)


# Records in


class Columns:
    """A kernel with its buffers, and their content as rows."""

    def __init__(self, kernels: Any, capacity: int, bytes_max: int = INT32_MAX, multiplier: int = 1) -> None:
        self.offsets, self.timestamps = bytearray(8 * capacity), bytearray(8 * capacity)
        self.types = bytearray(b"\xff" * 4 * capacity)
        self.key_offsets, self.value_offsets, self.list_offsets = (bytearray(4 * (capacity + 1)) for _ in range(3))
        self.key_bits, self.value_bits = (bytearray(b"\xff" * ((capacity + 7) // 8)) for _ in range(2))
        self.kernel = kernels.RecordColumns(
            capacity,
            bytes_max,
            multiplier,
            self.offsets,
            self.timestamps,
            self.types,
            self.key_offsets,
            self.key_bits,
            self.value_offsets,
            self.value_bits,
            self.list_offsets,
        )

    def add(self, section: bytes, count: int, base: int, **options: Any) -> bool:
        return self.kernel.add(  # type: ignore[no-any-return]
            section,
            0,
            len(section),
            count,
            options.get("base_offset", 100),
            options.get("last_offset_delta", max(count - 1, 0)),
            base,
            options.get("append_time"),
            options.get("from_offset", 0),
            options.get("until_offset", INT64_MAX),
        )

    def rows(self) -> list[tuple[Any, ...]]:
        kernel = self.kernel
        keys, values = bytearray(kernel.key_bytes), bytearray(kernel.value_bytes)
        kernel.fill(keys, values)
        count = kernel.header_rows
        name_ends, content_ends = bytearray(4 * (count + 1)), bytearray(4 * (count + 1))
        names, contents = bytearray(kernel.header_key_bytes), bytearray(kernel.header_value_bytes)
        bits = bytearray((count + 7) // 8)
        is_ascii = kernel.fill_headers(name_ends, names, content_ends, bits, contents)
        assert is_ascii == names.isascii()
        headers = list(
            zip(strings(names, name_ends, None, count), strings(contents, content_ends, bits, count), strict=True)
        )
        lists = numbers("i", self.list_offsets)
        return list(
            zip(
                numbers("q", self.offsets)[: kernel.rows],
                numbers("q", self.timestamps)[: kernel.rows],
                numbers("i", self.types)[: kernel.rows],
                strings(keys, self.key_offsets, self.key_bits, kernel.rows),
                strings(values, self.value_offsets, self.value_bits, kernel.rows),
                [headers[lists[row] : lists[row + 1]] for row in range(kernel.rows)],
                strict=True,
            )
        )


def numbers(kind: str, data: bytearray) -> list[int]:
    return array(kind, bytes(data)).tolist()


def strings(data: bytearray, ends: bytearray, bits: bytearray | None, count: int) -> list[bytes | None]:
    places = numbers("i", ends)
    return [
        bytes(data[places[i] : places[i + 1]]) if bits is None or bits[i >> 3] >> (i & 7) & 1 else None
        for i in range(count)
    ]


def as_row(record: Record, is_append_time: bool = False) -> tuple[Any, ...]:
    headers = [(name.encode(), content) for name, content in record.headers]
    return record.offset, record.timestamp, int(is_append_time), record.key, record.value, headers


def section_of(rows: list[Any]) -> tuple[bytes, int, int]:
    section, count, base, _ = _pure.encode_records(rows)
    return section, count, base


def records_of(section: bytes, count: int, base: int, append_time: int | None = None) -> list[Record]:
    return _pure.decode_records(Record, section, 0, len(section), count, 100, max(count - 1, 0), base, append_time)


@both
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(rows_of, max_size=12), append_time=st.none() | st.integers(0, 2**53))
def test_columns_equal_the_objects(kernels: Any, rows: list[Any], append_time: int | None) -> None:
    section, count, base = section_of(rows)
    columns = Columns(kernels, count)
    assert columns.add(section, count, base, append_time=append_time)
    expected = records_of(section, count, base, append_time)
    assert columns.rows() == [as_row(record, append_time is not None) for record in expected]
    kernel = columns.kernel
    assert kernel.null_keys == sum(row[1] is None for row in rows)
    assert kernel.null_values == sum(row[2] is None for row in rows)
    assert kernel.null_header_values == sum(content is None for row in rows for _, content in row[3])
    assert kernel.last_offset == (expected[-1].offset if expected else -1)


@both
def test_sections_are_appended_to_the_same_columns(kernels: Any) -> None:
    first = [(1000, b"a", None, [("h", b"1")]), (1001, None, b"", [])]
    second = [(2000, b"", b"xyz", [("i", None), ("j", b"")])]
    columns = Columns(kernels, 3)
    expected = []
    for rows in (first, second):
        section, count, base = section_of(rows)
        assert columns.add(section, count, base)
        expected += [as_row(record) for record in records_of(section, count, base)]
    assert columns.rows() == expected


@both
def test_only_the_requested_offsets_are_added(kernels: Any) -> None:
    section, count, base = section_of([(i, None, b"%d" % i, []) for i in range(10)])
    columns = Columns(kernels, 10)
    assert not columns.add(section, count, base, from_offset=103, until_offset=107)
    assert [row[0] for row in columns.rows()] == [103, 104, 105, 106]
    assert not columns.kernel.is_full
    assert columns.kernel.last_offset == 106
    assert columns.add(section, count, base, from_offset=107)
    assert [row[0] for row in columns.rows()] == [103, 104, 105, 106, 107, 108, 109]


@both
def test_a_full_builder_reports_it_and_adds_nothing_more(kernels: Any) -> None:
    section, count, base = section_of([(i, b"k", b"v" * 10, []) for i in range(10)])
    columns = Columns(kernels, 4)
    assert not columns.add(section, count, base)
    assert (columns.kernel.rows, columns.kernel.is_full) == (4, True)
    limited = Columns(kernels, 10, bytes_max=33)
    assert not limited.add(section, count, base)
    assert (limited.kernel.rows, limited.kernel.is_full) == (3, True), "three times eleven bytes"
    one_at_least = Columns(kernels, 10, bytes_max=1)
    assert not one_at_least.add(section, count, base)
    assert one_at_least.kernel.rows == 1, "a single record always fits"


@both
def test_milliseconds_are_converted_to_microseconds_if_they_fit(kernels: Any) -> None:
    section, count, base = section_of([(1_700_000_000_123, None, b"v", []), (-1, None, b"w", [])])
    columns = Columns(kernels, 2, multiplier=1000)
    columns.add(section, count, base)
    assert [row[1] for row in columns.rows()] == [1_700_000_000_123_000, -1000]
    section, count, base = section_of([(0, None, b"v", []), (2**60, None, b"far", [])])
    columns = Columns(kernels, 2, multiplier=1000)
    with pytest.raises(OverflowError, match=f"timestamp {2**60} at offset 101 does not fit"):
        columns.add(section, count, base)
    assert columns.kernel.rows == 0


@both
def test_nothing_of_a_corrupt_section_is_kept(kernels: Any) -> None:
    good, good_count, good_base = section_of([(5, b"key", b"value", [("h", b"c")])])
    bad, count, base = section_of([(6, b"other", b"value", [("h", b"c")]), (7, b"more", None, [])])
    columns = Columns(kernels, 4)
    columns.add(good, good_count, good_base)
    before = columns.rows()
    for damaged in (bad[:-1], bad + b"\x00", bad[:-2] + b"\x7f" + bad[-1:]):
        with pytest.raises(ValueError, match=r"length|bounds|follow"):
            columns.add(damaged, count, base)
        assert columns.rows() == before
    nulls, null_count, null_base = section_of([(8, None, None, []), (9, None, None, [])])
    columns.add(nulls, null_count, null_base)
    assert [row[3:5] for row in columns.rows()[1:]] == [(None, None), (None, None)], "no bit of the damaged is left"


@needs_both
@settings(max_examples=150, deadline=None)
@given(st.lists(rows_of, min_size=1, max_size=5), st.data())
def test_both_implementations_reject_the_same_bytes(rows: list[Any], data: st.DataObject) -> None:
    section, count, base = section_of(rows)
    damaged = bytearray(section)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(damaged)))
    outcomes: list[Any] = []
    for kernels in (NATIVE, _arrow_pure):
        columns = Columns(kernels, count)
        try:
            whole = columns.add(bytes(damaged[:end]), count, base)
            outcomes.append((whole, columns.rows()))
        except ValueError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]


@both
def test_buffers_that_are_too_small_are_an_error(kernels: Any) -> None:
    section, count, base = section_of([(i, b"k", b"v", [("h", b"c")]) for i in range(3)])
    columns = Columns(kernels, 3)
    columns.add(section, count, base)
    with pytest.raises(ValueError, match="too small"):
        columns.kernel.fill(bytearray(1), bytearray(3))
    with pytest.raises(ValueError, match="too small"):
        columns.kernel.fill_headers(bytearray(4), bytearray(3), bytearray(16), bytearray(1), bytearray(3))
    small = bytearray(8)
    with pytest.raises(ValueError, match="too small"):
        kernels.RecordColumns(3, 100, 1, small, small, small, small, small, small, small, small)
    with pytest.raises(ValueError, match="at most"):
        Columns(kernels, 1, bytes_max=2**31)


@both
def test_an_impossible_count_is_an_error_before_anything_is_read(kernels: Any) -> None:
    columns = Columns(kernels, 1)
    with pytest.raises(ValueError, match="do not fit"):
        columns.add(b"\x00" * 20, 1_000_000, 0)
    with pytest.raises(ValueError, match="64 bits"):
        columns.add(b"", 0, 0, base_offset=INT64_MAX, last_offset_delta=5)


# Rows out


def table_of(rows: list[Any]) -> pa.RecordBatch:
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row[1] for row in rows], pa.binary()),
            pa.array([row[2] for row in rows], pa.binary()),
            pa.array([row[0] for row in rows], pa.int64()),
            pa.array([[{"key": n, "value": c} for n, c in row[3]] for row in rows], pairs),
        ],
        names=["key", "value", "timestamp", "headers"],
    )


def rows_in(kernels: Any, batch: pa.RecordBatch, monkeypatch: pytest.MonkeyPatch, first_row: int = 0) -> Any:
    monkeypatch.setattr("ottla.protocol.arrow.arrow_rows._encoder", kernels)
    return open_rows(batch, first_row, 1234)


@both
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(rows_of, min_size=1, max_size=12), data=st.data())
def test_rows_and_objects_are_encoded_to_the_same_bytes(kernels: Any, rows: list[Any], data: st.DataObject) -> None:
    before, after = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 3))
    padding = [(7, b"not", b"this", [("x", b"y")])]
    batch = table_of(padding * before + rows + padding * after).slice(before, len(rows))
    with pytest.MonkeyPatch.context() as patch:
        opened = rows_in(kernels, batch, patch)
    opened.measure(1 << 20)
    section, count, base, highest = opened.encode(None, 0, len(rows), 1 << 20, 5)
    expected, _, expected_base, expected_highest = _pure.encode_records(rows)
    assert (bytes(section[5:]), count, base, highest) == (expected, len(rows), expected_base, expected_highest)


@both
def test_a_batch_holds_as_many_rows_as_fit(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = rows_in(kernels, table_of([(1, None, b"v" * 79, [])] * 10), monkeypatch)
    assert opened.measure(1 << 20) == 1000
    taken = [opened.encode(None, 0, 10, size, 0)[1] for size in (1, 100, 199, 200, 10_000)]
    assert taken == [1, 1, 1, 2, 10]
    assert opened.encode(None, 8, 10, 10_000, 0)[1] == 2


@both
def test_rows_are_written_in_the_requested_order(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = [(10 - i, b"k%d" % i, b"v%d" % i, []) for i in range(4)]
    opened = rows_in(kernels, table_of(rows), monkeypatch)
    opened.measure(1 << 20)
    order = array("i", [3, 1, 0, 2])
    section, count, base, highest = opened.encode(order, 0, 4, 1 << 20, 0)
    assert (bytes(section), count, base, highest) == _pure.encode_records([rows[i] for i in order])
    for wrong in (array("i", [0, 1, 2, 9]), array("i", [0, 1, 2, -1])):
        with pytest.raises(ValueError, match="no such rows"):
            opened.encode(wrong, 0, 4, 1 << 20, 0)
    for start, end in ((0, 5), (-1, 2), (2, 2)):
        with pytest.raises(ValueError, match="no such rows"):
            opened.encode(None, start, end, 1 << 20, 0)


@both
def test_an_invalid_row_is_an_error_with_its_number(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fine: Any = (1, b"k", b"v", [])
    for bad, match in [
        ((-5, None, b"v", []), "row 12: the timestamp -5 is negative"),
        ((1, None, b"v", [(None, b"c")]), "row 12: a header's key is null"),
    ]:
        opened = rows_in(kernels, table_of([fine, fine, bad]), monkeypatch, first_row=10)
        with pytest.raises(ValueError, match=match):
            opened.measure(1 << 20)
    opened = rows_in(kernels, table_of([fine, (1, b"k" * 50, b"v" * 50, [])]), monkeypatch)
    with pytest.raises(OverflowError, match="row 1: a record of 121 bytes"):
        opened.measure(120)
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array([[None]], pairs)], names=["value", "headers"])
    with pytest.raises(ValueError, match="row 0: a header is null"):
        rows_in(kernels, batch, monkeypatch).measure(1 << 20)


@both
def test_offsets_outside_their_buffer_are_an_error(kernels: Any) -> None:
    ends = array("i", [0, 3, 90])
    rows = kernels.RowColumns(2, 0, None, (None, ends, b"abcdef", 4, 0), None, 7, None)
    with pytest.raises(ValueError, match="row 1: its value lies outside"):
        rows.measure(1 << 20)
    with pytest.raises(ValueError, match="too small"):
        kernels.RowColumns(3, 0, None, (None, ends, b"abcdef", 4, 0), None, 7, None)
    with pytest.raises(ValueError, match="4 or 8"):
        kernels.RowColumns(1, 0, None, (None, ends, b"abcdef", 2, 0), None, 7, None)


@both
def test_keys_are_hashed_like_the_java_client(kernels: Any) -> None:
    source = random.Random(3)
    for size in [*range(20), 63, 64, 65, 1000]:
        key = source.randbytes(size)
        assert kernels.murmur2(key) == client_murmur2(key)


@both
def test_rows_go_to_their_partition_then_by_key_then_to_any(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [b"a", None, b"b", b"c", None, b"a"]
    opened = rows_in(kernels, table_of([(1, key, b"v" * 9, []) for key in keys]), monkeypatch, first_row=50)
    opened.measure(1 << 20)
    slots = array("i", [99] * 6)
    topics = array("i", [0, 0, 1, 1, 1, 0])  # topic 0 has slots 0 to 3, topic 1 has slot 4 alone
    asked = pa.array([2, None, None, None, None, None], pa.int32())
    partitions = (asked.buffers()[0], asked.buffers()[1], 0)
    assert opened.assign(slots, topics, partitions, [0, 4], [4, 1]) == 1
    by_key = (client_murmur2(b"a") & 0x7FFFFFFF) % 4
    assert slots.tolist() == [2, -1, 4, 4, 4, by_key]
    assert opened.stick(slots, 0, 0, 3, 1000) == (6, 30)
    assert slots.tolist() == [2, 3, 4, 4, 4, by_key]
    order = array("i", [0] * 6)
    ends = opened.group(slots, 5, order)
    groups = [order[start:end].tolist() for start, end in zip([0, *ends], ends, strict=False)]
    expected: list[list[int]] = [[] for _ in range(5)]
    for row, slot in enumerate(slots):
        expected[slot].append(row)
    assert groups == expected
    with pytest.raises(LookupError) as caught:
        opened.assign(slots, None, (None, array("i", [0, 1, 2, 3, 4, 0]), 0), [0], [4])
    assert caught.value.args == (54, 0, 4)
    with pytest.raises(ValueError, match="row 51 has no partition"):
        opened.group(array("i", [0, -1, 0, 0, 0, 0]), 5, order)


@both
def test_rows_without_a_key_change_partition_when_a_batch_is_full(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = rows_in(kernels, table_of([(1, None, b"v" * 79, [])] * 10), monkeypatch)
    opened.measure(1 << 20)
    slots = array("i", [0] * 10)
    assert opened.assign(slots, None, None, [0], [2]) == 10
    row, turns = 0, 0
    while row < 10:
        row, used = opened.stick(slots, row, 0, turns % 2, 350)
        assert used <= 350
        turns += 1
    assert slots.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1]
    assert opened.stick(array("i", [-1] * 10), 0, 0, 1, 5) == (1, 100), "one row gets its place in any case"
