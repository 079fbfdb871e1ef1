"""Waiting for a condition as long as a slow machine may need, and measuring waits despite other work on it."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 300.0
"""For events that are certain to happen: on a machine with many times more work than cores, they may take minutes."""
PAUSE_S = 0.02
"""Between two checks, so that the process that is waited for gets the processor."""


def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S, *, pause_s: float = PAUSE_S) -> bool:
    """Whether the condition becomes true. Apache Kafka answers before all of its parts have applied a change."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True


def eventually(condition: Callable[[], bool], timeout_s: float = PATIENCE_S, *, pause_s: float = PAUSE_S) -> None:
    """Fails unless the condition becomes true in time."""
    assert until(condition, timeout_s, pause_s=pause_s), f"the condition did not become true within {timeout_s} s"


def until_found(find: Callable[[], T | None], timeout_s: float = PATIENCE_S, *, pause_s: float = PAUSE_S) -> T | None:
    """The first value that is not None; None if there is none in time. A broker that is restarting may not answer."""
    found: T | None = None

    def is_found() -> bool:
        nonlocal found
        with contextlib.suppress(OSError):
            found = find()
        return found is not None

    until(is_found, timeout_s, pause_s=pause_s)
    return found


async def eventually_async(
    condition: Callable[[], bool], timeout_s: float = PATIENCE_S, *, pause_s: float = 0.001
) -> None:
    """Like `eventually`, while the event loop runs. A pause of 0 checks in every iteration of the loop."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition may depend on other processes and threads
            await asyncio.sleep(pause_s)


def run_story(story: Callable[[], Coroutine[Any, Any, None]], timeout_s: float = PATIENCE_S) -> None:
    """Runs a coroutine function in a new event loop, and fails if it takes longer than that."""

    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await story()

    asyncio.run(bounded())


def slowness() -> float:
    """How many times longer everything takes because of the other work on this machine: processes per core, at least 1.

    For time limits that are themselves what a test checks. The load average follows the last minute; after a sudden
    start of much work, the number of processes that want to run now is nearer to the truth.
    """
    with open("/proc/loadavg") as file:
        last_minute, _, _, processes, _ = file.read().split()
    return max(1.0, max(float(last_minute), float(processes.partition("/")[0])) / (os.cpu_count() or 1))


def stretched(duration_ms: int) -> int:
    """A timeout that a test needs short, and that a busy machine must not exceed just because it is busy.

    A test run on a machine without other work has about two processes per core: there it stays as it is.
    """
    return int(duration_ms * max(1.0, slowness() / 2))


class Wait:
    """The time for which a broker keeps a client waiting, from now on.

    If a busy machine keeps the broker from running, only its processor time counts: work for other clients is the
    broker's choice, a late turn on the processor is not.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started = time.monotonic()
        self._processor_s = processor_s(pid)

    @property
    def seconds(self) -> float:
        return min(time.monotonic() - self._started, processor_s(self._pid) - self._processor_s)


def processor_s(pid: int) -> float:
    """The processor time of all threads of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
