"""Columns as records: which are written, what is refused, and the digest that compares two runs of a task."""

import datetime
from typing import TYPE_CHECKING

import pytest

from ottla.spark.sink.decisions import Digest
from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.rows import digest, to_records, used_columns

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")


def options(**more: str) -> SinkOptions:
    return SinkOptions.parse({"kafka.bootstrap.servers": "a:1", **more}, True)


TEXT, BYTES, INT, LONG, TIME = (
    types.StringType(),
    types.BinaryType(),
    types.IntegerType(),
    types.LongType(),
    types.TimestampType(),
)
HEADERS = types.ArrayType(types.StructType().add("key", TEXT).add("value", BYTES))


def used(columns: "dict[str, DataType]", **more: str) -> list[str]:
    schema = types.StructType([types.StructField(name, kind) for name, kind in columns.items()])
    return used_columns(schema, options(**more))


def test_the_columns_are_those_of_sparks_kafka_sink() -> None:
    columns = {"key": TEXT, "value": BYTES, "topic": TEXT, "partition": INT, "headers": HEADERS}
    assert used(columns) == ["value", "key", "topic", "partition", "headers"]
    assert used(columns, topic="t", includeHeaders="false") == ["value", "key", "partition"]


def test_other_columns_of_a_source_are_ignored() -> None:
    columns = {"key": BYTES, "value": BYTES, "topic": TEXT, "offset": LONG, "timestamp": TIME, "timestampType": INT}
    assert used(columns, topic="t") == ["value", "key"]
    assert used(columns, topic="t", includeTimestamp="true") == ["value", "key", "timestamp"]


def test_column_names_are_compared_without_case() -> None:
    assert used({"KEY": TEXT, "Value": TEXT}, topic="t") == ["value", "key"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": INT, "amount": LONG}, "there is no column value; the columns are id, amount. Add one"),
        (
            {"value": types.StructType().add("a", INT)},
            "column value has type struct<a:int>; it must be string or binary",
        ),
        ({"value": INT}, "column value has type int; it must be string or binary. Cast it"),
        ({"value": TEXT, "key": LONG}, "column key has type bigint; it must be string or binary"),
        ({"value": TEXT, "partition": LONG}, "column partition has type bigint; it must be int"),
        ({"value": TEXT, "headers": types.MapType(TEXT, TEXT)}, "column headers has type map<string,string>"),
    ],
)
def test_a_column_of_a_wrong_type_is_reported_with_its_type(columns: "dict[str, DataType]", words: str) -> None:
    with pytest.raises(SinkError) as refused:
        used(columns, topic="t")
    assert words in str(refused.value)


def test_a_topic_is_required() -> None:
    with pytest.raises(SinkError, match=r"there is no topic to write to\. Set the option topic, or add a column topic"):
        used({"value": TEXT})
    with pytest.raises(SinkError, match="includeTimestamp needs a column timestamp"):
        used({"value": TEXT}, topic="t", includeTimestamp="true")


def test_text_becomes_bytes_and_null_stays_null() -> None:
    batch = pa.record_batch({"VALUE": pa.array(["a", None, "ü"])})
    records = to_records(batch, ["value"], 0)
    assert records.schema.names == ["value"]
    assert records.column(0).to_pylist() == [b"a", None, "ü".encode()]


def test_a_row_without_a_topic_is_reported_by_its_number() -> None:
    batch = pa.record_batch({"value": ["a", "b"], "topic": pa.array(["t", None])})
    with pytest.raises(SinkError, match="row 41 of this task has no topic"):
        to_records(batch, ["value", "topic"], 40)


def test_timestamps_are_kept_to_the_millisecond() -> None:
    at = datetime.datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=datetime.UTC)
    batch = pa.record_batch({"value": ["a"], "timestamp": pa.array([at], pa.timestamp("us", "UTC"))})
    records = to_records(batch, ["value", "timestamp"], 0)
    assert records.column(1).to_pylist() == [at.replace(microsecond=123000)]


def test_the_digest_does_not_depend_on_the_order_of_rows_or_on_batches() -> None:
    def of(*batches: list[str | None]) -> Digest:
        found = Digest()
        for rows in batches:
            found = digest(
                pa.record_batch({"key": pa.array(rows, pa.binary()), "value": pa.array(rows, pa.binary())}), found
            )
        return found

    assert of(["abc", None, "de"], ["f"]) == of(["f", "de"], ["abc", None]) == Digest(4, 12, 2 * sum(b"abcdef"))
    assert of(["abc"]) != of(["abd"])
    assert of(["a", "b"]) != of(["ab"])


def test_the_digest_of_a_slice_covers_only_the_slice() -> None:
    whole = pa.record_batch({"value": pa.array([b"aa", b"b", b"cccc"])})
    assert digest(whole.slice(1, 1), Digest()) == Digest(1, 1, ord("b"))
    assert digest(whole.slice(0, 0), Digest()) == Digest()
