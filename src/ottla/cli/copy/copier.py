"""OWNER of the copy: reads the source, writes records and ledger to the target in transactions.

After any error it recovers as a new process would: it takes over the transactional id, which ends the last transaction,
reads the ledger, and continues at its positions.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.cli.copy.ledger import LEDGER_TOPIC, Ledger, Range, transactional_id
from ottla.cli.copy.sides import Side
from ottla.cli.copy.topics import prepare
from ottla.cli.output import CommandError
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.lag import record_lag
from ottla.client.core.model import EARLIEST, LATEST
from ottla.client.producer.arrow_send import StoredRows
from ottla.client.producer.producer import AsyncProducer
from ottla.client.transactions.errors import TransactionAbortable
from ottla.clock import monotonic
from ottla.errors import ErrorCode, KafkaError
from ottla.net.backoff import Backoff
from ottla.types import ZERO_UUID, TopicPartition, uuid_to_text

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.core.model import TopicDescription

log = logging.getLogger("ottla.copy")

TRANSACTION_BYTES = 64 << 20
TRANSACTION_S = 1.0
"""A transaction ends after this many bytes or seconds: readers of the target wait for its end."""
POLL_MS = 200
POLL_RECORDS_MAX: int | None = None
"""Set by tests, to get many small transactions."""
REFRESH_S = 30.0
"""How often to look for new topics and partitions while following."""
FAILURES_MAX = 8
"""Consecutive failures without progress after which a copy that does not follow fails."""
BACKOFF = Backoff(200, 10_000)
STALLED_S = 5.0
"""After this time without a record, although some are left, topics are looked up again: one may have been deleted."""
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
SOURCE_DEFAULTS = {"max.partition.fetch.bytes": "8388608"}
TARGET_DEFAULTS = {
    "batch.size": "524288",
    "compression.type": "lz4",
    "transaction.timeout.ms": "60000",
    "max.request.size": "104857600",
    "buffer.memory": "134217728",
}


@dataclass
class Status:
    """The progress of a copy, for the user."""

    topics: int = 0
    partitions: int = 0
    records: int = 0
    bytes: int = 0
    transactions: int = 0
    restarts: int = 0
    left: int = 0
    """Source offsets that existed at the start and have not been copied yet."""
    by_topic: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def note(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)


class Copier:
    """Copies the topics that match a pattern, from one cluster to another."""

    def __init__(
        self,
        source: Side,
        target: Side,
        pattern: str,
        *,
        on_progress: Callable[[Status], None],
    ) -> None:
        self._source, self._target, self._pattern = source, target, pattern
        self._on_progress = on_progress
        self.status = Status()
        self.ledger = Ledger("")
        self.topics: list[TopicDescription] = []
        self._topic_ids: dict[str, str] = {}
        """Of the source; empty for topics of clusters that have none."""
        self._ends: dict[TopicPartition, int] = {}

    async def run(self, *, follow: bool = False, when_refreshed: Callable[[], Awaitable[None]] | None = None) -> None:
        """Copies everything that is in the source now; with `follow`, also new records, until it is cancelled.

        `when_refreshed` is called from time to time while following, and once at the end.
        """
        failures = 0
        async with self._source.admin() as source, self._target.admin() as target:
            while True:
                before = self.status.transactions
                try:
                    is_done = await self._session(source, target, follow)
                    if when_refreshed is not None:
                        await when_refreshed()
                    if is_done:
                        return
                    failures = 0
                    continue
                except KafkaError as error:
                    failures = 1 if self.status.transactions > before else failures + 1
                    if error.code in FENCED and not isinstance(error, TransactionAbortable):
                        raise CommandError(
                            "another ottla copy of the same source and target has taken over",
                            "run only one of them; the other one continues where this one stopped",
                        ) from error
                    # Out of range: retention deleted records. The next session reports it, and continues after the gap.
                    may_help = (
                        error.retriable
                        or isinstance(error, TransactionAbortable)
                        or error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                    )
                    if not may_help or (failures >= FAILURES_MAX and not follow):
                        raise
                    log.warning("copy: %s; restarting from the ledger", error)
                self.status.restarts += 1
                await asyncio.sleep(BACKOFF.delay_ms(failures, 0.0) / 1000)

    async def _session(self, source: AsyncAdmin, target: AsyncAdmin, follow: bool) -> bool:
        """Copies until everything is done (True), or until topics must be looked up again (False)."""
        clusters = [(await each.describe_cluster()).cluster_id for each in (source, target)]
        if clusters[0] == clusters[1]:
            raise CommandError(f"source and target are the same cluster, {clusters[0]}", "check --from and --to")
        before = self.topics
        self.topics, notices = await prepare(source, target, self._pattern)
        self._topic_ids = {
            topic.name: "" if topic.topic_id == ZERO_UUID else uuid_to_text(topic.topic_id) for topic in self.topics
        }
        for name in sorted({topic.name for topic in before} - {topic.name for topic in self.topics}):
            self.status.note(f"{name} was deleted in the source while it was copied")
        if not self.topics and not follow:
            raise CommandError(f"no topic of the source matches {self._pattern}", "see: ottla topic list")
        for notice in notices:
            self.status.note(notice)
        async with (
            self._source.consumer(SOURCE_DEFAULTS) as consumer,
            self._target.producer(transactional_id(clusters[0]), TARGET_DEFAULTS) as producer,
        ):
            await producer.init_transactions()
            self.ledger = await read_ledger(self._target, clusters[0])
            await self._seek(consumer, source, target)
            self._on_progress(self.status)
            refresh_at, stalled_at = monotonic() + REFRESH_S, monotonic() + STALLED_S
            while not await self._is_done(consumer) or follow:
                if monotonic() >= (refresh_at if follow else stalled_at):
                    return False
                batch = await consumer.poll_arrow(POLL_MS, max_records=POLL_RECORDS_MAX)
                if batch.num_rows:
                    await self._copy(consumer, producer, batch)
                    stalled_at = monotonic() + STALLED_S
                self._on_progress(self.status)
            return True

    async def _seek(self, consumer: AsyncConsumer, source: AsyncAdmin, target: AsyncAdmin) -> None:
        partitions = [TopicPartition(topic.name, p.partition) for topic in self.topics for p in topic.partitions]
        starts = await offsets_of(source, partitions, EARLIEST)
        self._ends = await offsets_of(source, partitions, LATEST)
        await self._check_target(target, partitions)
        self._check_source(partitions)
        await consumer.assign(partitions)
        for partition in partitions:
            position = self.ledger.copied[partition].source if partition in self.ledger.copied else starts[partition]
            if position > self._ends[partition]:
                raise CommandError(
                    f"{partition} of the source ends at {self._ends[partition]}, but was copied up to {position}",
                    "if the topic was recreated, delete it in the target, too",
                )
            if position < starts[partition]:
                gone = starts[partition] - position
                self.status.note(f"{partition}: the source deleted {gone} offsets before they could be copied")
                position = starts[partition]
            await consumer.seek(partition, position)
        self.status.topics, self.status.partitions = len(self.topics), len(partitions)
        await self._is_done(consumer)

    def _check_source(self, partitions: list[TopicPartition]) -> None:
        """Checks that the source still has the topics that were copied. Offsets do not show it: a recreated topic may
        have more records than before."""
        for partition in partitions:
            if self.ledger.is_other_topic(partition, self._topic_ids[partition.topic]):
                raise CommandError(
                    f"topic {partition.topic} of the source was deleted and recreated after it was copied",
                    "delete it in the target, too; then it is copied from the beginning",
                )

    async def _check_target(self, target: AsyncAdmin, partitions: list[TopicPartition]) -> None:
        """Checks that the target has exactly the records in the ledger."""
        begins, stored = await offsets_of(target, partitions, EARLIEST), await offsets_of(target, partitions, LATEST)
        for partition in partitions:
            copied, end = self.ledger.copied.get(partition), stored[partition]
            if copied is not None and end >= copied.target:
                continue
            # Offsets alone prove nothing: an aborted transaction uses some, too.
            if await has_records(self._target, partition, begins[partition], end):
                if copied is None:
                    raise CommandError(
                        f"{partition} of the target has records that this copy did not write",
                        "delete the topic in the target, or exclude it: records would be duplicated or mixed",
                    )
                raise CommandError(
                    f"{partition} of the target ends at {end}, but was copied up to {copied.target}",
                    "it has lost records: delete the topic in the target, so that it is copied again",
                )
            if copied is not None:
                self.ledger.forget(partition)
                self.status.note(f"{partition} is empty again in the target: it is copied from the beginning")

    async def _is_done(self, consumer: AsyncConsumer) -> bool:
        left = 0
        for partition, end in self._ends.items():
            left += record_lag(await consumer.position(partition), end)
        self.status.left = left
        return left == 0

    async def _copy(self, consumer: AsyncConsumer, producer: AsyncProducer, batch: "pa.RecordBatch") -> None:
        """One transaction: this batch, everything else that has been fetched, and the ledger."""
        began, size, deliveries = monotonic(), 0, []
        read: dict[TopicPartition, tuple[int, int, int]] = {}
        # If anything fails from here on, the next session ends the transaction by taking over its id.
        await producer.begin_transaction()
        while True:
            for partition, taken in ranges(batch).items():
                first, _, count = read.get(partition, (taken[0], 0, 0))
                read[partition] = (first, taken[1], count + taken[2])
            deliveries.append(await producer.send_arrow(batch))
            size += batch.nbytes
            if size >= TRANSACTION_BYTES or monotonic() - began >= TRANSACTION_S:
                break
            batch = await consumer.poll_arrow(0)
            if not batch.num_rows:
                break
        stored = joined([await delivery for delivery in deliveries])
        written: list[tuple[bytes, bytes | None]] = []
        for partition, (first, last, count) in read.items():
            where = stored[partition]
            assert where.rows == count, f"{partition}: {count} records were read and {where.rows} stored"
            copied = Range(first, last, where.first_offset, where.last_offset)
            written += self.ledger.records(partition, copied, self._topic_ids[partition.topic])
        for key, value in written:
            await producer.send(LEDGER_TOPIC, value, key=key, partition=0)
        await producer.commit_transaction()
        for key, value in written:
            self.ledger.replay(key, value)
        self.status.transactions += 1
        self.status.bytes += size
        for partition, (_, _, count) in read.items():
            self.status.records += count
            self.status.by_topic[partition.topic] = self.status.by_topic.get(partition.topic, 0) + count


def ranges(batch: "pa.RecordBatch") -> dict[TopicPartition, tuple[int, int, int]]:
    """The first and last offset and the number of rows, by partition."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch]).select(["topic", "partition", "offset"])
    found = table.group_by(["topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    return {
        TopicPartition(row["topic"], row["partition"]): (row["offset_min"], row["offset_max"], row["offset_count"])
        for row in found.to_pylist()
    }


def joined(stored: list[dict[TopicPartition, StoredRows]]) -> dict[TopicPartition, StoredRows]:
    """Where the rows of several tables are stored, by partition."""
    found: dict[TopicPartition, StoredRows] = {}
    for each in stored:
        for partition, rows in each.items():
            before = found.get(partition, rows._replace(rows=0))
            found[partition] = StoredRows(
                min(before.first_offset, rows.first_offset),
                max(before.last_offset, rows.last_offset),
                before.rows + rows.rows,
            )
    return found


async def has_records(side: Side, partition: TopicPartition, start: int, end: int) -> bool:
    """Whether there is a committed record from `start` to before `end`."""
    if start >= end:
        return False
    async with side.consumer() as consumer:
        await consumer.assign([partition])
        await consumer.seek(partition, start)
        while await consumer.position(partition) < end:
            if await consumer.poll(POLL_MS):
                return True
    return False


async def read_ledger(target: Side, source_cluster: str) -> Ledger:
    """The ledger of earlier copies of this source, read from the target."""
    ledger, place = Ledger(source_cluster), TopicPartition(LEDGER_TOPIC, 0)
    async with target.consumer() as consumer:
        await consumer.assign([place])
        await consumer.seek_to_beginning()
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            for record in await consumer.poll(POLL_MS):
                ledger.replay(record.key, record.value)
    return ledger


async def offsets_of(admin: AsyncAdmin, partitions: list[TopicPartition], at: int) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    found: Any = await admin.list_offsets(dict.fromkeys(partitions, at), isolation_level="read_committed")
    return {partition: found[partition].offset for partition in partitions}
