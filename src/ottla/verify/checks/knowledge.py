"""Indexes a history by record and offset, in one pass over all operations. Pure."""

import bisect
from collections import defaultdict
from dataclasses import dataclass, field

from ottla.verify.history import COMMITTED, FAIL, FINAL, UNCOMMITTED, History, Operation


@dataclass(slots=True)
class Log:
    """A partition as the final read with one isolation level found it."""

    offsets: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    """The number of the operation that read each record."""
    following: dict[int, int] = field(default_factory=dict)
    """Offset -> the next offset with a record."""
    end: int = 0
    """How far the partition was read: at least the last offset plus one."""
    last_operation: int = -1

    def next_after(self, offset: int) -> int | None:
        """The first offset with a record above `offset`."""
        known = self.following.get(offset)
        if known is not None:
            return known
        index = bisect.bisect_right(self.offsets, offset)
        return self.offsets[index] if index < len(self.offsets) else None

    def operation_past(self, offset: int) -> int:
        """The operation that read the first record above `offset`; the last one if there is none."""
        index = bisect.bisect_right(self.offsets, offset)
        return self.operations[index] if index < len(self.operations) else self.last_operation


@dataclass(slots=True)
class Knowledge:
    """Indexes of a history. Operations are numbers of `history.operations`."""

    history: History
    writer: dict[int, int] = field(default_factory=dict)
    """Value -> the operation that sent it."""
    logs: dict[str, dict[str, Log]] = field(default_factory=dict)
    """Isolation level -> partition -> what the final read found."""
    place: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    """Value -> (partition, offset, operation) of the first read of it."""
    stored: dict[str, dict[int, tuple[str, int, int]]] = field(default_factory=dict)
    """Isolation level -> value -> (partition, offset, operation), in the final read."""
    failed: set[int] = field(default_factory=set)
    """Values that must never be read by read_committed consumers."""

    def operation(self, number: int) -> Operation:
        return self.history.operations[number]

    def log(self, partition: str, isolation: str = COMMITTED) -> Log | None:
        return self.logs.get(isolation, {}).get(partition)

    @property
    def deepest(self) -> str:
        """The isolation level of the final read that shows the most records."""
        return UNCOMMITTED if UNCOMMITTED in self.logs else COMMITTED


def learn(history: History) -> Knowledge:
    """Indexes a history."""
    found = Knowledge(history)
    writer, place, failed = found.writer, found.place, found.failed
    for number, operation in enumerate(history.operations):
        for sent in operation.sent:
            writer[sent.value] = number
        if operation.outcome == FAIL and operation.sent:
            failed.update([sent.value for sent in operation.sent])
        for partition, offset, value in operation.polled:
            if value not in place:
                place[value] = (partition, offset, number)
        if operation.kind == FINAL:
            _add_final(found, number, operation)
    for isolation, logs in found.logs.items():
        stored = found.stored[isolation] = {}
        for partition, log in logs.items():
            log.following = dict(zip(log.offsets, log.offsets[1:], strict=False))
            for value, offset, number in zip(log.values, log.offsets, log.operations, strict=True):
                stored[value] = (partition, offset, number)
            if log.offsets:
                log.end = max(log.end, log.offsets[-1] + 1)
    return found


def _add_final(found: Knowledge, number: int, operation: Operation) -> None:
    logs = found.logs.setdefault(operation.isolation, defaultdict(Log))
    for partition, offset, value in operation.polled:
        log = logs[partition]
        if log.offsets and offset <= log.offsets[-1]:
            continue  # a second reader of the same partition; other checks compare them
        log.offsets.append(offset)
        log.values.append(value)
        log.operations.append(number)
        log.last_operation = number
    for partition, end in operation.offsets.items():
        log = logs[partition]
        log.end, log.last_operation = max(log.end, end), number
