"""Consumer groups: one owner per partition and generation, offsets that never step back, no record skipped. Pure."""

import bisect
from collections import defaultdict
from collections.abc import Iterator

from ottla.verify.anomalies import Anomaly, Evidence, Kind
from ottla.verify.checks.knowledge import Knowledge
from ottla.verify.history import ASSIGNED, COMMIT, COMMITTED, FAIL, FETCH_OFFSETS, OK, UNKNOWN, Read

Place = tuple[str, str]
"""(group, partition)."""


def check_owners(known: Knowledge) -> Iterator[Anomaly]:
    """Generations are known only if the client reports them."""
    owners: dict[tuple[str, int, str], int] = {}
    for number, operation in enumerate(known.history.operations):
        if operation.kind != ASSIGNED or operation.generation < 0:
            continue
        for partition in operation.offsets:
            first = owners.setdefault((operation.group, operation.generation, partition), number)
            other = known.operation(first)
            if other.client != operation.client:
                what = f"owned {partition} in generation {operation.generation} of {operation.group}"
                yield Anomaly(
                    Kind.TWO_OWNERS,
                    f"{other.client} and {operation.client} {what}",
                    [Evidence(first, what), Evidence(number, what)],
                )


def check_zombies(known: Knowledge) -> Iterator[Anomaly]:
    """Once a member has its assignment in a generation, commits of earlier ones must be rejected."""
    begun: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number, operation in enumerate(known.history.operations):
        if operation.kind == ASSIGNED and operation.generation >= 0 and operation.ended_us >= 0:
            begun[operation.group].append((operation.ended_us, operation.generation, number))
    newest: dict[str, list[tuple[int, int, int]]] = {}
    for group, events in begun.items():
        events.sort()
        steps = newest[group] = []
        for event in events:
            if not steps or event[1] > steps[-1][1]:
                steps.append(event)
    for number, operation in enumerate(known.history.operations):
        if operation.kind != COMMIT or operation.outcome != OK or operation.generation < 0:
            continue
        steps = newest.get(operation.group, [])
        latest = bisect.bisect_left(steps, (operation.started_us,)) - 1
        if latest >= 0 and steps[latest][1] > operation.generation:
            _, generation, proof = steps[latest]
            yield Anomaly(
                Kind.ZOMBIE_COMMIT,
                f"{operation.client} committed in generation {operation.generation} of {operation.group}, "
                f"after generation {generation} had begun",
                [
                    Evidence(proof, f"got its partitions in generation {generation}"),
                    Evidence(number, f"committed {_text(operation.offsets)} in generation {operation.generation}"),
                ],
            )


def check_committed_offsets(known: Knowledge) -> Iterator[Anomaly]:
    """An offset that was acknowledged is never replaced by a lower one.

    Except by a commit whose outcome is unknown: a request that was delayed in the network may arrive late.
    """
    unclear: dict[Place, set[int]] = defaultdict(set)
    aborted: dict[Place, dict[int, int]] = defaultdict(dict)
    """Offset -> the transaction that was aborted."""
    possible: dict[Place, set[int]] = defaultdict(set)
    events: list[tuple[int, int, int]] = []
    """(time, 0 for the end of a commit or 1 for the start of a lookup, operation)."""
    for number, operation in enumerate(known.history.operations):
        if operation.kind == FETCH_OFFSETS and operation.outcome == OK:
            events.append((operation.started_us, 1, number))
        elif operation.offsets and operation.group and (operation.kind == COMMIT or operation.is_transaction):
            for partition, offset in operation.offsets.items():
                if operation.outcome == FAIL and operation.is_transaction:
                    aborted[operation.group, partition][offset] = number
                else:
                    possible[operation.group, partition].add(offset)
            if operation.outcome == OK:
                events.append((operation.ended_us, 0, number))
            elif operation.outcome == UNKNOWN:
                for partition, offset in operation.offsets.items():
                    unclear[operation.group, partition].add(offset)
    highest: dict[Place, tuple[int, int]] = {}
    for _, is_question, number in sorted(events):
        operation = known.operation(number)
        for partition, offset in operation.offsets.items():
            place = (operation.group, partition)
            best = highest.get(place, (-1, -1))
            author = aborted[place].get(offset) if is_question and offset not in possible[place] else None
            if author is not None:
                yield Anomaly(
                    Kind.ABORTED_READ,
                    f"the committed offset of {operation.group} is {partition}@{offset}, from an aborted transaction",
                    [
                        Evidence(author, f"committed {partition}@{offset} in a transaction that was aborted"),
                        Evidence(number, f"looked up the committed offset of {partition}: {offset}"),
                    ],
                )
            elif not is_question:
                highest[place] = max(best, (offset, number))
            elif offset < best[0] and offset not in unclear[place]:
                shown = offset if offset >= 0 else "none"
                yield Anomaly(
                    Kind.OFFSET_BACK,
                    f"{operation.group} had committed {partition}@{best[0]}; later the committed offset is {shown}",
                    [
                        Evidence(best[1], f"committed {partition}@{best[0]}: acknowledged"),
                        Evidence(number, f"looked up the committed offset of {partition}: {shown}"),
                    ],
                )


def check_processing(known: Knowledge) -> Iterator[Anomaly]:
    """Every record below a group's committed offset was received by one of its members."""
    committed: dict[Place, tuple[int, int]] = {}
    received: dict[Place, set[int]] = defaultdict(set)
    for number, operation in enumerate(known.history.operations):
        if not operation.group or operation.is_transaction:
            continue
        for read in operation.polled:
            received[operation.group, read.partition].add(read.offset)
        if operation.kind == COMMIT and operation.outcome == OK:
            for partition, offset in operation.offsets.items():
                place = (operation.group, partition)
                committed[place] = max(committed.get(place, (-1, -1)), (offset, number))
    for place, (end, number) in committed.items():
        group, partition = place
        log = known.log(partition, COMMITTED)
        if log is None:
            continue
        for offset, value, reader in zip(log.offsets, log.values, log.operations, strict=True):
            if offset >= end:
                break
            if offset not in received[place]:
                yield Anomaly(
                    Kind.NOT_PROCESSED,
                    f"{group} has committed {partition}@{end}, and no member received {value} at offset {offset}",
                    [
                        Evidence(number, f"committed {partition}@{end}"),
                        Evidence(
                            reader, f"read {value} at {partition}@{offset}", polled=(Read(partition, offset, value),)
                        ),
                    ],
                )


def _text(offsets: dict[str, int]) -> str:
    return ", ".join(f"{partition}@{offset}" for partition, offset in offsets.items())
