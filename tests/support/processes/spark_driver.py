"""A Spark driver in a process of its own, to be killed: a query from topic to topic, told by one line of JSON.

`start()` runs it and gives a Driver; `python -m tests.support.processes.spark_driver JSON` is the process itself.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

START_TIMEOUT_S = 240.0


class Driver:
    """One driver process and everything it started, in a process group of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: IO[bytes]) -> None:
        self._process = process
        self._output = output

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> str:
        """Waits until the query is at its end; gives what the driver printed. Raises where it failed."""
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

    def wait_for(self, path: Path, timeout_s: float = START_TIMEOUT_S) -> None:
        """Waits until the driver, or one of its workers, has made this file."""
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the driver ended before it came to {path.name}:\n{self.printed()[-6000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the driver did not come to {path.name}:\n{self.printed()[-6000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Ends the driver and its Java at once, as a lost machine would; Python workers notice and end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def printed(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")


def start(task: Mapping[str, Any], failpoint: str = "") -> Driver:
    """Starts a driver. `task` says what to run: see `run_query`."""
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

    A query that fails is started again, up to `restarts` times. With `database`, an SQLite file, the values go into its
    table `copied` instead of a topic.
    """
    from pyspark.sql import functions as F

    from ottla.spark import session

    spark = session("ottla-crash-test", master=task.get("master", "local[2]"), conf=task["conf"])
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", task["bootstrap"])
        .option("subscribe", task["input"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(task["rows_per_batch"]))
        .load()
    )
    if task["query"] == "windows":
        orders = rows.select(F.from_json(F.col("value").cast("string"), "at timestamp, amount long").alias("order"))
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
        rows = rows.selectExpr("key", "value")
    sink, options = "ottla", {"kafka.bootstrap.servers": task["bootstrap"], "topic": task["output"]}
    if "database" in task:
        rows = rows.selectExpr("CAST(value AS STRING) AS value")
        sink, options = "ottla-database", {"url": f"sqlite:///{task['database']}", "table": "copied"}
    writer = rows.writeStream.format(sink).outputMode("append").trigger(availableNow=True)
    for name, value in {**options, "checkpointLocation": task["checkpoint"], **task.get("options", {})}.items():
        writer = writer.option(name, value)
    for restarts_left in range(task.get("restarts", 0), -1, -1):
        started = writer.start()
        try:
            started.awaitTermination()
            break
        except Exception as error:  # as a supervisor would: whatever it is, start again
            print("failed:", str(error)[:300])
            if not restarts_left:
                raise
    for progress in started.recentProgress:
        print("batch", progress["batchId"], progress["numInputRows"], "rows", progress["durationMs"])


if __name__ == "__main__":
    run_query(json.loads(sys.argv[1]))
