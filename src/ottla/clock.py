"""The only file that reads the time. Everything else is given a clock, so tests can give it another."""

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Gives the current time in milliseconds since 1970, as Kafka's timestamps count it."""


def system_clock() -> int:
    return time.time_ns() // 1_000_000


system_clock_ns = time.time_ns
"""The same time in nanoseconds, as a function of the interpreter's own: a tenth of a Python call."""


def monotonic() -> float:
    """Seconds that never jump, for measuring how long something took."""
    return time.monotonic()
