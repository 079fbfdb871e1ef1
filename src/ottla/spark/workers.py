"""Spark's Python workers: how a task is identified, and what makes small batches fast."""

import gc
import sys

BATCH_ID, QUERY_ID, RUN_ID = "streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id"
"""The local properties that identify a task's batch, query and run. The id of a run is its job group."""

LAST_FREEZE = 64

_calls = 0


def settle() -> None:
    """Freezes the objects loaded so far for the garbage collector: at the 1st, 2nd, 4th … 64th request of a worker.

    Spark's workers collect garbage after every request. With pandas and pyarrow loaded this takes 40 ms, and with a
    client that the first requests have opened 10 ms more, for objects that stay, in each of the four or more processes
    that a micro-batch passes through. It happens a few times only, because what a request leaves behind later would
    never be freed.
    """
    global _calls
    _calls += 1
    if _calls <= LAST_FREEZE and _calls.bit_count() == 1 and _is_spark_worker():
        gc.freeze()


def _is_spark_worker() -> bool:
    """Whether this process was forked by Spark's daemon. The collector of other processes is left alone."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
