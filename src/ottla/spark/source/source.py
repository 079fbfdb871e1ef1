"""The driver's side of the source: how far a batch goes, which task reads what, and progress as group offsets."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.client.blocking import Admin
from ottla.client.core.model import EARLIEST, LATEST
from ottla.clock import monotonic
from ottla.errors import KafkaError, OttlaError
from ottla.spark.explaining import explained
from ottla.spark.source.lookup import Lookup
from ottla.spark.source.offsets import (
    Found,
    OffsetRange,
    SourceOffset,
    Split,
    advance,
    ranges_between,
    tasks_of,
    waiting,
)
from ottla.spark.source.options import Bound, SourceOptions
from ottla.spark.source.reading import lost, read_ranges
from ottla.spark.workers import freeze_loaded_objects
from ottla.types import TopicPartition, offsets_by_topic, uuid_from_text

T = TypeVar("T")

COMMIT_TIMEOUT_MS = 5_000
"""Group offsets are for display: a batch does not wait longer for them."""

SHOW_AGAIN_S = 30
"""How long to wait after the coordinator has rejected them."""

RETRY_S = 0.5
"""The back-off after brokers failed to answer."""

log = logging.getLogger("ottla.spark")

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def spark_schema(options: SourceOptions) -> StructType:
    """The same columns as Spark's own Kafka source."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if options.include_headers:
        fields.append(StructField("headers", HEADERS))
    return StructType(fields)


def check_schema(options: SourceOptions, schema: StructType | None) -> None:
    """The columns are fixed; a schema that the user passes must be the same."""
    own = spark_schema(options)
    if schema is not None and schema != own:
        raise OttlaError(
            f"the columns of format ottla are fixed: {own.simpleString()}, not {schema.simpleString()}",
            "Remove schema(), and parse the value afterwards, for example with from_json.",
        )


class Task(InputPartition):
    """What one task reads, and the ids of the topics that it was planned for."""

    def __init__(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        super().__init__(ranges)
        topics = {piece.partition.topic for piece in ranges}
        self.topic_ids = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in topics}


def read(options: SourceOptions, partition: InputPartition) -> Iterator[Any]:
    """The Arrow batches of one task's ranges. Runs in a worker process."""
    freeze_loaded_objects()
    schema = to_arrow_schema(spark_schema(options), timezone="UTC")
    topic_ids = partition.topic_ids if isinstance(partition, Task) else {}
    with explained(options.bootstrap):
        yield from read_ranges(
            partition.value or (),  # Spark passes None if there is nothing to read
            options.client_settings,
            schema,
            fail_on_data_loss=options.fail_on_data_loss,
            poll_timeout_ms=options.poll_timeout_ms,
            topic_ids={topic: uuid_from_text(topic_id) for topic, topic_id in topic_ids.items()},
        )


def tasks_for(ranges: Iterable[OffsetRange], split: Split, topic_ids: Mapping[str, str]) -> list[InputPartition]:
    return [Task(task, topic_ids) for task in tasks_of(ranges, split)]


