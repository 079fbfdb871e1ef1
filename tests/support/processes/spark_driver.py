"""A Spark driver in its own process, to be killed: a query from topic to topic, described by one line of JSON.

`start()` runs it and returns a Driver; `python -m tests.support.processes.spark_driver JSON` is the process itself.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.spark_queries import start_with_retries
from tests.support.waiting import PATIENCE_S

LIMIT_S = 1600.0
"""Generous, for an overloaded machine; on an idle one everything here takes seconds."""


class Driver:
    """One driver process and everything it started, in its own process group."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float = LIMIT_S) -> str:
        """Waits until the query has ended; returns what the driver printed. Raises if it failed."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            printed = self.printed()
            self.kill()
            raise TimeoutError(f"the driver did not end within {timeout_s} s:\n{printed[-6000:]}") from None
        printed = self.printed()
        if code:
            raise RuntimeError(f"the driver ended with {code}:\n{printed[-6000:]}")
        return printed

    def wait_for(self, path: Path, timeout_s: float = LIMIT_S) -> None:
        """Waits until the driver, or one of its workers, has created this file."""
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the driver ended before it reached {path.name}:\n{self.printed()[-6000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the driver did not reach {path.name}:\n{self.printed()[-6000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kills the driver and its JVM, as a lost machine would; its Python workers notice and exit."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def printed(self) -> str:
        return self._log.read_text(errors="replace")


def start(task: Mapping[str, Any], log: Path, failpoint: str = "") -> Driver:
    """Starts a driver that prints to `log`. `task` describes what to run: see `run_query`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if failpoint:
        environment["OTTLA_FAILPOINT"] = failpoint
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.spark_driver", json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    return Driver(process, log)


def run_query(task: Mapping[str, Any]) -> None:
    """Reads topic `input`, transforms it (`query`: copy or windows), writes topic `output`, until all is written.

    A query that fails is started again, up to `restarts` times. With `database`, an SQLite file, a second query copies
    the values into its table `copied` at the same time.
    """
    from pyspark.sql import functions as f

    from ottla.spark import session

    spark = session("ottla-crash-test", master=task.get("master", "local[2]"), conf=task["conf"])
    spark.sparkContext.setLogLevel("ERROR")
    source = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", task["bootstrap"])
        .option("subscribe", task["input"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(task["rows_per_batch"]))
        .option("minRecordsPerPartition", "1")  # several tasks, although there are few records
        .load()
    )
    if task["query"] == "windows":
        orders = source.select(f.from_json(f.col("value").cast("string"), "at timestamp, amount long").alias("order"))
        totals = (
            orders.select("order.*")
            .withWatermark("at", "1 second")
            .groupBy(f.window("at", "10 seconds"))
            .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
        )
        rows = totals.select(
            f.to_json(f.struct(f.col("window.start").cast("long").alias("start"), "orders", "amount")).alias("value")
        )
    else:
        rows = source.selectExpr("key", "value")
    to_topic = rows.writeStream.format("ottla").options(
        **{
            "kafka.bootstrap.servers": task["bootstrap"],
            "topic": task["output"],
            "checkpointLocation": task["checkpoint"],
        }
    )
    writers = [to_topic.options(**task.get("options", {}))]
    if "database" in task:
        to_table = source.selectExpr("CAST(value AS STRING) AS value").writeStream.format("ottla-database")
        writers.append(
            to_table.options(
                url=f"sqlite:///{task['database']}", table="copied", checkpointLocation=f"{task['checkpoint']}-table"
            )
        )
    writers = [writer.outputMode("append").trigger(availableNow=True) for writer in writers]
    running = [start_with_retries(writer.start) for writer in writers]
    for writer, query in zip(writers, running, strict=True):
        run_to_the_end(writer, query, task.get("restarts", 0))


def run_to_the_end(writer: Any, query: Any, restarts: int) -> None:
    """Waits until a query has written everything. One that fails is started again up to `restarts` times."""
    while True:
        try:
            query.awaitTermination()
            return
        except Exception as error:  # as a supervisor would: restart whatever the error is
            print("failed:", str(error)[:300], flush=True)
            if not restarts:
                raise
        restarts -= 1
        query = start_with_retries(writer.start)


if __name__ == "__main__":
    run_query(json.loads(sys.argv[1]))
