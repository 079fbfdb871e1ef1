"""Sent records must be in the log once, in the right place and order; transactions completely or not at all. Pure."""

from collections.abc import Iterator

from ottla.verify.anomalies import Anomaly, Evidence, Kind
from ottla.verify.checks.knowledge import Knowledge
from ottla.verify.history import COMMITTED, FAIL, FINAL, OK, Operation, Read, Sent


def check_writes(known: Knowledge) -> Iterator[Anomaly]:
    """Lost and unseen records, torn transactions, records in the wrong partition."""
    stored = known.stored.get(COMMITTED)
    if stored is None:
        return
    logs = known.logs[COMMITTED]
    for number, operation in enumerate(known.history.operations):
        sent = operation.sent
        if not sent:
            continue
        missing = [each for each in sent if each.value not in stored and each.partition in logs]
        if missing:
            if operation.is_transaction and len(missing) < len(sent) and operation.outcome != FAIL:
                yield _torn(known, number, operation, missing)
            elif operation.outcome == OK:
                for each in missing:
                    yield _lost(known, number, each)
        for each in sent:
            found = stored.get(each.value)
            if found is not None and (found[0] != each.partition or 0 <= each.offset != found[1]):
                yield _displaced(number, each, found)


def _torn(known: Knowledge, number: int, operation: Operation, missing: list[Sent]) -> Anomaly:
    stored = known.stored[COMMITTED]
    there = next(each for each in operation.sent if each.value in stored)
    gone = missing[0]
    partition, offset, reader = stored[there.value]
    acknowledged = ", although its commit was acknowledged" if operation.outcome == OK else ""
    evidence = [
        Evidence(
            number,
            f"transaction with {there.value} to {there.partition} and {gone.value} to {gone.partition}: "
            f"{operation.outcome}",
            sent=(there, gone),
        ),
        Evidence(reader, f"read {there.value} at {partition}@{offset}", polled=(Read(partition, offset, there.value),)),
        _absence(known, gone),
    ]
    return Anomaly(
        Kind.TORN,
        f"{len(missing)} of {len(operation.sent)} records of a transaction of {operation.client} are missing: "
        f"{there.value} is visible and {gone.value} is not{acknowledged}",
        evidence,
    )


def _lost(known: Knowledge, number: int, sent: Sent) -> Anomaly:
    operation = known.operation(number)
    log = known.log(sent.partition)
    assert log is not None
    kind = Kind.UNSEEN if sent.offset >= log.end else Kind.LOST_WRITE
    at = f" at offset {sent.offset}" if sent.offset >= 0 else ""
    evidence = [Evidence(number, f"sent {sent.value} to {sent.partition}: acknowledged{at}", sent=(sent,))]
    if sent.value in known.place:
        partition, offset, reader = known.place[sent.value]
        evidence.append(
            Evidence(
                reader, f"read {sent.value} at {partition}@{offset}", polled=(Read(partition, offset, sent.value),)
            )
        )
    evidence.append(_absence(known, sent))
    return Anomaly(
        kind, f"{sent.value} of {operation.client}, acknowledged in {sent.partition}{at}, is not there", evidence
    )


def _absence(known: Knowledge, sent: Sent) -> Evidence:
    """The final read that should have found a record."""
    log = known.log(sent.partition)
    assert log is not None
    if sent.offset < 0:
        return Evidence(
            log.last_operation, f"read {sent.partition} up to offset {log.end} without receiving {sent.value}"
        )
    following = log.next_after(sent.offset - 1)
    number = log.operation_past(sent.offset - 1)
    if following is None:
        return Evidence(number, f"read {sent.partition}, which ends at offset {log.end}")
    value = next((r.value for r in known.operation(number).polled if r[:2] == (sent.partition, following)), -1)
    return Evidence(
        number,
        f"read {value} at {sent.partition}@{following}, and {sent.value} nowhere",
        polled=(Read(sent.partition, following, value),),
    )


def _displaced(number: int, sent: Sent, found: tuple[str, int, int]) -> Anomaly:
    """A record that is not where the client sent it, or where the broker acknowledged it."""
    partition, offset, reader = found
    if partition != sent.partition:
        kind, what = Kind.WRONG_PARTITION, f"sent to {sent.partition}"
    else:
        kind, what = Kind.INCONSISTENT_OFFSET, f"acknowledged at {sent.partition}@{sent.offset}"
    return Anomaly(
        kind,
        f"{sent.value} was {what} and is at {partition}@{offset}",
        [
            Evidence(number, f"{sent.value} was {what}", sent=(sent,)),
            Evidence(
                reader, f"read {sent.value} at {partition}@{offset}", polled=(Read(partition, offset, sent.value),)
            ),
        ],
    )


def check_duplicates(known: Knowledge) -> Iterator[Anomaly]:
    """No reader finds a value at two places."""
    place, reported = known.place, set[int]()
    for number, operation in enumerate(known.history.operations):
        for read in operation.polled:
            partition, offset, value = read
            first = place[value]
            if (first[1] != offset or first[0] != partition) and value not in reported:
                reported.add(value)
                evidence = []
                if value in known.writer:
                    sender = known.writer[value]
                    sent = tuple(each for each in known.operation(sender).sent if each.value == value)
                    evidence.append(Evidence(sender, f"sent {value} once, to {sent[0].partition}", sent=sent))
                evidence += [
                    Evidence(
                        first[2], f"read {value} at {first[0]}@{first[1]}", polled=(Read(first[0], first[1], value),)
                    ),
                    Evidence(number, f"read {value} at {partition}@{offset}", polled=(read,)),
                ]
                yield Anomaly(
                    Kind.DUPLICATE, f"{value} is at {first[0]}@{first[1]} and at {partition}@{offset}", evidence
                )


def check_send_order(known: Knowledge) -> Iterator[Anomaly]:
    """Records of one producer instance are stored in the order in which they were sent, in each partition."""
    stored = known.stored.get(known.deepest)
    if stored is None:
        return
    last: dict[tuple[str, int], dict[str, tuple[int, int, Sent]]] = {}
    for number, operation in enumerate(known.history.operations):
        if not operation.sent or operation.kind == FINAL:
            continue
        track = last.setdefault((operation.client, operation.session), {})
        for sent in operation.sent:
            found = stored.get(sent.value)
            if found is None:
                continue
            offset = found[1]
            before = track.get(sent.partition)
            if before is not None and offset < before[0]:
                yield Anomaly(
                    Kind.REORDERED,
                    f"{operation.client} sent {before[2].value} before {sent.value} to {sent.partition}; "
                    f"they are at offsets {before[0]} and {offset}",
                    [
                        Evidence(before[1], f"sent {before[2].value}, now at offset {before[0]}", sent=(before[2],)),
                        Evidence(number, f"sent {sent.value} later, now at offset {offset}", sent=(sent,)),
                    ],
                )
            else:
                track[sent.partition] = (offset, number, sent)
