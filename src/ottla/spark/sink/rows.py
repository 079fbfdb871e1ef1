"""Converts a Spark batch to records: the required columns, and how they become keys, values and headers. Pure."""

from typing import TYPE_CHECKING, Any

from ottla.spark.sink.decisions import BYTE_SUM_LIMIT, Digest
from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

HEADERS_DDL = "array<struct<key:string,value:binary>>"
WANTED = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (HEADERS_DDL,),
    "timestamp": ("timestamp",),
}
"""The columns that are written, with the types they may have."""
HINTS = {
    "key": "Cast it: CAST(key AS STRING), or to_json(struct(…)) for several columns.",
    "value": "Cast it: CAST(value AS STRING), or to_json(struct(…)) for several columns.",
    "topic": "Cast it: CAST(topic AS STRING).",
    "partition": "Cast it: CAST(partition AS INT).",
    "headers": "Build it: array(struct('name' AS key, CAST('text' AS BINARY) AS value)).",
    "timestamp": "Cast it: CAST(timestamp AS TIMESTAMP), or remove includeTimestamp.",
}


def used_columns(schema: "StructType", options: SinkOptions) -> list[str]:
    """The columns that are written, checked. Others are ignored, as Spark's own Kafka sink does.

    Names are compared without regard to case, as Spark does.
    """
    types = {field.name.lower(): field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        shown = ", ".join(field.name for field in schema.fields)
        raise SinkError(
            f"there is no column value; the columns are {shown}",
            "Add one: selectExpr('to_json(struct(*)) AS value').",
        )
    if options.topic is None and "topic" not in types:
        raise SinkError("there is no topic to write to", "Set the option topic, or add a column topic.")
    used = ["value"]
    if "key" in types:
        used.append("key")
    if options.topic is None:
        used.append("topic")
    if "partition" in types:
        used.append("partition")
    if "headers" in types and options.include_headers:
        used.append("headers")
    if options.include_timestamp:
        if "timestamp" not in types:
            raise SinkError("includeTimestamp needs a column timestamp", "Add it, or remove the option.")
        used.append("timestamp")
    for name in used:
        if _plain(types[name]) not in WANTED[name]:
            wanted = " or ".join(WANTED[name])
            raise SinkError(f"column {name} has type {types[name]}; it must be {wanted}", HINTS[name])
    return used


def _plain(type_name: str) -> str:
    """The type without a collation: a string with a collation is still a string."""
    return "string" if type_name.startswith("string collate ") else type_name


def to_records(batch: "pa.RecordBatch", used: list[str], first_row: int) -> "pa.RecordBatch":
    """The columns to write, under lower-case names, with text as bytes. Copies no keys or values."""
    import pyarrow as pa

    positions = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    columns: dict[str, Any] = {}
    for name in used:
        column = batch.column(positions[name])
        if name in ("key", "value"):
            column = as_binary(column)
        elif name == "topic":
            if column.null_count:
                row = first_row + column.is_null().to_pylist().index(True)
                raise SinkError(
                    f"row {row} of this task has no topic: its column topic is null",
                    "Set the option topic, or fill the column in every row.",
                )
        elif name == "timestamp":
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
        columns[name] = column
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def as_binary(column: Any) -> Any:
    """Text as its UTF-8 bytes."""
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.view(pa.large_binary())
    return column


def digest(records: "pa.RecordBatch", so_far: Digest) -> Digest:
    """Adds rows to a digest: their count, their size, and the sum of the bytes of keys and values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    size_bytes, byte_sum = so_far.size_bytes, so_far.byte_sum
    for name in ("key", "value"):
        index = records.schema.get_field_index(name)
        if index < 0 or not len(records):
            continue
        column = records.column(index)
        # The position of the rows' bytes in the column's buffer, which may be longer than the column.
        wide = pa.types.is_large_binary(column.type)
        offsets = pa.Array.from_buffers(
            pa.int64() if wide else pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset
        )
        begin, end = offsets[0].as_py(), offsets[-1].as_py()
        size_bytes += end - begin
        if end > begin:
            data = pa.Array.from_buffers(pa.uint8(), end - begin, [None, column.buffers()[2]], offset=begin)
            byte_sum += pc.call_function("sum", [data]).as_py()
    return Digest(so_far.rows + len(records), size_bytes, byte_sum % BYTE_SUM_LIMIT)
