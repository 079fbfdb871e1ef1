"""The time from produce to visible output of a query that copies a topic: Ottla's source and sink, and Spark's.

1,000 records a second, one by one into all partitions of a topic; the query runs as fast as it can; a consumer reads
its output. Ottla is exactly-once and its consumer reads committed records; Spark's connector is at-least-once. Each has
its own driver process (two cores), and runs alone. `python -m bench.spark_latency` runs only this part.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from bench import spark_sink
from bench.brokers import Contender, ottla
from bench.one_suite import run_one_suite
from bench.results import Results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SUITE = "spark latency"
PARTITIONS = (3, 24)
RATE = 1_000
TURN_S = 0.005
FORMATS = {"ottla": ("ottla", "read_committed"), "spark": ("kafka", "read_uncommitted")}
"""Contender -> format, and the isolation level of the consumers of its output."""


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    """Each round measures every contender. The first seconds of each are a warm-up and are not counted."""
    results.titles |= {"spark": "Spark's connector"}
    names = [name for name in FORMATS if name != "spark" or spark_sink.connector_jars()]
    warm_s, counted_s = (6, 8) if quick else (15, 20)
    step(total=rounds * len(names) * len(PARTITIONS))
    with ottla() as broker:
        for round_number in range(rounds):
            turn = round_number % len(names)
            for name in names[turn:] + names[:turn]:
                measure(name, broker, results, warm_s, counted_s, step)


def measure(name: str, broker: Contender, results: Results, warm_s: float, counted_s: float, step: Any) -> None:
    from bench.spark import Driver  # bench.spark imports this module

    driver = Driver(name, "bench.spark_latency")
    try:
        for partitions in PARTITIONS:
            step(f"{name}: {partitions} partitions")
            topic, output = (f"latency-{way}-{time.monotonic_ns()}" for way in ("in", "out"))
            for each in (topic, output):
                broker.create_topic(each, partitions)
            driver.ask("start", broker.bootstrap, topic, output)
            found = asyncio.run(
                latencies(broker.bootstrap, topic, output, partitions, FORMATS[name][1], warm_s, counted_s)
            )
            answer = driver.ask("stop")
            found.sort()
            for label, part in (("p50", 0.5), ("p99", 0.99)):
                value = found[int(len(found) * part)] * 1000
                results.add(SUITE, f"produce to visible, {partitions} partitions, {label}", "ms", name, value)
            results.add(SUITE, f"a micro-batch, {partitions} partitions", "ms", name, answer["batch_ms"])
    finally:
        driver.close()


async def latencies(
    bootstrap: str, topic: str, output: str, partitions: int, isolation_level: str, warm_s: float, counted_s: float
) -> list[float]:
    """Produces for a while, and measures when each record is in the output. Records of the warm-up do not count."""
    from ottla import AsyncConsumer, AsyncProducer

    begin = time.monotonic() + warm_s
    end = begin + counted_s
    found: list[float] = []
    sent = 0

    async def produce() -> None:
        nonlocal sent
        async with AsyncProducer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
            started = time.monotonic()
            while (now := time.monotonic()) < end:
                while sent < (now - started) * RATE:
                    stamp = str(time.monotonic_ns()).encode()
                    await producer.send(topic, stamp, partition=sent % partitions)
                    sent += 1
                await asyncio.sleep(TURN_S)

    async def consume() -> None:
        settings = {"bootstrap.servers": bootstrap, "isolation.level": isolation_level, "fetch.max.wait.ms": "50"}
        async with AsyncConsumer(settings) as consumer:
            await consumer.assign([(output, index) for index in range(partitions)])
            await consumer.seek_to_beginning()
            received, deadline = 0, end + 60
            while time.monotonic() < end or received < sent:
                for record in await consumer.poll(100):
                    received += 1
                    at = int(record.value or b"0") / 1e9
                    if at >= begin:
                        found.append(time.monotonic() - at)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{received} of {sent} records arrived")

    await asyncio.gather(produce(), consume())
    return found


# In the driver's process


def serve(name: str) -> None:
    from ottla.spark import session

    conf = {"spark.driver.memory": "2g"}
    if name == "spark":
        conf["spark.driver.extraClassPath"] = ":".join(map(str, spark_sink.connector_jars()))
    spark = session(f"bench-{name}", master="local[2]", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    orders: Iterator[str] = iter(sys.stdin)
    for line in orders:
        _, bootstrap, topic, output = json.loads(line)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
            query = start(spark, FORMATS[name][0], bootstrap, topic, output, checkpoint)
            while query.lastProgress is None and query.isActive:
                time.sleep(0.02)
            print(json.dumps({"started": query.isActive}), flush=True)
            next(orders)
            query.stop()
            batches = [each["durationMs"] for each in query.recentProgress if each["numInputRows"]]
            print(json.dumps({"batch_ms": statistics.median(each["triggerExecution"] for each in batches)}), flush=True)
    spark.stop()


def start(spark: "SparkSession", source: str, bootstrap: str, topic: str, output: str, checkpoint: str) -> Any:
    to = {"kafka.bootstrap.servers": bootstrap, "topic": output, "checkpointLocation": checkpoint}
    return (
        spark.readStream.format(source)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "value")
        .writeStream.format(source)
        .options(**to)
        .start()
    )


if __name__ == "__main__":
    run_one_suite(SUITE, __doc__, run, rounds=1, drivers=list(FORMATS), serve=serve)
