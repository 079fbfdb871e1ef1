"""What Spark's Python processes are told so that they serve small batches fast."""

import gc
import sys

_is_settled = False


def settle() -> None:
    """Takes what is loaded by now out of the garbage collector's view, once in the life of a worker.

    A worker of Spark's collects garbage after everything it is asked. With pandas, pyarrow and a client loaded that is
    40 ms of looking at objects that stay, in each of the four or more processes that a micro-batch passes through.
    """
    global _is_settled
    if not _is_settled and _is_spark_worker():
        gc.freeze()
    _is_settled = True


def _is_spark_worker() -> bool:
    """Whether this process was forked by Spark's daemon: a user's own process is none of our business."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
