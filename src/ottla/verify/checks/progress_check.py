"""Clients must make progress while no fault is active. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ottla.verify.anomalies import Anomaly, Evidence, Kind
from ottla.verify.checks.knowledge import Knowledge
from ottla.verify.history import FINAL, OK, Fault, Operation

PATIENCE_S = 60.0
"""Unless the history says otherwise."""


def check_progress(known: Knowledge) -> Iterator[Anomaly]:
    """A client whose operations all fail during a calm time longer than the patience is stuck."""
    history = known.history
    given = history.about.get("patience_s", PATIENCE_S)
    patience_us = int(float(given) * 1e6) if isinstance(given, int | float) else int(PATIENCE_S * 1e6)
    end_us = max((max(each.started_us, each.ended_us) for each in history.operations), default=0)
    clients: dict[str, list[tuple[int, Operation]]] = defaultdict(list)
    for number, operation in enumerate(history.operations):
        if operation.kind != FINAL:
            clients[operation.client].append((number, operation))
    for client, operations in clients.items():
        yield from _check_client(client, operations, history.faults, patience_us, end_us)
    for sentence in history.stuck:
        yield Anomaly(Kind.NO_PROGRESS, sentence)


def _check_client(
    client: str,
    operations: Sequence[tuple[int, Operation]],
    faults: Sequence[Fault],
    patience_us: int,
    end_us: int,
) -> Iterator[Anomaly]:
    successes = sorted(each.ended_us for _, each in operations if each.outcome == OK and each.ended_us >= 0)
    position = 0
    waiting_since = -1
    """When the first operation since the last success was started."""
    first = -1
    for number, operation in sorted(operations, key=lambda pair: pair[1].started_us):
        while position < len(successes) and successes[position] <= operation.started_us:
            if waiting_since >= 0 and waiting_since <= successes[position]:
                yield from _judge(client, first, waiting_since, successes[position], faults, patience_us)
            waiting_since = -1
            position += 1
        if waiting_since < 0:
            waiting_since, first = operation.started_us, number
    if waiting_since >= 0:
        until = successes[position] if position < len(successes) else end_us
        if position < len(successes) or any(each.ended_us < 0 for _, each in operations):
            yield from _judge(client, first, waiting_since, until, faults, patience_us)
        else:
            last_us = max(each.ended_us for _, each in operations)
            yield from _judge(client, first, waiting_since, last_us, faults, patience_us)


def _judge(
    client: str, number: int, start_us: int, end_us: int, faults: Sequence[Fault], patience_us: int
) -> Iterator[Anomaly]:
    calm_us = longest_calm(start_us, end_us, faults)
    if calm_us >= patience_us:
        yield Anomaly(
            Kind.NO_PROGRESS,
            f"{client} had no success for {(end_us - start_us) / 1e6:.1f} s from {start_us / 1e6:.1f} s on, "
            f"{calm_us / 1e6:.1f} s of them without a fault",
            [Evidence(number, "the first operation of this time")],
        )


def longest_calm(start_us: int, end_us: int, faults: Sequence[Fault]) -> int:
    """The longest time without a fault between two times."""
    calm, position = 0, start_us
    for fault in sorted(faults, key=lambda each: each.started_us):
        if fault.started_us >= end_us:
            break
        calm = max(calm, fault.started_us - position)
        position = max(position, end_us if fault.ended_us < 0 else fault.ended_us)
    return max(calm, end_us - position, 0) if position <= end_us else max(calm, 0)
