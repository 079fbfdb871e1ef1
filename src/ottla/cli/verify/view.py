"""Output of a running `ottla verify`: events and a progress bar on a terminal, lines in a pipe, nothing with --json."""

import sys
import threading
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ottla.cli.output import count
from ottla.clock import monotonic
from ottla.verify.history import FAIL, OK, UNKNOWN
from ottla.verify.workers.recorder import Recorder

SILENT_S = 10.0
"""In a pipe: after this time without an event, a line shows the progress of the run."""


class VerifyView:
    """Events with the time since the start. Methods may be called from any thread."""

    def __init__(self, seconds: float, *, is_silent: bool) -> None:
        self._console = Console(file=sys.stdout, highlight=False)
        self._is_silent = is_silent
        self._has_bar = not is_silent and self._console.is_terminal
        self._started = self._said_at = monotonic()
        self._lock = threading.Lock()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=self._console,
            disable=not self._has_bar,
        )
        self._task = self._progress.add_task("running", total=seconds, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Prints an event."""
        if self._is_silent:
            return
        with self._lock:
            self._said_at = monotonic()
            line = Text.assemble((f"{self._said_at - self._started:7.1f} s  ", "dim"), text)
            self._console.print(line, soft_wrap=True)
        self._progress.update(self._task, description="running" if text.startswith("healed") else text[:40])

    def tick(self, recorder: Recorder, seconds: float) -> None:
        """Updates the progress of the run."""
        done = ", ".join(f"{count(recorder.counts.get(outcome, 0))} {outcome}" for outcome in (OK, FAIL, UNKNOWN))
        self._progress.update(self._task, completed=seconds, note=done)
        if not self._has_bar and monotonic() - self._said_at >= SILENT_S:
            self.say(f"operations: {done}")
