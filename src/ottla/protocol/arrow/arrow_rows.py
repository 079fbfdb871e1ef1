"""Converts rows of Arrow tables to record batches, and checks the schema of a table. Pure.

    check_schema(table.schema, needs_topic=True)
    rows = open_rows(record_batch, first_row=0, default_time_ms=now)
    rows.measure(1_048_576)
    batch, count, base_timestamp, max_timestamp = rows.encode(None, 0, rows.count, 65_536, HEADER_SIZE)
    seal(batch, codec=0, count=count, base_timestamp=base_timestamp, max_timestamp=max_timestamp)

No Python object is created per row. `ottla.client.producer.arrow_send` is built on it. `arrow_batches.py` is the
opposite direction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.errors import ArgumentError
from ottla.protocol.arrow import _arrow_pure
from ottla.protocol.records import _speedups
from ottla.protocol.records.batch_layout import MAGIC, TRANSACTIONAL
from ottla.protocol.records.record_batch import BatchHeader, fill_header
from ottla.types import INT32_MAX

_encoder: Any = _speedups.find_compiled(f"{__package__}._arrow_encode", _arrow_pure.INTERFACE)
NATIVE: bool = _encoder is not None
if _encoder is None:
    _encoder = _arrow_pure

COLUMNS: Mapping[str, str] = {
    "value": "binary or string",
    "key": "binary or string",
    "topic": "string",
    "partition": "an integer",
    "timestamp": "a timestamp, or int64 in milliseconds since 1970",
    "headers": "list<struct<key: string, value: binary>> or map<string, binary>",
}
IGNORED = frozenset({"offset", "timestamp_type"})
"""Columns that read records also have. They are ignored: the broker assigns new values."""

ROWS_AT_ONCE = 200_000
"""Rows per piece of a table: checking that many takes a few milliseconds."""
_SMALL_CHUNK_BYTES = 1 << 20
_COMBINE_BYTES_MAX = 1 << 30


def as_table(source: Any) -> pa.Table:
    """A Table from a Table, a RecordBatch, or anything that exports Arrow columns (polars, DuckDB, pandas)."""
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return pa.table(source)
    raise ArgumentError(
        f"expected a pyarrow Table or RecordBatch, not {type(source).__name__}",
        "Create one with pyarrow.table({'key': …, 'value': …}).",
    )


def check_schema(schema: pa.Schema, *, needs_topic: bool) -> None:
    """Raises ArgumentError, with the column and the expected type, if rows with this schema cannot be sent."""
    seen: set[str] = set()
    for field in schema:
        if field.name in seen:
            raise ArgumentError(f"the table has two columns {field.name}", "Drop one of them.")
        seen.add(field.name)
        if field.name in IGNORED:
            continue
        if field.name not in COLUMNS:
            raise ArgumentError(
                f"column {field.name} ({field.type}) is not a column of records",
                f"Rename or drop it; records have {', '.join(COLUMNS)}.",
            )
        if not _fits(field.name, field.type):
            raise ArgumentError(
                f"column {field.name} is {field.type}; expected {COLUMNS[field.name]}", "Cast it before sending."
            )
    if "value" not in seen:
        names = ", ".join(schema.names) or "none"
        raise ArgumentError(
            f"the table has no column value (its columns: {names})",
            "Add one with the records' values, as binary or string; null is a tombstone.",
        )
    if needs_topic and "topic" not in seen:
        raise ArgumentError("there is neither a topic argument nor a column topic", "Pass topic=, or add the column.")


def _fits(name: str, kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind) and name != "headers":
        kind = kind.value_type
    if name in ("key", "value"):
        return _is_bytes(kind) or types.is_null(kind)
    if name == "topic":
        return _is_text(kind)
    if name == "partition":
        return bool(types.is_integer(kind) or types.is_null(kind))
    if name == "timestamp":
        return bool(types.is_timestamp(kind) or types.is_int64(kind) or types.is_null(kind))
    if types.is_null(kind):
        return True
    if types.is_map(kind):
        return _is_text(kind.key_type) and (_is_bytes(kind.item_type) or types.is_null(kind.item_type))
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    if len(fields) != kind.value_type.num_fields or fields.keys() != {"key", "value"}:
        return False
    return _is_text(fields["key"]) and (_is_bytes(fields["value"]) or types.is_null(fields["value"]))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return (
        _is_text(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def chunks(table: pa.Table) -> list[pa.RecordBatch]:
    """The table's rows in pieces: large enough to fill batches, small enough not to block for long."""
    pieces = max((column.num_chunks for column in table.columns), default=1)
    if pieces > 1 and table.nbytes < min(_COMBINE_BYTES_MAX, pieces * _SMALL_CHUNK_BYTES):
        table = table.combine_chunks()
    return [batch for batch in table.to_batches(max_chunksize=ROWS_AT_ONCE) if batch.num_rows]


