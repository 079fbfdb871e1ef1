"""The data source `format("ottla-database")`: rows into a table of SQLite or PostgreSQL, exactly once.

Rows and the note of how far the stream has come are one database transaction, so a batch is there as a whole or not
at all, and a batch that Spark runs again is not written again. How: see database_ledger.
"""

import contextlib
import os
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

from ottla.clock import system_clock
from ottla.errors import ConfigError, OttlaError
from ottla.spark.database import ledger as ledger
from ottla.spark.database.connections import Database, connect
from ottla.spark.database.options import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, DatabaseOptions
from ottla.spark.database.rows import rows_of
from ottla.spark.sink.checkpoints import source_positions
from ottla.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


class DatabaseDataSource(DataSource):
    """Writes streams and DataFrames into a table.

    >>> query = orders.writeStream.format("ottla-database").option("url", "sqlite:///shop.db")
    ...     .option("table", "orders").option("checkpointLocation", "checkpoints/orders").start()
    """

    @classmethod
    def name(cls) -> str:
        return "ottla-database"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with explained():
            options = DatabaseOptions.parse(self.options)
            return BatchDatabaseWriter(options, schema, overwrite, prepared(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        with explained():
            options = DatabaseOptions.parse(self.options)
            if options.sink_id is not None:
                raise ConfigError(
                    "sinkId and batchId are for writes inside foreachBatch", "A stream has ids of its own."
                )
            if overwrite and options.delivery != EXACTLY_ONCE:
                raise ConfigError(
                    f"output mode complete replaces the table in one transaction, which delivery={options.delivery} "
                    "does not have",
                    "Use delivery=exactly-once, or output mode append or update.",
                )
            return StreamDatabaseWriter(options, schema, overwrite, prepared(options, schema))


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What one attempt of a task did: its token, and how many rows lie under it in the staging table."""

    sink: str
    batch_id: int
    attempt: str
    rows: int


class StreamDatabaseWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query."""

    def __init__(self, options: DatabaseOptions, schema: StructType, overwrite: bool, target: ledger.Target) -> None:
        self.options = options
        self.schema = schema
        self.overwrite = overwrite
        self.target = target

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> WriterCommitMessage:
        """On a task: puts its rows where they wait for the driver's decision."""
        settle()
        context = TaskContext.get()
        assert context is not None
        sink, batch_id = context.getLocalProperty(QUERY_ID), int(context.getLocalProperty(BATCH_ID) or 0)
        assert sink is not None
        attempt = f"{batch_id}-{context.partitionId():06d}-{context.attemptNumber()}-{uuid.uuid4().hex}"
        with explained(), contextlib.closing(connect(self.options)) as database:
            rows = 0
            if self._may_write(database, sink, batch_id, context.partitionId()):
                rows = write_rows(database, self, iterator, sink, batch_id, attempt)
        return Staged(sink, batch_id, attempt, rows)

    def _may_write(self, database: Database, sink: str, batch_id: int, task: int) -> bool:
        if self.options.delivery == AT_LEAST_ONCE:
            return True
        # A batch that is run again and is in the target already needs no second copy, not even in staging. Whether it
        # is that batch, and not another of an old checkpoint, the driver sees to: it knows where it ends.
        if ledger.last_batch(database, self.target, sink) >= batch_id:
            return False
        return self.options.delivery == EXACTLY_ONCE or ledger.claim(database, self.target, sink, batch_id, task)

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """On the driver: makes the batch visible. Spark may ask twice."""
        settle()
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        sink = staged[0].sink
        positions = source_positions(self.options.checkpoint_location, batchId)
        with explained(), contextlib.closing(connect(self.options)) as database:
            if self.options.delivery == EXACTLY_ONCE:
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
                return
            rows = sum(message.rows for message in staged)
            with database.transaction():
                if self.options.delivery == AT_MOST_ONCE:
                    ledger.check_batch(database, self.target, sink, batchId, positions)
                ledger.note(database, self.target, sink, batchId, rows, positions, system_clock())

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:
        """On the driver, also after a commit that failed late: only attempts that were not moved have rows left."""
        forget(self.options, self.target, messages)


class BatchDatabaseWriter(DataSourceArrowWriter):
    """Writes one DataFrame: all of it or nothing, and with mode("overwrite") instead of what was there."""

    def __init__(self, options: DatabaseOptions, schema: StructType, overwrite: bool, target: ledger.Target) -> None:
        if options.delivery == AT_MOST_ONCE:
            raise ConfigError(
                "delivery=at-most-once is for streams: a batch write that fails has written nothing",
                "Leave the option out.",
            )
        self.options = options
        self.schema = schema
        self.overwrite = overwrite
        self.target = target
        # Made on the driver and carried to the tasks. Inside foreachBatch the caller says which batch of which stream
        # this is, and a batch that comes again is known.
        self.job = options.sink_id or f"job-{uuid.uuid4().hex}"
        self.batch_id = options.batch_id or 0

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        attempt = f"{self.batch_id}-{context.partitionId():06d}-{context.attemptNumber()}-{uuid.uuid4().hex}"
        with explained(), contextlib.closing(connect(self.options)) as database:
            rows = write_rows(database, self, iterator, self.job, self.batch_id, attempt)
        return Staged(self.job, self.batch_id, attempt, rows)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        if self.options.delivery == AT_LEAST_ONCE and not self.overwrite:
            return
        attempts = {message.attempt: message.rows for message in messages if isinstance(message, Staged)}
        with explained(), contextlib.closing(connect(self.options)) as database:
            if self.options.sink_id is None:
                ledger.move_job(database, self.target, self.job, attempts, replace=self.overwrite)
                return
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

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        forget(self.options, self.target, messages)


def write_rows(
    database: Database,
    writer: StreamDatabaseWriter | BatchDatabaseWriter,
    batches: "Iterator[pyarrow.RecordBatch]",
    sink: str,
    batch_id: int,
    attempt: str,
) -> int:
    """Writes a task's rows, one transaction for each record batch; gives how many there were."""
    count = 0
    staging = writer.options.delivery == EXACTLY_ONCE or writer.overwrite
    for batch in batches:
        rows = rows_of(batch, writer.schema, database.dialect)
        if staging:
            count += ledger.stage(database, writer.target, sink, batch_id, attempt, rows, count)
        else:
            count += ledger.write_directly(database, writer.target, rows)
    return count


def forget(options: DatabaseOptions, target: ledger.Target, messages: "Sequence[WriterCommitMessage | None]") -> None:
    tokens = [message.attempt for message in messages if isinstance(message, Staged) and message.rows]
    if tokens:
        with explained(), contextlib.closing(connect(options)) as database:
            ledger.drop_attempts(database, target, tokens)


def prepared(options: DatabaseOptions, schema: StructType) -> ledger.Target:
    with contextlib.closing(connect(options)) as database:
        return ledger.prepare(database, options, schema)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Lets the cure travel with the cause, and leaves the traceback out: Spark shows the text of an error alone."""
    try:
        yield
    except OttlaError as error:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # Spark ends this process after an error
        raise type(error)(f"{error.message}. {error.hint}" if error.hint else error.message) from None
