"""Records as Arrow columns, for `poll_arrow`, `iter_arrow` and the Spark source. Needs pyarrow. Pure.

With a consumer:

    batch = consumer.poll_arrow(1000)                   # pyarrow.RecordBatch of SCHEMA; without rows after a timeout
    for batch in consumer.iter_arrow(until_end=True):   # until everything has been read; otherwise endless
        ...

Both take `columns=["value", "offset"]` to decode fewer columns, and `timestamp_unit="us"` for Spark.
"""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.client.core.arguments import Timeout, as_poll_timeout_ms
from ottla.errors import ArgumentError, KafkaError, OttlaError

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.consumer.fetcher import Fetcher

BYTES_AT_ONCE = 64 * 1024 * 1024
"""A RecordBatch is finished once it holds this many bytes of uncompressed records."""

END_CHECK_MS = 200


def arrow_module(name: str) -> Any:
    """Imports a module of `ottla.protocol.arrow`, which needs pyarrow; OttlaError if pyarrow is not installed."""
    try:
        return importlib.import_module(f"ottla.protocol.arrow.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise OttlaError("Arrow columns need pyarrow", "Run pip install 'ottla[arrow]'.") from None


def __getattr__(name: str) -> Any:
    """SCHEMA, imported on first use: importing pyarrow takes longer than importing the whole client."""
    if name == "SCHEMA":
        return arrow_module("arrow_batches").SCHEMA
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def iteration_wait_ms(timeout_ms: Timeout | None, until_end: bool) -> int:
    """How long `iter_arrow` waits in one poll. With `until_end` it has to check for the end regularly."""
    if until_end and timeout_ms is not None:
        raise ArgumentError("until_end and timeout_ms cannot be combined", "Pass only one of them.")
    if until_end:
        return END_CHECK_MS
    return 60_000 if timeout_ms is None else as_poll_timeout_ms(timeout_ms)


def take_arrow(
    fetcher: "Fetcher",
    max_records: int | None,
    *,
    timestamp_unit: str = "ms",
    columns: Sequence[str] | None = None,
) -> "pa.RecordBatch | None":
    """Takes buffered records as columns and moves the positions past them. None if nothing is buffered."""
    arrow = arrow_module("arrow_batches")
    most = arrow.ROWS_MAX if max_records is None else min(max_records, arrow.ROWS_MAX)
    found = fetcher.take_sections(most, BYTES_AT_ONCE)
    if not found:
        return None
    sections = [section for _, section in found]
    builder = arrow.ColumnBuilder(sections, max_records=most, timestamp_unit=timestamp_unit, columns=columns)
    for fetched, section in found:
        try:
            is_whole = builder.add(*fetched.partition, section, fetched.next_offset)
        except (KafkaError, OttlaError) as error:
            if isinstance(error, KafkaError):
                fetcher.refuse(fetched)
            if builder.rows:
                break  # return what was read before the error first
            if isinstance(error, KafkaError):
                raise fetched.explained(error, section.header) from None
            raise
        if not is_whole:
            if builder.rows:
                fetched.took(max(fetched.next_offset, builder.last_offset + 1))
                fetcher.took(fetched)
            break
        fetched.took()
        fetcher.took(fetched)
    fetcher.records_taken += builder.rows
    return builder.finish() if builder.rows else None
