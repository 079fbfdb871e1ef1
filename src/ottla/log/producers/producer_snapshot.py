"""Producer snapshots in Kafka's file format, so that a restart need not read the whole log. Pure.

A version, a CRC-32C of the rest, and an array of entries. Kafka writes one entry per producer, for its last batch;
Ottla writes one for each of the last five batches, oldest first. Kafka keeps the last entry of each producer, so it
can read these files, and Ottla recognises retries of older batches after a restart too.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ottla.log.producers.producer_state import BatchMetadata, ProducerEntry
from ottla.protocol.records._speedups import crc32c

VERSION = 1
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_COVERS_FROM = 6


class CorruptSnapshot(ValueError):
    """A snapshot with invalid content; the state is loaded from an older one or from the log instead."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    rows = []
    for entry in entries:
        rows += [
            _ENTRY.pack(entry.producer_id, entry.producer_epoch, *batch, entry.coordinator_epoch, -1)
            for batch in entry.batches[:-1]
        ]
        last = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, 0, -1)
        first_offset = entry.transaction_first_offset
        rows.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                -1 if first_offset is None else first_offset,
            )
        )
    covered = struct.pack(">i", len(rows)) + b"".join(rows)
    return struct.pack(">hI", VERSION, crc32c(covered)) + covered


class SnapshotRow(NamedTuple):
    """One entry as stored in the file; -1 means none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


def decode_rows(data: bytes) -> list[SnapshotRow]:
    """The entries of a snapshot in order; CorruptSnapshot if the content is invalid."""
    if len(data) < _HEADER.size:
        raise CorruptSnapshot(f"{len(data)} bytes, expected at least {_HEADER.size}")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshot(f"unknown version {version}, expected {VERSION}")
    if crc32c(memoryview(data)[_CRC_COVERS_FROM:]) != crc:
        raise CorruptSnapshot("wrong checksum")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{len(data)} bytes do not match {count} entries")
    return [SnapshotRow(*row) for row in _ENTRY.iter_unpack(memoryview(data)[_HEADER.size :])]


def decode_snapshot(data: bytes, monotonic_ms: int) -> list[ProducerEntry]:
    """The producers in a snapshot, with `monotonic_ms` as last activity; CorruptSnapshot if the content is invalid."""
    entries: dict[int, ProducerEntry] = {}
    for row in decode_rows(data):
        entry = entries.setdefault(row.producer_id, ProducerEntry(row.producer_id, row.producer_epoch))
        entry.begin_epoch(row.producer_epoch)
        if row.last_offset >= 0:
            entry.add_batch(BatchMetadata(row.last_sequence, row.last_offset, row.offset_delta, row.timestamp))
        entry.coordinator_epoch = row.coordinator_epoch
        entry.last_timestamp = row.timestamp
        entry.last_seen_ms = monotonic_ms
        entry.transaction_first_offset = row.transaction_first_offset if row.transaction_first_offset >= 0 else None
    return list(entries.values())
