"""Counts of a history: operations by kind and by fault, each by outcome. Pure."""

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.verify.history import FAIL, FINAL, OK, UNKNOWN, Fault, History, Operation

CALM = "no fault"


class Row(NamedTuple):
    """Operations of one kind, or during one kind of fault."""

    name: str
    ok: int
    fail: int
    unknown: int
    records: int
    """Sent and received."""


def by_kind(history: History) -> list[Row]:
    """One row per kind of operation, in the order of their first appearance."""
    return _count((operation.kind, operation) for operation in history.operations)


def by_fault(history: History) -> list[Row]:
    """One row per kind of fault that was active when an operation began, and one for the time without faults."""
    windows = _windows(history.faults)
    starts = [start for start, _, _ in windows]

    def name_of(operation: Operation) -> str:
        index = bisect.bisect_right(starts, operation.started_us) - 1
        return windows[index][2] if index >= 0 and operation.started_us < windows[index][1] else CALM

    rows = _count((name_of(each), each) for each in history.operations if each.kind != FINAL)
    return sorted(rows, key=lambda row: (row.name != CALM, row.name))


def _windows(faults: Sequence[Fault]) -> list[tuple[int, int, str]]:
    """(start, end, names) of the times with faults; those that begin and end together are one."""
    found: list[tuple[int, int, str]] = []
    for fault in sorted(faults, key=lambda each: each.started_us):
        end = fault.ended_us if fault.ended_us >= 0 else 1 << 62
        if found and fault.started_us < found[-1][1]:
            start, until, names = found[-1]
            joined = " + ".join(sorted({*names.split(" + "), fault.kind}))
            found[-1] = (start, max(until, end), joined)
        else:
            found.append((fault.started_us, end, fault.kind))
    return found


def _count(named: Iterable[tuple[str, Operation]]) -> list[Row]:
    counts: dict[str, list[int]] = {}
    columns = {OK: 0, FAIL: 1, UNKNOWN: 2}
    for name, operation in named:
        found = counts.setdefault(name, [0, 0, 0, 0])
        found[columns[operation.outcome]] += 1
        found[3] += len(operation.sent) + len(operation.polled)
    return [Row(name, *found) for name, found in counts.items()]
