"""Finds anomalies in a history of transactions, after the Kafka workload of Jepsen. Spec: R2. Pure.

A history is a list of transactions, each with what it sent, what it polled and how it ended as far as its client knows,
and what is in the topic at the end.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"

Place = tuple[int, int]
"""(partition, offset)."""


@dataclass(slots=True)
class Transaction:
    """One transaction of one worker. Values are unique."""

    worker: int
    sent: list[tuple[int, int]] = field(default_factory=list)
    """(partition, value), in order."""
    polled: list[tuple[Place, int]] = field(default_factory=list)
    """(where, value), in order; read_committed."""
    outcome: str = UNKNOWN


def anomalies(history: Sequence[Transaction], final: Mapping[int, Sequence[tuple[int, int]]]) -> list[str]:
    """Everything that is wrong, one line each. `final` has (offset, value) of every partition, read committed."""
    return [
        *_writes(history, final),
        *_places(history, final),
        *_polls(history, final),
        *_reads(history),
        *_circles(history),
    ]


def _writes(history: Sequence[Transaction], final: Mapping[int, Sequence[tuple[int, int]]]) -> Iterator[str]:
    there: dict[int, list[Place]] = defaultdict(list)
    for partition, records in final.items():
        for offset, value in records:
            there[value].append((partition, offset))
    for value, places in there.items():
        if len(places) > 1:
            yield f"duplicate: {value} is at {places}"
    for transaction in history:
        present = [value in there for _, value in transaction.sent]
        if transaction.outcome == OK and not all(present):
            lost = [value for _, value in transaction.sent if value not in there]
            yield f"lost write: {lost} of a transaction that was committed"
        elif transaction.outcome == FAILED and any(present):
            seen = [value for _, value in transaction.sent if value in there]
            yield f"aborted write: {seen} of a transaction that was aborted"
        elif any(present) and not all(present):
            yield f"torn transaction: {list(zip(transaction.sent, present, strict=True))}"
        for partition, value in transaction.sent:
            for place in there.get(value, ()):
                if place[0] != partition:
                    yield f"astray: {value} was sent to partition {partition} and is at {place}"
        for partition in {partition for partition, _ in transaction.sent}:
            wanted = [value for where, value in transaction.sent if where == partition and value in there]
            found = sorted(wanted, key=lambda value: there[value][0][1])
            if wanted != found:
                yield f"reordered: {wanted} was sent, {found} is there"


def _places(history: Sequence[Transaction], final: Mapping[int, Sequence[tuple[int, int]]]) -> Iterator[str]:
    """Every reader sees the same value at an offset."""
    values: dict[Place, int] = {(p, offset): value for p, records in final.items() for offset, value in records}
    for transaction in history:
        for place, value in transaction.polled:
            known = values.setdefault(place, value)
            if known != value:
                yield f"inconsistent offset: {place} held {known} and {value}"


def _polls(history: Sequence[Transaction], final: Mapping[int, Sequence[tuple[int, int]]]) -> Iterator[str]:
    """Each worker reads each partition forward, and leaves nothing out."""
    last: dict[tuple[int, int], int] = {}
    offsets = {partition: [offset for offset, _ in records] for partition, records in final.items()}
    for transaction in history:
        for (partition, offset), value in transaction.polled:
            who = (transaction.worker, partition)
            before = last.get(who, -1)
            if offset <= before:
                yield f"step back: worker {transaction.worker} read {partition}@{offset} after {before}"
            skipped = [each for each in offsets.get(partition, ()) if before < each < offset]
            if skipped:
                yield f"skip: worker {transaction.worker} read {value} at {partition}@{offset} and not {skipped[:5]}"
            last[who] = max(before, offset)


def _reads(history: Sequence[Transaction]) -> Iterator[str]:
    """No transaction reads aborted values (G1a), nor its own uncommitted ones."""
    aborted = {value for t in history if t.outcome == FAILED for _, value in t.sent}
    for transaction in history:
        own = {value for _, value in transaction.sent}
        for place, value in transaction.polled:
            if value in aborted:
                yield f"aborted read (G1a): {value} at {place}"
            if value in own:
                yield f"own uncommitted write: {value} at {place}"


def _circles(history: Sequence[Transaction]) -> Iterator[str]:
    """Information does not flow in a circle (G1c)."""
    writer = {value: index for index, t in enumerate(history) for _, value in t.sent}
    readers_of: dict[int, set[int]] = defaultdict(set)
    for index, transaction in enumerate(history):
        for _, value in transaction.polled:
            if value in writer and writer[value] != index:
                readers_of[writer[value]].add(index)
    waiting = dict.fromkeys(range(len(history)), 0)
    for listeners in readers_of.values():
        for listener in listeners:
            waiting[listener] += 1
    free = [index for index, count in waiting.items() if count == 0]
    seen = 0
    while free:
        index = free.pop()
        seen += 1
        for listener in readers_of.get(index, ()):
            waiting[listener] -= 1
            if waiting[listener] == 0:
                free.append(listener)
    if seen < len(history):
        circle = [index for index, count in waiting.items() if count > 0]
        yield f"circular information flow (G1c) among transactions {circle[:10]}"
