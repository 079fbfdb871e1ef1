"""Converts record batches to Arrow columns: sections of any number of partitions become one RecordBatch. Pure.

    builder = ColumnBuilder(sections, timestamp_unit="us")          # sections: from `record_batch.open_section`
    for section in sections:
        is_whole = builder.add("orders", 0, section, from_offset, until_offset)
    batch = builder.finish()                                        # a pyarrow.RecordBatch of schema("us")

No Python object is created per record. `ottla.client.consumer.arrow.take_arrow` does all of this for the fetches of a
consumer. `arrow_rows.py` is the opposite direction.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from ottla.errors import ArgumentError, OttlaError
from ottla.protocol.arrow import _arrow_pure
from ottla.protocol.records import _speedups
from ottla.protocol.records.batch_layout import RECORD_SIZE_MIN
from ottla.protocol.records.record_batch import CorruptBatch, Section
from ottla.types import INT32_MAX, INT64_MAX

_decoder: Any = _speedups.find_compiled(f"{__package__}._arrow_decode", _arrow_pure.INTERFACE)
NATIVE: bool = _decoder is not None
if _decoder is None:
    _decoder = _arrow_pure

UNITS = {"ms": 1, "us": 1000}
ROWS_MAX = 8_000_000
"""The most rows of one RecordBatch: a column can hold that many topic names of the maximum length."""

HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""Never null: a record without headers has an empty list."""


