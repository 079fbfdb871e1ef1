"""A Spark driver in its own process, to be killed: a query from topic to topic, described by one line of JSON.

`start()` runs it and returns a Driver; `python -m tests.support.processes.spark_driver JSON` is the process itself.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

LIMIT_S = 800.0
"""A bound for a machine with many times more work than cores; nothing here takes more than seconds of its own."""


class Driver:
    """One driver process and everything it started, in its own process group."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: IO[bytes]) -> None:
        self._process = process
        self._output = output

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
        self._process.wait(30)

    def printed(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")


def start(task: Mapping[str, Any], failpoint: str = "") -> Driver:
    """Starts a driver. `task` describes what to run: see `run_query`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if failpoint:
        environment["OTTLA_FAILPOINT"] = failpoint
    output = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.processes.spark_driver", json.dumps(task)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )
    return Driver(process, output)


def run_query(task: Mapping[str, Any]) -> None:
    """Reads topic `input`, transforms it (`query`: copy or windows), writes topic `output`, until all is written.

    A query that fails is started again, up to `restarts` times. With `database`, an SQLite file, a second query copies
    the values into its table `copied` at the same time.
    """
    from pyspark.sql import functions as F

    from ottla.spark import session

    spark = session("ottla-crash-test", master=task.get("master", "local[2]"), conf=task["conf"])
    spark.sparkContext.setLogLevel("ERROR")
    source = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", task["bootstrap"])
        .option("subscribe", task["input"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(task["rows_per_batch"]))
        .load()
    )
    if task["query"] == "windows":
        orders = source.select(F.from_json(F.col("value").cast("string"), "at timestamp, amount long").alias("order"))
        totals = (
            orders.select("order.*")
            .withWatermark("at", "1 second")
            .groupBy(F.window("at", "10 seconds"))
            .agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
        )
        rows = totals.select(
            F.to_json(F.struct(F.col("window.start").cast("long").alias("start"), "orders", "amount")).alias("value")
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
    starts = [writer.start for writer in writers]
    running = [start() for start in starts]
    for start, query in zip(starts, running, strict=True):
        run_to_the_end(start, task.get("restarts", 0), query)


def run_to_the_end(start: Callable[[], Any], restarts: int = 0, query: Any = None) -> Any:
    """Runs a query to its end and gives it back. One that fails is started again up to `restarts` times.

    Spark gives a new Python process ten seconds to connect back, which no setting changes and a busy machine does not
    always keep. A query that fails for this has done nothing yet, so it is started again without being counted.
    """
    while True:
        query = query or start()
        try:
            query.awaitTermination()
            return query
        except Exception as error:
            print("failed:", str(error)[:300])
            if not is_slow_start(error):
                restarts -= 1
            if restarts < 0:
                raise
            query = None


def is_slow_start(error: Exception) -> bool:
    """Whether Spark gave up on a Python process that took longer than its ten seconds to start."""
    return "Timed out while waiting for the Python worker to connect back" in str(error)


if __name__ == "__main__":
    run_query(json.loads(sys.argv[1]))
