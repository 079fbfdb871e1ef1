"""The results: samples of all measures, as tables with best, median and ratios, as JSON, and as Markdown."""

import json
import platform
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Measure(NamedTuple):
    """One row: what is measured, in which unit, and whether more of it is better."""

    suite: str
    name: str
    unit: str
    more_is_better: bool


class Results:
    """The samples of each measure for each contender, in order."""

    def __init__(self, titles: dict[str, str]) -> None:
        self.titles = titles
        self.samples: dict[Measure, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.failures: list[str] = []
        """What could not be measured, and why."""

    def add(
        self, suite: str, name: str, unit: str, contender: str, value: float, *, more_is_better: bool = False
    ) -> None:
        self.samples[Measure(suite, name, unit, more_is_better)][contender].append(value)

    def contenders(self, suite: str) -> list[str]:
        present = {name for m, found in self.samples.items() if m.suite == suite for name in found}
        ordered = [name for name in self.titles if name in present]
        return ordered + sorted(present - set(ordered))

    def suites(self) -> list[str]:
        return list(dict.fromkeys(measure.suite for measure in self.samples))

    def rows(self, suite: str) -> tuple[list[str], list[list[str]]]:
        """Heading and rows of one suite as text."""
        contenders = self.contenders(suite)
        others = [name for name in contenders if name != "ottla"] if "ottla" in contenders else []
        heading = ["", "unit"]
        heading += [self.titles.get(name, name) for name in contenders]
        heading += [f"Ottla ÷ {short(self.titles.get(name, name))}" for name in others]
        rows = []
        for measure, found in self.samples.items():
            if measure.suite != suite:
                continue
            row = [measure.name, measure.unit]
            for name in contenders:
                values = found.get(name)
                row.append(f"{number(best(measure, values))} / {number(statistics.median(values))}" if values else "—")
            for name in others:
                ours, theirs = found.get("ottla"), found.get(name)
                row.append(ratio(measure, ours, theirs) if ours and theirs else "—")
            rows.append(row)
        return heading, rows

    def show(self, console: Console, suite: str) -> None:
        heading, rows = self.rows(suite)
        title = f"{suite}: best / median, and the ratio of the medians"
        table = Table(title=title, title_justify="left", title_style="bold")
        for index, text in enumerate(heading):
            table.add_column(text, justify="left" if index < 2 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)

    def markdown(self, command: str) -> str:
        """A snippet for docs/benchmarks.md."""
        lines = [f"`{command}`, {machine()}.", ""]
        for suite in self.suites():
            heading, rows = self.rows(suite)
            lines += [f"### {suite.capitalize()}", "", "Best / median; ratios are of the medians.", ""]
            lines.append("| " + " | ".join(heading) + " |")
            lines.append("|---|---|" + "---:|" * (len(heading) - 2))
            lines += ["| " + " | ".join(row) + " |" for row in rows]
            lines.append("")
        lines += [f"Failed: {failure}" for failure in self.failures]
        return "\n".join(lines)

    def write_json(self, path: Path, command: str) -> None:
        content: dict[str, Any] = {"command": command, "machine": machine(), "failures": self.failures, "measures": []}
        for measure, found in self.samples.items():
            content["measures"].append({**measure._asdict(), "samples": dict(found)})
        path.write_text(json.dumps(content, indent=1) + "\n")


def best(measure: Measure, values: list[float]) -> float:
    return max(values) if measure.more_is_better else min(values)


def ratio(measure: Measure, ours: list[float], theirs: list[float]) -> str:
    """The ratio of the medians. A cross marks measures where Ottla is worse."""
    own, other = statistics.median(ours), statistics.median(theirs)
    if not other:
        return "—"
    value = own / other
    is_worse = value < 1 if measure.more_is_better else value > 1
    return f"{number(value)}×{' ✗' if is_worse else ''}"


def short(title: str) -> str:
    """A contender's name in the heading of a ratio: without the word ottla, the version and remarks.

    >>> short("kafka-python 3.0.12 (no crc32c)"), short("ottla, pure"), short("plain sockets")
    ('kafka-python', 'pure', 'plain sockets')
    """
    return re.split(r", | \(| \d", title.removeprefix("ottla").lstrip(", "))[0]


def number(value: float) -> str:
    """A number with three significant digits.

    >>> number(1_234_567), number(98_765), number(0.1234)
    ('1.23 M', '98.8 k', '0.123')
    """
    if value >= 1e6:
        return f"{number(value / 1e6)} M"
    if value >= 10_000:
        return f"{number(value / 1e3)} k"
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}"


def machine() -> str:
    """The environment: cores, processor and Python version, without the name of the machine."""
    model, cores = "", 0
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("processor"):
            cores += 1
        elif line.startswith("model name"):
            model = line.partition(":")[2].strip()
    return f"{cores} cores ({model or platform.machine()}), Linux, Python {platform.python_version()}"
