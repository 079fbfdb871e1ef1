"""Spark's Python workers: how a task is identified, and what makes small batches fast."""

import gc
import sys

BATCH_ID, QUERY_ID, RUN_ID = "streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id"
"""The local properties that identify a task's batch, query and run. The id of a run is its job group."""

_is_settled = False


def settle() -> None:
    """Freezes the objects loaded so far for the garbage collector, once in the life of a worker.

    Spark's workers collect garbage after every request. With pandas, pyarrow and a client loaded this takes 40 ms for
    objects that stay, in each of the four or more processes that a micro-batch passes through.
    """
    global _is_settled
    if not _is_settled and _is_spark_worker():
        gc.freeze()
    _is_settled = True


def _is_spark_worker() -> bool:
    """Whether this process was forked by Spark's daemon. The collector of other processes is left alone."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
