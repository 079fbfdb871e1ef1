"""Converts batches to Arrow columns and back: the same records as through objects."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.consumer.arrow import SCHEMA
from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.client.core.model import ConsumerRecord
from ottla.errors import ArgumentError, ErrorCode, KafkaError
from ottla.protocol.arrow import _arrow_pure, arrow_batches, arrow_rows
from ottla.protocol.records.record_batch import HEADER_SIZE, Codec, build_batch, control_batch, open_batch, read_records
from ottla.types import TopicPartition
from tests.support.wire.columns import columns_from

T0 = TopicPartition("orders", 3)
NOW = 1_700_000_000_000
ANN, BOB = 1, 2

text = st.text(st.characters(codec="utf-8"), max_size=8)
blob = st.none() | st.binary(max_size=60)
rows_of = st.tuples(
    st.integers(NOW, NOW + 100_000) | st.integers(0, 2**50), blob, blob, st.lists(st.tuples(text, blob), max_size=3)
)


@pytest.fixture(params=["chosen", "pure"])
def implementations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with the implementation in use and with the one in Python."""
    if request.param == "pure":
        monkeypatch.setattr(arrow_batches, "_decoder", _arrow_pure)
        monkeypatch.setattr(arrow_rows, "_encoder", _arrow_pure)


def as_records(batch: pa.RecordBatch) -> list[ConsumerRecord]:
    """The rows as the objects that poll() would return."""
    batch.validate(full=True)
    milliseconds = batch.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    return [
        ConsumerRecord(
            row["topic"],
            row["partition"],
            row["offset"],
            at,
            row["key"],
            row["value"],
            tuple((pair["key"], pair["value"]) for pair in row["headers"]),
        )
        for row, at in zip(batch.drop_columns(["timestamp"]).to_pylist(), milliseconds, strict=True)
    ]


def as_objects(data: bytes, offset: int = 0, **options: Any) -> list[ConsumerRecord]:
    return CompletedFetch(T0, memoryview(data), offset, **options).take(1_000_000)


def plain(offset: int, *values: str, **options: Any) -> bytes:
    return build_batch(
        [(NOW + i, None, value.encode(), ()) for i, value in enumerate(values)], base_offset=offset, **options
    )


def written(offset: int, producer_id: int, *values: str) -> bytes:
    numbers = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    return plain(offset, *values, **numbers)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return control_batch(
        commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1, base_offset=offset
    )


# In


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        st.tuples(st.lists(rows_of, min_size=1, max_size=6), st.sampled_from(Codec)), min_size=1, max_size=4
    ),
    data=st.data(),
)
def test_columns_equal_the_objects_for_any_codec_from_any_offset(batches: list[Any], data: st.DataObject) -> None:
    """Spec: F1."""
    stored, end = b"", 0
    for rows, codec in batches:
        stored += build_batch(rows, base_offset=end, codec=codec)
        end += len(rows)
    start = data.draw(st.integers(0, end))
    batch, next_offset = columns_from(T0, stored, start)
    assert batch.schema == SCHEMA
    assert as_records(batch) == as_objects(stored, start)
    assert next_offset == end
    assert set(batch.column("topic").to_pylist()) <= {"orders"}
    assert set(batch.column("partition").to_pylist()) <= {3}


def test_a_range_can_be_read_in_any_number_of_pieces(implementations: None) -> None:
    stored = plain(0, *"abc", codec=Codec.LZ4) + plain(3, *"defgh") + plain(10, "k")
    offset, found = 0, []
    for _ in range(20):
        batch, offset = columns_from(T0, stored, offset, max_records=2)
        assert batch.num_rows <= 2
        found += as_records(batch)
    assert found == as_objects(stored)
    assert offset == 11


