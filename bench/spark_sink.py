"""Rows per second from Spark into a topic, and the time of a small micro-batch: Ottla's sink and Spark's.

All write in turn to one Ottla broker from one session. `ottla` is exactly-once; `ottla at-least-once` and `spark`
(Spark's Kafka connector, if installed by `./run setup-extras`) have the guarantee of Spark's sink. `nothing, in
Python` is a sink that discards its rows: the time Spark needs for a micro-batch with any Python sink. `CPU` is the
process tree of Spark: the JVM and its Python workers. `python -m bench.spark_sink` runs only this part.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.brokers import Contender, ottla
from bench.one_suite import run_one_suite
from bench.results import Results
from tests.support.processes.oracle import extras_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

SUITE = "spark sink"
PARTITIONS = 4
TASKS = 2
SMALL_ROWS = 100
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "ottla": ("ottla", {}),
    "ottla at-least-once": ("ottla", {"delivery": "at-least-once"}),
    "spark": ("kafka", {}),
}
"""Contender -> format and options."""
NOTHING = "nothing, in Python"


def connector_jars() -> list[Path]:
    """The jars of Spark's Kafka connector, if they are installed."""
    return sorted((extras_directory() / "spark-kafka").glob("*.jar"))


def session() -> "SparkSession":
    """A session with two cores, and with Spark's Kafka connector if it is installed."""
    from ottla.spark import session as ottla_session

    conf = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": str(TASKS)}
    if connector_jars():
        conf["spark.driver.extraClassPath"] = ":".join(map(str, connector_jars()))
    started = ottla_session("ottla-bench", master=f"local[{TASKS}]", conf=conf)
    started.sparkContext.setLogLevel("ERROR")
    return started


def contenders() -> list[str]:
    return [name for name in WAYS if name != "spark" or connector_jars()]


def sink_rows(spark: "SparkSession", broker: Contender, results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Each round measures every contender in every case. The first round is a warm-up and is not counted."""
    sizes = (100, 1000)
    names = contenders()
    step(total=(rounds + 1) * (len(names) * (len(sizes) + 1) + 1))
    spark.dataSource.register(nothing_source())
    for round_number in range(rounds + 1):
        kept = results if round_number else None
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            for size in sizes:
                step(f"{name}: {size} B")
                count = {100: 2_000_000, 1000: 400_000}[size] // (10 if quick else 1)
                write_batch(spark, broker, name, count, size, kept)
        for name in (*names[turn:], *names[:turn], NOTHING):
            step(f"{name}: small batches")
            small_batches(spark, broker, name, 10 if quick else 30, kept)


def write_batch(
    spark: "SparkSession", broker: Contender, name: str, count: int, size: int, results: Results | None
) -> None:
    """Writes many rows with one job."""
    topic = f"sink-{size}-{time.monotonic_ns()}"
    broker.create_topic(topic, PARTITIONS)
    rows = spark.range(0, count, 1, TASKS).selectExpr(
        "CAST(id AS STRING) AS key", f"CAST(RPAD(CAST(id AS STRING), {size}, 'abcdefgh') AS BINARY) AS value"
    )
    cpu, started = spark_cpu_seconds(broker), time.perf_counter()
    writer = rows.write.format(WAYS[name][0]).mode("append").option("kafka.bootstrap.servers", broker.bootstrap)
    for option, value in WAYS[name][1].items():
        writer = writer.option(option, value)
    writer.option("topic", topic).save()
    seconds, cpu = time.perf_counter() - started, spark_cpu_seconds(broker) - cpu
    if results is not None:
        results.add(SUITE, f"batch write, {size} B", "rows/s", name, count / seconds, more_is_better=True)
        results.add(SUITE, f"CPU, batch write, {size} B", "µs/row", name, cpu / count * 1e6)
    broker.delete_topic(topic)


def spark_cpu_seconds(broker: Contender) -> float:
    """CPU time of Spark: the JVM and its Python workers, without the broker."""
    from bench.spark import tree_cpu_seconds  # bench.spark imports this module

    return tree_cpu_seconds() - broker.cpu_seconds()


def small_batches(spark: "SparkSession", broker: Contender, name: str, batches: int, results: Results | None) -> None:
    """The median time of a small micro-batch, of which the sink's part is `addBatch`."""
    topic = f"sink-small-{time.monotonic_ns()}"
    broker.create_topic(topic, PARTITIONS)
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", SMALL_ROWS)
        .option("numPartitions", TASKS)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    kind, options = WAYS.get(name, (NOTHING, {}))
    writer = rows.writeStream.format(kind).option("kafka.bootstrap.servers", broker.bootstrap).options(**options)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = writer.option("topic", topic).option("checkpointLocation", checkpoint).start()
        deadline = time.monotonic() + 120
        # The first batches plan, connect and compile; they do not count.
        while len(query.recentProgress) < batches + 3 and query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        query.stop()
        durations = [progress["durationMs"] for progress in query.recentProgress][3:]
    if results is not None and durations:
        results.add(
            SUITE, "small micro-batch, whole", "ms", name, statistics.median(t["triggerExecution"] for t in durations)
        )
        results.add(
            SUITE, "small micro-batch, addBatch", "ms", name, statistics.median(t["addBatch"] for t in durations)
        )
    broker.delete_topic(topic)


def nothing_source() -> "type[DataSource]":
    """A format whose sink does nothing. Defined locally, so that Spark pickles it by value for its workers."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

    class Nothing(DataSourceStreamArrowWriter):
        def write(self, iterator: Any) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class NothingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NOTHING

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
            return Nothing()

    return NothingSource


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    results.titles |= {"spark": "Spark's connector"}
    spark = session()
    try:
        with ottla() as broker:
            sink_rows(spark, broker, results, rounds, quick, step)
    finally:
        spark.stop()


if __name__ == "__main__":
    run_one_suite(SUITE, __doc__, run)
