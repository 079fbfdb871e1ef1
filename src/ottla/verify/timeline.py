"""A picture of an anomaly as SVG: clients and brokers as lanes, operations as bars, faults as bands. Pure."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from ottla.verify.anomalies import Anomaly
from ottla.verify.history import FAIL, FINAL, OK, UNKNOWN, History, Operation

WIDTH, LEFT, RIGHT = 1160, 168, 24
BAR, ROW, LANE_GAP, ROWS_MAX = 13, 17, 9, 5
BREAK = 34
"""The space between two parts of the time axis."""
LINE = 22
COLOURS = {OK: "#34a37a", FAIL: "#e0a030", UNKNOWN: "#9aa1ad"}
FAULT_COLOURS = {"kill": "#e5484d", "pause": "#8e6bd8", "partition": "#3b82d6", "clock": "#c58a00"}
OFFENDING = "#c81e1e"
OTHERS_MAX = 3
"""Lanes of clients that are not part of the evidence, for context."""
BARS_MAX = 200
NOTE_CHARACTERS = 150


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the time that is shown, and where."""

    start_us: int
    end_us: int
    left: float
    right: float

    def x(self, time_us: int) -> float:
        share = (time_us - self.start_us) / max(1, self.end_us - self.start_us)
        return self.left + (self.right - self.left) * min(1.0, max(0.0, share))


def draw(history: History, anomaly: Anomaly) -> str:
    """The picture as SVG. An anomaly without operations gets a picture of the faults only."""
    numbers = list(dict.fromkeys(each.operation for each in anomaly.evidence))
    offending = {number: index for index, number in enumerate(numbers, 1)}
    parts = _parts(history, numbers)
    shown = _shown(history, offending, parts)
    lanes = _lanes(history, offending, shown)
    brokers = sorted({broker for fault in history.faults for broker in fault.brokers})
    body: list[str] = []
    y = 92.0
    top = y
    for broker in brokers:
        body.append(_label(f"broker {broker}", y + 9))
        body.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y + 6:.0f}" y2="{y + 6:.0f}" class="idle"/>')
        for part in parts:
            body += _broker_faults(history, broker, part, y)
        y += 22
    y += 8 if brokers else 0
    for client, operations in lanes:
        rows = _pack([(number, history.operations[number]) for number in operations], parts)
        tall = (max(rows.values(), default=0) + 1) * ROW
        is_involved = any(number in offending for number in operations)
        body.append(_label(client, y + tall / 2 + 3, bold=is_involved))
        for number in operations:
            body += _bar(number, history.operations[number], parts, y + rows[number] * ROW, offending.get(number))
        y += tall + LANE_GAP
        edge = f"{y - LANE_GAP / 2:.1f}"
        body.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{edge}" y2="{edge}" class="lane"/>')
    bottom = y
    axis = [line for part in parts for line in _axis(part, top, bottom)]
    bands = [line for part in parts for line in _bands(history, part, top, bottom)]
    breaks = [_break((a.right + b.left) / 2, top, bottom) for a, b in itertools.pairwise(parts)]
    notes = list(_notes(history, anomaly, offending, bottom + 44))
    height = bottom + 52 + LINE * len(anomaly.evidence)
    return _document(height, anomaly, [*bands, *axis, *body, *breaks, *_legend(history, bottom + 22), *notes])


# --- what is shown ----------------------------------------------------------------------------------------