def test_unit_and_columns_can_be_chosen(implementations: None) -> None:
    batch, _ = columns_from(T0, plain(5, "a", "b"), timestamp_unit="us", columns=["offset", "timestamp", "value"])
    assert batch.schema == pa.schema(
        [("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("value", pa.binary())]
    )
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [NOW * 1000, (NOW + 1) * 1000]
    with pytest.raises(ArgumentError, match="no column price"):
        columns_from(T0, plain(5, "a"), columns=["price"])
    with pytest.raises(ArgumentError, match="must be ms or us, not 'ns'") as caught:
        columns_from(T0, plain(5, "a"), timestamp_unit="ns")
    assert caught.value.hint


def test_log_append_time_has_its_own_timestamp_type(implementations: None) -> None:
    stored = plain(0, "mine") + plain(1, "a", "b", log_append_time=True)
    batch, _ = columns_from(T0, stored)
    assert batch.column("timestamp_type").to_pylist() == [0, 1, 1]
    assert [record.timestamp for record in as_records(batch)] == [NOW, NOW + 1, NOW + 1]


def test_lists_of_headers_are_empty_and_never_null(implementations: None) -> None:
    """Null lists make Spark's writer several times slower."""
    stored = build_batch([(NOW, None, b"a", ()), (NOW, None, b"b", [("h", b"1"), ("i", None)]), (NOW, None, b"c", ())])
    headers = columns_from(T0, stored)[0].column("headers")
    assert headers.null_count == 0
    expected = [[], [{"key": "h", "value": b"1"}, {"key": "i", "value": None}], []]
    assert headers.to_pylist() == expected
    none_at_all = columns_from(T0, plain(0, "a", "b"))[0].column("headers")
    assert none_at_all.to_pylist() == [[], []]


def test_header_names_that_are_not_utf8_read_as_in_objects(implementations: None) -> None:
    stored = build_batch([(NOW, None, b"a", [("näme", b"1"), ("xxx", b"2")])])
    broken = stored.replace(b"xxx", b"\xff\xfe-")
    batch, _ = columns_from(T0, broken, check_crcs=False)
    assert [pair["key"] for pair in batch.column("headers")[0].as_py()] == ["näme", "\ufffd\ufffd-"]
    assert as_records(batch) == as_objects(broken, check_crcs=False)


def test_aborted_records_and_markers_are_skipped(implementations: None) -> None:
    """Spec: E7, E8."""
    stored = (
        written(0, ANN, "no")
        + written(1, BOB, "yes")
        + marker(2, ANN, commit=False)
        + written(3, ANN, "again")
        + marker(4, ANN, commit=True)
        + marker(5, BOB, commit=True)
    )
    batch, next_offset = columns_from(T0, stored, aborted=[(ANN, 0)])
    assert batch.column("value").to_pylist() == [b"yes", b"again"]
    assert next_offset == 6
    batch, next_offset = columns_from(T0, stored)
    assert batch.column("value").to_pylist() == [b"no", b"yes", b"again"]
    assert next_offset == 6


def test_a_builder_takes_records_before_an_offset_only(implementations: None) -> None:
    stored = plain(0, *"abc") + plain(3, *"def")
    sections = CompletedFetch(T0, memoryview(stored), 0).sections(10, 1 << 20)
    builder = arrow_batches.ColumnBuilder(sections)
    assert [builder.add(*T0, section, 1, 4) for section in sections] == [True, False]
    assert builder.finish().column("offset").to_pylist() == [1, 2, 3]
    assert not builder.is_full


def test_a_corrupt_batch_is_an_error_after_the_valid_ones_before_it(implementations: None) -> None:
    damaged = bytearray(plain(0, "a") + plain(1, "b", "c"))
    damaged[-1] ^= 1
    batch, next_offset = columns_from(T0, damaged)
    assert batch.column("value").to_pylist() == [b"a"]
    assert next_offset == 1
    with pytest.raises(KafkaError) as caught:
        columns_from(T0, damaged, 1)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert caught.value.detail.startswith("orders-3 at offset 1: checksum ")
    with pytest.raises(KafkaError, match="orders-3 at offset 1: "):
        columns_from(T0, damaged, 1, check_crcs=False)
    with pytest.raises(KafkaError, match="without a whole batch"):
        columns_from(T0, plain(0, "a")[:-1])
    bomb = bytearray(plain(0, "a" * 1000, codec=Codec.ZSTD))
    bomb[HEADER_SIZE + 6] ^= 0xFF
    with pytest.raises(KafkaError, match="orders-3 at offset 0: "):
        columns_from(T0, bomb, check_crcs=False)


def test_a_header_that_claims_too_many_records_allocates_nothing(implementations: None) -> None:
    boast = bytearray(plain(0, "a"))
    boast[57:61] = (2**31 - 1).to_bytes(4, "big")
    boast[23:27] = (2**31 - 2).to_bytes(4, "big")
    before = pa.total_allocated_bytes()
    with pytest.raises(KafkaError, match="do not fit"):
        columns_from(T0, boast, check_crcs=False)
    assert pa.total_allocated_bytes() - before < 10_000


# Out


def batch_of(table: Any, codec: int = 0) -> bytes:
    """All rows of a table as one batch."""
    (chunk,) = arrow_rows.chunks(arrow_rows.as_table(table))
    rows = arrow_rows.open_rows(chunk, 0, NOW)
    rows.measure(1 << 20)
    batch, count, base, highest = rows.encode(None, 0, rows.count, 1 << 30, HEADER_SIZE)
    arrow_rows.seal(batch, codec=codec, count=count, base_timestamp=base, max_timestamp=highest)
    open_batch(batch)
    return bytes(batch)


def sent(table: Any) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in read_records(batch_of(table))]


@settings(max_examples=40, deadline=None)
@given(st.lists(rows_of, min_size=1, max_size=10))
def test_columns_read_from_a_batch_are_written_as_the_same_batch(rows: list[Any]) -> None:
    stored = build_batch(rows)
    batch, _ = columns_from(T0, stored)
    assert batch_of(batch) == stored


STRING_TYPES = [
    pa.binary(),
    pa.string(),
    pa.large_binary(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.binary()),
]


@pytest.mark.parametrize("kind", STRING_TYPES, ids=str)
def test_any_binary_type_is_accepted_sliced_or_not(kind: pa.DataType, implementations: None) -> None:
    words = ["one", None, "", "four" * 10, "fünf", "six"]
    column = pa.array(words, pa.string()).cast(kind)
    raw = [None if word is None else word.encode() for word in words]
    assert sent(pa.table({"key": column, "value": column})) == list(zip(raw, raw, strict=True))
    part = pa.table({"key": column.slice(1, 4), "value": column.slice(2, 4)})
    assert sent(part) == [(raw[i], raw[i + 1]) for i in range(1, 5)]


def test_columns_in_several_chunks_are_accepted(implementations: None) -> None:
    chunked = pa.chunked_array([["a"], [], ["b", "c"], [None]], pa.string())
    other = pa.chunked_array([["k1", "k2", "k3"], ["k4"]], pa.string())
    expected = [(b"k1", b"a"), (b"k2", b"b"), (b"k3", b"c"), (b"k4", None)]
    assert sent(pa.table({"value": chunked, "key": other})) == expected


def test_a_null_column_means_tombstones(implementations: None) -> None:
    assert sent(pa.table({"key": ["k"], "value": pa.nulls(1)})) == [(b"k", None)]
    fixed = pa.array([b"abc", None], pa.binary(3))
    assert sent(pa.table({"value": fixed})) == [(None, b"abc"), (None, None)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([NOW, None], pa.int64()),
        pa.array([NOW, None], pa.timestamp("ms", "UTC")),
        pa.array([NOW * 1000 + 999, None], pa.timestamp("us", "Europe/Prague")),
        pa.array([NOW * 1_000_000, None], pa.timestamp("ns")),
        pa.array([NOW // 1000, None], pa.timestamp("s")),
    ],
    ids=lambda column: str(column.type),
)
def test_timestamps_of_any_unit_are_accepted_and_null_is_now(column: pa.Array) -> None:
    records = read_records(batch_of(pa.table({"value": ["a", "b"], "timestamp": column})))
    assert [record.timestamp for record in records] == [NOW, NOW]


PAIRS: list[list[tuple[str, bytes | None]]] = [[("a", b"1"), ("b", None)], [], [("c", b"")]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[{"key": k, "value": v} for k, v in row] for row in PAIRS], arrow_batches.HEADERS),
        pa.array([[{"value": v, "key": k} for k, v in row] for row in PAIRS],
                 pa.list_(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())]))),
        pa.array([[{"key": k, "value": v} for k, v in row] for row in PAIRS],
                 pa.large_list(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.array(PAIRS, pa.map_(pa.string(), pa.binary())),
    ],
    ids=lambda column: str(column.type)[:30],
)  # fmt: skip
def test_headers_of_any_layout_are_accepted(column: pa.Array, implementations: None) -> None:
    table = pa.table({"value": ["x", "y", "z"], "headers": column})
    expected = [tuple(row) for row in PAIRS]
    assert [record.headers for record in read_records(batch_of(table))] == expected
    assert [record.headers for record in read_records(batch_of(table.slice(1)))] == expected[1:]


