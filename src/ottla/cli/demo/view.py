"""How the demo looks: bars and a story on a terminal, the story alone in a pipe."""

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ottla.cli.output import count as shown
from ottla.clock import monotonic

LINE_EVERY_S, STILL_EVERY_S = 3.0, 20.0
"""How often a pipe gets a line where there is something new, and where there is not."""


class DemoView:
    """Tells what happens, with the time since the start."""

    def __init__(self, as_json: bool, total: int) -> None:
        self._console = Console(file=sys.stdout, highlight=False)
        self._is_silent = as_json
        self._has_bars = not as_json and self._console.is_terminal
        self._total = total
        self._started = monotonic()
        self._line, self._line_at = "", 0.0
        self._progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._has_bars,
        )
        self._ordered: TaskID = self._progress.add_task("orders placed", total=total, note="")
        self._priced: TaskID = self._progress.add_task("orders through", total=total, note="waiting for Spark")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._print(text, "")

    def alarm(self, text: str) -> None:
        self._print(text, "bold red")

    def _print(self, text: str, style: str) -> None:
        if self._is_silent:
            return
        line = Text(f"{monotonic() - self._started:6.1f} s  ", style="dim")
        line.append(text, style=style or "default")
        self._console.print(line, soft_wrap=True)

    def batch(self, batch: dict[str, Any]) -> None:
        if batch["query"] == "enriched":
            rate = batch["rows_in"] / max(batch["duration_ms"], 1) * 1000
            note = f"batch {batch['batch_id']}: {shown(batch['rows_in'])} in {batch['duration_ms'] / 1000:.1f} s"
            self._progress.update(self._priced, note=f"{note}, {rate:,.0f}/s")

    def progress(self, placed: int, through: int, revenue: Any) -> None:
        if self._has_bars:
            self._progress.update(self._ordered, completed=placed)
            self._progress.update(self._priced, completed=min(through, self._total))
            return
        line = f"{shown(placed)} orders placed, {shown(through)} through"
        wait_s = STILL_EVERY_S if line == self._line else LINE_EVERY_S
        if monotonic() - self._line_at >= wait_s and through < self._total:
            self._line, self._line_at = line, monotonic()
            self.say(line)
