"""What the clients of a run did and the responses they got: operations, faults, and the whole history. Pure.

Every record has a unique number as its value. Each operation ends ok, fail (it certainly had no effect) or unknown. The
last operations of a history are the final reads: every partition, from the beginning to the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
OUTCOMES = (OK, FAIL, UNKNOWN)

SEND, POLL, TRANSACTION, COPY, COMMIT = "send", "poll", "transaction", "copy", "commit"
ASSIGNED, FETCH_OFFSETS, FINAL = "assigned", "fetch offsets", "final read"
"""The kinds of operations. `copy` is a transaction that writes a copy of each record that it read."""

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


class Sent(NamedTuple):
    """A record that a client sent."""

    partition: str
    """As in `orders-3`: text is hashed once, and there are millions of them."""
    value: int
    offset: int = -1
    """The offset that the broker acknowledged; -1 if unknown."""


class Read(NamedTuple):
    """A record that a client received."""

    partition: str
    offset: int
    value: int


@dataclass(slots=True)
class Operation:
    """One call of one client, or one transaction with everything in it. Times are in microseconds of the run."""

    client: str
    kind: str = TRANSACTION
    sent: list[Sent] = field(default_factory=list)
    """In order."""
    polled: list[Read] = field(default_factory=list)
    """In order."""
    outcome: str = UNKNOWN
    started_us: int = 0
    ended_us: int = -1
    """-1: it has never ended."""
    end_started_us: int = -1
    """When the commit or abort of a transaction was requested; -1: never, or not a transaction."""
    session: int = 0
    """Counts the instances and assignments of this client: order is guaranteed within one session only."""
    isolation: str = COMMITTED
    from_start: bool = True
    """Whether the session's reading begins at the first offset of each partition."""
    group: str = ""
    generation: int = -1
    offsets: dict[str, int] = field(default_factory=dict)
    """Committed or fetched offsets; for `assigned`, the partitions; for final reads, the end reached."""
    copies: dict[int, int] = field(default_factory=dict)
    """Value of a copy -> value of its original."""
    error: str = ""

    @property
    def is_transaction(self) -> bool:
        return self.kind in (TRANSACTION, COPY)


@dataclass(slots=True)
class Fault:
    """A fault of a broker, and when it was healed. Times are in microseconds of the run."""

    kind: str
    brokers: tuple[int, ...]
    started_us: int
    ended_us: int = -1
    """-1: until the end of the run."""
    detail: str = ""


@dataclass(slots=True)
class History:
    """Everything that is known about a run."""

    operations: list[Operation] = field(default_factory=list)
    """In the order in which they were started, for each client."""
    faults: list[Fault] = field(default_factory=list)
    about: dict[str, object] = field(default_factory=dict)
    """The parameters of the run: command, seed, cluster, versions. The checker uses `patience_s`."""
    stuck: list[str] = field(default_factory=list)
    """Steps that never ended although the cluster was healthy, one sentence each."""

    def finals(self, isolation: str) -> Iterator[tuple[int, Operation]]:
        """The final reads with this isolation level."""
        for number, operation in enumerate(self.operations):
            if operation.kind == FINAL and operation.isolation == isolation:
                yield number, operation


def partition_name(topic: str, partition: int) -> str:
    """
    >>> partition_name("orders", 3)
    'orders-3'
    """
    return f"{topic}-{partition}"
