"""Reading valid and corrupt log files without opening the log (for `ottla log dump`)."""

from pathlib import Path

import pytest

from ottla.log.inspect import (
    DumpedBatch,
    DumpedTail,
    IndexEntry,
    TimeIndexEntry,
    base_offset_of,
    dump_offset_index,
    dump_segment,
    dump_snapshot,
    dump_time_index,
    dump_transaction_index,
)
from ottla.log.producers.producer_snapshot import CorruptSnapshot
from ottla.protocol.records.record_batch import Codec, ControlType, CorruptBatch
from tests.support.worlds.log_world import NOON, LogWorld


@pytest.fixture
def world(tmp_path: Path) -> LogWorld:
    made = LogWorld(tmp_path, index_interval_bytes=150)
    for number in range(6):
        made.now += 10
        made.produce(7, f"value-{number}", codec=Codec.ZSTD)
    made.produce(8, "doomed", transactional=True)
    made.ends(8, abort=True, coordinator_epoch=4)
    made.log.roll()
    return made


def path_of(world: LogWorld, suffix: str) -> Path:
    return Path(world.directory) / f"{0:020d}{suffix}"


def dumped(world: LogWorld) -> list[DumpedBatch | DumpedTail]:
    return list(dump_segment(str(path_of(world, ".log"))))


def test_every_batch_is_returned_with_its_records(world: LogWorld) -> None:
    batches = dumped(world)
    assert len(batches) == 8
    assert all(isinstance(batch, DumpedBatch) and batch.is_valid for batch in batches)
    first = batches[0]
    assert isinstance(first, DumpedBatch)
    assert first.position == 0
    assert first.marker() is None
    assert [(record.offset, record.timestamp, record.value) for record in first.records()] == [
        (0, NOON + 10, b"value-0")
    ]


def test_a_marker_has_its_type_and_coordinator_epoch(world: LogWorld) -> None:
    last = dumped(world)[-1]
    assert isinstance(last, DumpedBatch)
    assert last.marker() == (ControlType.ABORT, 4)


def test_a_torn_tail_is_reported_after_the_readable_batches(world: LogWorld) -> None:
    world.checks_reload = False
    path = path_of(world, ".log")
    data = path.read_bytes()
    last = dumped(world)[-1]
    for cut in (1, 30, len(data) - last.position - 1):
        path.write_bytes(data[:-cut])
        *whole, tail = dumped(world)
        assert len(whole) == 7
        assert isinstance(tail, DumpedTail)
        assert (tail.position, tail.size) == (
            last.position,
            len(data) - cut - last.position,
        )


def test_a_corrupt_batch_is_reported_and_reading_continues(world: LogWorld) -> None:
    world.checks_reload = False
    path = path_of(world, ".log")
    data = bytearray(path.read_bytes())
    second = dumped(world)[1]
    data[second.position + 65] ^= 0xFF
    path.write_bytes(bytes(data))
    batches = dumped(world)
    assert [isinstance(batch, DumpedBatch) and batch.is_valid for batch in batches] == [True, False] + [True] * 6
    damaged = batches[1]
    assert isinstance(damaged, DumpedBatch)
    assert "checksum" in (damaged.problem or "")
    with pytest.raises(CorruptBatch):
        damaged.records()


def test_an_empty_file_has_no_batches(tmp_path: Path) -> None:
    (tmp_path / f"{5:020d}.log").write_bytes(b"")
    assert list(dump_segment(str(tmp_path / f"{5:020d}.log"))) == []


def test_index_entries_have_absolute_offsets(world: LogWorld) -> None:
    positions = {batch.header.last_offset: batch.position for batch in dumped(world) if isinstance(batch, DumpedBatch)}
    entries = dump_offset_index(str(path_of(world, ".index")))
    assert entries
    assert all(entry == IndexEntry(entry.offset, positions[entry.offset]) for entry in entries)
    times = dump_time_index(str(path_of(world, ".timeindex")))
    assert times[-1] == TimeIndexEntry(NOON + 60, 5)


def test_kafkas_preallocated_zeros_are_ignored(world: LogWorld) -> None:
    for suffix, dump in ((".index", dump_offset_index), (".timeindex", dump_time_index)):
        path = path_of(world, suffix)
        before = dump(str(path))
        path.write_bytes(path.read_bytes() + bytes(4096))
        assert dump(str(path)) == before


def test_aborted_transactions_and_producers_are_returned(world: LogWorld) -> None:
    (aborted,) = dump_transaction_index(str(path_of(world, ".txnindex")))
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (8, 6, 7)
    path = Path(world.directory) / f"{8:020d}.snapshot"
    rows = dump_snapshot(str(path))
    assert {row.producer_id for row in rows} == {7, 8}
    assert rows[-1].coordinator_epoch == 4
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptSnapshot):
        dump_snapshot(str(path))


def test_the_base_offset_is_read_from_the_file_name() -> None:
    assert base_offset_of("/data/t-0/00000000000000000042.timeindex") == 42
    with pytest.raises(ValueError, match="notes"):
        base_offset_of("/data/notes.txt")
