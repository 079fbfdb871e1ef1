"""OWNER of time limits: a step that takes too long is reported with the line where it is stuck, and the run continues.

All times are monotonic: setting the clock of the machine does not affect them.
"""

import faulthandler
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ottla.clock import monotonic
from ottla.verify.workers.recorder import Recorder

STALL = "stall"
STALL_S = 3.0
"""If this program was not scheduled for longer, its timeouts prove nothing about the cluster."""
CHECK_INTERVAL_S = 0.25
HANG_S = 120.0
"""If no Python thread could run for this long, the stacks of all threads are written to standard error."""
POLL_INTERVAL_S = 0.1
FRAMES = 6
T = TypeVar("T")


class Hang(Exception):
    """A step did not end. The text names it, and where it is stuck."""


def hang_of(what: str, seconds: float, thread: threading.Thread) -> Hang:
    return Hang(f"{what} has made no progress for {seconds:g} s; it is stuck at {place_of(thread)}")


def place_of(thread: threading.Thread) -> str:
    """The innermost calls of a thread: `wait (threading.py:331) < _episode (nemesis.py:62) < …`."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001
    if frame is None:
        return "no place: its thread has ended"
    calls = list(reversed(traceback.extract_stack(frame)))
    return " < ".join(f"{call.name} ({Path(call.filename).name}:{call.lineno})" for call in calls[:FRAMES])


def within(seconds: float, what: str, act: Callable[[], T], *, progress: Callable[[], object] = lambda: None) -> T:
    """Runs `act` with a time limit, which restarts whenever `progress()` changes."""
    return all_within(seconds, what, [act], progress=progress)[0]


def all_within(
    seconds: float, what: str, acts: Sequence[Callable[[], T]], *, progress: Callable[[], object] = lambda: None
) -> list[T]:
    """The same for several concurrent acts. Raises the first error when all have ended."""
    calls = [_Call(what, act) for act in acts]
    for call in calls:
        call.start()
    seen, since = progress(), monotonic()
    for call in calls:
        while call.is_alive():
            call.join(POLL_INTERVAL_S)
            if (now := progress()) != seen:
                seen, since = now, monotonic()
            elif call.is_alive() and monotonic() - since >= seconds:
                raise hang_of(what, seconds, call)
    for call in calls:
        if call.error is not None:
            raise call.error
    return [result for call in calls for result in call.results]


class _Call(threading.Thread, Generic[T]):
    """A daemon thread: unlike those of an executor, one that hangs does not keep the program from exiting."""

    def __init__(self, what: str, act: Callable[[], T]) -> None:
        super().__init__(name=f"verify-{what}", daemon=True)
        self._act = act
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.results.append(self._act())
        except BaseException as error:
            self.error = error


class StallWatch:
    """Detects times in which this program could not run: the machine was suspended or overloaded, or a library held the
    GIL. Such a time is recorded as a fault: no client can make progress in it."""

    def __init__(self, recorder: Recorder, say: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._say = say
        self._last_us = recorder.now_us()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verify-stalls", daemon=True)

    def __enter__(self) -> "StallWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(10 * CHECK_INTERVAL_S)

    def _run(self) -> None:
        try:
            while not self._ending.wait(CHECK_INTERVAL_S):
                self.look()
                if sys.__stderr__ is not None:
                    # faulthandler uses a C thread, so it can write even if no Python thread can run.
                    faulthandler.dump_traceback_later(HANG_S, file=sys.__stderr__)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def look(self) -> None:
        before, self._last_us = self._last_us, self._recorder.now_us()
        seconds = (self._last_us - before) / 1e6
        if seconds >= STALL_S:
            fault = self._recorder.begin_fault(
                STALL, (), f"this program could not run for {seconds:.1f} s: the machine was stopped or overloaded"
            )
            fault.started_us, fault.ended_us = before, self._last_us
            self._say(fault.detail)