def _parts(history: History, numbers: Sequence[int]) -> list[Part]:
    """The times around the offending operations, next to each other; long gaps between them are omitted."""
    spans = []
    for number in numbers:
        operation = history.operations[number]
        start, end = _span(operation)
        margin = max(4_000, min(400_000, (end - start) // 2))
        spans.append((max(0, start - margin), end + margin))
    if not spans:
        end = max((max(fault.ended_us, fault.started_us) for fault in history.faults), default=1_000_000)
        spans = [(0, end)]
    spans += _first_fault_between(history, min(spans)[0], max(spans)[0])
    spans.sort()
    merged = [spans[0]]
    for start, end in spans[1:]:
        last = merged[-1]
        # A gap that is shorter than what surrounds it costs less space than a break.
        if start - last[1] <= max(20_000, (last[1] - last[0]) + (end - start)):
            merged[-1] = (last[0], max(last[1], end))
        else:
            merged.append((start, end))
    room = WIDTH - LEFT - RIGHT - BREAK * (len(merged) - 1)
    weights = [max(1.0, (end - start) / 1000) ** 0.35 for start, end in merged]
    parts, left = [], float(LEFT)
    for (start, end), weight in zip(merged, weights, strict=True):
        right = left + room * weight / sum(weights)
        parts.append(Part(start, end, left, right))
        left = right + BREAK
    return parts


def _first_fault_between(history: History, start_us: int, end_us: int) -> list[tuple[int, int]]:
    """The first fault after the first of the offending operations: often the cause of what follows."""
    later = [fault for fault in history.faults if start_us <= fault.started_us < end_us]
    if not later:
        return []
    first = min(later, key=lambda fault: fault.started_us)
    return [(first.started_us - 100_000, max(first.started_us, first.ended_us) + 100_000)]


def _span(operation: Operation) -> tuple[int, int]:
    end = operation.ended_us if operation.ended_us >= 0 else operation.started_us + 1_000_000
    return operation.started_us, max(end, operation.started_us)


def _shown(history: History, offending: Iterable[int], parts: Sequence[Part]) -> list[int]:
    """The offending operations, and those of the same topics at the same times."""
    chosen = set(offending)
    clients = {history.operations[number].client for number in chosen}
    roles = {client.rsplit("-", 1)[0].split("-")[0] for client in clients if not client.startswith("final")}
    near, others = [], []
    for number, operation in enumerate(history.operations):
        if number in chosen or operation.kind == FINAL:
            continue
        start, end = _span(operation)
        if any(start <= part.end_us and end >= part.start_us for part in parts):
            if operation.client in clients:
                near.append(number)
            elif operation.client.split("-")[0] in roles:
                others.append(number)
    moments = [moment for number in chosen for moment in _span(history.operations[number])]

    def distance(number: int) -> int:
        return min((abs(history.operations[number].started_us - moment) for moment in moments), default=0)

    room = max(0, BARS_MAX - len(chosen))
    nearest = sorted(near, key=distance)[: room * 2 // 3]
    nearest += sorted(others, key=distance)[: room - len(nearest)]
    return sorted([*chosen, *nearest])


def _lanes(history: History, offending: dict[int, int], shown: Sequence[int]) -> list[tuple[str, list[int]]]:
    by_client: dict[str, list[int]] = {}
    for number in shown:
        by_client.setdefault(history.operations[number].client, []).append(number)
    involved = [client for client, numbers in by_client.items() if any(n in offending for n in numbers)]
    involved.sort(key=lambda client: min(offending[n] for n in by_client[client] if n in offending))
    others = sorted(client for client in by_client if client not in involved)[:OTHERS_MAX]
    return [(client, by_client[client]) for client in [*involved, *others]]


def _pack(operations: Sequence[tuple[int, Operation]], parts: Sequence[Part]) -> dict[int, int]:
    """The row of each operation of a lane: those that overlap are below each other."""
    ends: list[float] = []
    rows = {}
    for number, operation in sorted(operations, key=lambda pair: pair[1].started_us):
        start, end = _span(operation)
        places = _places(start, end, parts)
        left, right = places[0][0], places[-1][1]
        row = next((row for row, until in enumerate(ends) if until <= left), len(ends))
        row = min(row, ROWS_MAX - 1)
        if row == len(ends):
            ends.append(0.0)
        ends[row] = right - 1
        rows[number] = row
    return rows


def _places(start: int, end: int, parts: Sequence[Part]) -> list[tuple[float, float]]:
    found = [(p.x(start), max(p.x(end), p.x(start) + 3)) for p in parts if start <= p.end_us and end >= p.start_us]
    return found or [(parts[0].left, parts[0].left + 3)]


# --- drawing ----------------------------------------------------------------------------------------------


def _bar(number: int, operation: Operation, parts: Sequence[Part], y: float, mark: int | None) -> list[str]:
    start, end = _span(operation)
    colour = COLOURS[operation.outcome]
    found = []
    title = escape(_title(number, operation, is_whole=mark is not None))
    for left, right in _places(start, end, parts):
        edge = f' stroke="{OFFENDING}" stroke-width="2.5"' if mark else ""
        faded = "" if mark else ' fill-opacity="0.55"'
        found.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{right - left:.1f}" height="{BAR}" rx="2" fill="{colour}"'
            f"{faded}{edge}><title>{title}</title></rect>"
        )
    if operation.is_transaction and start <= operation.end_started_us <= end:
        for part in parts:
            if part.start_us <= operation.end_started_us <= part.end_us:
                x = part.x(operation.end_started_us)
                found.append(
                    f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2:.1f}" y2="{y + BAR + 2:.1f}" class="end">'
                    "<title>commit or abort requested</title></line>"
                )
    if mark:
        left = _places(start, end, parts)[0][0]
        found.append(_badge(left - 9, y + BAR / 2, mark))
    return found


def _title(number: int, operation: Operation, *, is_whole: bool) -> str:
    """Shown when the pointer is on a bar."""
    head = f"{operation.client}: {operation.kind}, {operation.outcome} (operation {number})"
    if not is_whole:
        return head
    sent = ", ".join(f"{each.value} to {each.partition}" for each in operation.sent[:6])
    polled = ", ".join(f"{each.value} at {each.partition}@{each.offset}" for each in operation.polled[:6])
    pieces = [head]
    pieces += [f"sent {sent}"] if sent else []
    pieces += [f"received {polled}"] if polled else []
    pieces += [operation.error] if operation.error else []
    return "\n".join(pieces)


def _badge(x: float, y: float, mark: int) -> str:
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" fill="{OFFENDING}"/>'
        f'<text x="{x:.1f}" y="{y + 3.5:.1f}" class="badge">{mark}</text>'
    )


