"""The copy of a metadata file for a full disk has everything that is committed, and nothing else."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.errors import OttlaError
from ottla.metadata.sqlite.database_copy import copy_database, is_disk_full

Rows = list[tuple[int, bytes]]


class Writer:
    """A database in WAL mode whose log is not written back to the database file, as after a crash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA wal_autocheckpoint = 0")
        self.connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, value BLOB)")

    def insert(self, first: int, count: int, size: int = 500) -> None:
        self.connection.execute("BEGIN")
        for number in range(first, first + count):
            self.connection.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (number, bytes([number % 251]) * size))
        self.connection.execute("COMMIT")

    def rows(self) -> Rows:
        return self.connection.execute("SELECT * FROM rows ORDER BY id").fetchall()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "metadata.sqlite")
    yield made
    made.connection.close()


def copied(path: Path) -> Rows:
    connection = copy_database(str(path))
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found: Rows = connection.execute("SELECT * FROM rows ORDER BY id").fetchall()
        connection.execute("DELETE FROM rows")  # it can be written, without an effect on the file
        return found
    finally:
        connection.close()


def test_commits_that_are_only_in_the_log_are_copied(writer: Writer) -> None:
    writer.insert(0, 100)
    writer.insert(50, 200, size=700)
    assert copied(writer.path) == writer.rows()
    assert len(copied(writer.path)) == 250, "copying changes nothing"


def test_a_log_that_was_partly_written_back_is_copied(writer: Writer) -> None:
    writer.insert(0, 100)
    writer.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    # The log starts again from its beginning, with older frames behind the new ones.
    writer.insert(20, 10, size=90)
    assert copied(writer.path) == writer.rows()
    writer.connection.execute("DELETE FROM rows WHERE id > 5")
    writer.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer.connection.execute("VACUUM")
    assert copied(writer.path) == writer.rows()


def test_a_transaction_that_was_not_committed_is_left_out(writer: Writer) -> None:
    writer.insert(0, 10)
    before = writer.rows()
    writer.connection.execute("PRAGMA cache_size = 5")  # so that pages are written before the commit
    writer.connection.execute("BEGIN")
    for number in range(10, 400):
        writer.connection.execute("INSERT INTO rows VALUES (?, ?)", (number, bytes(2_000)))
    assert os.path.getsize(f"{writer.path}-wal") > 400_000
    assert copied(writer.path) == before
    writer.connection.execute("ROLLBACK")


def test_a_log_that_is_cut_or_damaged_ends_at_the_last_whole_commit(writer: Writer, tmp_path: Path) -> None:
    states = [writer.rows()]
    sizes = [os.path.getsize(f"{writer.path}-wal")]
    for number in range(4):
        writer.insert(number, 1)
        states.append(writer.rows())
        sizes.append(os.path.getsize(f"{writer.path}-wal"))
    log = Path(f"{writer.path}-wal").read_bytes()
    there = tmp_path / "copy.sqlite"
    shutil.copy(writer.path, there)
    for number in range(1, 5):
        Path(f"{there}-wal").write_bytes(log[: sizes[number] - 1])
        assert copied(there) == states[number - 1]
        damaged = bytearray(log)
        damaged[sizes[number] - 100] ^= 1
        Path(f"{there}-wal").write_bytes(damaged)
        assert copied(there) == states[number - 1]


def test_a_file_that_is_missing_or_no_database_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OttlaError, match="the disk is full"):
        copy_database(str(tmp_path / "metadata.sqlite"))
    (tmp_path / "metadata.sqlite").write_bytes(b"something else entirely" * 100)
    with pytest.raises(OttlaError, match="cannot read metadata database"):
        copy_database(str(tmp_path / "metadata.sqlite"))


def test_only_errors_about_space_mean_that_the_disk_is_full(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata.sqlite")
    assert is_disk_full(OSError(28, "No space left on device"), path)
    assert not is_disk_full(OSError(13, "Permission denied"), path)
    assert not is_disk_full(sqlite3.OperationalError("unable to open database file"), path)
    assert not is_disk_full(sqlite3.OperationalError("unable to open"), str(tmp_path / "missing" / "metadata.sqlite"))
    assert not is_disk_full(ValueError(), path)
