"""The data source `format("ottla-database")`: writes rows to a table in SQLite or PostgreSQL, exactly once.

Rows and the stream's progress are written in one database transaction. So a batch is visible as a whole or not at all,
and a batch that Spark runs again is not written again. ledger.py has the statements; the states of a batch are in
ottla/spark/sink/states.py.
"""

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ottla.client.core.guarantees import Guarantee
from ottla.clock import system_clock
from ottla.errors import ConfigError, OttlaError
from ottla.spark.database import ledger
from ottla.spark.database.connections import Database, connect
from ottla.spark.database.options import DatabaseOptions
from ottla.spark.database.rows import rows_of
from ottla.spark.explaining import hide_traceback
from ottla.spark.sink.checkpoints import source_positions
from ottla.spark.sink.states import BatchState, combined, move
from ottla.spark.workers import BATCH_ID, QUERY_ID, QuickAck, freeze_loaded_objects

if TYPE_CHECKING:
    import pyarrow


class DatabaseDataSource(QuickAck, DataSource):
    """Writes streams and DataFrames into a table.

    >>> query = orders.writeStream.format("ottla-database").option("url", "sqlite:///shop.db")
    ...     .option("table", "orders").option("checkpointLocation", "checkpoints/orders").start()
    """

    @classmethod
    def name(cls) -> str:
        return "ottla-database"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with without_traceback():
            options = DatabaseOptions.parse(self.options)
            return BatchDatabaseWriter(options, schema, overwrite, prepared(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        with without_traceback():
            options = DatabaseOptions.parse(self.options)
            if options.sink_id is not None:
                raise ConfigError(
                    "sinkId and batchId are for writes inside foreachBatch", "A stream has its own ids: remove them."
                )
            if overwrite and options.delivery != Guarantee.EXACTLY_ONCE:
                raise ConfigError(
                    "output mode complete replaces the table in one transaction, which "
                    f"delivery={options.delivery} does not use",
                    "Use delivery=exactly-once, or output mode append or update.",
                )
            return StreamDatabaseWriter(options, schema, overwrite, prepared(options, schema))


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one attempt of a task did: its token, and how many rows it wrote."""

    sink: str
    batch_id: int
    attempt: str
    state: BatchState
    """EMPTY, SETTLED, STORED (in the table itself) or PREPARED (in the staging table, under the token)."""
    rows: int


class StreamDatabaseWriter(QuickAck, DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def __init__(self, options: DatabaseOptions, schema: StructType, overwrite: bool, target: ledger.Target) -> None:
        self.options = options
        self.schema = schema
        self.overwrite = overwrite
        self.target = target

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> WriterCommitMessage:
        """In a task: writes its rows to the staging table, where they wait for the driver's commit."""
        freeze_loaded_objects()
        context = TaskContext.get()
        assert context is not None
        sink, batch_id = context.getLocalProperty(QUERY_ID), int(context.getLocalProperty(BATCH_ID) or 0)
        assert sink is not None
        attempt = f"{batch_id}-{context.partitionId():06d}-{context.attemptNumber()}-{uuid.uuid4().hex}"
        with without_traceback(), contextlib.closing(connect(self.options)) as database:
            if not self._may_write(database, sink, batch_id, context.partitionId()):
                return Staged(sink, batch_id, attempt, move(BatchState.STARTED, BatchState.SETTLED), 0)
            state, rows = write_rows(database, self, iterator, sink, batch_id, attempt)
        return Staged(sink, batch_id, attempt, state, rows)

    def _may_write(self, database: Database, sink: str, batch_id: int, task: int) -> bool:
        if self.options.delivery == Guarantee.AT_LEAST_ONCE:
            return True
        # A repeated batch that is in the target already needs no second copy, not even in staging. The driver checks
        # that it is the same batch and not another one of an old checkpoint: it knows the end offsets of the batch.
        if ledger.last_batch(database, self.target, sink) >= batch_id:
            return False
        return self.options.delivery == Guarantee.EXACTLY_ONCE or ledger.claim(
            database, self.target, sink, batch_id, task
        )

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """On the driver: makes the batch visible. Spark may call it twice."""
        freeze_loaded_objects()
        staged = staged_in(messages)
        if not staged:
            return
        sink = staged[0].sink
        positions = source_positions(self.options.checkpoint_location, batchId)
        with without_traceback(), contextlib.closing(connect(self.options)) as database:
            if self.options.delivery == Guarantee.EXACTLY_ONCE:
                ledger.move(
                    database,
                    self.target,
                    sink,
                    batchId,
                    {message.attempt: message.rows for message in staged},
                    replace=self.overwrite,
                    positions=positions,
                    now_ms=system_clock(),
                )
            else:
                rows = sum(message.rows for message in staged)
                with database.transaction():
                    if self.options.delivery == Guarantee.AT_MOST_ONCE:
                        ledger.check_batch(database, self.target, sink, batchId, positions)
                    ledger.note(database, self.target, sink, batchId, rows, positions, system_clock())
        move(combined(message.state for message in staged), BatchState.COMMITTED)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """On the driver, also after a commit that failed late: only attempts that were not moved have staged rows."""
        forget(self.options, self.target, messages)


class BatchDatabaseWriter(QuickAck, DataSourceArrowWriter):
    """Writes one DataFrame: all of it or nothing. With mode("overwrite") it replaces the table's rows."""

    def __init__(self, options: DatabaseOptions, schema: StructType, overwrite: bool, target: ledger.Target) -> None:
        if options.delivery == Guarantee.AT_MOST_ONCE:
            raise ConfigError(
                "delivery=at-most-once is for streams: a batch write that fails has written nothing",
                "Remove the option.",
            )
        self.options = options
        self.schema = schema
        self.overwrite = overwrite
        self.target = target
        # Created on the driver and pickled to the tasks. Inside foreachBatch the caller passes the batch and the
        # stream, so that a repeated batch is recognised.
        self.job = options.sink_id or f"job-{uuid.uuid4().hex}"
        self.batch_id = options.batch_id or 0

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        attempt = f"{self.batch_id}-{context.partitionId():06d}-{context.attemptNumber()}-{uuid.uuid4().hex}"
        with without_traceback(), contextlib.closing(connect(self.options)) as database:
            state, rows = write_rows(database, self, iterator, self.job, self.batch_id, attempt)
        return Staged(self.job, self.batch_id, attempt, state, rows)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        if self.options.delivery == Guarantee.AT_LEAST_ONCE and not self.overwrite:
            return
        staged = staged_in(messages)
        attempts = {message.attempt: message.rows for message in staged}
        with without_traceback(), contextlib.closing(connect(self.options)) as database:
            if self.options.sink_id is None:
                ledger.move_job(database, self.target, self.job, attempts, replace=self.overwrite)
            else:
                ledger.move(
                    database,
                    self.target,
                    self.job,
                    self.batch_id,
                    attempts,
                    replace=self.overwrite,
                    positions=source_positions(self.options.checkpoint_location, self.batch_id),
                    now_ms=system_clock(),
                )
        move(combined(message.state for message in staged), BatchState.COMMITTED)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        forget(self.options, self.target, messages)


def write_rows(
    database: Database,
    writer: StreamDatabaseWriter | BatchDatabaseWriter,
    batches: "Iterator[pyarrow.RecordBatch]",
    sink: str,
    batch_id: int,
    attempt: str,
) -> tuple[BatchState, int]:
    """Writes a task's rows, one transaction for each record batch. Returns their state and how many there were."""
    count = 0
    staging = writer.options.delivery == Guarantee.EXACTLY_ONCE or writer.overwrite
    for batch in batches:
        rows = rows_of(batch, writer.schema, database.dialect)
        if staging:
            count += ledger.stage(database, writer.target, sink, batch_id, attempt, rows, count)
        else:
            count += ledger.write_directly(database, writer.target, rows)
    if not count:
        return move(BatchState.STARTED, BatchState.EMPTY), 0
    written = BatchState.PREPARED if staging else BatchState.STORED
    return move(move(BatchState.STARTED, BatchState.WRITING), written), count


def staged_in(messages: "Sequence[WriterCommitMessage | None]") -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def forget(options: DatabaseOptions, target: ledger.Target, messages: "Sequence[WriterCommitMessage | None]") -> None:
    tokens = [message.attempt for message in staged_in(messages) if message.state is BatchState.PREPARED]
    if tokens:
        with without_traceback(), contextlib.closing(connect(options)) as database:
            ledger.drop_attempts(database, target, tokens)


def prepared(options: DatabaseOptions, schema: StructType) -> ledger.Target:
    with contextlib.closing(connect(options)) as database:
        return ledger.prepare(database, options, schema)


@contextlib.contextmanager
def without_traceback() -> Iterator[None]:
    """Wraps code that Spark calls: it shows only the text of a user's mistake, which includes the hint."""
    try:
        yield
    except OttlaError as error:
        hide_traceback()
        raise error.with_traceback(None) from None