def _broker_faults(history: History, broker: int, part: Part, y: float) -> list[str]:
    found = []
    for fault in history.faults:
        end = fault.ended_us if fault.ended_us >= 0 else part.end_us
        if broker not in fault.brokers or fault.started_us > part.end_us or end < part.start_us:
            continue
        left, right = part.x(fault.started_us), part.x(end)
        colour = FAULT_COLOURS.get(fault.kind, "#777")
        found.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(3, right - left):.1f}" height="{BAR}" rx="2" '
            f'fill="{colour}"><title>{escape(fault.detail)}</title></rect>'
        )
        if right - left > 56:
            found.append(
                f'<text x="{(left + right) / 2:.1f}" y="{y + 10:.1f}" class="fault">{escape(fault.kind)}</text>'
            )
    return found


def _bands(history: History, part: Part, top: float, bottom: float) -> list[str]:
    found = []
    for fault in history.faults:
        end = fault.ended_us if fault.ended_us >= 0 else part.end_us
        if fault.started_us > part.end_us or end < part.start_us:
            continue
        left, right = part.x(fault.started_us), part.x(end)
        colour = FAULT_COLOURS.get(fault.kind, "#777")
        found.append(
            f'<rect x="{left:.1f}" y="{top - 6:.1f}" width="{max(2, right - left):.1f}" '
            f'height="{bottom - top + 6:.1f}" fill="{colour}" fill-opacity="0.10"/>'
        )
    return found


