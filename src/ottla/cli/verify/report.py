"""The result of `ottla verify`: tables, anomalies with their evidence, JSON, and the files in --output."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from ottla.cli.output import console, count, plural, print_table
from ottla.verify.anomalies import Anomaly, Evidence, Kind
from ottla.verify.history import History
from ottla.verify.history_file import to_lines
from ottla.verify.summary import Row, by_fault, by_kind
from ottla.verify.timeline import draw

SHOWN_MAX = 3
"""Anomalies of each kind that are printed and drawn. The others usually have the same cause."""
COLUMNS = ("ok", "fail", "unknown", "records")


def print_result(history: History, anomalies: Sequence[Anomaly], inconclusive: str, checked_s: float) -> None:
    """For people."""
    out = console()
    out.print()
    print_table(["operations", *COLUMNS], [_cells(row) for row in by_kind(history)], right=COLUMNS)
    if history.faults:
        out.print()
        print_table(["during", *COLUMNS], [_cells(row) for row in by_fault(history)], right=COLUMNS)
        kinds = Counter(fault.kind for fault in history.faults)
        out.print(Text(f"\n{plural(len(history.faults), 'fault')}: {_listed(kinds)}", style="dim"))
    out.print(
        Text(f"{plural(len(history.operations), 'operation')} checked in {checked_s:.1f} s", style="dim"), end="\n\n"
    )
    for kind, found in by_anomaly(anomalies).items():
        out.print(Text.assemble((f"{kind.value}", "bold red"), f": {len(found)}  ", (kind.definition, "dim")))
        for anomaly in found[:SHOWN_MAX]:
            out.print(f"  {anomaly.message}")
            for each in anomaly.evidence:
                out.print(Text(f"    {evidence_line(history, each)}", style="dim"))
        if len(found) > SHOWN_MAX:
            out.print(Text(f"  … and {count(len(found) - SHOWN_MAX)} more", style="dim"))
        out.print()
    if anomalies:
        out.print(Text(f"{plural(len(anomalies), 'anomaly').replace('anomalys', 'anomalies')} found", style="bold red"))
    elif inconclusive:
        out.print(Text(f"inconclusive: {inconclusive}", style="bold yellow"))
    else:
        out.print(Text("no anomaly found", style="bold green"))


def by_anomaly(anomalies: Sequence[Anomaly]) -> dict[Kind, list[Anomaly]]:
    found: dict[Kind, list[Anomaly]] = {}
    for anomaly in anomalies:
        found.setdefault(anomaly.kind, []).append(anomaly)
    return found


def evidence_line(history: History, evidence: Evidence) -> str:
    """When, who, what."""
    operation = history.operations[evidence.operation]
    end = f"{operation.ended_us / 1e6:.3f}" if operation.ended_us >= 0 else "never"
    return f"{operation.started_us / 1e6:.3f}–{end} s  {operation.client}  {evidence.note}"


def as_json(history: History, anomalies: Sequence[Anomaly], inconclusive: str, output: Path | None) -> dict[str, Any]:
    """For programs."""
    return {
        "result": "anomalies" if anomalies else "inconclusive" if inconclusive else "clean",
        "reason": inconclusive,
        "about": history.about,
        "operations": [row._asdict() for row in by_kind(history)],
        "by_fault": [row._asdict() for row in by_fault(history)],
        "faults": [dataclasses.asdict(fault) for fault in history.faults],
        "anomalies": [
            {
                "kind": anomaly.kind.value,
                "message": anomaly.message,
                "evidence": [
                    {
                        "operation": each.operation,
                        "client": history.operations[each.operation].client,
                        "started_us": history.operations[each.operation].started_us,
                        "ended_us": history.operations[each.operation].ended_us,
                        "note": each.note,
                    }
                    for each in anomaly.evidence
                ],
            }
            for anomaly in anomalies
        ],
        "output": None if output is None else str(output),
    }


def write_files(history: History, anomalies: Sequence[Anomaly], output: Path) -> list[str]:
    """Writes the history, and a picture of the first anomalies of each kind. Returns the names of the files."""
    output.mkdir(parents=True, exist_ok=True)
    with open(output / "history.jsonl", "w", encoding="utf-8") as file:
        for line in to_lines(history):
            file.write(line + "\n")
    names = ["history.jsonl"]
    for kind, found in by_anomaly(anomalies).items():
        label = "".join(c if c.isalnum() else "-" for c in kind.value.partition(" (")[0])
        for number, anomaly in enumerate(found[:SHOWN_MAX], 1):
            name = f"{label}-{number}.svg"
            (output / name).write_text(draw(history, anomaly), encoding="utf-8")
            names.append(name)
    return names


def _cells(row: Row) -> list[str]:
    return [row.name, count(row.ok), count(row.fail), count(row.unknown), count(row.records)]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())
