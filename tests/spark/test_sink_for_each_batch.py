"""Batches of a stream that a user's function writes to a topic: output mode update, exactly once.

Spec: F2, F4, R9.
"""

import contextlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla import Broker
from ottla.client.blocking import Admin, Consumer
from ottla.spark.datasource import OttlaDataSource
from ottla.spark.sink.batch_writer import BatchWriter
from ottla.types import TopicPartition
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.broker.embedded.broker import EmbeddedBroker

PARTITIONS, ITEMS = 2, 8
POINTS = ["after-prepare", "before-part-commit", "after-write"]
"""Where a batch fails: in a task, on the driver between two commits, at the end of the user's function."""


class FailingSource(OttlaDataSource):
    """The sink on a machine that fails once, at the point that the option `failing` names."""

    @classmethod
    def name(cls) -> str:
        return "failing-ottla"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        failing = self.options.pop("failing")
        writer = super().writer(schema, overwrite)
        assert isinstance(writer, BatchWriter)
        return FailingWriter(writer, failing)


class FailingWriter(DataSourceArrowWriter):
    def __init__(self, writer: BatchWriter, failing: str) -> None:
        self.writer, self.failing = writer, failing

    def write(self, iterator: Any) -> WriterCommitMessage:
        with self.failpoint():
            return self.writer.write(iterator)

    def commit(self, messages: Any) -> None:
        with self.failpoint():
            self.writer.commit(messages)

    def abort(self, messages: Any) -> None:
        self.writer.abort(messages)

    @contextlib.contextmanager
    def failpoint(self) -> Iterator[None]:
        os.environ["OTTLA_FAILPOINT"] = self.failing
        try:
            yield
        finally:
            del os.environ["OTTLA_FAILPOINT"]


@pytest.fixture(scope="module")
def failing_format(spark_of_the_worker: "SparkSession") -> str:
    # The workers cannot import this file, so its classes are pickled by value.
    cloudpickle.register_pickle_by_value(sys.modules[FailingSource.__module__])
    spark_of_the_worker.dataSource.register(FailingSource)
    return FailingSource.name()


@pytest.fixture(scope="module")
def two_phase() -> "Iterator[EmbeddedBroker]":
    settings = {"transaction.two.phase.commit.enable": True, "auto.create.topics.enable": False}
    with Broker.embedded(settings=settings) as running:
        yield running


