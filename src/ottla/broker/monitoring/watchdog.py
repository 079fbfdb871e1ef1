"""OWNER of the thread that watches the event loop: logs every step that takes too long, and what it was doing.

A broker serves everything on one event loop, so a step that takes a second delays every client by a second. uvloop
has no hook for slow callbacks. Instead, a heartbeat runs on the loop as a timer, and a thread looks at the stack of the
loop only while the heartbeat is overdue. Requests are not measured one by one, so the hot path pays nothing.

A heartbeat is also late if the process was suspended or the machine is busy, and the log line says so. In that case the
loop's thread has used little CPU time, and it waited for the CPU, this thread was late too, or the loop had no work.
"""

import asyncio
import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from ottla.broker.dispatch import SERVED, Route
from ottla.broker.services import Context
from ottla.clock import monotonic, thread_cpu_seconds
from ottla.net.server.server import Connection
from ottla.protocol.api import snake_case

log = logging.getLogger("ottla.broker")

HEARTBEATS_PER_LIMIT = 5
"""The precision: a step is measured up to a fifth of the limit too short, never too long."""
HEARTBEAT_SECONDS_MIN = 0.01
WINDOW_SECONDS = 60.0
"""`longest_step` covers the last one to two windows, so that it decreases again."""
STILL_RUNNING_SECONDS = 5.0
"""A step that runs for this long is reported before it ends, because it may never end."""
SAMPLES_MAX = 20
FRAMES_SHOWN = 6


class SlowStep(NamedTuple):
    """A step that has ended."""

    seconds: float
    cpu_seconds: float
    """How long the loop's thread was running in it."""
    requests: int
    """How many requests were started in it."""
    cpu_wait_seconds: float = 0.0
    """How long the loop's thread, or the thread that watches it, was ready to run and did not get the CPU."""


class Sample(NamedTuple):
    """What the loop was doing at one moment of a step."""

    cause: str
    """The request, task or callback."""
    place: str
    """The innermost functions, the current one first."""


