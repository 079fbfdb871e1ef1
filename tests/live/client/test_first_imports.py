"""The public names of `ottla` are imported on first use, also by several threads at once."""

import subprocess
import sys

from tests.support.waiting import PATIENCE_S

THREADS = """
import sys, threading
import ottla

sys.setswitchinterval(1e-5)
names = ["Producer", "Consumer", "Admin", "AsyncProducer", "AsyncConsumer", "Broker"]
together = threading.Barrier(len(names))
failures = []

def use(name):
    together.wait()
    try:
        getattr(ottla, name)
    except ImportError as failure:
        failures.append(f"{name}: {failure}")

threads = [threading.Thread(target=use, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
"""


def test_threads_can_use_different_names_for_the_first_time_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
