"""Histories as JSON lines: one line about the run, then one per operation and per fault. Pure."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ottla.errors import OttlaError
from ottla.verify.history import COMMITTED, OUTCOMES, TRANSACTION, UNKNOWN, Fault, History, Operation, Read, Sent

FORMAT = 1
_DEFAULT = Operation("")
_PLAIN = (
    "kind",
    "outcome",
    "started_us",
    "ended_us",
    "end_started_us",
    "session",
    "isolation",
    "from_start",
    "group",
    "generation",
    "error",
)


def to_lines(history: History) -> Iterator[str]:
    """Fields with their default value are omitted: a history may have millions of operations."""
    yield json.dumps({"ottla-verify": FORMAT, "about": history.about, "stuck": history.stuck})
    for fault in history.faults:
        yield json.dumps(
            {
                "fault": fault.kind,
                "brokers": fault.brokers,
                "started_us": fault.started_us,
                "ended_us": fault.ended_us,
                "detail": fault.detail,
            }
        )
    for operation in history.operations:
        yield json.dumps(_operation_to_json(operation), separators=(",", ":"))


def _operation_to_json(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {"client": operation.client}
    for name in _PLAIN:
        value = getattr(operation, name)
        if value != getattr(_DEFAULT, name):
            found[name] = value
    if operation.sent:
        found["sent"] = operation.sent
    if operation.polled:
        found["polled"] = operation.polled
    if operation.offsets:
        found["offsets"] = operation.offsets
    if operation.copies:
        found["copies"] = operation.copies
    return found


def from_lines(lines: Iterable[str], name: str) -> History:
    """Raises OttlaError, with the number of the line that cannot be read. `name` is that of the file."""
    history = History()
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            if number == 1:
                if found.get("ottla-verify") != FORMAT:
                    raise OttlaError(
                        f"{name} is not a history of this version", "pass a history.jsonl that ottla verify has written"
                    )
                history.about, history.stuck = found["about"], found["stuck"]
            elif "fault" in found:
                history.faults.append(
                    Fault(
                        found["fault"],
                        tuple(found["brokers"]),
                        found["started_us"],
                        found["ended_us"],
                        found["detail"],
                    )
                )
            else:
                history.operations.append(_operation_from_json(found))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OttlaError(
                f"{name}, line {number}, is not part of a history: {error}",
                "pass a history.jsonl that ottla verify has written",
            ) from None
    if not history.about and not history.operations:
        raise OttlaError(f"{name} is empty", "pass a history.jsonl that ottla verify has written")
    return history


def _operation_from_json(found: dict[str, Any]) -> Operation:
    operation = Operation(
        found["client"],
        found.get("kind", TRANSACTION),
        [Sent(*each) for each in found.get("sent", ())],
        [Read(*each) for each in found.get("polled", ())],
        found.get("outcome", UNKNOWN),
        found.get("started_us", 0),
        found.get("ended_us", -1),
        found.get("end_started_us", -1),
        found.get("session", 0),
        found.get("isolation", COMMITTED),
        found.get("from_start", True),
        found.get("group", ""),
        found.get("generation", -1),
        found.get("offsets", {}),
        {int(copy): original for copy, original in found.get("copies", {}).items()},
        found.get("error", ""),
    )
    if operation.outcome not in OUTCOMES:
        raise ValueError(f"outcome {operation.outcome!r}")
    return operation
