"""What the SQLite store does inside a transaction: applies operations, and reads what was committed."""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from ottla.metadata.store import (
    Change,
    Check,
    Create,
    Delete,
    Entry,
    Operation,
    Set,
    check_operation,
)

COLUMNS = "key, value, version, created, modified, session_id"


class CommittedChanges(NamedTuple):
    """What was committed after revision `since`, up to `revision`."""

    since: int
    revision: int
    is_session_alive: bool
    changes: list[Change]


def apply_operations(writer: sqlite3.Connection, operations: Sequence[Operation], session_id: int, now: int) -> bool:
    """Inside a write transaction: applies every operation, or raises Conflict. Returns whether keys were removed."""
    revision = writer.execute("SELECT revision FROM state").fetchone()[0] + 1
    execute = writer.execute
    removed = False
    for operation in operations:
        key = operation.key
        if isinstance(operation, Create):
            owner = session_id if operation.ephemeral else 0
            cursor = execute(
                "INSERT INTO entries VALUES (?, ?, 0, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
                (key, operation.value, revision, revision, owner),
            )
        elif isinstance(operation, Set):
            cursor = execute(
                "UPDATE entries SET value = ?, version = version + 1, modified = ? "
                "WHERE key = ? AND (version = ? OR ? = -1)",
                (operation.value, revision, key, operation.version, operation.version),
            )
        elif isinstance(operation, Delete):
            cursor = execute(
                "DELETE FROM entries WHERE key = ? AND (version = ? OR ? = -1)",
                (key, operation.version, operation.version),
            )
        if isinstance(operation, Check) or cursor.rowcount == 0:
            row = execute(f"SELECT {COLUMNS} FROM entries WHERE key = ?", (key,)).fetchone()
            check_operation(operation, None if row is None else Entry(*row))
        if isinstance(operation, Delete):
            execute("INSERT OR REPLACE INTO removals VALUES (?, ?, ?)", (key, revision, now))
            removed = True
    execute("UPDATE state SET revision = ?", (revision,))
    return removed


def forget_removals(writer: sqlite3.Connection, *, before: int) -> None:
    """Forgets the keys that were removed before a time. A session that has not seen their removal has expired."""
    (newest,) = writer.execute("SELECT max(revision) FROM removals WHERE at_ms < ?", (before,)).fetchone()
    if newest is not None:
        writer.execute("DELETE FROM removals WHERE at_ms < ?", (before,))
        writer.execute("UPDATE state SET removals_kept_since = max(removals_kept_since, ?)", (newest,))


def read_changes(connection: sqlite3.Connection, since: int, session_id: int) -> CommittedChanges:
    """What was committed after revision `since`."""
    execute = connection.execute
    execute("BEGIN")  # one snapshot for all the reads
    try:
        revision, kept_since = execute("SELECT revision, removals_kept_since FROM state").fetchone()
        alive = execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).fetchone()
        changes: list[Change] = []
        if revision > since:
            rows = execute(f"SELECT {COLUMNS} FROM entries WHERE modified > ?", (since,))
            changes = [Change(row[0], Entry(*row), row[4]) for row in rows]
            removals = execute(
                "SELECT key, revision FROM removals WHERE revision > ? "
                "AND NOT EXISTS (SELECT 1 FROM entries WHERE entries.key = removals.key)",
                (since,),
            )
            changes += [Change(key, None, at) for key, at in removals]
    finally:
        execute("COMMIT")
    changes.sort(key=lambda change: change.revision)
    return CommittedChanges(since, revision, alive is not None and since >= kept_since, changes)
