"""Reads the files of a log, written by Ottla or Apache Kafka, without opening the log: for `ottla log dump`.

Works on damaged files: returns what can be read, reports what cannot, and changes nothing.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from ottla.log.producers.producer_snapshot import SnapshotRow, decode_rows
from ottla.log.segments.index import OffsetIndex, TimeIndex
from ottla.log.segments.transaction_index import ENTRY_SIZE, AbortedTransaction, decode_entries
from ottla.protocol.records.batch_inspection import inspect_records
from ottla.protocol.records.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    ControlType,
    CorruptBatch,
    Record,
    check_crc,
    control_type,
    read_end_marker,
    read_header,
    read_records,
)

_CHUNK = 1024 * 1024


class DumpedBatch(NamedTuple):
    """A batch in a segment file."""

    position: int
    header: BatchHeader
    data: bytes
    problem: str | None
    """What is wrong with the batch; None if the checksum is correct and the records can be read."""

    @property
    def is_valid(self) -> bool:
        return self.problem is None

    def records(self) -> list[Record]:
        """The decoded records; CorruptBatch if they cannot be decoded."""
        return read_records(self.data, 0, self.header)

    def marker(self) -> tuple[ControlType, int] | None:
        """The type of a control batch and its coordinator epoch (-1 if it is not a transaction marker)."""
        if not self.header.is_control or not self.header.record_count:
            return None
        kind = control_type(self.records()[0].key)
        return read_end_marker(self.data) if kind in (ControlType.ABORT, ControlType.COMMIT) else (kind, -1)


class DumpedTail(NamedTuple):
    """The unreadable end of a segment file: a torn write, padding, or damage."""

    position: int
    size: int
    problem: str


class IndexEntry(NamedTuple):
    """An entry of an offset index."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """An entry of a time index."""

    timestamp: int
    offset: int


def dump_segment(path: str) -> Iterator[DumpedBatch | DumpedTail]:
    """Every batch of a segment file in order, then the unreadable tail, if any."""
    with open(path, "rb", buffering=_CHUNK) as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            start = file.read(HEADER_SIZE)
            try:
                header = read_header(start)
            except CorruptBatch as error:
                yield DumpedTail(position, size - position, error.detail)
                return
            rest = header.size_bytes - HEADER_SIZE
            if rest > size - position - HEADER_SIZE:
                problem = f"a batch of {header.size_bytes} bytes is incomplete"
                yield DumpedTail(position, size - position, problem)
                return
            data = start + file.read(rest)
            yield DumpedBatch(position, header, data, _problem_of(data, header))
            position += len(data)


def _problem_of(data: bytes, header: BatchHeader) -> str | None:
    try:
        check_crc(data, 0, header)
        if inspect_records(data, 0, header).misplaced >= 0:
            read_records(data, 0, header)  # after compaction there are gaps, but offsets still increase
    except CorruptBatch as error:
        return error.detail
    return None


def base_offset_of(path: str) -> int:
    """The offset in a file's name, which index entries are relative to; ValueError if there is none."""
    return int(os.path.basename(path).partition(".")[0])


def dump_offset_index(path: str) -> list[IndexEntry]:
    """The entries of an .index file, without the zeros after the last entry (Kafka preallocates the file)."""
    base_offset = base_offset_of(path)
    index = OffsetIndex.from_bytes(_without_padding(path, OffsetIndex.ENTRY_SIZE), 2**31)
    return [
        IndexEntry(base_offset + offset, position)
        for offset, position in zip(index.offsets, index.positions, strict=True)
    ]


def dump_time_index(path: str) -> list[TimeIndexEntry]:
    """The entries of a .timeindex file, without padding."""
    base_offset = base_offset_of(path)
    index = TimeIndex.from_bytes(_without_padding(path, TimeIndex.ENTRY_SIZE))
    return [
        TimeIndexEntry(timestamp, base_offset + offset)
        for timestamp, offset in zip(index.timestamps, index.offsets, strict=True)
    ]


def dump_transaction_index(path: str) -> list[AbortedTransaction]:
    """The entries of a .txnindex file, without an incomplete last one."""
    data = _read(path)
    return decode_entries(data[: len(data) - len(data) % ENTRY_SIZE])


def dump_snapshot(path: str) -> list[SnapshotRow]:
    """The entries of a producer .snapshot file; CorruptSnapshot if its checksum is wrong."""
    return decode_rows(_read(path))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _without_padding(path: str, entry_size: int) -> bytes:
    data = _read(path)
    data = data[: len(data) - len(data) % entry_size]
    if data.endswith(bytes(entry_size)):
        used = len(data.rstrip(b"\x00"))
        # An entry may itself end in zeros: keep everything up to the end of the last entry with a non-zero byte.
        data = data[: -(-used // entry_size) * entry_size]
    return data