class Watchdog:
    """Watches the event loop on which it is started."""

    def __init__(
        self, slow_step_ms: int, log_interval_ms: int, requests: Callable[[], int] = lambda: 0, name: str = "broker"
    ) -> None:
        self._limit = slow_step_ms / 1000
        self._log_interval = log_interval_ms / 1000
        self._requests = requests
        self._name = name
        self.slow_steps = 0
        """How many steps took longer than the limit."""
        # Written by the loop. The thread reads them.
        self._period = max(self._limit / HEARTBEATS_PER_LIMIT, HEARTBEAT_SECONDS_MIN)
        self._due = 0.0
        self._ended: deque[SlowStep] = deque(maxlen=100)
        self._base_depth = 0
        """The number of frames below every callback of the loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._cpu = 0.0
        self._requests_before = 0
        self._longest = self._longest_before = 0.0
        self._window_ends = 0.0
        # Used by the thread alone.
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._samples: list[Sample] = []
        self._held_up = 0.0
        """How long this thread was late itself, since the last heartbeat that was on time."""
        self._statistics = ""
        """The file in which Linux counts how long the loop's thread waited for the CPU."""
        self._waited_before = -1.0
        """How long it had waited when the heartbeat became overdue; -1 while it is on time."""
        self._is_announced = False
        self._silent_until = 0.0
        self._unreported = 0

    @property
    def longest_step(self) -> float:
        """Seconds of the longest step in the last one to two minutes."""
        return max(self._longest, self._longest_before)

    def start(self) -> None:
        """Starts watching the running event loop. Does nothing if the limit is 0."""
        if not self._limit or self._thread is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._statistics = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        now = monotonic()
        self._window_ends = now + WINDOW_SECONDS
        self._wait_for_next(now)
        self._thread = threading.Thread(target=self._watch, name="ottla-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thread is not None:
            self._stopping.set()
            self._thread.join()
            self._thread = None

    # --- on the loop --------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = monotonic()
        late = now - self._due
        if not self._base_depth:
            self._base_depth = len(_stack(sys._getframe())) - 1  # noqa: SLF001
        if now >= self._window_ends:
            self._longest_before, self._longest = self._longest, 0.0
            self._window_ends = now + WINDOW_SECONDS
        if late > self._longest:
            self._longest = late
        if late >= self._limit:
            self.slow_steps += 1
            cpu_seconds = thread_cpu_seconds() - self._cpu
            self._ended.append(SlowStep(late, cpu_seconds, self._requests() - self._requests_before))
        self._wait_for_next(now)

    def _wait_for_next(self, now: float) -> None:
        assert self._loop is not None
        self._cpu = thread_cpu_seconds()
        self._requests_before = self._requests()
        self._due = now + self._period
        self._timer = self._loop.call_later(self._period, self._beat)

    # --- in the thread ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        wake_at = monotonic()
        while not self._stopping.wait(max(0.0, wake_at - monotonic())):
            now = monotonic()
            self._held_up += now - wake_at
            try:
                wake_at = self._look(now)
            except Exception:
                # Watching must never affect the broker.
                log.exception("%s: the watchdog of the event loop failed", self._name)
                wake_at = now + 1.0

    def _look(self, now: float) -> float:
        """Looks at the loop; returns when to look again."""
        if self._ended:
            step = self._ended.popleft()
            waited = _waited_for_cpu(self._statistics) - self._waited_before if self._waited_before >= 0 else 0.0
            self._report(step._replace(cpu_wait_seconds=max(self._held_up, waited)), now)
            self._forget()
            return now
        overdue = now - self._due
        if overdue < self._limit:
            if overdue < 0:
                self._forget()
            elif self._waited_before < 0:
                self._waited_before = _waited_for_cpu(self._statistics)
            # Also before the next heartbeat can be overdue: only a thread that wants to run notices that it cannot.
            return min(now + self._limit / 2, self._due + self._limit)
        if len(self._samples) < SAMPLES_MAX:
            self._samples.append(self._sample())
        if overdue > STILL_RUNNING_SECONDS and not self._is_announced:
            self._is_announced = True
            what = self._most_common_sample()
            log.warning(
                "%s: the event loop has been blocked for %.1f s (ottla.slow.step.ms=%.0f) and still is: %s at %s",
                self._name, overdue, self._limit * 1000, what.cause, what.place,
            )  # fmt: skip
        # Samples of a long step are spread over it.
        return now + max(self._limit / 5, overdue / 10)

    def _forget(self) -> None:
        """The loop is on time: the next slow step starts with nothing known about it."""
        self._samples, self._held_up, self._is_announced = [], 0.0, False
        self._waited_before = -1.0

    def _sample(self) -> Sample:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001
        task = asyncio.current_task(self._loop)
        return sample_of(_stack(frame)[self._base_depth :], task)

    def _most_common_sample(self) -> Sample:
        return Counter(self._samples).most_common(1)[0][0]

    def _report(self, step: SlowStep, now: float) -> None:
        if now < self._silent_until:
            self._unreported += 1
            return
        self._silent_until = now + self._log_interval
        more = f"; {self._unreported} more since the last such line" if self._unreported else ""
        self._unreported = 0
        log.warning("%s: %s%s", self._name, describe(step, self._samples, self._limit), more)


def describe(step: SlowStep, samples: list[Sample], limit: float) -> str:
    """Why the loop was late, in one line.

    >>> describe(SlowStep(1.5, 1.4, 1), [Sample("ListGroups v5", "a.py:9 f")], 0.25)
    'the event loop was blocked for 1.50 s (ottla.slow.step.ms=250; 1.40 s of CPU) by ListGroups v5 at a.py:9 f'
    """
    seconds, cpu_seconds, requests, cpu_wait_seconds = step
    busy = [sample for sample in samples if sample.cause]
    setting, used = f"ottla.slow.step.ms={limit * 1000:.0f}", f"{cpu_seconds:.2f} s of CPU"
    if cpu_seconds < limit and (not busy or seconds - cpu_wait_seconds < limit):
        return (
            f"the event loop was {seconds:.2f} s late ({setting}), but the process did not get the CPU ({used}): "
            "it was suspended, or the machine is busy"
        )
    (cause, place), _ = Counter(busy or [Sample("an unknown step", "an unknown place")]).most_common(1)[0]
    if cpu_wait_seconds > seconds / 2:
        used += f", {cpu_wait_seconds:.2f} s of waiting for it"
    idle = "" if cpu_seconds + cpu_wait_seconds >= seconds / 2 else ", which waited for a file or a lock"
    many = f"; {requests} requests were handled meanwhile" if requests > 1 else ""
    return f"the event loop was blocked for {seconds:.2f} s ({setting}; {used}) by {cause} at {place}{idle}{many}"


def _waited_for_cpu(statistics: str) -> float:
    """Seconds in which a thread was ready to run and did not get the CPU; 0 where the system does not count them."""
    try:
        with open(statistics, "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def sample_of(frames: list[FrameType], task: "asyncio.Task[Any] | None") -> Sample:
    """What a step is doing. `frames` are those of the step alone, the outermost first; none if the loop is idle."""
    if not frames:
        return Sample("", "")
    cause = next(filter(None, map(_request_of, frames)), "")
    if not cause and task is not None:
        cause = f"task {getattr(task.get_coro(), '__qualname__', task.get_name())}"
    if not cause:
        cause = f"callback {_name(frames[0])}"
    place = " < ".join(
        f"{_short_path(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
        for frame in frames[: -FRAMES_SHOWN - 1 : -1]
    )
    return Sample(cause, place)


def _request_of(frame: FrameType) -> str:
    """The request that a frame handles, found in the variables of the dispatcher and of handlers."""
    module: str = frame.f_globals.get("__name__", "")
    if not module.startswith("ottla.broker."):
        return ""
    found = frame.f_locals
    late = found.get("self")
    route, context = found.get("route"), found.get("context") or getattr(late, "_context", None)
    if isinstance(route, Route):
        connection = found.get("connection") or getattr(context, "connection", None)
        client_id = found.get("client_id") or getattr(context, "client_id", None)
        return _request_text(route.name, route.version, connection, client_id)
    if isinstance(context, Context) and module.startswith("ottla.broker.handlers."):
        name = module.rpartition(".")[2]
        api = next((api.name for api in SERVED.values() if snake_case(api.name) == name), name)
        return _request_text(api, context.api_version, context.connection, context.client_id)
    return ""


def _request_text(api: str, version: int, connection: Any, client_id: Any) -> str:
    where = f" from {connection.client_host}:{connection.client_port}" if isinstance(connection, Connection) else ""
    return f"{api} v{version}{where} (client id {client_id!r})"


def _stack(frame: FrameType | None) -> list[FrameType]:
    """The frames of a stack, the outermost first."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"


def _short_path(path: str) -> str:
    """
    >>> _short_path("/usr/lib/python3.11/site-packages/ottla/broker/handlers/fetch.py")
    'handlers/fetch.py'
    """
    folder, file = os.path.split(path)
    return f"{os.path.basename(folder)}/{file}"
