"""The batch write of `format("ottla")`: all rows or none.

The tasks prepare; the driver commits every part or aborts every part. With a sinkName it writes its decision first, as
a stream does, and the next write with that name finishes what a crash interrupted. With a jobId too, running the same
job again writes nothing twice. With a batchId it is a batch of a stream, written inside foreachBatch, and follows the
rules of a stream.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ottla.client.core.guarantees import Guarantee
from ottla.errors import KafkaError
from ottla.spark.explaining import explained
from ottla.spark.sink.checkpoints import plan_of
from ottla.spark.sink.clients import clients, run
from ottla.spark.sink.decisions import Part
from ottla.spark.sink.driver import Batch, driver
from ottla.spark.sink.errors import LostPart, SinkError
from ottla.spark.sink.ledger import Names
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.rows import used_columns
from ottla.spark.sink.sink import SinkMessage, batch_of, refuse_speculation, reports_in, silent_tasks
from ottla.spark.sink.states import BatchState, move
from ottla.spark.sink.tasks import Place, Rows, write_at_least_once, write_exactly_once, write_part
from ottla.spark.workers import BATCH_ID, QUERY_ID, RUN_ID, QuickAck, freeze_loaded_objects

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class BatchWriter(QuickAck, DataSourceArrowWriter):
    """Writes one DataFrame. Spark creates it once and pickles it to every task and back to the driver."""

    def __init__(self, options: SinkOptions, schema: "StructType", overwrite: bool) -> None:
        if overwrite:
            raise SinkError("a topic cannot be overwritten", "Write with mode('append').")
        freeze_loaded_objects()
        self._run = uuid.uuid4().hex
        self._is_named = options.sink_name is not None
        self._sink = options.sink_name or f"ottla-batch-{self._run}"
        self._job = options.job_id or self._run
        # Without a sinkName no later write can finish this one, so its transactions must time out.
        self._options = options if self._is_named else replace(options, two_phase_commit="off")
        self._used = used_columns(schema, options)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> SinkMessage:
        freeze_loaded_objects()
        with explained(self._options.bootstrap):
            return self._write(iterator)

    def _write(self, iterator: "Iterator[pa.RecordBatch]") -> SinkMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise SinkError("write() was called outside a Spark task", "Use df.write; Spark calls write().")
        if self._options.batch_id is None:
            place = Place(self._sink, self._job, self._run, 0, context.partitionId(), is_job=True)
        else:
            place = batch_place(self._options, self._run, context.partitionId(), context.getLocalProperty)
        rows = Rows(iterator, self._used, self._options)
        if self._options.delivery == Guarantee.AT_LEAST_ONCE:
            return SinkMessage(place, write_at_least_once(self._options, rows))
        refuse_speculation(context, self._options.delivery)
        if self._is_named:
            return SinkMessage(place, write_exactly_once(self._options, place, rows))
        return SinkMessage(place, write_part(self._options, place, rows, None))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        freeze_loaded_objects()
        with explained(self._options.bootstrap):
            self._commit(messages)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        reports = reports_in(messages)
        if self._options.delivery != Guarantee.EXACTLY_ONCE or not reports:
            return
        number = self._options.batch_id
        plan = "" if number is None else plan_of(self._options.checkpoint_location, number)
        batch = batch_of(reports, reports[0].place.batch, plan)
        if batch.state is BatchState.EMPTY:
            return
        if self._is_named:
            run(driver(self._options, self._sink).commit(batch))
        else:
            run(self._end(batch.parts, commit=True))
            move(batch.state, BatchState.COMMITTED)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with explained(self._options.bootstrap):
            self._abort(messages)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        reports, silent = reports_in(messages), silent_tasks(messages)
        if self._options.delivery != Guarantee.EXACTLY_ONCE:
            return
        if reports:
            batch = batch_of(reports, reports[0].place.batch)
        else:
            batch = Batch(self._job, self._run, 0, BatchState.STARTED, is_job=True)
        if not self._is_named:
            run(self._drop(batch, silent))
        elif reports or self._options.batch_id is None:
            run(driver(self._options, self._sink).abort(batch, silent))
        else:
            # Without a report the query is unknown. It may not own this sink, so nothing is fenced.
            run(clients(self._options).end_run(Names(self._sink), self._run))

    async def _drop(self, batch: Batch, silent: Sequence[int]) -> None:
        names, owned = Names(self._sink), clients(self._options)
        await owned.end_run(names, self._run)
        await self._end(batch.parts, commit=False)
        await owned.fence(names, silent)
        move(batch.state, BatchState.ABORTED)

    async def _end(self, parts: Sequence[Part], *, commit: bool) -> None:
        """Ends every part concurrently. There is no stored decision that another run could finish."""
        names, owned = Names(self._sink), clients(self._options)
        end = owned.commit_part if commit else owned.abort_part
        outcomes = await asyncio.gather(*(end(names, part) for part in parts), return_exceptions=True)
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if not failed:
            return
        if isinstance(failed[0], KafkaError) and not failed[0].retriable and commit:
            raise LostPart(
                f"{len(failed)} of the {len(parts)} parts of this write are lost ({failed[0]}); the others are visible",
                "The job took longer than transaction.timeout.ms. Raise it, or set sinkName and allow two-phase commit "
                "on the brokers.",
            ) from failed[0]
        raise failed[0]


def batch_place(options: SinkOptions, call: str, task: int, local_property: Callable[[str], str | None]) -> Place:
    """The place of a task of a write inside foreachBatch.

    `local_property` looks up Spark's local properties. They are missing if the function does not run in the thread of
    the query: with Spark Connect, and in threads that the user started. Then the run is this one write.
    """
    assert options.sink_name is not None
    assert options.batch_id is not None
    batch, query, group = local_property(BATCH_ID), local_property(QUERY_ID), local_property(RUN_ID)
    if batch is not None and int(batch) != options.batch_id:
        raise SinkError(
            f"option batchId is {options.batch_id}, but this is batch {batch} of the query",
            "Pass the batch id that foreachBatch passes to its function.",
        )
    chosen = options.query_id or query
    if chosen is None:
        raise SinkError(
            "this write has a batchId, but the query that it belongs to is unknown",
            "Write inside foreachBatch, in the thread that calls the function, or set queryId to a name that stays "
            "the same as long as the checkpoint is kept.",
        )
    run_id = group if query is not None and group is not None and is_uuid(group) else call
    return Place(options.sink_name, chosen, run_id, options.batch_id, task, call=call)


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID. The id of a run is one; a job group set by the user usually is not."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
