"""Starts the queries of a pipeline on Spark, watches their batches, and stops them between two batches."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.pipeline.definition.model import Output, Pipeline, Source
from ottla.pipeline.definition.options import batch_options, sink_format
from ottla.pipeline.running.failures import QueryFailed, is_slow_start
from ottla.pipeline.running.frames import Frames, counted
from ottla.pipeline.running.progress import Batch, batch_of
from ottla.spark.spark_session import make_active

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

POLL_INTERVAL_S = 0.1
QUERY_ID_TIMEOUT_S = 60
STARTS_MAX = 6
"""How often to start a query whose Python process does not start in time. After that the driver is restarted."""

log = logging.getLogger("ottla.pipeline")


@dataclass
class Running:
    """One query, and the last of its batches that was reported."""

    name: str
    query: "StreamingQuery"
    last_batch_id: int = -1
    stop_after: int | None = None
    """While stopping: the last batch to finish."""

    def new_batches(self) -> list[Batch]:
        """The batches that have ended since the last call."""
        last = self.query.lastProgress
        if last is None or int(last["batchId"]) <= self.last_batch_id:
            return []
        reports = [last] if int(last["batchId"]) == self.last_batch_id + 1 else self.query.recentProgress
        found = []
        for report in reports:
            plain = _plain(report)
            # A report without addBatch is about a trigger without new records.
            if plain["batchId"] > self.last_batch_id and "addBatch" in (plain.get("durationMs") or {}):
                found.append(batch_of(self.name, plain))
                self.last_batch_id = int(plain["batchId"])
        return found

    @property
    def is_between_batches(self) -> bool:
        return not self.query.status["isTriggerActive"]


class Queries:
    """The queries of one pipeline."""

    def __init__(self, frames: Frames, *, once: bool) -> None:
        self.frames = frames
        self.pipeline: Pipeline = frames.pipeline
        self.once = once
        self.running: list[Running] = []

    def start(self, stop: threading.Event | None = None) -> None:
        """Starts one query after the other, until `stop` is set: in parallel they would slow each other down."""
        make_active(self.frames.spark)
        starts: dict[str, Callable[[], StreamingQuery]] = {
            output.name: partial(self._start_output, output) for output in self.pipeline.outputs.values()
        }
        for source in self.pipeline.dead_letter_sources:
            letters = self.pipeline.dead_letters(source)
            starts[letters.name] = partial(self._start_dead_letters, source, letters)
        for name, start in starts.items():
            if stop is not None and stop.is_set():
                return
            self.running.append(Running(name, start_with_retries(start, STARTS_MAX)))

    def _start_output(self, output: Output) -> "StreamingQuery":
        frame = self.frames.output(output)
        rows = counted(self.frames.for_sink(output, frame))
        options = self.frames.sink_options(output, rows)
        if output.output_mode == "update":
            return self._start_updates(output, rows, options)
        writer = rows.writeStream.format(sink_format(output)).outputMode(output.output_mode).options(**options)
        return self._begin(writer, output.name, output.trigger)

    def _start_updates(self, output: Output, rows: "DataFrame", options: Mapping[str, str]) -> "StreamingQuery":
        """Spark does not support output mode update for sinks written in Python, but does for foreachBatch."""
        started = threading.Event()
        ids: list[str] = []

        def write(frame: "DataFrame", batch_id: int) -> None:
            # The id is that of the checkpoint: a new checkpoint starts at batch 0 and must not use old ledger entries.
            assert started.wait(QUERY_ID_TIMEOUT_S), "the query did not start"
            chosen = batch_options(output, options, ids[0], batch_id)
            chosen["checkpointLocation"] = self._checkpoint(output.name)
            frame.write.format(sink_format(output)).mode("append").options(**chosen).save()

        query = self._begin(rows.writeStream.foreachBatch(write).outputMode("update"), output.name, output.trigger)
        ids.append(str(query.id))
        started.set()
        return query

    def _start_dead_letters(self, source: Source, letters: Output) -> "StreamingQuery":
        rows = counted(self.frames.bad_records(source))
        options = self.frames.sink_options(letters, rows)
        return self._begin(rows.writeStream.format("ottla").options(**options), letters.name, None)

    def _begin(self, writer: Any, name: str, trigger: str | None) -> "StreamingQuery":
        writer = writer.queryName(name).option("checkpointLocation", self._checkpoint(name))
        if self.once:
            writer = writer.trigger(availableNow=True)
        elif trigger is not None:
            writer = writer.trigger(processingTime=trigger)
        query: StreamingQuery = writer.start()
        return query

    def _checkpoint(self, name: str) -> str:
        return f"{self.pipeline.checkpoint.rstrip('/')}/{name}"

    def watch(self, on_batch: Callable[[Batch], None], stop: threading.Event) -> None:
        """Reports batches until all queries have ended, one has failed, or `stop` is set. Raises QueryFailed.

        With `stop` set, each query finishes the batch that it is in and ends.
        """
        while self.running:
            if stop.is_set():
                self._finish(on_batch)
                return
            for each in list(self.running):
                for batch in each.new_batches():
                    on_batch(batch)
                if not each.query.isActive:
                    for batch in each.new_batches():
                        on_batch(batch)
                    error = each.query.exception()
                    if error is not None:
                        self.stop()
                        raise QueryFailed(each.name, error)
                    self.running.remove(each)
            stop.wait(POLL_INTERVAL_S)

    def _finish(self, on_batch: Callable[[Batch], None]) -> None:
        waiting = list(self.running)
        failed: QueryFailed | None = None
        for each in waiting:
            each.stop_after = each.last_batch_id + 1
        while waiting:
            for each in list(waiting):
                for batch in each.new_batches():
                    on_batch(batch)
                assert each.stop_after is not None
                # In this order: a failed query also looks idle between two batches, but is no longer active.
                is_done = each.last_batch_id >= each.stop_after or each.is_between_batches
                if not each.query.isActive:
                    error = each.query.exception()
                    failed = failed or (QueryFailed(each.name, error) if error is not None else None)
                elif is_done:
                    each.query.stop()  # this can interrupt only a batch that has just begun, so its error is ignored
                else:
                    continue
                for batch in each.new_batches():
                    on_batch(batch)
                waiting.remove(each)
            threading.Event().wait(POLL_INTERVAL_S / 5)
        if failed is not None:
            raise failed

    def stop(self) -> None:
        """Stops all queries immediately, in the middle of their batches."""
        for each in self.running:
            if each.query.isActive:
                each.query.stop()


def start_with_retries(start: Callable[[], "StreamingQuery"], starts_max: int) -> "StreamingQuery":
    """Starts a query and returns it once its sources are up, or once it has failed.

    Spark gives the Python process of a source ten seconds to start, and no setting changes that. A query that fails
    because of this has read and written nothing, so it is restarted, up to `starts_max` starts in total.
    """
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            threading.Event().wait(POLL_INTERVAL_S / 5)
        starts_max -= 1
        if query.isActive or not starts_max or not is_slow_start(query.exception()):
            return query
        log.warning("query %s: Spark timed out waiting for its Python process; restarting the query", query.name)


def _plain(report: Any) -> dict[str, Any]:
    """A report as a dict, for every version of PySpark."""
    text = getattr(report, "json", None)
    if isinstance(text, str):
        found: dict[str, Any] = json.loads(text)
        return found
    return dict(report)
