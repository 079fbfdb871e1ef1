"""Waiting for something that nobody tells us of: asked again and again, for as long as a slow machine may need."""

import time
from collections.abc import Callable

PATIENCE_S = 60.0
PAUSE_S = 0.02
"""Between two looks: whoever is waited for needs the processor too."""


def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    """Whether it comes true in time. Apache Kafka answers before every part of it has heard the news."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_S)
    return True


def eventually(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Fails unless it comes true in time."""
    assert until(condition, timeout_s), "it never came to hold"
