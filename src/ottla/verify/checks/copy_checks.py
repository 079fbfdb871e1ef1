"""Consume-transform-produce: every record is copied exactly once, in the order of its partition. Pure."""

from collections.abc import Iterator

from ottla.verify.anomalies import Anomaly, Evidence, Kind
from ottla.verify.checks.knowledge import Knowledge
from ottla.verify.history import COMMITTED, COPY, OK, Read, Sent


def check_copies(known: Knowledge) -> Iterator[Anomaly]:
    """Compares the copies in the log with the originals below the committed offsets of the copiers."""
    originals: dict[int, int] = {}
    passed: dict[str, tuple[int, int]] = {}
    """Input partition -> (committed offset, operation)."""
    for number, operation in enumerate(known.history.operations):
        if operation.kind != COPY:
            continue
        originals.update(operation.copies)
        if operation.outcome == OK:
            for partition, offset in operation.offsets.items():
                passed[partition] = max(passed.get(partition, (-1, -1)), (offset, number))
    stored = known.stored.get(COMMITTED)
    if stored is None or not originals:
        return
    copied: dict[int, int] = {}
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for partition, log in known.logs[COMMITTED].items():
        for value in log.values:
            original = originals.get(value)
            if original is None:
                continue
            if original in copied:
                yield _twice(known, original, copied[original], value)
            copied[original] = value
            source = stored.get(original)
            if source is None:
                continue
            before = last.get((source[0], partition), (-1, -1))
            if source[1] < before[0]:
                yield _out_of_order(known, before[1], value, originals)
            else:
                last[source[0], partition] = (source[1], value)
    for partition, (end, number) in passed.items():
        source_log = known.log(partition)
        if source_log is None:
            continue
        for offset, value, reader in zip(source_log.offsets, source_log.values, source_log.operations, strict=True):
            if offset >= end:
                break
            if value not in copied:
                yield Anomaly(
                    Kind.NOT_COPIED,
                    f"{value} at {partition}@{offset} has no copy, and the copiers have committed {partition}@{end}",
                    [
                        Evidence(
                            reader, f"read {value} at {partition}@{offset}", polled=(Read(partition, offset, value),)
                        ),
                        Evidence(number, f"committed {partition}@{end}"),
                    ],
                )


def _twice(known: Knowledge, original: int, first: int, second: int) -> Anomaly:
    return Anomaly(
        Kind.COPY_TWICE,
        f"{original} was copied as {first} and as {second}; both copies are visible",
        [_copying(known, first, original), _copying(known, second, original)],
    )


def _out_of_order(known: Knowledge, earlier: int, later: int, originals: dict[int, int]) -> Anomaly:
    return Anomaly(
        Kind.COPY_ORDER,
        f"the copy of {originals[earlier]} is stored before the copy of {originals[later]}, which comes first",
        [_copying(known, earlier, originals[earlier]), _copying(known, later, originals[later])],
    )


def _copying(known: Knowledge, copy: int, original: int) -> Evidence:
    number = known.writer[copy]
    sent: tuple[Sent, ...] = tuple(each for each in known.operation(number).sent if each.value == copy)
    return Evidence(number, f"copied {original} as {copy}: {known.operation(number).outcome}", sent=sent)
