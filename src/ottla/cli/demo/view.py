"""Output of the demo: progress bars and events on a terminal, events only in a pipe, nothing with --json."""

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from ottla.cli.output import count as shown
from ottla.clock import monotonic

LINE_EVERY_S, STILL_EVERY_S = 3.0, 20.0
"""In a pipe: the time between progress lines while there is progress, and while there is none."""


class DemoView:
    """Prints events with the time since the start, above two progress bars."""

    def __init__(self, as_json: bool, total: int) -> None:
        self._console = Console(file=sys.stdout, highlight=False)
        self._is_silent = as_json
        self._has_bars = not as_json and self._console.is_terminal
        self._total = total
        self._started = monotonic()
        self._line, self._line_at = "", 0.0
        self._progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:>9,.0f}"),
            TextColumn("{task.fields[note]}", style="dim"),
            console=self._console,
            disable=not self._has_bars,
        )
        self._produced: TaskID = self._progress.add_task("orders produced", total=total, note="")
        self._processed: TaskID = self._progress.add_task("orders processed", total=total, note="starting Spark")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str, style: str = "default") -> None:
        """Prints an event."""
        if self._is_silent:
            return
        line = Text.assemble((f"{monotonic() - self._started:6.1f} s  ", "dim"), (text, style))
        self._console.print(line, soft_wrap=True)

    def note(self, text: str) -> None:
        """Sets the text next to the bar of processed orders."""
        self._progress.update(self._processed, note=text)

    def batch(self, batch: dict[str, Any]) -> None:
        if batch["query"] == "enriched":
            self.note(f"batch {batch['batch_id']}: {shown(batch['rows_in'])} in {batch['duration_ms'] / 1000:.1f} s")

    def progress(self, produced: int, processed: int) -> None:
        if self._has_bars:
            self._progress.update(self._produced, completed=produced)
            self._progress.update(self._processed, completed=min(processed, self._total))
            return
        line = f"{shown(produced)} orders produced, {shown(processed)} processed"
        wait_s = STILL_EVERY_S if line == self._line else LINE_EVERY_S
        if monotonic() - self._line_at >= wait_s and processed < self._total:
            self._line, self._line_at = line, monotonic()
            self.say(line)
