"""The streaming sink of `format("ottla")`: what Spark calls. The work is done in tasks.py and driver.py.

Spark creates one of these for every batch, on the driver and in every task, and pickles it between processes. So it
holds options and no connections. The protocol is described in docs/exactly-once-on-spark.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.client.core.guarantees import Guarantee
from ottla.spark.explaining import explained
from ottla.spark.sink.checkpoints import plan_of
from ottla.spark.sink.driver import Batch, driver
from ottla.spark.sink.errors import SinkError
from ottla.spark.sink.options import SinkOptions, default_sink_name
from ottla.spark.sink.rows import used_columns
from ottla.spark.sink.states import BatchState, combined
from ottla.spark.sink.tasks import (
    Place,
    Rows,
    Written,
    all_repeated,
    write_at_least_once,
    write_at_most_once,
    write_exactly_once,
)
from ottla.spark.workers import BATCH_ID, QUERY_ID, RUN_ID, QuickAck, freeze_loaded_objects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType


@dataclass
class SinkMessage(WriterCommitMessage):
    """What a task's write() reports to the driver's commit()."""

    place: Place
    written: Written


class StreamSink(QuickAck, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions, schema: "StructType") -> None:
        self._options = options
        self._used = used_columns(schema, options)

    # --- in a task ----------------------------------------------------------------------------------------

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> SinkMessage:
        freeze_loaded_objects()
        with explained(self._options.bootstrap):
            return self._write(iterator)

    def _write(self, iterator: "Iterator[pa.RecordBatch]") -> SinkMessage:
        place = self._place()
        rows = Rows(iterator, self._used, self._options)
        if self._options.delivery == Guarantee.AT_LEAST_ONCE:
            return SinkMessage(place, write_at_least_once(self._options, rows))
        if self._options.delivery == Guarantee.AT_MOST_ONCE:
            return SinkMessage(place, write_at_most_once(self._options, place, rows))
        return SinkMessage(place, write_exactly_once(self._options, place, rows))

    def _place(self) -> Place:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise SinkError("write() was called outside a Spark task", "Use writeStream; Spark calls write().")
        if self._options.delivery != Guarantee.AT_LEAST_ONCE:
            refuse_speculation(context, self._options.delivery)
        batch, query, run_id = (context.getLocalProperty(name) for name in (BATCH_ID, QUERY_ID, RUN_ID))
        if batch is None or query is None:
            raise SinkError("Spark gave this task no batch id", "Use writeStream with a micro-batch trigger.")
        sink = self._options.sink_name or default_sink_name(query)
        return Place(sink, query, run_id or "", int(batch), context.partitionId())

    # --- on the driver ------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        from ottla.spark.sink.clients import run

        freeze_loaded_objects()
        reports = reports_in(messages)
        if self._options.delivery != Guarantee.EXACTLY_ONCE or not reports:
            return
        batch = batch_of(reports, batchId, plan_of(self._options.checkpoint_location, batchId))
        if batch.state is not BatchState.EMPTY:
            with explained(self._options.bootstrap):
                run(driver(self._options, reports[0].place.sink).commit(batch))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        from ottla.spark.sink.clients import run

        reports = reports_in(messages)
        if self._options.delivery != Guarantee.EXACTLY_ONCE or not reports:
            return  # without a report the query is unknown; the next start aborts what is open
        with explained(self._options.bootstrap):
            run(driver(self._options, reports[0].place.sink).abort(batch_of(reports, batchId), silent_tasks(messages)))


def reports_in(messages: Sequence[WriterCommitMessage | None]) -> list[SinkMessage]:
    """The messages of the tasks that returned one."""
    return [message for message in messages if isinstance(message, SinkMessage)]


def silent_tasks(messages: Sequence[WriterCommitMessage | None]) -> list[int]:
    """The tasks that returned no message; Spark passes None for each."""
    return [task for task, message in enumerate(messages) if message is None]


def refuse_speculation(context: "TaskContext", delivery: str) -> None:
    if (context.getLocalProperty("spark.speculation") or "false").lower() == "true":
        raise SinkError(
            f"delivery={delivery} does not work with spark.speculation=true: a task and its speculative copy would "
            "fence each other, and Spark may pick the one that was fenced",
            "Set spark.speculation=false, or delivery=at-least-once.",
        )


def batch_of(reports: Sequence[SinkMessage], batch: int, plan: str = "") -> Batch:
    """What the tasks of a batch reported, combined."""
    place = reports[0].place
    written = [message.written for message in reports]
    return Batch(
        place.query,
        place.run,
        batch,
        combined(each.state for each in written),
        tuple(each.part for each in written if each.part is not None),
        min((each.opened_ms for each in written if each.opened_ms), default=0),
        min((each.prepared_ms for each in written if each.prepared_ms), default=0),
        place.is_job,
        place.call,
        all_repeated(written),
        plan,
    )
