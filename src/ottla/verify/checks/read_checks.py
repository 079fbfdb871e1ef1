"""What consumers may receive: committed records only, one record per offset, forward and without gaps. Pure."""

from collections.abc import Iterator

from ottla.verify.anomalies import Anomaly, Evidence, Kind
from ottla.verify.checks.knowledge import Knowledge
from ottla.verify.history import COMMITTED, FINAL, Operation, Read, Sent


def check_isolation(known: Knowledge) -> Iterator[Anomaly]:
    """Aborted reads (G1a), reads before the commit (G1b), and a transaction's own writes."""
    writer, failed, operations = known.writer, known.failed, known.history.operations
    reported: set[tuple[Kind, int]] = set()
    for number, operation in enumerate(operations):
        is_committed = operation.isolation == COMMITTED
        for read in operation.polled:
            value = read.value
            author = writer.get(value)
            if author is None:
                continue
            written = operations[author]
            kind: Kind | None = None
            if author == number:
                kind = Kind.OWN_READ if is_committed else None
            elif value in failed:
                kind = Kind.ABORTED_READ if is_committed or not written.is_transaction else None
            elif is_committed and 0 <= operation.ended_us < written.end_started_us and written.is_transaction:
                kind = Kind.UNCOMMITTED_READ
            if kind is not None and (kind, author) not in reported:
                # One report per transaction: its other records prove nothing more.
                reported.add((kind, author))
                yield _forbidden(kind, number, operation, read, author, written)


def _forbidden(kind: Kind, number: int, operation: Operation, read: Read, author: int, written: Operation) -> Anomaly:
    partition, offset, value = read
    where = f"{value} at {partition}@{offset}"
    sent = tuple(each for each in written.sent if each.value == value)
    received = Evidence(number, f"received {where} with {operation.isolation}", polled=(read,))
    if kind is Kind.OWN_READ:
        return Anomaly(kind, f"a transaction of {operation.client} received its own {where}", [received])
    if kind is Kind.ABORTED_READ:
        what = "was aborted" if written.is_transaction else "failed"
        return Anomaly(
            kind,
            f"{operation.client} received {where}; it was sent by {written.client} and {what}",
            [Evidence(author, f"sent {value} to {sent[0].partition}, then {what}", sent=sent), received],
        )
    early_ms = (written.end_started_us - operation.ended_us) / 1000
    return Anomaly(
        kind,
        f"{operation.client} received {where} {early_ms:.1f} ms before {written.client} requested its commit",
        [
            Evidence(
                author,
                f"sent {value} to {sent[0].partition}; requested the commit at {written.end_started_us / 1e6:.3f} s",
                sent=sent,
            ),
            received,
        ],
    )


def check_offsets(known: Knowledge) -> Iterator[Anomaly]:
    """All readers see the same record at an offset, and the broker acknowledged that one."""
    seen: dict[str, dict[int, tuple[int, int]]] = {}
    reported: set[tuple[str, int]] = set()
    for number, operation in enumerate(known.history.operations):
        for read in operation.polled:
            partition, offset, value = read
            offsets = seen.get(partition)
            if offsets is None:
                offsets = seen[partition] = {}
            first = offsets.get(offset)
            if first is None:
                offsets[offset] = (value, number)
            elif first[0] != value and (partition, offset) not in reported:
                reported.add((partition, offset))
                yield Anomaly(
                    Kind.INCONSISTENT_OFFSET,
                    f"{partition}@{offset} held {first[0]} and {value}",
                    [
                        Evidence(
                            first[1],
                            f"read {first[0]} at {partition}@{offset}",
                            polled=(Read(partition, offset, first[0]),),
                        ),
                        Evidence(number, f"read {value} at {partition}@{offset}", polled=(read,)),
                    ],
                )
    for number, operation in enumerate(known.history.operations):
        for sent in operation.sent:
            if sent.offset < 0:
                continue
            found = seen.get(sent.partition, {}).get(sent.offset)
            if found is not None and found[0] != sent.value and (sent.partition, sent.offset) not in reported:
                reported.add((sent.partition, sent.offset))
                yield _acknowledged_elsewhere(number, sent, found)


def _acknowledged_elsewhere(number: int, sent: Sent, found: tuple[int, int]) -> Anomaly:
    place = f"{sent.partition}@{sent.offset}"
    return Anomaly(
        Kind.INCONSISTENT_OFFSET,
        f"{sent.value} was acknowledged at {place}, which holds {found[0]}",
        [
            Evidence(number, f"sent {sent.value}: acknowledged at {place}", sent=(sent,)),
            Evidence(found[1], f"read {found[0]} at {place}", polled=(Read(sent.partition, sent.offset, found[0]),)),
        ],
    )


def check_poll_order(known: Knowledge) -> Iterator[Anomaly]:
    """Within a session, a consumer reads each partition forward and skips nothing."""
    tracks: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
    for number, operation in enumerate(known.history.operations):
        if not operation.polled or operation.kind == FINAL:
            continue
        logs = known.logs.get(operation.isolation, {})
        track = tracks.setdefault((operation.client, operation.session), {})
        for read in operation.polled:
            partition, offset = read.partition, read.offset
            before = track.get(partition)
            if before is not None and offset <= before[0]:
                yield _step_back(known, number, read, before)
                continue
            log = logs.get(partition)
            track[partition] = (offset, number)
            if log is None or (before is None and not operation.from_start):
                continue
            expected = log.next_after(-1 if before is None else before[0])
            if expected is not None and expected < offset:
                yield _skip(known, number, read, before, expected)


def _step_back(known: Knowledge, number: int, read: Read, before: tuple[int, int]) -> Anomaly:
    partition, offset, value = read
    client = known.operation(number).client
    return Anomaly(
        Kind.STEP_BACK,
        f"{client} received {partition}@{offset} after {partition}@{before[0]}",
        [
            Evidence(
                before[1], f"received {partition}@{before[0]}", polled=_polled(known, before[1], partition, before[0])
            ),
            Evidence(number, f"received {value} at {partition}@{offset} afterwards", polled=(read,)),
        ],
    )


def _skip(known: Knowledge, number: int, read: Read, before: tuple[int, int] | None, expected: int) -> Anomaly:
    partition, offset, value = read
    operation = known.operation(number)
    log = known.logs[operation.isolation][partition]
    keeper = log.operation_past(expected - 1)
    missed = _polled(known, keeper, partition, expected)
    evidence = []
    if before is not None:
        evidence.append(
            Evidence(
                before[1], f"received {partition}@{before[0]}", polled=_polled(known, before[1], partition, before[0])
            )
        )
    evidence += [
        Evidence(number, f"received {value} at {partition}@{offset} next", polled=(read,)),
        Evidence(keeper, f"read {missed[0].value if missed else '?'} at {partition}@{expected}", polled=missed),
    ]
    return Anomaly(
        Kind.SKIP,
        f"{operation.client} received {partition}@{offset} "
        f"{'first' if before is None else f'right after {before[0]}'}, and not {partition}@{expected}",
        evidence,
    )


def _polled(known: Knowledge, number: int, partition: str, offset: int) -> tuple[Read, ...]:
    return tuple(r for r in known.operation(number).polled if r.offset == offset and r.partition == partition)