def schema(timestamp_unit: str = "ms", columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema with all columns, or the named ones. Timestamps are UTC, in "ms" like Kafka or "us" like Spark."""
    return _schema(timestamp_unit, None if columns is None else tuple(columns))


@functools.lru_cache(maxsize=64)
def _schema(timestamp_unit: str, columns: tuple[str, ...] | None) -> pa.Schema:
    if timestamp_unit not in UNITS:
        raise ArgumentError(
            f"timestamp_unit must be ms or us, not {timestamp_unit!r}", "Use ms like Kafka, or us like Spark."
        )
    fields = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp(timestamp_unit, "UTC"),
        "timestamp_type": pa.int32(),
        "headers": HEADERS,
    }
    for name in columns or ():
        if name not in fields:
            raise ArgumentError(f"records have no column {name}", f"There are {', '.join(fields)}.")
    return pa.schema([(name, fields[name]) for name in (fields if columns is None else columns)])


SCHEMA = schema()
_NO_PAIRS = pa.array([], HEADERS.value_type)


def rows_at_most(sections: Iterable[Section]) -> int:
    """An upper bound for the number of records: the counts in the headers, but no more than fit into the bytes."""
    return sum(
        min(section.header.record_count, (section.end - section.start) // RECORD_SIZE_MIN) for section in sections
    )


class ColumnBuilder:
    """Builds one RecordBatch.

    It holds at most ROWS_MAX records and 2 GiB of keys, values and headers, the limit of Arrow's 32-bit offsets. Once
    it is full, `add` returns False, and the remaining records need another builder.
    """

    def __init__(
        self,
        sections: Iterable[Section],
        *,
        max_records: int | None = None,
        timestamp_unit: str = "ms",
        columns: Sequence[str] | None = None,
    ) -> None:
        """`sections` are the ones that will be added; they determine how much memory is allocated."""
        self._schema = schema(timestamp_unit, columns)
        self._time = pa.timestamp(timestamp_unit, "UTC")
        capacity = min(rows_at_most(sections), ROWS_MAX if max_records is None else max_records, ROWS_MAX)
        self._offsets = pa.allocate_buffer(8 * capacity)
        self._timestamps = pa.allocate_buffer(8 * capacity)
        self._timestamp_types = pa.allocate_buffer(4 * capacity)
        self._key_offsets = pa.allocate_buffer(4 * (capacity + 1))
        self._value_offsets = pa.allocate_buffer(4 * (capacity + 1))
        self._list_offsets = pa.allocate_buffer(4 * (capacity + 1))
        self._key_bits = pa.allocate_buffer((capacity + 7) // 8)
        self._value_bits = pa.allocate_buffer((capacity + 7) // 8)
        self._columns: _arrow_pure.RecordColumns = _decoder.RecordColumns(
            capacity,
            INT32_MAX,
            UNITS[timestamp_unit],
            self._offsets,
            self._timestamps,
            self._timestamp_types,
            self._key_offsets,
            self._key_bits,
            self._value_offsets,
            self._value_bits,
            self._list_offsets,
        )
        self._runs: list[tuple[str, int, int]] = []  # topic, partition, rows

    @property
    def rows(self) -> int:
        return self._columns.rows

    @property
    def last_offset(self) -> int:
        """The offset of the last record added, -1 before the first."""
        return self._columns.last_offset

    def add(
        self, topic: str, partition: int, section: Section, from_offset: int = 0, until_offset: int = INT64_MAX
    ) -> bool:
        """Adds the records from `from_offset` to before `until_offset`. Returns whether all were added.

        Raises CorruptBatch with partition and offset; nothing of a corrupt batch is added.
        """
        header = section.header
        before = self._columns.rows
        try:
            is_whole = self._columns.add(
                section.buffer,
                section.start,
                section.end,
                header.record_count,
                header.base_offset,
                header.last_offset_delta,
                header.base_timestamp,
                header.max_timestamp if header.is_log_append_time else None,
                from_offset,
                until_offset,
            )
        except ValueError as error:
            raise CorruptBatch(f"{topic}-{partition} at offset {header.base_offset}: {error}") from None
        except OverflowError as error:
            raise OttlaError(f"{topic}-{partition}: {error}", "Read timestamps in milliseconds.") from None
        added = self._columns.rows - before
        if added:
            if self._runs and self._runs[-1][:2] == (topic, partition):
                added += self._runs.pop()[2]
            self._runs.append((topic, partition, added))
        return is_whole

    @property
    def is_full(self) -> bool:
        """Whether a record did not fit."""
        return self._columns.is_full

    def finish(self) -> pa.RecordBatch:
        """The added records as one RecordBatch."""
        names = self._schema.names
        arrays: dict[str, Any] = {}
        rows = self.rows
        if "key" in names or "value" in names:
            arrays["key"], arrays["value"] = self._bytes_columns()
        if "topic" in names:
            arrays["topic"] = _repeated([(topic, count) for topic, _, count in self._runs], pa.string())
        if "partition" in names:
            arrays["partition"] = _repeated([(partition, count) for _, partition, count in self._runs], pa.int32())
        if "headers" in names:
            arrays["headers"] = self._headers()
        arrays["offset"] = pa.Array.from_buffers(pa.int64(), rows, [None, self._offsets], 0)
        arrays["timestamp"] = pa.Array.from_buffers(self._time, rows, [None, self._timestamps], 0)
        arrays["timestamp_type"] = pa.Array.from_buffers(pa.int32(), rows, [None, self._timestamp_types], 0)
        return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=self._schema)

    def _bytes_columns(self) -> tuple[pa.Array, pa.Array]:
        found = self._columns
        key_data = pa.allocate_buffer(found.key_bytes)
        value_data = pa.allocate_buffer(found.value_bytes)
        found.fill(key_data, value_data)
        return (
            _strings(pa.binary(), found.rows, found.null_keys, self._key_bits, self._key_offsets, key_data),
            _strings(pa.binary(), found.rows, found.null_values, self._value_bits, self._value_offsets, value_data),
        )

    def _headers(self) -> pa.Array:
        found = self._columns
        count = found.header_rows
        pairs = _NO_PAIRS
        if count:
            name_offsets, name_data = pa.allocate_buffer(4 * (count + 1)), pa.allocate_buffer(found.header_key_bytes)
            value_offsets, value_data = (
                pa.allocate_buffer(4 * (count + 1)),
                pa.allocate_buffer(found.header_value_bytes),
            )
            bits = pa.allocate_buffer((count + 7) // 8)
            is_ascii = found.fill_headers(name_offsets, name_data, value_offsets, bits, value_data)
            if is_ascii:
                names = pa.Array.from_buffers(pa.string(), count, [None, name_offsets, name_data], 0)
            else:
                # Names are text in Arrow: bytes that are not UTF-8 are replaced.
                raw = pa.Array.from_buffers(pa.binary(), count, [None, name_offsets, name_data], 0)
                names = pa.array([name.decode(errors="replace") for name in raw.to_pylist()], pa.string())
            contents = _strings(pa.binary(), count, found.null_header_values, bits, value_offsets, value_data)
            pairs = pa.StructArray.from_arrays([names, contents], fields=list(HEADERS.value_type))
        return pa.Array.from_buffers(HEADERS, found.rows, [None, self._list_offsets], 0, 0, [pairs])


def _strings(
    kind: pa.DataType, rows: int, nulls: int, bits: pa.Buffer, offsets: pa.Buffer, data: pa.Buffer
) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [bits if nulls else None, offsets, data], nulls)


def _repeated(runs: list[tuple[Any, int]], kind: pa.DataType) -> pa.Array:
    """Repeats each value by its count."""
    arrays = [pa.repeat(pa.scalar(value, kind), count) for value, count in runs]
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.array([], kind)


def empty(columns: pa.Schema) -> pa.RecordBatch:
    """An empty RecordBatch with the same columns."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in columns], schema=columns)
