"""Streaming queries on a busy machine.

Spark gives the Python process of a streaming source ten seconds to start and to connect back. No setting changes that
(`PythonWorkerFactory.createSimpleWorker` has the number in its code). A query that fails for this has not read or
written anything, so it can be started again.
"""

import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.02


def is_slow_start(error: object) -> bool:
    """Whether Spark gave up on a Python process that took longer than its ten seconds to start."""
    return "Python worker failed to connect back" in str(error)


def start_patiently(start: Callable[[], Any]) -> Any:
    """Starts a query and returns it once its sources are up, or once it has failed for another reason."""
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(PAUSE_S)
        if not is_slow_start(query.exception()):
            return query
