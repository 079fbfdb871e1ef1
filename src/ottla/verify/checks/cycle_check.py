"""Information must not flow in a circle between transactions (G1c). Pure.

Only reads count: transaction B depends on A if it received a record that A sent. Circles of writes (G0) are allowed,
because Kafka interleaves the records of concurrent transactions.
"""

import itertools
from collections import deque
from collections.abc import Iterator

from ottla.verify.anomalies import Anomaly, Evidence, Kind
from ottla.verify.checks.knowledge import Knowledge
from ottla.verify.history import FAIL, Read

STARTS_MAX = 50
"""The number of transactions per group from which a shortest circle is searched."""


def check_cycles(known: Knowledge) -> Iterator[Anomaly]:
    """One anomaly per group of transactions that depend on each other, with a shortest circle as evidence."""
    edges = _dependencies(known)
    rest = _without_ends(edges)
    while rest:
        circles = (circle for start in rest if (circle := _shortest_circle(rest, start)))
        circle = min(itertools.islice(circles, STARTS_MAX), key=len, default=[])
        if not circle:
            return
        yield _describe(known, circle, edges)
        for number in circle:
            rest.pop(number, None)
        rest = _without_ends({a: {b: read for b, read in found.items() if b in rest} for a, found in rest.items()})


def _dependencies(known: Knowledge) -> dict[int, dict[int, Read]]:
    """Author -> reader -> one record that the reader received. Only those that both sent and received matter."""
    operations, writer = known.history.operations, known.writer
    both = {number for number, each in enumerate(operations) if each.sent and each.polled and each.outcome != FAIL}
    edges: dict[int, dict[int, Read]] = {}
    for number in both:
        for read in operations[number].polled:
            author = writer.get(read.value)
            if author is not None and author != number and author in both:
                edges.setdefault(author, {}).setdefault(number, read)
    return edges


def _without_ends(edges: dict[int, dict[int, Read]]) -> dict[int, dict[int, Read]]:
    """Repeatedly removes transactions without incoming or outgoing edges. Circles and the paths between them remain."""
    for _ in range(2):
        incoming: dict[int, int] = dict.fromkeys(edges, 0)
        for readers in edges.values():
            for reader in readers:
                incoming[reader] = incoming.get(reader, 0) + 1
        free = [number for number, count in incoming.items() if count == 0]
        gone: set[int] = set()
        while free:
            number = free.pop()
            gone.add(number)
            for reader in edges.get(number, ()):
                incoming[reader] -= 1
                if incoming[reader] == 0:
                    free.append(reader)
        # Once forward, once backward.
        turned: dict[int, dict[int, Read]] = {}
        for author, readers in edges.items():
            for reader, read in readers.items():
                if author not in gone and reader not in gone:
                    turned.setdefault(reader, {})[author] = read
        edges = turned
    return edges


def _shortest_circle(edges: dict[int, dict[int, Read]], start: int) -> list[int]:
    """The shortest path from a transaction back to itself; empty if there is none."""
    came_from: dict[int, int] = {}
    queue = deque([start])
    while queue:
        number = queue.popleft()
        for reader in edges.get(number, ()):
            if reader == start:
                circle = [number]
                while circle[-1] != start:
                    circle.append(came_from[circle[-1]])
                return circle[::-1]
            if reader not in came_from:
                came_from[reader] = number
                queue.append(reader)
    return []


def _describe(known: Knowledge, circle: list[int], edges: dict[int, dict[int, Read]]) -> Anomaly:
    evidence = []
    for author, reader in zip([circle[-1], *circle[:-1]], circle, strict=True):
        read = edges.get(author, {}).get(reader)
        if read is None:
            continue
        evidence.append(
            Evidence(
                reader,
                f"received {read.value} at {read.partition}@{read.offset}, which {known.operation(author).client} sent",
                sent=tuple(known.operation(reader).sent[:1]),
                polled=(read,),
            )
        )
    clients = " -> ".join(known.operation(number).client for number in [*circle, circle[0]])
    return Anomaly(Kind.CYCLE, f"{len(circle)} transactions have read each other's records: {clients}", evidence)
