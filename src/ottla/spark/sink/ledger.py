"""The ledger: which part of which batch is in the topic. Pure.

Every part of a batch (what one task wrote) is one transaction that includes the task's ledger entry: a committed offset
of a consumer group, with offset = batch + 1 and the query as metadata. Rows and entry become visible atomically, so the
ledger shows what is in the topic after any crash.

Brokers accept offsets only for partitions that exist. So the ledger's topic has 16 partitions, and each group of the
ledger (the sink's name; from the 17th task on with a number appended) holds the entries of 16 tasks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.checks import unsigned_from_text
from ottla.types import TopicPartition

LEDGER_PARTITIONS = 16
"""Must never change: it determines where a task's entry is."""


@dataclass(frozen=True)
class Names:
    """The names that a sink called `sink` uses on the broker."""

    sink: str

    def group(self, task: int) -> str:
        """The consumer group that holds this task's entry."""
        number = task // LEDGER_PARTITIONS
        return f"{self.sink}.{number}" if number else self.sink

    def entry(self, task: int) -> TopicPartition:
        """The partition under which the group holds this task's entry."""
        return TopicPartition(self.decisions, task % LEDGER_PARTITIONS)

    @property
    def decisions(self) -> str:
        """The compacted topic with the newest decision, and the topic under which the ledger's offsets are kept."""
        return f"{self.sink}-decisions"

    @property
    def driver(self) -> str:
        """The transactional id of the driver that decides. Only one driver can own it."""
        return f"{self.sink}-driver"

    def task(self, task: int) -> str:
        """The transactional id of a task: one attempt at a time."""
        return f"{self.sink}-{task}"

    def ended(self, run: str) -> str:
        """A transactional id without transactions. If the brokers know it, this run was aborted."""
        return f"{self.sink}-ended-{run}"

    def task_of(self, transactional_id: str) -> int | None:
        """The task that a transactional id of this sink belongs to; None for other ids."""
        prefix, _, number = transactional_id.rpartition("-")
        return unsigned_from_text(number) if prefix == self.sink else None


@dataclass(frozen=True)
class Entry:
    """One task's line in the ledger: it has written every batch of `query` below `next_batch`."""

    next_batch: int
    query: str

    def has(self, query: str, batch: int) -> bool:
        return self.query == query and self.next_batch > batch


Ledger = Mapping[int, Entry]
"""By task. A task that never wrote anything has no entry."""


def is_in(ledger: Ledger, task: int, query: str, batch: int) -> bool:
    """Whether the rows that this task wrote for this batch are in their topics."""
    entry = ledger.get(task)
    return entry is not None and entry.has(query, batch)
