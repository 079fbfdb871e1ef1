"""A copy in memory of an SQLite database in WAL mode, made without writing anything: for a disk that is full.

SQLite itself cannot open such a database on a full disk, not even to read it: it first creates a shared-memory file.
The formats are those of SQLite's documentation: pages of a fixed size; in the write-ahead log, frames with newer pages.
"""

import errno
import os
import sqlite3
import struct

from ottla.errors import OttlaError

SPACE_NEEDED_BYTES = 1024 * 1024
"""With less free space than this, a disk counts as full."""

_WAL_HEADER = struct.Struct(">IIIIIIII")
_FRAME_HEADER = struct.Struct(">IIIIII")
_MAGIC = 0x377F0682
"""The last bit says in which byte order checksums are computed."""
_READ_VERSION = slice(18, 20)
"""In the header of a database: 2 for WAL mode, 1 for a database without a log."""


def free_bytes(path: str) -> int:
    """The space that is left on the disk of `path`, for users without privileges."""
    try:
        found = os.statvfs(os.path.dirname(path) or ".")
    except FileNotFoundError:
        return SPACE_NEEDED_BYTES  # another error, not a full disk
    return found.f_bavail * found.f_frsize


def is_disk_full(error: BaseException, path: str) -> bool:
    """Whether an error of SQLite or of the system means that the disk of `path` is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not isinstance(error, sqlite3.Error):
        return False
    # For the files besides the database, SQLite reports a full disk as some other error.
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL or free_bytes(path) < SPACE_NEEDED_BYTES


def disk_full(path: str) -> str:
    """The error for a client whose change cannot be stored."""
    return (
        f"{path}: the disk is full ({free_bytes(path)} bytes free); free some space and try again, no restart is needed"
    )


def copy_database(path: str) -> sqlite3.Connection:
    """The database with everything that is committed, in memory. OttlaError if it cannot be read."""
    try:
        pages = _read(path)
        _apply_log(pages, _read(f"{path}-wal"))
        if not pages:
            raise OttlaError(f"cannot create {path}: the disk is full ({free_bytes(path)} bytes free)", _HINT)
        pages[_READ_VERSION] = b"\x01\x01"
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            connection.deserialize(bytes(pages))
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
    except (OSError, sqlite3.Error, struct.error) as error:
        raise OttlaError(f"cannot read metadata database {path}: {error}; the disk is full as well", _HINT) from error
    return connection


_HINT = "Free some space, or choose another data directory with --data DIR."


def _read(path: str) -> bytearray:
    try:
        with open(path, "rb") as file:
            return bytearray(file.read())
    except FileNotFoundError:
        return bytearray()


def _apply_log(pages: bytearray, log: bytearray) -> None:
    """Replaces pages with those of the log, up to its last commit. An incomplete frame ends the log."""
    if len(log) < _WAL_HEADER.size:
        return
    magic, _, page_size, _, salt_1, salt_2, *checksum = _WAL_HEADER.unpack_from(log)
    if magic & ~1 != _MAGIC:
        return
    order = ">" if magic & 1 else "<"
    sums = _checksum(log[:24], (0, 0), order)
    if sums != tuple(checksum):
        return
    position, written = _WAL_HEADER.size, {}
    while position + _FRAME_HEADER.size + page_size <= len(log):
        number, size_after_commit, *salts, sum_1, sum_2 = _FRAME_HEADER.unpack_from(log, position)
        start = position + _FRAME_HEADER.size
        position = start + page_size
        sums = _checksum(log[start - _FRAME_HEADER.size : start - 16], sums, order)
        sums = _checksum(log[start:position], sums, order)
        if salts != [salt_1, salt_2] or sums != (sum_1, sum_2):
            return
        written[number] = start
        if size_after_commit:
            size = size_after_commit * page_size
            pages.extend(bytes(max(0, size - len(pages))))
            for page, at in written.items():
                pages[(page - 1) * page_size : page * page_size] = log[at : at + page_size]
            del pages[size:]
            written = {}


def _checksum(data: bytes | bytearray, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & 0xFFFFFFFF
        second = (second + words[index + 1] + first) & 0xFFFFFFFF
    return first, second