def _axis(part: Part, top: float, bottom: float) -> list[str]:
    """A few round times, with lines."""
    length = part.end_us - part.start_us
    most = max(1, int((part.right - part.left) / 90))
    step = next(
        (each * 10**power for power in range(2, 9) for each in (1, 2, 5) if length / (each * 10**power) <= most), 10**9
    )
    found = []
    time = -(-part.start_us // step) * step
    digits = 0 if step >= 1_000_000 else 1 if step >= 100_000 else 2 if step >= 10_000 else 3
    while time <= part.end_us:
        x = part.x(time)
        found.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6:.1f}" y2="{bottom:.1f}" class="tick"/>')
        found.append(f'<text x="{x:.1f}" y="{top - 12:.1f}" class="time">{time / 1e6:.{digits}f} s</text>')
        time += step
    return found


def _break(x: float, top: float, bottom: float) -> str:
    """Marks a gap in the time axis."""
    steps = []
    y, side = top - 6, 0
    while y < bottom:
        steps.append(f"{x + (4 if side else -4):.1f},{y:.1f}")
        y, side = y + 7, 1 - side
    return f'<polyline points="{" ".join(steps)}" class="break"/>'


def _label(text: str, y: float, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{LEFT - 14}" y="{y:.1f}" class="label"{weight}>{escape(text)}</text>'


def _legend(history: History, y: float) -> list[str]:
    entries = list(COLOURS.items())
    kinds = dict.fromkeys(fault.kind for fault in history.faults)
    entries += [(kind, FAULT_COLOURS.get(kind, "#777")) for kind in kinds]
    found, x = [], float(LEFT)
    if any(operation.end_started_us >= 0 for operation in history.operations):
        right = WIDTH - RIGHT
        found.append(f'<line x1="{right - 182}" x2="{right - 182}" y1="{y - 12:.0f}" y2="{y + 3:.0f}" class="end"/>')
        found.append(f'<text x="{right - 174}" y="{y:.0f}" class="legend">commit or abort requested</text>')
    for name, colour in entries:
        found.append(f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="12" height="10" rx="2" fill="{colour}"/>')
        found.append(f'<text x="{x + 17:.0f}" y="{y:.0f}" class="legend">{escape(name)}</text>')
        x += 34 + 7 * len(name)
    return found


def _notes(history: History, anomaly: Anomaly, offending: dict[int, int], y: float) -> Iterable[str]:
    for each in anomaly.evidence:
        operation = history.operations[each.operation]
        start, end = _span(operation)
        text = f"{start / 1e6:.3f} to {end / 1e6:.3f} s  {operation.client}: {each.note}"
        text = text if len(text) <= NOTE_CHARACTERS else f"{text[: NOTE_CHARACTERS - 1]}…"
        yield _badge(LEFT - 24, y + 6, offending[each.operation])
        yield f'<text x="{LEFT - 8}" y="{y + 10:.1f}" class="note">{escape(text)}</text>'
        y += LINE


_STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2430; }
.title { font-size: 19px; font-weight: 700; } .message { font-size: 13.5px; fill: #4a5160; }
.label { font-size: 12px; text-anchor: end; } .time { font-size: 11px; fill: #6b7280; text-anchor: middle; }
.badge { font-size: 10.5px; font-weight: 700; fill: #fff; text-anchor: middle; }
.fault { font-size: 10px; fill: #fff; text-anchor: middle; } .legend { font-size: 11.5px; fill: #4a5160; }
.note { font-size: 12.5px; } .lane { stroke: #eceef2; } .idle { stroke: #dfe3ea; stroke-width: 2; }
.tick { stroke: #e3e6ec; }
.end { stroke: #1f2430; stroke-width: 2; } .break { stroke: #aeb4c0; fill: none; stroke-width: 1.5; }
"""


def _document(height: float, anomaly: Anomaly, elements: Iterable[str]) -> str:
    message = anomaly.message if len(anomaly.message) <= 160 else f"{anomaly.message[:159]}…"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" role="img">',
            f"<title>{escape(str(anomaly))}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="#ffffff"/>',
            f'<text x="24" y="34" class="title">{escape(anomaly.kind.value)}</text>',
            f'<text x="24" y="56" class="message">{escape(message)}</text>',
            *elements,
            "</svg>",
            "",
        ]
    )