class BatchReader(DataSourceReader):
    """`spark.read.format("ottla")`: the records between two sets of offsets, chosen when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        with explained(options.bootstrap):
            options.check_batch()
            check_schema(options, schema)
        self.options = options

    def partitions(self) -> list[InputPartition]:
        options = self.options
        with explained(options.bootstrap), Lookup(options) as lookup:
            found = lookup.found(must_exist=True)
            first = lookup.resolve(options.starting or Bound("startingOffsets", EARLIEST), found, is_start=True)
            last = lookup.resolve(options.ending or Bound("endingOffsets", LATEST), found, is_start=False)
            ranges = [OffsetRange(partition, first[partition], last[partition]) for partition in sorted(first)]
            for partition, start, end in ranges:
                if start > end:
                    raise OttlaError(
                        f"{partition} would be read from offset {start} back to {end}",
                        "Choose ending offsets after the starting offsets.",
                    )
            return tasks_for(ranges, options.split, found.topic_ids)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(self.options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("ottla")`: runs in its own process as long as the query runs."""

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        # The options are checked by the first call: Spark cannot show an error that is raised here.
        self.options = options
        self._schema = schema
        self._lookup: Lookup | None = None
        self._committer: Admin | None = None
        self._target: Found | None = None
        """With the trigger availableNow: the offsets when the query began, which is where it ends."""
        self._seen: Found | None = None
        self._last_batch_at: float | None = None
        self._is_warned = False
        self._shown: dict[TopicPartition, int] | None = None
        self._show_after = 0.0

    # --- where to begin -----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        with explained(self.options.bootstrap):
            return self._retrying(self._beginning).to_dict()

    def _beginning(self) -> SourceOffset:
        self._ask().partitions(must_exist=True)
        found = self._target or self._ask().found(must_exist=True)
        bound = self.options.starting or Bound("startingOffsets", LATEST)
        return SourceOffset(
            positions=self._ask().resolve(bound, found, is_start=True),
            group=self._new_group(),
            topic_ids=found.topic_ids,
            is_initial=True,
        )

    def _new_group(self) -> str:
        """A group id for this query. It is generated once and kept in the checkpoint with the offsets."""
        if self.options.group_id is not None:
            return ""
        return f"{self.options.group_id_prefix}-{self.options.subscription.label}-{uuid.uuid4().hex[:8]}"

    # --- how far to go ------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with explained(self.options.bootstrap):
            self._target = self._retrying(lambda: self._ask().found(must_exist=False))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with explained(self.options.bootstrap):
            offset = SourceOffset.from_dict(start)
            # Spark has finished everything before `start`, but calls commit() only with the next batch.
            self._show(offset)
            offset = self._of_this_query(offset)
            found = self._retrying(lambda: self._ask().settled(offset, self._target))
            if self._target is not None:
                self._target = found
            self._seen = found
            if not isinstance(limit, ReadAllAvailable) and self._waits_for_more(offset, found):
                return start
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end, losses = advance(offset, found, most, self.options.split)
            for loss in losses:
                lost(loss.text, self.options.fail_on_data_loss)
            if end is offset:
                return start
            self._last_batch_at = monotonic()
            if not end.group:
                end = replace(end, group=self._new_group())
            return end.to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return offsets_by_topic(self._seen.latest) if self._seen is not None else None

    def _waits_for_more(self, offset: SourceOffset, found: Found) -> bool:
        """Whether `minOffsetsPerTrigger` is not reached and `maxTriggerDelay` not over."""
        least = self.options.min_offsets_per_trigger
        # A query with the trigger availableNow would wait forever.
        if least is None or self._target is not None or self._last_batch_at is None:
            return False
        is_late = (monotonic() - self._last_batch_at) * 1000 >= self.options.max_trigger_delay_ms
        return not is_late and waiting(offset, found) < least

    def _of_this_query(self, offset: SourceOffset) -> SourceOffset:
        """The offset without partitions that are not subscribed to (any more)."""
        kept = {partition: at for partition, at in offset.positions.items() if self._is_subscribed(partition)}
        if len(kept) == len(offset.positions):
            return offset
        others = ", ".join(sorted({partition.topic for partition in offset.positions if partition not in kept}))
        hint = "Give this query its own checkpointLocation"
        if not kept:
            raise OttlaError(
                f"the checkpoint belongs to a query that read {others}; this one reads {self.options.subscription}",
                f"{hint}.",
            )
        if self.options.fail_on_data_loss:
            raise OttlaError(
                f"the checkpoint has offsets of {others}, which this query no longer reads",
                f"{hint}, or set failOnDataLoss to false to continue without {others}.",
            )
        if not self._is_warned:
            log.warning("the checkpoint has offsets of %s, which this query no longer reads", others)
            self._is_warned = True
        return replace(offset, positions=kept)

    def _is_subscribed(self, partition: TopicPartition) -> bool:
        subscription = self.options.subscription
        if subscription.pattern:
            return re.fullmatch(subscription.pattern, partition.topic) is not None
        return partition.topic in subscription.topics or partition in subscription.partitions

    # --- which task reads what ----------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # No request is sent here: a repeated batch must get the same tasks.
        with explained(self.options.bootstrap):
            last = SourceOffset.from_dict(end)
            split = last.split or self.options.old_split
            return tasks_for(ranges_between(SourceOffset.from_dict(start), last), split, last.topic_ids)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read(self.options, partition)

    # --- progress -----------------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        self._show(SourceOffset.from_dict(end))

    def _show(self, offset: SourceOffset) -> None:
        """Commits the query's progress to its group, for display. Spark itself uses only its checkpoint."""
        group = self.options.group_id or offset.group
        if offset.is_initial or not group or not offset.positions or offset.positions == self._shown:
            return
        if monotonic() < self._show_after:
            return
        try:
            if self._committer is None:
                settings = {**self._ask().settings, "default.api.timeout.ms": str(COMMIT_TIMEOUT_MS)}
                self._committer = Admin(settings)
            self._committer.alter_group_offsets(group, offset.positions)
            self._shown = dict(offset.positions)
        except Exception as error:  # offsets are for display only: a failure must not stop the query
            self._show_after = monotonic() + SHOW_AGAIN_S
            log.warning("group %s: the query's offsets could not be committed for display: %s", group, error)

    def stop(self) -> None:
        for client in (self._lookup, self._committer):
            if client is not None:
                client.close()
        self._lookup = self._committer = None

    # --- helpers ------------------------------------------------------------------------------------------

    def _ask(self) -> Lookup:
        if self._lookup is None:
            self.options.check_stream()
            check_schema(self.options, self._schema)
            self._lookup = Lookup(self.options)
        return self._lookup

    def _retrying(self, ask: Callable[[], T]) -> T:
        """Retries while brokers do not answer, for as long as a task would wait for them."""
        deadline = monotonic() + self.options.poll_timeout_ms / 1000
        while True:
            try:
                return ask()
            except KafkaError as error:
                if not error.retriable or monotonic() >= deadline:
                    raise
                log.warning("brokers at %s: retrying after %s", self.options.bootstrap, error)
            time.sleep(RETRY_S)