def topics_of(batch: pa.RecordBatch, first_row: int) -> tuple[list[str], pa.Array]:
    """The distinct topics of the rows, and each row's topic as an index into them."""
    column = batch.column("topic")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        row = first_row + pc.index(column.is_null(), True).as_py()
        raise ArgumentError(f"row {row}: the topic is null", "Fill it in, or pass topic= for all rows.")
    encoded = column.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices


def highest_partition(batches: Sequence[pa.RecordBatch]) -> int | None:
    """The highest partition in the rows, or None if no row has one."""
    functions: Any = pc
    columns = [_plain(batch.column("partition")) for batch in batches if "partition" in batch.schema.names]
    found = [functions.max(column).as_py() for column in columns]
    return max((number for number in found if number is not None), default=None)


def partitions_of(batch: pa.RecordBatch, first_row: int) -> "tuple[Any, Any, int] | None":
    """The column partition in the form the kernel expects, or None without such a column."""
    if "partition" not in batch.schema.names:
        return None
    column = _plain(batch.column("partition"))
    try:
        return _numbers(column.cast(pa.int32()))
    except pa.ArrowInvalid:
        functions: Any = pc  # created while pyarrow is imported, so type checkers do not know them
        outside = functions.or_kleene(functions.less(column, 0), functions.greater(column, INT32_MAX))
        index = pc.index(outside, True).as_py()
        raise ArgumentError(
            f"row {first_row + index}: there is no partition {column[index]}",
            f"Use a partition from 0 to {INT32_MAX}, or null to choose one by the key.",
        ) from None


def open_rows(batch: pa.RecordBatch, first_row: int, default_time_ms: int) -> Any:
    """The rows of a RecordBatch, ready to be measured and written. Errors count rows from `first_row`."""
    names = batch.schema.names
    timestamps = _times(batch.column("timestamp"), first_row) if "timestamp" in names else None
    return _encoder.RowColumns(
        batch.num_rows,
        first_row,
        _strings(batch.column("key")) if "key" in names else None,
        _strings(batch.column("value")),
        timestamps,
        default_time_ms,
        _headers(batch.column("headers")) if "headers" in names else None,
    )


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _strings(array: pa.Array) -> tuple[Any, Any, Any, int, int]:
    """A column's buffers, after a cast if the kernel does not support the layout."""
    array = _plain(array)
    kind = array.type
    types = pa.types
    if types.is_large_binary(kind) or types.is_large_string(kind):
        width = 8
    elif types.is_binary(kind) or types.is_string(kind):
        width = 4
    else:
        if types.is_string_view(kind):
            array = array.cast(pa.large_string())
        else:
            array = array.cast(pa.large_binary())
        width = 8
    bits, offsets, data = array.buffers()
    if offsets is None or offsets.size == 0:  # allowed where there are no rows
        offsets = bytes(width)
    return bits if array.null_count else None, offsets, data, width, array.offset


def _numbers(array: pa.Array) -> tuple[Any, Any, int]:
    bits, data = array.buffers()
    return bits if array.null_count else None, data, array.offset


def _times(array: pa.Array, first_row: int) -> tuple[Any, Any, int] | None:
    array = _plain(array)
    if pa.types.is_null(array.type):
        return None
    try:
        if not pa.types.is_int64(array.type):
            # Finer units are truncated; a time that does not fit is an error.
            options = pc.CastOptions(pa.timestamp("ms", array.type.tz), allow_time_truncate=True)
            array = array.cast(options=options)
    except pa.ArrowInvalid as error:
        raise ArgumentError(
            f"column timestamp, rows from {first_row} on: {error}",
            "Use times that fit into 64 bits as milliseconds since 1970, or null for the current time.",
        ) from None
    return _numbers(array)


def _headers(array: pa.Array) -> Any:
    kind = array.type
    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_large_list(kind):
        array = array.cast(pa.list_(kind.value_field))
    bits, offsets = array.buffers()[:2]
    if types.is_map(kind):
        keys, values = array.keys, array.items
        struct_bits, struct_first, count = None, 0, len(keys)
    else:
        pairs = array.values
        keys, values = pairs.field("key"), pairs.field("value")
        struct_bits = pairs.buffers()[0] if pairs.null_count else None
        struct_first, count = pairs.offset, len(pairs)
    if offsets is None or offsets.size == 0:
        offsets = bytes(4)
    return (
        bits if array.null_count else None,
        offsets,
        array.offset,
        struct_bits,
        struct_first,
        count,
        _strings(keys),
        _strings(values),
    )


def seal(
    batch: bytearray,
    *,
    codec: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> None:
    """Completes a batch from `encode` in place: writes the header into the space before the records."""
    attributes = codec | transactional * TRANSACTIONAL
    header = BatchHeader(
        0,
        0,
        -1,
        MAGIC,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    fill_header(batch, header)
