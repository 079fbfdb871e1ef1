"""Settings of Spark's workers, which other processes do not get."""

import subprocess
import sys

ASK = """
import gc, sys, types
if sys.argv[1] == "worker":
    sys.modules["__main__"] = types.SimpleNamespace(__spec__=types.SimpleNamespace(name="pyspark.daemon"))
from ottla.spark.workers import settle
settle()
print(gc.get_freeze_count())
"""


def frozen(who: str) -> int:
    asked = subprocess.run([sys.executable, "-c", ASK, who], capture_output=True, text=True, check=True)
    return int(asked.stdout)


def test_a_worker_freezes_loaded_objects_for_the_garbage_collector() -> None:
    assert frozen("worker") > 1000


def test_other_processes_keep_their_garbage_collector_unchanged() -> None:
    assert frozen("user") == 0
