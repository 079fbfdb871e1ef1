"""The table of the last long run in docs/testing.md."""

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BEGIN = "<!-- last long run: written by ./run test --long --record -->\n"
END = "<!-- end of the last long run -->\n"


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """What a run of the long lane was, and how it ended."""

    command: str
    base_seed: int
    commit: str
    machine: str
    duration_s: float
    result: str
    has_failed: bool


def table(run: LongRun) -> str:
    minutes = max(1, round(run.duration_s / 60))
    rows = {
        "Command": f"`{run.command}`",
        "Base seed": str(run.base_seed),
        "Commit": run.commit,
        "Machine": run.machine,
        "Duration": f"{minutes} min",
        "Result": f"{'FAILED: ' if run.has_failed else ''}{run.result}",
    }
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def record(run: LongRun, page: Path = PAGE) -> None:
    """Replaces the table in the page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(run)}\n{END}{after}")
