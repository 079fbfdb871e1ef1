"""Rows per second from a topic into Spark, and the time of a small micro-batch: Ottla's source and Spark's.

Both read the same topics of one Ottla broker into Spark's noop sink. Each has its own driver process (two cores),
which runs for the whole suite and is warmed up before the first counted round. Spark's Kafka connector is included if
it is installed (`./run setup-extras`). `CPU` is the process tree of the driver: JVM and Python workers. Sinks
and the latency from produce to output are measured after that, see `bench/spark_sink.py` and `bench/spark_latency.py`.
`python -m bench.spark` runs only the source.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import spark_latency, spark_sink
from bench.brokers import Contender, ottla
from bench.one_suite import run_one_suite
from bench.results import Results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUITE = "spark source"
PARTITIONS = 4
TASKS = 2
SMALL_ROWS = 100
SMALL_BATCHES: dict[str, dict[str, str]] = {
    "small micro-batch": {},
    "small micro-batch, a task per partition": {"minRecordsPerPartition": "1"},
}
"""Measure -> options that only Ottla's source has."""
FORMATS = {"ottla": "ottla", "spark": "kafka"}
"""Contender -> format."""


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    source_run(results, rounds, quick, step)
    spark_sink.run(results, rounds, quick, step)
    spark_latency.run(results, 1 if quick else rounds, quick, step)


def source_run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    results.titles |= {"spark": "Spark's connector"}
    names = [name for name in FORMATS if name != "spark" or spark_sink.connector_jars()]
    drivers: dict[str, Driver] = {}
    try:
        with ottla() as broker:
            drivers |= {name: Driver(name) for name in names}
            source_rows(drivers, broker, results, rounds, quick, step)
    finally:
        for driver in drivers.values():
            driver.close()


def source_rows(
    drivers: "dict[str, Driver]", broker: Contender, results: Results, rounds: int, quick: bool, step: Any
) -> None:
    """Each round measures every contender in every case. The first two rounds are a warm-up and are not counted."""
    counts = {100: 4_000_000 // (10 if quick else 1), 1000: 800_000 // (10 if quick else 1)}
    names, warm_up = list(drivers), 2
    step(total=len(counts) + (rounds + warm_up) * len(names) * (len(counts) + len(SMALL_BATCHES)))
    topics = {}
    for size, count in counts.items():
        step(f"{count:,} records of {size} B")
        topics[size] = fill(broker, count, size)
    for round_number in range(rounds + warm_up):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            for size, count in counts.items():
                step(f"{name}: {size} B")
                answer = drivers[name].ask("read", broker.bootstrap, topics[size])
                assert answer["rows"] in (None, count), answer
                if round_number >= warm_up:
                    speed, cost = count / answer["seconds"], answer["cpu_s"] / count * 1e6
                    results.add(SUITE, f"batch read, {size} B", "rows/s", name, speed, more_is_better=True)
                    results.add(SUITE, f"CPU, batch read, {size} B", "µs/row", name, cost)
            for label, options in SMALL_BATCHES.items():
                step(f"{name}: {label}")
                if options and name != "ottla":
                    continue
                answer = drivers[name].ask("stream", broker.bootstrap, topics[100], 5 if quick else 15, options)
                if round_number >= warm_up:
                    results.add(SUITE, f"{label}, whole", "ms", name, answer["triggerExecution"])
                    results.add(SUITE, f"{label}, addBatch", "ms", name, answer["addBatch"])


def fill(broker: Contender, count: int, size: int) -> str:
    import pyarrow as pa

    from bench.arrow import sample
    from ottla import Producer

    topic = f"source-{size}-{time.monotonic_ns()}"
    broker.create_topic(topic, PARTITIONS)
    part = sample(min(count, 100_000), size)
    numbers = pa.array([row % PARTITIONS for row in range(part.num_rows)], pa.int32())
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=100_000) as producer:
        for _ in range(count // part.num_rows):
            producer.send_arrow(part.append_column("partition", numbers), topic=topic)
            producer.flush()
    return topic


class Driver:
    """A Spark driver in its own process: reads one task per line from standard input."""

    def __init__(self, name: str, module: str = "bench.spark") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--driver", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, *order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver exited with status {self._process.wait(30)} during {order}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


# In the driver's process


def serve(name: str) -> None:
    from ottla.spark import session

    conf = {"spark.driver.memory": "2g"}
    if name == "spark":
        conf["spark.driver.extraClassPath"] = ":".join(map(str, spark_sink.connector_jars()))
    spark = session(f"bench-{name}", master=f"local[{TASKS}]", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    counted: set[str] = set()
    for line in sys.stdin:
        order, bootstrap, topic, *rest = json.loads(line)
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        if order == "read":
            answer = read(spark, FORMATS[name], options)
            answer["rows"] = None
            if topic not in counted:
                counted.add(topic)
                answer["rows"] = spark.read.format(FORMATS[name]).options(**options).load().count()
        else:
            batches, more = rest
            answer = stream(spark, FORMATS[name], {**options, **more}, batches)
        print(json.dumps(answer), flush=True)
    spark.stop()


def read(spark: "SparkSession", source: str, options: dict[str, str]) -> dict[str, Any]:
    frame = spark.read.format(source).options(**options).load()
    cpu, started = tree_cpu_seconds(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - started, "cpu_s": tree_cpu_seconds() - cpu}


def stream(spark: "SparkSession", source: str, options: dict[str, str], batches: int) -> dict[str, float]:
    """The median time of a small micro-batch. The first ones, which plan and compile, do not count."""
    frame = spark.readStream.format(source).options(**options).option("maxOffsetsPerTrigger", SMALL_ROWS).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        deadline = time.monotonic() + 120
        while len(query.recentProgress) < batches + 3 and query.isActive and time.monotonic() < deadline:
            time.sleep(0.02)
        query.stop()
        durations = [progress["durationMs"] for progress in query.recentProgress][3:]
    return {
        part: statistics.median(duration[part] for duration in durations) for part in ("triggerExecution", "addBatch")
    }


def tree_cpu_seconds() -> float:
    """CPU time of this process and all its descendants, including finished ones."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        spent[pid] = sum(map(int, fields[11:15]))
    mine = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= grown
    return sum(spent.get(pid, 0) for pid in mine) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    run_one_suite(SUITE, __doc__, source_run, drivers=list(FORMATS), serve=serve)
