"""Collects the operations of all workers of a run. Thread-safe."""

import itertools
from collections.abc import Callable

from ottla.checks import unsigned_from_text
from ottla.verify.clients.port import Received
from ottla.verify.history import OK, UNKNOWN, Fault, History, Operation, Read, partition_name


class Recorder:
    """The history of a run in progress."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.history = History()
        self._monotonic = monotonic
        self._start_s = monotonic()
        self._values = itertools.count(1)
        self.last_success_us: dict[str, int] = {}
        """By client."""
        self.counts: dict[str, int] = {}
        """Operations by outcome, among those that have ended."""

    def now_us(self) -> int:
        return int((self._monotonic() - self._start_s) * 1e6)

    def next_value(self) -> int:
        """A unique number for a record."""
        return next(self._values)

    def begin(self, operation: Operation) -> Operation:
        """Adds an operation that starts now."""
        operation.started_us = self.now_us()
        self.history.operations.append(operation)
        return operation

    def end(self, operation: Operation, outcome: str, error: str = "") -> None:
        """The operation ends now."""
        now = self.now_us()
        operation.ended_us, operation.outcome = now, outcome
        if error:
            operation.error = error
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        if outcome == OK:
            self.last_success_us[operation.client] = now

    def give_up(self, operation: Operation, error: str) -> None:
        """Marks an operation whose outcome will never be known."""
        if operation.ended_us < 0:
            self.end(operation, UNKNOWN, error)

    def begin_fault(self, kind: str, brokers: tuple[int, ...], detail: str) -> Fault:
        fault = Fault(kind, brokers, self.now_us(), detail=detail)
        self.history.faults.append(fault)
        return fault


def reads(records: list[Received]) -> list[Read]:
    return [Read(partition_name(each.topic, each.partition), each.offset, number_of(each.value)) for each in records]


def number_of(value: bytes) -> int:
    """The number in a record; -1 if it is not one of ours.

    >>> number_of(b"17"), number_of(b"seventeen")
    (17, -1)
    """
    number = unsigned_from_text(value)
    return -1 if number is None else number
