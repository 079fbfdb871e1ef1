"""The kinds of anomalies, and one anomaly with its evidence. Pure."""

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.verify.history import Read, Sent


class Kind(enum.Enum):
    """Each with its definition. Names in brackets are those of Adya's isolation theory."""

    LOST_WRITE = "lost write", "an acknowledged record is not in the log, although the log continues after it"
    UNSEEN = "unseen record", "an acknowledged record is not in the log, which ends before its offset"
    DUPLICATE = "duplicate", "a record that was sent once is stored at two offsets"
    ABORTED_READ = "aborted read (G1a)", "a read_committed consumer received a record of an aborted transaction"
    TORN = "torn transaction", "only some records of a transaction are visible to read_committed consumers"
    UNCOMMITTED_READ = (
        "intermediate read (G1b)",
        "a read_committed consumer received a record before its transaction's commit was requested",
    )
    OWN_READ = "own uncommitted read", "a transaction received a record that it has sent itself"
    INCONSISTENT_OFFSET = "inconsistent offset", "two different records were seen at one offset, or one moved"
    WRONG_PARTITION = "wrong partition", "a record is in a different partition than the one it was sent to"
    REORDERED = "reordered send", "records of one producer are stored in a different order than they were sent"
    STEP_BACK = "step back", "a consumer received an offset again, or a lower one, without a seek or a rebalance"
    SKIP = "skip", "a consumer did not receive a record between two that it received"
    CYCLE = "circular information flow (G1c)", "transactions have read each other's records in a circle"
    COPY_TWICE = "copied twice", "a record was copied by two committed transactions"
    NOT_COPIED = "not copied", "a record was skipped, although the copier's committed offset has passed it"
    COPY_ORDER = "copies out of order", "copies of one partition are in a different order than the originals"
    NOT_PROCESSED = "not processed", "a group's committed offset has passed a record that no member received"
    TWO_OWNERS = "two owners", "two members owned one partition in one generation of the group"
    OFFSET_BACK = "committed offset stepped back", "a group's committed offset is lower than one acknowledged before"
    ZOMBIE_COMMIT = "zombie commit", "a commit of an old generation was accepted after a newer one had begun"
    NO_PROGRESS = "no progress", "no operation of a client succeeded for a long time although no fault was active"

    def __new__(cls, label: str, definition: str) -> "Kind":
        kind = object.__new__(cls)
        kind._value_ = label
        kind.definition = definition
        return kind

    definition: str


class Evidence(NamedTuple):
    """One operation that proves an anomaly, and the part of it that matters."""

    operation: int
    """Its number in the history."""
    note: str
    """The relevant part of what it did, as in `sent 17 to orders-0`."""
    sent: tuple[Sent, ...] = ()
    polled: tuple[Read, ...] = ()


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that must not happen, with the few operations that prove it."""

    kind: Kind
    message: str
    evidence: list[Evidence] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"
