"""`ottla cluster watch`: a live view of brokers and of the replicas that catch up."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ottla.cli.cluster.overview import brokers_of, document, health_text
from ottla.cli.cluster.state import Behind, ClusterState, read_state
from ottla.cli.output import console, count, duration, plural, size
from ottla.cli.session import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, check_reachable, client_settings, explain
from ottla.client.blocking import Admin
from ottla.clock import monotonic
from ottla.errors import KafkaError

ROWS_MAX = 15
BAR_WIDTH = 14
API_TIMEOUT_MS = 3_000
"""Shorter than in other commands, because the next update follows soon."""

Show = Callable[[ClusterState], None]


def watch(
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="Time between two updates.")
    ] = 1.0,
    until_in_sync: Annotated[
        bool,
        typer.Option(
            "--until-in-sync", metavar="", help="Exit when all replicas are in sync and no partition is being moved."
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Watch brokers and the replicas that catch up, until Ctrl-C.

    On a terminal the view is refreshed in place; in a pipe there is one line
    for each change, and with --json one document per line.

    \b
    Examples:
      ottla cluster watch
      ottla cluster watch --until-in-sync     # between rolling restarts
      ottla cluster watch --json --interval 5
    """
    check_reachable(bootstrap)
    with Admin(client_settings(bootstrap) | {"default.api.timeout.ms": str(API_TIMEOUT_MS)}) as admin:
        watch_until(
            admin,
            lambda state: until_in_sync and state.is_healthy and not state.down,
            interval=interval,
            as_json=as_json,
        )


def watch_until(
    admin: Admin,
    is_done: Callable[[ClusterState], bool],
    *,
    interval: float = 1.0,
    as_json: bool = False,
    is_silent: bool = False,
    timeout: float | None = None,
) -> bool:
    """Shows the cluster repeatedly until it is in the wanted state. False after `timeout`."""
    deadline = None if timeout is None else monotonic() + timeout
    view = _silent() if is_silent else _json_lines() if as_json else _live() if console().is_terminal else _lines()
    with view as show:
        while True:
            try:
                state = read_state(admin)
            except KafkaError as error:
                # Between the death of a broker and the election that follows, some requests fail.
                if not error.retriable:
                    raise
                if not is_silent:
                    print(f"ottla: {explain(error)[0]}; retrying", file=sys.stderr)
            else:
                done = is_done(state)
                show(state)
                if done:
                    return True
            if deadline is not None and monotonic() >= deadline:
                return False
            time.sleep(interval if deadline is None else max(0.0, min(interval, deadline - monotonic())))


class Speeds:
    """How fast each replica catches up, from one update to the next."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._seen: dict[tuple[Any, int], tuple[float, int]] = {}
        self._speeds: dict[tuple[Any, int], float] = {}

    def take(self, replicas: list[Behind]) -> None:
        now = self._now()
        seen: dict[tuple[Any, int], tuple[float, int]] = {}
        for each in replicas:
            if each.bytes is None:
                continue
            key = (each.partition, each.broker)
            seen[key] = (now, each.bytes)
            if key in self._seen:
                before_at, before = self._seen[key]
                if now > before_at:
                    self._speeds[key] = max(0.0, (each.bytes - before) / (now - before_at))
        self._seen = seen

    def of(self, each: Behind) -> float | None:
        """Bytes per second; None if it is not known yet."""
        return self._speeds.get((each.partition, each.broker)) if each.is_running else None

    def left_s(self, each: Behind) -> float | None:
        speed, missing = self.of(each), each.missing_bytes
        return missing / speed if speed and missing is not None else None


@contextmanager
def _silent() -> Iterator[Show]:
    yield lambda state: None


@contextmanager
def _json_lines() -> Iterator[Show]:
    def show(state: ClusterState) -> None:
        sys.stdout.write(json.dumps(document(state)) + "\n")
        sys.stdout.flush()

    yield show


@contextmanager
def _lines() -> Iterator[Show]:
    last = ""

    def show(state: ClusterState) -> None:
        nonlocal last
        missing = sum(each.missing_bytes or 0 for each in state.behind())
        line = summary(state) + (f", {size(missing)} to copy" if missing else "")
        if line != last:
            last = line
            print(line, flush=True)

    yield show


@contextmanager
def _live() -> Iterator[Show]:
    speeds = Speeds()
    with Live(console=Console(highlight=False), auto_refresh=False) as live:

        def show(state: ClusterState) -> None:
            speeds.take(state.behind())
            live.update(render(state, speeds), refresh=True)

        yield show


def summary(state: ClusterState) -> str:
    down = state.down
    brokers = plural(len(state.running), "broker") + (f" (down: {', '.join(map(str, down))})" if down else "")
    return f"{brokers}, {plural(state.partition_count, 'partition')}{health_text(state)}"


def render(state: ClusterState, speeds: Speeds) -> RenderableType:
    controller = f"controller {state.description.controller_id}"
    if state.quorum is not None:
        controller += f" (epoch {state.quorum.epoch})"
    style = "red" if state.offline else "yellow" if not state.is_healthy or state.down else "green"
    parts: list[RenderableType] = [
        Text.assemble((summary(state), style), f", {controller}"),
        Text(),
        _broker_table(state),
    ]
    behind = state.behind()
    if behind:
        parts += [Text(), _replica_table(behind[:ROWS_MAX], speeds)]
        if len(behind) > ROWS_MAX:
            parts.append(Text(f"and {count(len(behind) - ROWS_MAX)} more replicas", style="dim"))
    return Group(*parts)


def _broker_table(state: ClusterState) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("broker", "address", "leads", "replicas", "in sync", "size"):
        table.add_column(column, justify="left" if column == "address" else "right")
    for broker in brokers_of(state):
        address = Text(f"{broker['host']}:{broker['port']}") if broker["running"] else Text("down", style="bold red")
        in_sync = Text(str(broker["in_sync"]), style="yellow" if broker["in_sync"] < broker["replicas"] else "")
        shown = size(broker["bytes"]) if broker["bytes"] is not None else "-"
        table.add_row(str(broker["id"]), address, str(broker["leads"]), str(broker["replicas"]), in_sync, shown)
    return table


def _replica_table(behind: list[Behind], speeds: Speeds) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("replica", "on", "state", "progress", "to copy", "speed", "left"):
        table.add_column(
            column, justify="right" if column in ("on", "to copy", "speed", "left") else "left", no_wrap=True
        )
    for each in behind:
        state = (
            Text("down", style="red")
            if not each.is_running
            else Text("new" if each.is_new else "behind", style="yellow")
        )
        missing, speed, left = each.missing_bytes, speeds.of(each), speeds.left_s(each)
        table.add_row(
            str(each.partition),
            str(each.broker),
            state,
            bar(each.progress),
            size(missing) if missing is not None else "-",
            f"{size(speed)}/s" if speed is not None else "-",
            duration(left, whole=True) if left is not None else "-",
        )
    return table


def bar(progress: float | None) -> str:
    """
    >>> bar(0.5), bar(None)
    ('#######-------  50 %', '-')
    """
    if progress is None:
        return "-"
    full = int(progress * BAR_WIDTH)
    return f"{'#' * full}{'-' * (BAR_WIDTH - full)} {int(progress * 100):3d} %"