class Sums:
    """A stream of orders, a file for each batch, and the sums of each window and item that it keeps up to date."""

    def __init__(self, spark: "SparkSession", bootstrap: str, topic: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.topic, self.directory = spark, bootstrap, topic, directory
        self.files = 0
        self.totals: Counter[str] = Counter()
        self.updates: list[tuple[str, str]] = []
        """The expected records of the topic, in the order of the batches."""
        (directory / "in").mkdir()
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(topic, partitions=PARTITIONS)

    def add_file(self) -> None:
        """More orders, of all items but one and of two windows, so that not every sum changes."""
        lines, changed = [], {}
        for number in range(40):
            item, minute = (number + self.files) % ITEMS, (number + self.files) % 3 // 2
            if item != self.files % ITEMS:
                lines.append(f"2026-01-01 00:{minute:02}:{number % 60:02},item-{item},{number}")
                self.totals[f"{minute}/item-{item}"] += number
                changed[f"{minute}/item-{item}"] = True
        self.updates += [(key, str(self.totals[key])) for key in changed]
        path = self.directory / "in" / f"{self.files:03}.csv"
        path.write_text("\n".join(lines))
        os.utime(path, (1_790_000_000 + self.files,) * 2)  # Spark takes the oldest first
        self.files += 1

    def frame(self) -> "DataFrame":
        orders = self.spark.readStream.schema("at timestamp, item string, amount bigint")
        found = orders.option("maxFilesPerTrigger", 1).csv(str(self.directory / "in"))
        return aggregated(found)

    def run(self, function: Any) -> str:
        """Runs the query to its end, or to its first error. Returns the error's text."""
        writer = self.frame().writeStream.foreachBatch(function).outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.directory / "checkpoint")).start()
        try:
            assert query.awaitTermination(900), f"the query still runs: {query.status}"
        except Exception as error:
            return str(error)
        return ""

    def save(self, frame: "DataFrame", batch_id: int, kind: str = "ottla", **options: Any) -> None:
        chosen = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.topic,
            "sinkName": f"{self.topic}-sums",
            "batchId": batch_id,
            **options,
        }
        frame.write.format(kind).mode("append").options(**chosen).save()

    def read(self) -> list[tuple[str, str]]:
        """All that read_committed consumers see, in the order of each partition."""
        partitions = [TopicPartition(self.topic, index) for index in range(PARTITIONS)]
        self.await_markers()
        with Consumer(bootstrap_servers=self.bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)
            found: list[tuple[str, str]] = []
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += [
                    ((record.key or b"").decode(), (record.value or b"").decode()) for record in consumer.poll(1000)
                ]
        return found

    def await_markers(self) -> None:
        """A coordinator answers when it has decided; its markers reach the partitions a moment later."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:

            def left() -> list[str]:
                found = admin.list_transactions(states=["Ongoing", "PrepareCommit", "PrepareAbort"])
                names = [listing.transactional_id for listing in found]
                return [name for name in names if name.startswith(f"{self.topic}-sums-")]

            assert until(lambda: not left(), 600), left()


def aggregated(orders: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    sums = orders.groupBy(f.window("at", "1 minute"), "item").agg(f.sum("amount").alias("total"))
    return sums.selectExpr("concat(minute(window.start), '/', item) AS key", "CAST(total AS STRING) AS value")


def by_key(records: list[tuple[str, str]]) -> dict[str, list[str]]:
    """The values of each key, in their order."""
    found: dict[str, list[str]] = {}
    for key, value in records:
        found.setdefault(key, []).append(value)
    return found


@pytest.fixture
def sums(spark: "SparkSession", two_phase: "EmbeddedBroker", topic: str, tmp_path: Path) -> Sums:
    return Sums(spark, two_phase.bootstrap, topic, tmp_path)


def test_updates_of_windows_are_written_once_despite_failures_at_every_point(sums: Sums, failing_format: str) -> None:
    """Each batch fails once, each time at another point, and the query is started again. Spark repeats the batch."""
    for _ in POINTS:
        sums.add_file()

    def write(frame: "DataFrame", batch_id: int) -> None:
        point = POINTS[batch_id]
        mark = sums.directory / point
        sums.save(frame, batch_id, failing_format, failing=f"{point}:fail:{mark}")
        if point == "after-write" and not mark.exists():
            mark.touch()
            raise RuntimeError("failpoint after-write: fail")

    errors = [sums.run(write) for _ in range(len(POINTS) + 1)]
    reached = [sorted(set(re.findall("failpoint ([a-z-]+): fail", error))) for error in errors]
    assert reached == [*([point] for point in POINTS), []], errors
    found = sums.read()
    assert Counter(found) == Counter(sums.updates), "each update is written once"
    assert by_key(found) == by_key(sums.updates), "in the order of the batches"
    orders = sums.spark.read.schema("at timestamp, item string, amount bigint").csv(str(sums.directory / "in"))
    answer = {row.key: row.value for row in aggregated(orders).collect()}
    assert {key: values[-1] for key, values in by_key(found).items()} == answer


def test_two_frames_under_one_name_are_refused(sums: Sums) -> None:
    """The second would be mistaken for a repeated first one, and silently lost."""
    sums.add_file()

    def two_frames(frame: "DataFrame", batch_id: int) -> None:
        sums.save(frame, batch_id)
        sums.save(frame, batch_id)  # the same again: already written
        sums.save(frame.limit(3), batch_id)

    error = sums.run(two_frames)
    assert "was written before in this run with other rows" in error
    assert "give each its own sinkName" in error
    assert Counter(sums.read()) == Counter(sums.updates)


def test_a_write_outside_of_a_query_needs_a_query_id(sums: Sums) -> None:
    frame = sums.spark.range(4).selectExpr("CAST(id AS STRING) AS key", "'x' AS value")
    with pytest.raises(Exception, match="but the query that it belongs to is unknown"):
        sums.save(frame, 0)
    for batch_id in (0, 0, 1):
        sums.save(frame, batch_id, queryId="mine")
        assert len(sums.read()) == 4 * (batch_id + 1)
