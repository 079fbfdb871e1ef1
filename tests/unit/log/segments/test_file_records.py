"""Records that stay in their file until a response is sent: they are the right bytes, or none."""

from pathlib import Path

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.log.cleaning.log_cleaning import enforce_retention
from ottla.log.segments.file_records import FileRecords
from ottla.protocol.records.record_batch import iter_batches
from tests.support.worlds.log_world import LogWorld

VALUE = "x" * 1000


def found(world: LogWorld, offset: int = 0, max_bytes: int = 1 << 20) -> FileRecords:
    records = world.log.find_records(offset, max_bytes, upper_bound=world.log.log_end_offset, inline_bytes=100)
    assert isinstance(records, FileRecords)
    return records


def refused(records: FileRecords) -> str:
    with pytest.raises(KafkaError) as refusal:
        records.read(0, len(records))
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    return str(refusal.value)


@pytest.mark.parametrize("offset", [0, 3, 7])
@pytest.mark.parametrize("max_bytes", [1, 2500, 1 << 20])
def test_they_are_the_bytes_that_a_read_returns(tmp_path: Path, offset: int, max_bytes: int) -> None:
    world = LogWorld(tmp_path)
    for _ in range(8):
        world.append(VALUE)
    stored = world.log.read(offset, max_bytes, upper_bound=8)
    records = found(world, offset, max_bytes)
    assert len(records) == len(stored)
    assert b"".join(records.read(at, min(700, len(stored) - at)) for at in range(0, len(stored), 700)) == stored
    assert records.next_offset == [header.next_offset for _, header in iter_batches(stored)][-1]


def test_few_bytes_are_read_at_once(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.append("a")
    assert isinstance(world.log.find_records(0, 1 << 20, upper_bound=1, inline_bytes=1000), bytes)
    assert isinstance(world.log.find_records(0, 1 << 20, upper_bound=1, inline_bytes=0), FileRecords)


def test_appends_do_not_change_them(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.append(VALUE)
    records = found(world)
    before = records.read(0, len(records))
    world.append(VALUE)
    assert records.read(0, len(records)) == before


def test_a_file_closed_in_between_is_opened_again(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.append(VALUE)
    records = found(world)
    world.log.segments.active.file.close()
    assert len(records.read(0, len(records))) == len(records)


def test_a_truncated_log_refuses_them_even_if_it_has_grown_again(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.append(VALUE)
    world.append(VALUE)
    records = found(world)
    world.log.truncate_to(1)
    world.append("y" * 1000)
    assert "was truncated" in refused(records)


def test_a_segment_removed_by_retention_is_readable_until_its_file_is_deleted(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_bytes=2048, retention_ms=1000, file_delete_delay_ms=60_000)
    for _ in range(4):
        world.append(VALUE)
    records = found(world)
    before = records.read(0, len(records))
    world.now += 10_000
    assert enforce_retention(world.log, world.now)
    assert records.read(0, len(records)) == before
    world.now += 60_000
    enforce_retention(world.log, world.now)
    assert "deleted" in refused(records)


def test_a_deleted_log_refuses_them_even_if_another_one_has_its_name(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.append(VALUE)
    records = found(world)
    world.log.rename_for_deletion()
    world.open()
    world.append("y" * 1000)
    assert "closed or deleted" in refused(records)


def test_a_closed_log_refuses_records_of_removed_segments_too(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, segment_bytes=2048, retention_ms=1000, file_delete_delay_ms=60_000)
    for _ in range(4):
        world.append(VALUE)
    records = found(world)
    world.now += 10_000
    assert enforce_retention(world.log, world.now)
    world.log.store.close()
    assert "closed or deleted" in refused(records)


def test_a_disk_that_cannot_be_read_refuses_them(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.append(VALUE)
    records = found(world)
    path = Path(world.log.segments.active.path(".log"))
    path.write_bytes(path.read_bytes()[:-10])
    assert "read 1" in refused(records)
    world.checks_reload = False


def test_a_corrupt_batch_is_noticed_before_anything_is_sent(tmp_path: Path) -> None:
    world = LogWorld(tmp_path)
    world.append(VALUE)
    path = Path(world.log.segments.active.path(".log"))
    content = bytearray(path.read_bytes())
    content[16] = 9  # the magic byte
    path.write_bytes(content)
    with pytest.raises(KafkaError):
        found(world)
    world.checks_reload = False
