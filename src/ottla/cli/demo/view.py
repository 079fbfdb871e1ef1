"""Output of the demo: progress bars and events on a terminal, events only in a pipe, nothing with --json."""

import sys
import threading
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ottla.cli.output import count as shown
from ottla.clock import monotonic

SILENT_S = 2.5
"""In a pipe: after this time without an event, a line shows what the demo is waiting for."""


class Say(Protocol):
    """Prints an event."""

    def __call__(self, text: str, style: str = "default", /) -> None: ...


class DemoView:
    """Prints events with the time since the start, above two progress bars."""

    def __init__(self, as_json: bool, total: int) -> None:
        self._console = Console(file=sys.stdout, highlight=False)
        self._is_silent = as_json
        self._has_bars = not as_json and self._console.is_terminal
        self._total = total
        self._started = self._said_at = monotonic()
        self._produced_count = self._processed_count = 0
        self._note = "starting Spark"
        self._is_over = threading.Event()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=26),
            TextColumn("{task.completed:>9,.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=self._console,
            disable=not self._has_bars,
        )
        self._produced: TaskID = self._progress.add_task("orders produced", total=total, note="")
        self._processed: TaskID = self._progress.add_task("orders processed", total=total, note=self._note)

    def __enter__(self) -> Self:
        self._progress.start()
        if not self._is_silent and not self._has_bars:
            threading.Thread(target=self._report_progress, name="demo-view", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._progress.stop()

    def say(self, text: str, style: str = "default") -> None:
        """Prints an event."""
        if self._is_silent:
            return
        self._said_at = monotonic()
        line = Text.assemble((f"{self._said_at - self._started:6.1f} s  ", "dim"), (text, style))
        self._console.print(line, soft_wrap=True)

    def note(self, text: str) -> None:
        """Sets the text next to the bar of processed orders: what the demo is doing."""
        self._note = text
        self._progress.update(self._processed, note=text)

    def batch(self, batch: dict[str, Any]) -> None:
        if batch["query"] == "enriched":
            self.note(f"batch {batch['batch_id']}: {shown(batch['rows_in'])} in {batch['duration_ms'] / 1000:.1f} s")

    def progress(self, produced: int, processed: int) -> None:
        self._produced_count, self._processed_count = produced, min(processed, self._total)
        self._progress.update(self._produced, completed=produced)
        self._progress.update(self._processed, completed=self._processed_count)

    def _report_progress(self) -> None:
        while not self._is_over.wait(SILENT_S / 10):
            if monotonic() - self._said_at >= SILENT_S:
                produced, processed = shown(self._produced_count), shown(self._processed_count)
                self.say(f"{produced} orders produced, {processed} processed ({self._note})")
