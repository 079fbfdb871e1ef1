"""The result of a batch, from Spark's progress report. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

ROWS_OUT, ROWS_BAD = "ottla_out", "ottla_bad_"
"""The names of the counts that Spark reports with each batch."""


@dataclass(frozen=True)
class Batch:
    """One batch of one query."""

    query: str
    batch_id: int
    rows_in: int
    rows_out: int | None
    duration_ms: int
    ended_ms: int
    bad: Mapping[str, int] = field(default_factory=dict)
    """Bad records by source."""
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The position in each partition after the batch, by topic."""
    watermark: str | None = None
    state_rows: int | None = None

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Batch":
        return cls(**document)


def batch_of(query: str, report: Mapping[str, Any]) -> Batch:
    """The batch that one of Spark's progress reports is about."""
    duration_ms = int((report.get("durationMs") or {}).get("triggerExecution", report.get("batchDuration") or 0))
    started_ms = int(datetime.fromisoformat(str(report["timestamp"]).replace("Z", "+00:00")).timestamp() * 1000)
    observed = report.get("observedMetrics") or {}
    counts = {name: _first(row) for name, row in observed.items()}
    positions: dict[str, dict[str, int]] = {}
    for source in report.get("sources") or ():
        for topic, offsets in _offsets(source.get("endOffset")).items():
            positions.setdefault(topic, {}).update(offsets)
    states = report.get("stateOperators") or ()
    return Batch(
        query=query,
        batch_id=int(report["batchId"]),
        rows_in=int(report.get("numInputRows") or 0),
        rows_out=counts.get(ROWS_OUT),
        duration_ms=duration_ms,
        ended_ms=started_ms + duration_ms,
        bad={
            name.removeprefix(ROWS_BAD): count for name, count in counts.items() if name.startswith(ROWS_BAD) and count
        },
        positions=positions,
        watermark=(report.get("eventTime") or {}).get("watermark"),
        state_rows=sum(int(state.get("numRowsTotal") or 0) for state in states) if states else None,
    )


def positions_in(lines: Iterable[str]) -> dict[str, dict[str, int]]:
    """Positions by topic, from the lines of Spark's offset log, one for each source."""
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        for topic, offsets in _offsets(line).items():
            found.setdefault(topic, {}).update(offsets)
    return found


def _first(row: Any) -> int:
    """The single count of an observation, which is a mapping or a row."""
    if isinstance(row, Mapping):
        return int(next(iter(row.values()), 0) or 0)
    return int(row[0] or 0)


def _offsets(end: Any) -> dict[str, dict[str, int]]:
    """Positions by topic, from an offset of the source. Keys with @ are not topics."""
    if isinstance(end, str):
        try:
            end = json.loads(end)
        except ValueError:
            return {}
    if not isinstance(end, Mapping):
        return {}
    return {
        topic: {str(partition): int(offset) for partition, offset in offsets.items()}
        for topic, offsets in end.items()
        if not topic.startswith("@") and isinstance(offsets, Mapping)
    }
