"""The driver's process: runs a pipeline's queries on Spark and reports events to its supervisor.

Started as `python -m ottla.pipeline.running.driver FD`. The first line of standard input is the job, as JSON; a later
line `stop` means: finish the batch and exit. When standard input closes, the supervisor has exited; the driver exits
too. Events go to the file descriptor FD as lines of JSON; Spark prints to standard output and error.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ottla.errors import KafkaError, OttlaError
from ottla.pipeline.definition.loading import load
from ottla.pipeline.definition.model import Pipeline
from ottla.pipeline.running.failures import Failure, failure_of
from ottla.pipeline.running.progress import Batch

ORPHAN_TIMEOUT_S = 20
FAILED = 3
Report = Callable[..., None]

# For short runs: Java's second compiler takes half of the CPU time at startup and does not pay off.
QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
QUIET = {"spark.log.level": "ERROR", "spark.sql.streaming.metricsEnabled": "false"}


def main(arguments: list[str]) -> int:
    events = os.fdopen(int(arguments[0]), "w", buffering=1, encoding="utf-8")
    job = json.loads(sys.stdin.readline())
    lock = threading.Lock()

    def report(event: str, **more: Any) -> None:
        with lock:
            events.write(json.dumps({"event": event, **more}) + "\n")

    stop = threading.Event()
    threading.Thread(target=_listen, args=(stop,), name="supervisor", daemon=True).start()
    try:
        made = load(Path(job["file"]), job["changes"])
        if job["task"] == "validate":
            validate(made, job, report)
        else:
            run(made, job, report, stop)
        report("ended")
    except BaseException as error:
        failure = failure_of(error) if isinstance(error, Exception) else Failure(f"the driver was stopped: {error!r}")
        report("failed", **failure.document())
        if not isinstance(error, OttlaError) or isinstance(error, KafkaError):
            import traceback

            traceback.print_exc()
        sys.stderr.flush()
        # Not `return`: threads and shutdown hooks of a broken Spark may block forever.
        os._exit(FAILED)
    return 0


def validate(made: Pipeline, job: dict[str, Any], report: Report) -> None:
    """Checks the pipeline on a local Spark, even if it will run on a cluster."""
    from ottla.pipeline.running.checking import check
    from ottla.spark.spark_session import plain_session

    conf = {"spark.log.level": "OFF", **QUICK_START, **made.spark}
    spark = plain_session(f"ottla-validate-{made.name}", master="local[1]", conf=conf)
    try:
        problems = check(spark, made, job.get("bootstrap"))
        report("problems", problems=[problem.__dict__ for problem in problems])
    finally:
        spark.stop()


def run(made: Pipeline, job: dict[str, Any], report: Report, stop: threading.Event) -> None:
    from ottla.pipeline.running.frames import Frames
    from ottla.pipeline.running.queries import Queries
    from ottla.spark import session

    master = job.get("master") or made.master
    quick = QUICK_START if job.get("once") and (master or "local").startswith("local") else {}
    spark = session(f"ottla-{made.name}", master=master, conf={**QUIET, **quick, **made.spark})
    try:
        report("spark", version=spark.version, master=_master_of(spark), pid=os.getpid())
        queries = Queries(Frames(spark, made, job["bootstrap"]), once=bool(job.get("once")))
        queries.start(stop)
        report("started", queries={each.name: str(each.query.id) for each in queries.running})

        def on_batch(batch: Batch) -> None:
            report("batch", batch=batch.document())

        queries.watch(on_batch, stop)
    finally:
        spark.stop()


def _master_of(spark: Any) -> str:
    try:
        return str(spark.sparkContext.master)
    except Exception:  # Spark Connect has no context
        return str(os.environ.get("SPARK_REMOTE", "remote"))


def _listen(stop: threading.Event) -> None:
    """Waits for the line `stop`, or until the supervisor ends."""
    line = sys.stdin.readline()
    stop.set()
    if line:
        sys.stdin.read()
    # No supervisor is left to restart or kill this process: it may finish its batch, then it exits.
    threading.Event().wait(ORPHAN_TIMEOUT_S)
    os._exit(FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
