"""Records as Arrow columns: what `poll_arrow`, `iter_arrow` and the Spark source read with. Needs pyarrow. Pure.

With a consumer:

    batch = consumer.poll_arrow(1000)                   # pyarrow.RecordBatch of SCHEMA; no rows when nothing came
    for batch in consumer.iter_arrow(until_end=True):   # until all of it has been read; without: for ever
        ...

Without one, over the bytes that a fetch brought of one partition:

    batch, next_offset = read_partition(TopicPartition("orders", 0), data, 120, 500, timestamp_unit="us")

Both take `columns=["value", "offset"]` to make fewer columns, and `timestamp_unit="us"` for Spark.
"""

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.client.consumer.fetched import FetchedPartition
from ottla.errors import KafkaError, OttlaError
from ottla.types import INT64_MAX, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.consumer.fetcher import Fetcher

BYTES_AT_ONCE = 64 * 1024 * 1024
"""A RecordBatch is not made longer once it holds so many bytes of uncompressed records."""

END_CHECK_MS = 200


def arrow_module(name: str) -> Any:
    """A module of `ottla.protocol` that works with pyarrow; OttlaError where that is not installed."""
    try:
        return importlib.import_module(f"ottla.protocol.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        raise OttlaError("records as Arrow columns need pyarrow", "pip install 'ottla[arrow]'") from None


def __getattr__(name: str) -> Any:
    """SCHEMA, made when it is first asked for: importing pyarrow takes longer than all of the client."""
    if name == "SCHEMA":
        return arrow_module("arrow_batches").SCHEMA
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def iteration_wait_ms(timeout_ms: int | None, until_end: bool) -> int:
    """How long `iter_arrow` waits in one poll: who looks for the end has to look now and then."""
    if until_end and timeout_ms is not None:
        raise OttlaError("until_end and timeout_ms are two ways to end", "Give one of them.")
    if until_end:
        return END_CHECK_MS
    return 60_000 if timeout_ms is None else timeout_ms


def take_arrow(
    fetcher: "Fetcher",
    max_records: int | None,
    *,
    timestamp_unit: str = "ms",
    columns: Sequence[str] | None = None,
) -> "pa.RecordBatch | None":
    """What waits to be read, as columns, and moves the positions past it. None when nothing waits."""
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
                break  # what was read before it comes first
            raise
        if not is_whole:
            if builder.rows:
                fetched.took(max(fetched.next_offset, builder.last_offset + 1))
                fetcher.took(fetched)
            break
        fetched.took()
        fetcher.took(fetched)
    return builder.finish() if builder.rows else None


def read_partition(
    partition: TopicPartition,
    data: bytes | bytearray | memoryview,
    from_offset: int,
    until_offset: int = INT64_MAX,
    *,
    aborted: Iterable[tuple[int, int]] = (),
    check_crcs: bool = True,
    timestamp_unit: str = "ms",
    columns: Sequence[str] | None = None,
    max_records: int | None = None,
) -> "tuple[pa.RecordBatch, int]":
    """The records from `from_offset` up to and without `until_offset`, of the batches that a fetch brought.

    `aborted` holds (producer id, first offset) of the aborted transactions that the fetch named, for read_committed.
    Gives the columns and the offset to go on at: control batches, aborted records and gaps are passed over, so it may
    be ahead of the last record, but never of `until_offset`. Where `data` holds more than fits into one RecordBatch,
    the offset says where the next one begins. A corrupt batch raises unless there are records before it.
    """
    arrow = arrow_module("arrow_batches")
    fetched = FetchedPartition(partition, memoryview(data), from_offset, aborted=aborted, check_crcs=check_crcs)
    most = arrow.ROWS_MAX if max_records is None else min(max_records, arrow.ROWS_MAX)
    sections = fetched.sections(most, BYTES_AT_ONCE)
    builder = arrow.ColumnBuilder(sections, max_records=most, timestamp_unit=timestamp_unit, columns=columns)
    is_whole = True
    for section in sections:
        if section.header.base_offset >= until_offset:
            is_whole = False
            break
        try:
            is_whole = builder.add(*partition, section, from_offset, until_offset)
        except KafkaError:
            if builder.rows:
                break  # what was read before it comes first
            raise
        if not is_whole:
            break
        fetched.took()
    next_offset = fetched.next_offset
    if not is_whole:
        if builder.rows:
            next_offset = max(next_offset, builder.last_offset + 1)
        if not builder.is_full:
            next_offset = until_offset  # everything behind it is beyond what was asked for
    return builder.finish(), min(next_offset, max(until_offset, from_offset))
