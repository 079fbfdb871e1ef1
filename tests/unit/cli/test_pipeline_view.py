"""Output of a running pipeline: lines, JSON objects, or a live table."""

import io
import json

import pytest
from rich.console import Console

from ottla.cli.pipeline.view import JsonView, LiveView, PlainView
from ottla.pipeline.running.progress import Batch
from ottla.pipeline.running.state import QueryState, RunState

NOON = 1_767_268_800_000


@pytest.fixture
def state() -> RunState:
    query = QueryState("id", 4, 500, 20, 250, NOON, {}, 17, None, 1_500, 60, 2, 5)
    return RunState(
        "shop", "f", 1, "here", "b:1", {}, NOON - 65_000, phase="running", restarts=2, queries={"shop": query}
    )


def batch(batch_id: int, ended_ms: int) -> dict[str, object]:
    return {"event": "batch", "batch": Batch("shop", batch_id, 500, 20, 250, ended_ms, {"orders": 2}).document()}


def test_a_pipe_gets_one_line_per_batch_and_state_change(state: RunState, capsys: pytest.CaptureFixture[str]) -> None:
    """Spec: F3."""
    with PlainView() as view:
        view.on_event(batch(3, NOON), state)
        view.on_event(batch(4, NOON + 1_000), state)
        view.on_event({"event": "restarting", "cause": "it died", "delay_s": 2.0, "restarts": 3}, state)
    assert capsys.readouterr().out.splitlines() == [
        "2026-01-01T12:00:00.000Z shop batch 3: 500 in (2,000/s), 20 out (80/s), 0.25 s, lag 17, bad 2",
        "2026-01-01T12:00:01.000Z shop batch 4: 500 in (500/s), 20 out (20/s), 0.25 s, lag 17, bad 2",
        "failed: it died; restarting in 2 s (restart 3)",
    ]


def test_json_output_has_one_object_per_batch(state: RunState, capsys: pytest.CaptureFixture[str]) -> None:
    with JsonView() as view:
        view.on_event(batch(3, NOON), state)
    document = json.loads(capsys.readouterr().out)
    assert (document["event"], document["query"], document["rows_in"], document["lag"], document["restarts"]) == (
        "batch",
        "shop",
        500,
        17,
        2,
    )


def test_a_terminal_gets_a_live_table(state: RunState) -> None:
    """Spec: F3. Rows in and out per second, batch time, lag, last commit, restarts."""
    view = LiveView("shop", clock=lambda: NOON + 3_000)
    view.on_event(batch(4, NOON), state)
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(view.render())
    shown = console.export_text()
    for part in (
        "shop",
        "running",
        "b:1",
        "1 min 8 s",
        "restarts 2",
        "2,000",
        "80",
        "1,500",
        "0.25 s",
        "17",
        "3 s ago",
    ):
        assert part in shown, (part, shown)
