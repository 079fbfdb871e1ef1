"""Fetched bytes of one partition as Arrow columns, with the consumer's own code."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from ottla.client.consumer.arrow import take_arrow
from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.protocol.arrow.arrow_batches import schema
from ottla.protocol.records.record_batch import Section
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.client.consumer.fetcher import Fetcher


class OneFetch:
    """What `take_arrow` uses of a fetcher, with a single completed fetch."""

    records_taken = 0

    def __init__(self, fetched: CompletedFetch) -> None:
        self.fetched = fetched

    def take_sections(self, max_records: int, max_bytes: int) -> list[tuple[CompletedFetch, Section]]:
        return [(self.fetched, section) for section in self.fetched.sections(max_records, max_bytes)]

    def took(self, fetched: CompletedFetch) -> None:
        """The fetch itself counts what has been read."""

    def refuse(self, fetched: CompletedFetch) -> None:
        """There is nothing to fetch it from again."""


def columns_from(
    partition: TopicPartition,
    data: bytes | bytearray,
    from_offset: int = 0,
    *,
    aborted: Iterable[tuple[int, int]] = (),
    check_crcs: bool = True,
    max_records: int | None = None,
    **options: Any,
) -> tuple[pa.RecordBatch, int]:
    """The columns of one `poll_arrow`, without rows if there is nothing to read, and the offset to continue at."""
    fetched = CompletedFetch(partition, memoryview(data), from_offset, aborted=aborted, check_crcs=check_crcs)
    batch = take_arrow(cast("Fetcher", OneFetch(fetched)), max_records, **options)
    empty = pa.RecordBatch.from_pylist([], schema(**options))
    return empty if batch is None else batch, fetched.next_offset
