"""A group's lag: in records that a read_committed consumer would still receive, and in time.

An offset difference also counts transaction markers, aborted records and compacted records. Therefore the records
between the committed offset and the last stable offset are read and counted, up to a limit; above the limit the lag
is the offset difference and is marked as approximate.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.cli.session import client_settings, find_open_transactions
from ottla.client.admin.transaction_model import OpenTransaction
from ottla.client.blocking import Admin, Consumer
from ottla.client.core.lag import record_lag, time_lag_ms
from ottla.client.core.model import EARLIEST, LATEST, CommittedOffset, OffsetAndTimestamp
from ottla.client.core.settings import ConsumerConfig
from ottla.clock import monotonic
from ottla.errors import ErrorCode, KafkaError
from ottla.types import TopicPartition

COUNT_MAX_OFFSETS = 10_000
"""Larger lags are not counted record by record."""
READ_MAX_BYTES = 32 * 1024 * 1024
READ_MAX_SECONDS = 5.0


class Lag(NamedTuple):
    """The lag of one partition. Values are None if they are unknown."""

    first_offset: int | None
    end_offset: int | None
    last_stable_offset: int | None
    records: int | None
    is_exact: bool
    behind_ms: int | None
    """The age of the first unread record; 0 if there is none."""
    notes: tuple[str, ...] = ()
    open_transactions: tuple[OpenTransaction, ...] = ()


class Unread(NamedTuple):
    """The result of reading on from a committed offset. `records` is None if there were too many to count."""

    records: int | None
    first_timestamp: int | None


def measure(
    admin: Admin, bootstrap: str, committed: Mapping[TopicPartition, CommittedOffset | None], now: int
) -> dict[TopicPartition, Lag]:
    """The lag of each partition; `now` is in milliseconds since 1970."""
    firsts = find_offsets(admin, committed, EARLIEST)
    ends = find_offsets(admin, committed, LATEST)
    stables = find_offsets(admin, committed, LATEST, isolation_level="read_committed")
    gaps = {}
    for partition, position in committed.items():
        first, stable = firsts.get(partition), stables.get(partition)
        if position is not None and first is not None and stable is not None:
            # Offsets below the first one were deleted and cannot be read any more.
            gaps[partition] = (max(position.offset, first), stable)
    unread = read_on(bootstrap, {p: gap for p, gap in gaps.items() if gap[0] < gap[1]})
    held = [p for p in gaps if p in ends and stables[p] < ends[p]]
    open_transactions = find_open_transactions(admin, held)
    lags = {}
    for partition, position in committed.items():
        first, end, stable = firsts.get(partition), ends.get(partition), stables.get(partition)
        lag = Lag(first, end, stable, None, True, None)
        if partition in gaps:
            start, stop = gaps[partition]
            found = unread.get(partition, Unread(0, None))
            records = found.records if found.records is not None else record_lag(start, stop)
            lag = lag._replace(records=records, is_exact=found.records is not None)
            lag = lag._replace(behind_ms=time_lag_ms(records, found.first_timestamp, now))
        lags[partition] = lag._replace(
            notes=tuple(_notes(position, lag)), open_transactions=tuple(open_transactions.get(partition, ()))
        )
    return lags


def _notes(position: CommittedOffset | None, lag: Lag) -> Iterable[str]:
    if lag.first_offset is None:
        yield "the partition does not exist"
    elif position is None:
        yield "nothing committed"
    elif position.offset < lag.first_offset:
        yield f"offsets {position.offset} to {lag.first_offset - 1} have been deleted"
    elif lag.end_offset is not None and position.offset > lag.end_offset:
        yield f"the committed offset is {position.offset - lag.end_offset} beyond the end"


def find_offsets(
    admin: Admin, partitions: Iterable[TopicPartition], at: int, *, isolation_level: str = "read_uncommitted"
) -> dict[TopicPartition, int]:
    """Offsets of the partitions that exist; a group may have committed offsets of a deleted topic."""
    wanted = list(partitions)
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in wanted:
        by_topic.setdefault(partition.topic, []).append(partition)
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
    try:
        found = admin.list_offsets(dict.fromkeys(wanted, at), isolation_level=isolation_level) if wanted else {}
    except KafkaError as error:
        if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            raise
        if len(wanted) > 1:
            # At least one is missing: try each topic, then each partition of a topic.
            parts = list(by_topic.values()) if len(by_topic) > 1 else [[partition] for partition in wanted]
            for part in parts:
                found.update(_as_found(find_offsets(admin, part, at, isolation_level=isolation_level)))
    return {partition: place.offset for partition, place in found.items() if place is not None}


def _as_found(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    return {partition: OffsetAndTimestamp(offset, -1, -1) for partition, offset in offsets.items()}


def read_on(bootstrap: str, gaps: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, Unread]:
    """Reads each partition from the committed offset to the last stable offset: counts records, dates the first one.

    For large gaps only the first record is read. Total time and bytes are limited.
    """
    if not gaps:
        return {}
    settings = client_settings(bootstrap, kind=ConsumerConfig) | {
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": "false",
        "max.poll.records": str(COUNT_MAX_OFFSETS),
    }
    counts = dict.fromkeys(gaps, 0)
    firsts: dict[TopicPartition, int] = {}
    counted = {partition for partition, (start, stop) in gaps.items() if stop - start <= COUNT_MAX_OFFSETS}
    unfinished = set(gaps)
    exact: set[TopicPartition] = set()
    bytes_left = READ_MAX_BYTES
    deadline = monotonic() + READ_MAX_SECONDS
    with Consumer(settings) as consumer:
        consumer.assign(gaps)
        for partition, (start, _) in gaps.items():
            consumer.seek(partition, start)
        while unfinished and bytes_left > 0 and (left := deadline - monotonic()) > 0:
            records = consumer.poll(int(min(left, 0.5) * 1000))
            for partition, batch in records.by_partition.items():
                stop = gaps[partition][1]
                mine = [record for record in batch if record.offset < stop]
                counts[partition] += len(mine)
                bytes_left -= sum(len(record.value or b"") + len(record.key or b"") for record in mine)
                if mine:
                    firsts.setdefault(partition, mine[0].timestamp)
            reached = {partition for partition in unfinished if consumer.position(partition) >= gaps[partition][1]}
            exact |= reached
            finished = reached | {partition for partition in unfinished & firsts.keys() if partition not in counted}
            if finished:
                unfinished -= finished
                consumer.assign(unfinished)
    return {
        partition: Unread(counts[partition] if partition in exact else None, firsts.get(partition))
        for partition in gaps
    }