def test_a_null_list_of_headers_is_empty(implementations: None) -> None:
    column = pa.array([None, [{"key": "k", "value": b"v"}]], arrow_batches.HEADERS)
    records = read_records(batch_of(pa.table({"value": ["a", "b"], "headers": column})))
    assert [record.headers for record in records] == [(), (("k", b"v"),)]
    records = read_records(batch_of(pa.table({"value": ["a"], "headers": pa.nulls(1)})))
    assert records[0].headers == ()


def test_data_frames_of_other_libraries_are_accepted() -> None:
    import duckdb
    import pandas
    import polars

    data = {"key": ["k1", "k2"], "value": ["a", "b"]}
    expected = [(b"k1", b"a"), (b"k2", b"b")]
    assert sent(polars.DataFrame(data)) == expected
    assert sent(pandas.DataFrame(data)) == expected
    assert sent(duckdb.sql("select * from (values ('k1', 'a'), ('k2', 'b')) t(key, value)")) == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": ["k"]}, "the table has no column value \\(its columns: key\\)"),
        ({"value": [1]}, "column value is int64; expected binary or string"),
        ({"value": ["v"], "key": [1.5]}, "column key is double; expected binary or string"),
        ({"value": ["v"], "price": [1]}, "column price \\(int64\\) is not a column of records"),
        ({"value": ["v"], "topic": [7]}, "column topic is int64; expected string"),
        ({"value": ["v"], "partition": ["0"]}, "column partition is string; expected an integer"),
        ({"value": ["v"], "timestamp": ["now"]}, "column timestamp is string; expected a timestamp"),
        ({"value": ["v"], "headers": [["h"]]}, "column headers is list<.*>; expected list<struct<key: string"),
        ({"value": ["v"], "headers": [[{"name": "h", "value": b""}]]}, "column headers is list<"),
        (
            {"value": ["v"], "headers": pa.array([[("h", 1)]], pa.map_(pa.string(), pa.int64()))},
            "column headers is map",
        ),
        ({"value": ["v"]}, "neither a topic argument nor a column topic"),
    ],
)
def test_a_wrong_schema_is_an_error_with_column_and_type(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        arrow_rows.check_schema(pa.table(columns).schema, needs_topic="topic" not in message or "neither" in message)
    assert caught.value.hint


def test_anything_but_a_table_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="not list"):
        arrow_rows.as_table([{"value": b"v"}])
    two = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    with pytest.raises(ArgumentError, match="two columns value"):
        arrow_rows.check_schema(two.schema, needs_topic=False)


def test_a_null_topic_or_invalid_partition_is_an_error_with_its_row() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": ["t", None], "partition": [0, 2**40]})
    with pytest.raises(ArgumentError, match="row 11: the topic is null"):
        arrow_rows.topics_of(batch, 10)
    with pytest.raises(ArgumentError, match="row 11: there is no partition 1099511627776") as caught:
        arrow_rows.partitions_of(batch, 10)
    assert "0 to 2147483647" in caught.value.hint


def test_a_timestamp_beyond_milliseconds_is_an_error_with_a_hint() -> None:
    seconds = pa.array([2**62], pa.timestamp("s"))
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), seconds], names=["value", "timestamp"])
    with pytest.raises(ArgumentError, match="column timestamp, rows from 10 on: ") as caught:
        arrow_rows.open_rows(batch, 10, 0)
    assert caught.value.hint
