"""Spark's Python workers: how a task is identified, and what makes small batches fast."""

import contextlib
import gc
import os
import socket
import stat
import sys
from collections.abc import Mapping
from typing import Any

BATCH_ID, QUERY_ID, RUN_ID = "streaming.sql.batchId", "sql.streaming.queryId", "spark.jobGroup.id"
"""The local properties that identify a task's batch, query and run. The id of a run is its job group."""

SettingsKey = tuple[tuple[str, str], ...]

LAST_FREEZE = 64

_calls = 0

QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Linux only."""

_to_spark: list[socket.socket | None] = []
"""A worker's connection to Spark, once it was looked up; None if it is a Unix domain socket."""
os.register_at_fork(after_in_child=_to_spark.clear)


def settings_key(settings: Mapping[str, str]) -> SettingsKey:
    """The key of a client that a worker keeps for the next task with the same settings."""
    return tuple(sorted(settings.items()))


class QuickAck:
    """Base class of objects that Spark pickles to its workers. Unpickling one calls `acknowledge_quickly`."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_quickly()


def acknowledge_quickly() -> None:
    """Avoids the kernel's delayed acknowledgement (40 ms), which would slow down a small micro-batch several times.

    Spark sends a task's command and its rows separately and without TCP_NODELAY, so the rows wait until the command is
    acknowledged. The worker's kernel delays that by 40 ms, because it expects an answer to carry it. This call
    acknowledges the command, and makes the kernel acknowledge the rows when they are read. Its effect lasts until the
    worker's next answer, so unpickling each command repeats it. TCP_NODELAY, for the worker's own messages, is
    permanent.
    """
    if not _is_spark_worker():
        return
    if not _to_spark:
        _to_spark.append(_find_connection())
    connection = _to_spark[0]
    if connection is not None and QUICK_ACK is not None:
        with contextlib.suppress(OSError):  # Spark has closed it
            connection.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)


def _find_connection() -> socket.socket | None:
    """The connection that this worker was forked for: the first one that it had."""
    if os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() == "true":
        return None  # Its connections over TCP are not to Spark.
    with contextlib.suppress(OSError):
        for file in sorted(map(int, os.listdir("/proc/self/fd"))):
            with contextlib.suppress(OSError):
                if not stat.S_ISSOCK(os.fstat(file).st_mode):
                    continue
                found = socket.socket(fileno=os.dup(file))
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return found
                found.close()
    return None


def freeze_loaded_objects() -> None:
    """Freezes the objects loaded so far for the garbage collector: at the 1st, 2nd, 4th … 64th request of a worker.

    Spark's workers collect garbage after every request. For long-lived objects this takes 40 ms with pandas and pyarrow
    loaded, and 10 ms more with an open client, in each of the four or more processes that a micro-batch passes through.
    It happens only a few times, because garbage of later requests would never be freed.
    """
    global _calls
    _calls += 1
    if _calls <= LAST_FREEZE and _calls.bit_count() == 1 and _is_spark_worker():
        gc.freeze()


def _is_spark_worker() -> bool:
    """Whether this process was forked by Spark's daemon. The collector of other processes is left alone."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"
