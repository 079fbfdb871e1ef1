"""Batches of a coordinator's log: replayed into a shard, and built from the records of a step."""

from collections.abc import Iterator

from ottla.coordinator.effects import Append, Shard
from ottla.garbage_collection import garbage_collection_paused
from ottla.protocol.records.batch_layout import CONTROL, TRANSACTIONAL
from ottla.protocol.records.record_batch import (
    BatchHeader,
    ControlType,
    CorruptBatch,
    iter_batches,
    read_end_marker,
    read_records,
    unreadable,
)

BATCH_BYTES = 512 * 1024
"""Records of one step are split into batches of about this size. Steps with that many records need not be atomic
(expired offsets, a deleted topic)."""
MEASURED_RECORDS_MIN = 8
"""Fewer records than this always become one batch, without adding up their sizes."""

_NOT_PLAIN = TRANSACTIONAL | CONTROL
"""The bits of a batch that belongs to a transaction or is a marker."""


def replay_slice(shard: Shard, data: bytes, start: int) -> tuple[int, int]:
    with garbage_collection_paused():
        return replay_batches(shard, data, start)


def replay_batches(shard: Shard, data: bytes, start: int) -> tuple[int, int]:
    """Replays whole batches. Returns the offset after the last, and the number of records."""
    header, count = None, 0
    replay = shard.replay
    for position, header in iter_batches(data):
        producer_id, producer_epoch = -1, -1
        if header.attributes & _NOT_PLAIN:
            if header.is_control:
                _replay_marker(shard, data[position : position + header.size_bytes], header)
                continue
            producer_id, producer_epoch = header.producer_id, header.producer_epoch
        if header.record_count:
            try:
                records = read_records(data, position, header)
            except CorruptBatch as error:
                raise unreadable(header, error) from None
            for offset, timestamp, key, value, _ in records:
                # A batch may start before the requested offset.
                if offset >= start:
                    replay(offset, key, value, timestamp, producer_id, producer_epoch)
                    count += 1
    return (start if header is None else header.next_offset), count


def _replay_marker(shard: Shard, batch: bytes, header: BatchHeader) -> None:
    if header.record_count:
        kind, _ = read_end_marker(batch)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            shard.replay_marker(header.producer_id, header.producer_epoch, kind is ControlType.COMMIT)


def in_batches(records: list[Append]) -> Iterator[list[Append]]:
    """One batch if possible; a step with very many records is split."""
    if len(records) < MEASURED_RECORDS_MIN:
        yield records
        return
    size, chosen = 0, []
    for record in records:
        chosen.append(record)
        size += len(record[0]) + len(record[1] or b"") + 20
        if size >= BATCH_BYTES:
            yield chosen
            size, chosen = 0, []
    if chosen:
        yield chosen
