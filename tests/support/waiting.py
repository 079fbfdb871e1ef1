"""Polling for a condition, for as long as a slow machine may need."""

import time
from collections.abc import Callable

PATIENCE_S = 300.0
"""For what is certain to come: on a machine with many times more work than cores, it may come minutes later."""
PAUSE_S = 0.02
"""Between two checks, so that the process that is waited for gets the processor."""


def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    """Whether the condition becomes true. Apache Kafka answers before all of its parts have applied a change."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_S)
    return True


def eventually(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Fails unless the condition becomes true in time."""
    assert until(condition, timeout_s), f"the condition did not become true within {timeout_s} s"
