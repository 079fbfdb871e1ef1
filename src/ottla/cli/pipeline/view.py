"""Output of a running pipeline: a live table on a terminal, one line per batch in a pipe, or JSON lines."""

import json
import sys
from typing import TYPE_CHECKING, Any, Protocol, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ottla.cli.output import count, duration, time_text
from ottla.clock import Clock, system_clock
from ottla.pipeline.running.progress import Batch
from ottla.pipeline.running.state import RunState

if TYPE_CHECKING:
    from collections.abc import Callable

COLOURS = {"running": "green", "failed": "bold red", "restarting": "yellow", "stopping": "yellow"}
Event = dict[str, Any]


class View(Protocol):
    """Displays a run."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def say(self, text: str) -> None: ...
    def on_event(self, event: Event, state: RunState) -> None: ...
    def on_tick(self, state: RunState) -> None: ...


class Rates:
    """Rows per second of a query, from one batch to the next."""

    def __init__(self) -> None:
        self._ended_ms: dict[str, int] = {}
        self.rows_in: dict[str, float] = {}
        self.rows_out: dict[str, float] = {}

    def take(self, batch: Batch) -> None:
        since = self._ended_ms.get(batch.query, batch.ended_ms - batch.duration_ms)
        seconds = max(batch.ended_ms - since, 1) / 1000
        self._ended_ms[batch.query] = batch.ended_ms
        self.rows_in[batch.query] = batch.rows_in / seconds
        self.rows_out[batch.query] = (batch.rows_out or 0) / seconds


class JsonView:
    """One JSON object per line: every event and every batch."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def on_event(self, event: Event, state: RunState) -> None:
        document = dict(event)
        if event["event"] == "batch":
            batch = Batch.from_document(event["batch"])
            query = state.queries[batch.query]
            document = {"event": "batch", **batch.document(), "lag": query.lag, "restarts": state.restarts}
        elif event["event"] == "starting":
            document |= {"bootstrap": state.bootstrap, "pid": state.pid, "driver_pid": state.driver_pid}
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()

    def on_tick(self, state: RunState) -> None:
        pass


class PlainView:
    """One line per batch and per state change."""

    def __init__(self) -> None:
        self._rates = Rates()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def on_event(self, event: Event, state: RunState) -> None:
        if event["event"] == "batch":
            batch = Batch.from_document(event["batch"])
            self._rates.take(batch)
            self.say(batch_line(batch, self._rates, state))
        else:
            line = phase_line(event)
            if line:
                self.say(line)

    def on_tick(self, state: RunState) -> None:
        pass


class LiveView:
    """A table that is updated in place."""

    def __init__(self, title: str, clock: Clock = system_clock) -> None:
        self._title = title
        self._clock = clock
        self._rates = Rates()
        self._state: RunState | None = None
        self._live = Live(get_renderable=self.render, console=Console(highlight=False), refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.refresh()
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(Text(text, style="dim"))

    def on_event(self, event: Event, state: RunState) -> None:
        self._state = state
        if event["event"] == "batch":
            self._rates.take(Batch.from_document(event["batch"]))
        elif event["event"] in ("restarting", "failed"):
            self.say(phase_line(event))

    def on_tick(self, state: RunState) -> None:
        self._state = state

    def render(self) -> RenderableType:
        """The current state as a table with a heading."""
        state = self._state
        head = Text(self._title, style="bold")
        if state is None:
            return head
        head.append(f"  {state.phase}", style=COLOURS.get(state.phase, "cyan"))
        facts = f"  brokers {state.bootstrap}   up {self._since(state.started_ms)}"
        head.append(facts + f"   restarts {state.restarts}", style="not bold")
        if state.phase == "starting":
            head.append("   starting Spark", style="not bold dim")
        return Group(head, self._table(state))

    def _since(self, time_ms: int) -> str:
        return duration(max(0, self._clock() - time_ms) / 1000, whole=True)

    def _table(self, state: RunState) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("query")
        for heading in ("batch", "in/s", "out/s", "in", "out", "bad", "batch time", "lag"):
            table.add_column(heading, justify="right")
        table.add_column("last commit")
        for name, query in state.queries.items():
            rates = (self._rates.rows_in.get(name, 0), self._rates.rows_out.get(name, 0))
            table.add_row(
                name,
                "-" if query.batch_id < 0 else str(query.batch_id),
                *(f"{rate:,.0f}" for rate in rates),
                count(query.total_in),
                count(query.total_out),
                Text(count(query.total_bad), style="yellow" if query.total_bad else ""),
                f"{query.duration_ms / 1000:.2f} s" if query.ended_ms else "-",
                "-" if query.lag is None else count(query.lag),
                f"{self._since(query.ended_ms)} ago" if query.ended_ms else "-",
            )
        return table


def batch_line(batch: Batch, rates: Rates, state: RunState) -> str:
    lag = state.queries[batch.query].lag
    parts = [
        f"{count(batch.rows_in)} in ({rates.rows_in[batch.query]:,.0f}/s)",
        f"{count(batch.rows_out or 0)} out ({rates.rows_out[batch.query]:,.0f}/s)",
        f"{batch.duration_ms / 1000:.2f} s",
    ]
    if lag is not None:
        parts.append(f"lag {count(lag)}")
    if batch.bad:
        parts.append(f"bad {count(sum(batch.bad.values()))}")
    return f"{time_text(batch.ended_ms)} {batch.query} batch {batch.batch_id}: {', '.join(parts)}"


def phase_line(event: Event) -> str:
    """A line for a state change of the run; empty for events without one."""
    lines: dict[str, Callable[[], str]] = {
        "starting": lambda: "starting Spark",
        "spark": lambda: f"Spark {event['version']} on {event['master']}",
        "started": lambda: f"running: {', '.join(event['queries'])}",
        "stopping": lambda: "stopping after this batch; press Ctrl-C again to stop now",
        "restarting": lambda: (
            f"failed: {event['cause']}; restarting in {event['delay_s']:.0f} s (restart {event['restarts']})"
        ),
        "failed": lambda: "",
        "stopped": lambda: "stopped",
        "ended": lambda: "",
    }
    return lines.get(event["event"], lambda: "")()
