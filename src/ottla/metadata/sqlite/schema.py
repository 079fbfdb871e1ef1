"""The SQLite file that stores the metadata: its tables, their version, and its journal mode."""

import sqlite3
import threading
from collections.abc import Callable

from ottla.errors import OttlaError

LOCK_WAIT_SECONDS = 10.0
SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL, session_id INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX entries_by_revision ON entries (modified);
CREATE INDEX entries_by_session ON entries (session_id) WHERE session_id != 0;
CREATE TABLE removals (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX removals_by_revision ON removals (revision);
CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, timeout_ms INTEGER NOT NULL);
CREATE TABLE state (revision INTEGER NOT NULL, removals_kept_since INTEGER NOT NULL);
INSERT INTO state VALUES (0, 0);
"""


def prepare_tables(writer: sqlite3.Connection, path: str) -> None:
    """Inside a write transaction: creates the tables in a new file. OttlaError for tables of another version."""
    found = writer.execute("PRAGMA user_version").fetchone()[0]
    if found == 0:
        for statement in SCHEMA.split(";\n"):
            if statement.strip():
                writer.execute(statement)
        writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif found != SCHEMA_VERSION:
        raise OttlaError(
            f"{path} has schema version {found}; this version of Ottla supports {SCHEMA_VERSION}",
            "Use the Ottla version that wrote it, or another data directory.",
        )


def use_wal(writer: sqlite3.Connection, monotonic: Callable[[], float]) -> None:
    """Enables WAL mode. Retries while another process creates the file: SQLite's busy timeout does not apply."""
    deadline = monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            if writer.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                writer.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > deadline:
                raise
            threading.Event().wait(0.01)
