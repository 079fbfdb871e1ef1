"""Offsets in a database, in the same transaction as the results: both are committed, or neither is."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ottla.client.core.arguments import ByPartition, PartitionLike, as_partitions, as_positions
from ottla.client.stores.offset_store import OffsetStore
from ottla.client.stores.table_names import TABLE_NAME_HINT, table_name_problem
from ottla.errors import ArgumentError, OttlaError
from ottla.types import TopicPartition

PLACEHOLDERS: Mapping[str, Callable[[int], str]] = {
    "qmark": lambda number: "?",
    "format": lambda number: "%s",
    "pyformat": lambda number: "%s",
    "numeric": lambda number: f":{number}",
    "numeric_dollar": lambda number: f"${number}",
}
"""How DB-API modules (PEP 249) mark positional parameters."""


class OffsetsMovedError(OttlaError):
    """Another consumer has stored an offset since this store last read it: two consumers work on one partition."""


class DatabaseOffsetStore(OffsetStore):
    """Offsets in a table of any database with a DB-API connection: SQLite, PostgreSQL and others.

    `save` joins the transaction that is open on the connection and leaves the commit to you:

    >>> store = DatabaseOffsetStore(connection, name="billing")
    >>> for partition, offset in store.load(consumer.assignment()).items():
    ...     consumer.seek(partition, offset)
    >>> with store.transaction() as cursor:                     # commits, or rolls back if the block raises
    ...     cursor.execute("insert into bills values (?, ?)", bill)
    ...     store.save({TopicPartition("orders", 0): record.offset + 1})

    An offset is updated only if the table still holds the value that this store knows. So a consumer that has lost its
    partitions without noticing gets OffsetsMovedError, and its results are rolled back with its offsets. `name`
    separates consumers that read the same partitions for different purposes. If you roll back yourself, call `load`
    before the next `save`.

    `mirror` is called when a `transaction()` block has committed. If you commit yourself, call `stored()` afterwards.
    """

    def __init__(
        self,
        connection: Any,
        *,
        name: str = "",
        table: str = "ottla_offsets",
        paramstyle: str | None = None,
        create: bool = True,
    ) -> None:
        problem = table_name_problem(table)
        if problem:
            raise ArgumentError(problem, TABLE_NAME_HINT)
        self.connection = connection
        self.name = name
        self.table = table
        style = paramstyle or _paramstyle_of(connection)
        if style not in PLACEHOLDERS:
            raise ArgumentError(
                f"unknown paramstyle {style!r}",
                f"Pass one of {', '.join(PLACEHOLDERS)} as paramstyle=.",
            )
        self._placeholder = PLACEHOLDERS[style]
        self.known: dict[TopicPartition, int] = {}
        self._saved: dict[TopicPartition, int] = {}
        """The offsets saved in the current `transaction()` block."""
        if create:
            self._create()

    def load(self, partitions: Iterable[PartitionLike]) -> dict[TopicPartition, int]:
        wanted = set(as_partitions(partitions))
        with contextlib.closing(self.connection.cursor()) as cursor:
            self._execute(
                cursor, f"select topic, partition_id, next_offset from {self.table} where consumer = ?", self.name
            )
            stored = {TopicPartition(topic, int(index)): int(offset) for topic, index, offset in cursor.fetchall()}
        for partition in wanted:
            self.known.pop(partition, None)
        found = {partition: offset for partition, offset in stored.items() if partition in wanted}
        self.known.update(found)
        return found

    def save(self, offsets: ByPartition[int]) -> None:
        moved = as_positions(offsets)
        with contextlib.closing(self.connection.cursor()) as cursor:
            for partition, offset in sorted(moved.items()):
                self._save(cursor, partition, offset)
        self.known.update(moved)
        self._saved.update(moved)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor for the results. Commits at the end of the block, rolls back if the block raises."""
        before = dict(self.known)
        self._saved.clear()
        cursor = self.connection.cursor()
        try:
            yield cursor
            self.connection.commit()
        except BaseException:
            self.known = before
            self.connection.rollback()
            raise
        finally:
            cursor.close()
        self.stored(dict(self._saved))

    def _save(self, cursor: Any, partition: TopicPartition, offset: int) -> None:
        key = (self.name, partition.topic, partition.partition)
        known = self.known.get(partition)
        if known is None:
            # Two consumers that both start a partition violate the primary key, here or at the commit.
            insert = f"insert into {self.table} (consumer, topic, partition_id, next_offset) values (?, ?, ?, ?)"
            self._execute(cursor, insert, *key, offset)
            return
        update = (
            f"update {self.table} set next_offset = ? "
            "where consumer = ? and topic = ? and partition_id = ? and next_offset = ?"
        )
        self._execute(cursor, update, offset, *key, known)
        if cursor.rowcount != 1:
            raise OffsetsMovedError(
                f"the stored offset of {partition} is no longer {known}",
                "Another consumer reads this partition, or load() was not called after a rollback.",
            )

    def _create(self) -> None:
        with contextlib.closing(self.connection.cursor()) as cursor:
            cursor.execute(
                f"create table if not exists {self.table} (consumer varchar(249) not null, "
                "topic varchar(249) not null, partition_id integer not null, next_offset bigint not null, "
                "primary key (consumer, topic, partition_id))"
            )
        self.connection.commit()

    def _execute(self, cursor: Any, statement: str, *values: Any) -> None:
        parts = statement.split("?")
        marked = "".join(part + self._placeholder(number) for number, part in enumerate(parts[:-1], 1)) + parts[-1]
        cursor.execute(marked, values)


def _paramstyle_of(connection: Any) -> str:
    """The parameter style of the connection's module."""
    package = type(connection).__module__.partition(".")[0]
    module = sys.modules.get(package)
    return str(getattr(module, "paramstyle", "qmark"))
