"""The only module that reads the time. Everything else takes a clock as an argument, so tests can pass another.

There are two kinds. A `Clock` returns the wall time, which can be set and may jump: it is for timestamps, and for
comparisons with stored timestamps. A `MonotonicClock` only counts forward: it is for timeouts, ages and intervals. mypy
rejects a wall clock where a monotonic one is expected; the names of parameters and fields say which one they hold.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NewType

Clock = Callable[[], int]
"""Returns the wall time in milliseconds since 1970, like Kafka's timestamps. It may jump, in both directions."""

MonotonicMs = NewType("MonotonicMs", int)
"""Milliseconds from an arbitrary start, possibly 0. Only differences are meaningful, and only within one process."""

MonotonicClock = Callable[[], MonotonicMs]
"""Returns a time that never jumps, to measure durations."""


class BootClock(NamedTuple):
    """Measures how long the machine has been running, across restarts of the process too."""

    boot_id: str
    """Identifies one run of the machine; empty if unknown."""
    uptime_ms: Callable[[], int]
    """Never jumps, and counts the time during which the machine was suspended."""


NEVER_MS = MonotonicMs(-(1 << 62))
"""Before every monotonic time."""


SHIFT_FILE_VARIABLE = "OTTLA_CLOCK_SHIFT_FILE"
"""For tests of clock faults: this environment variable names an eight-byte file with a signed little-endian number of
milliseconds, which is added to the wall time of the process. The file may change at any time. See `ottla verify`."""


def _system_clock() -> int:
    return time.time_ns() // 1_000_000


def shifted_clock(path: str | os.PathLike[str]) -> Clock:
    """A wall clock that is off by the number in a file."""
    import mmap

    with open(path, "rb") as file:
        shift = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    return lambda: time.time_ns() // 1_000_000 + int.from_bytes(shift[:8], "little", signed=True)


system_clock: Clock = (
    shifted_clock(os.environ[SHIFT_FILE_VARIABLE]) if SHIFT_FILE_VARIABLE in os.environ else _system_clock
)
"""The wall time of this machine."""


system_clock_ns = time.time_ns
"""The same time in nanoseconds. A built-in function: it takes a tenth of the time of a Python call."""


def monotonic() -> float:
    """Seconds of a clock that never jumps, to measure durations."""
    return time.monotonic()


def monotonic_ms() -> MonotonicMs:
    """The same in milliseconds."""
    # Does not call MonotonicMs, which would take almost as long as reading the time.
    return time.monotonic_ns() // 1_000_000  # type: ignore[return-value]


def utc_text(wall_ms: int) -> str:
    """A wall time for people; the number itself if it is too large for a date.

    >>> utc_text(1_700_000_000_000), utc_text(1 << 62)
    ('2023-11-14 22:13:20 UTC', '4611686018427387904 ms')
    """
    from datetime import UTC, datetime

    try:
        return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"


def uptime_ms() -> int:
    """Milliseconds since the machine started, including the time it was suspended, where the system reports it."""
    clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock_id) // 1_000_000


def system_boot_clock() -> BootClock:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return BootClock(boot_id, uptime_ms)


thread_cpu_seconds = time.thread_time
"""The CPU time that the calling thread has used, in seconds."""
