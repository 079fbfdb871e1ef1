"""A disk that is full, fails, or loses accepted writes: no partial batch remains, and reads continue."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import ErrorCode, KafkaError
from ottla.log.cleaning.log_cleaning import enforce_retention
from tests.support.worlds.log_world import FailingDisk, LogWorld, find_by_time

SMALL = {"segment_bytes": 1000, "index_interval_bytes": 150}


@pytest.fixture
def world(tmp_path: Path) -> LogWorld:
    return LogWorld(tmp_path, disk=FailingDisk(), **SMALL)


def disk_of(world: LogWorld) -> FailingDisk:
    assert isinstance(world.disk, FailingDisk)
    return world.disk


def fails(act: Callable[[], Any]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        act()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    return caught.value


def files(world: LogWorld) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(world.directory).iterdir()}


def test_an_append_fails_on_a_full_disk_and_works_again_when_there_is_space(world: LogWorld) -> None:
    world.produce(7, "a")
    before = files(world)
    disk_of(world).fails("append")
    error = fails(lambda: world.produce(7, "b"))
    assert error.retriable
    assert "fails in this test" in error.detail
    assert files(world) == before
    assert world.log.log_end_offset == 1
    assert world.values() == ["a"], "reads continue"
    disk_of(world).works()
    assert world.produce(7, "b").base_offset == 1
    assert world.values() == ["a", "b"]
    assert world.crash().log_end_offset == 2


def test_a_torn_write_is_truncated(world: LogWorld) -> None:
    """The disk wrote a part of the batch before it failed, and left it there."""
    world.produce(7, "a")
    before = files(world)
    disk_of(world).torn_bytes = 30
    disk_of(world).fails("append")
    fails(lambda: world.produce(7, "b"))
    assert files(world) == before
    disk_of(world).works()
    assert world.produce(7, "b").base_offset == 1
    assert world.crash().log_end_offset == 2
    assert world.values() == ["a", "b"]


def test_a_torn_write_that_cannot_be_truncated_blocks_appends_until_it_can(world: LogWorld) -> None:
    world.produce(7, "a")
    disk_of(world).torn_bytes = 30
    disk_of(world).fails("append")
    disk_of(world).fails("truncate", errno.EIO)
    fails(lambda: world.produce(7, "b"))
    disk_of(world).works()
    disk_of(world).fails("truncate", errno.EIO)
    fails(lambda: world.produce(7, "b"))
    assert world.values() == ["a"], "reads continue, and never return the torn batch"
    disk_of(world).works()
    assert world.produce(7, "b").base_offset == 1
    assert world.crash().log_end_offset == 2
    assert world.values() == ["a", "b"]


def test_a_crash_with_a_torn_write_on_disk_recovers(world: LogWorld) -> None:
    world.produce(7, "a")
    disk_of(world).torn_bytes = 30
    disk_of(world).fails("append")
    disk_of(world).fails("truncate", errno.EIO)
    fails(lambda: world.produce(7, "b"))
    disk_of(world).works()
    world.crash()
    assert world.values() == ["a"]
    assert world.produce(7, "b").base_offset == 1


def test_a_batch_is_rejected_while_its_new_segment_cannot_be_created(world: LogWorld) -> None:
    for number in range(12):
        world.produce(7, f"value-{number}")
    assert len(world.log.segments) == 1
    disk_of(world).fails("create")
    fails(lambda: world.produce(7, "x" * 100))
    disk_of(world).works()
    assert world.produce(7, "x" * 100).base_offset == 12
    assert len(world.log.segments) == 2
    assert world.crash().log_end_offset == 13


def test_indexes_that_cannot_be_written_on_a_roll_are_written_later(tmp_path: Path) -> None:
    class NoIndexes(FailingDisk):
        is_on = False

        def open(self, path: str, *, create: bool = False) -> int:
            if self.is_on and path.endswith((".index", ".timeindex", ".snapshot")):
                raise OSError(errno.ENOSPC, "no room for indexes")
            return super().open(path, create=create)

    disk = NoIndexes()
    world = LogWorld(tmp_path, disk=disk, **SMALL)
    disk.is_on = True
    for number in range(30):
        world.produce(7, f"value-{number}")
    assert world.names("index") == []
    assert len(world.values()) == 30
    fails(world.log.unsynced)
    disk.is_on = False
    world.log.flush()
    assert len(world.names(".index")) == len(world.log.segments) - 1
    assert world.restart().log_end_offset == 30
    assert len(world.values()) == 30


def test_a_failed_read_raises_an_error_and_the_next_one_works(world: LogWorld) -> None:
    world.append("a")
    disk_of(world).fails("pread", errno.EIO)
    fails(lambda: world.log.read(0, 1000, upper_bound=1))
    fails(lambda: find_by_time(world.log, 0, upper_bound=1))
    fails(lambda: find_by_time(world.log, None, upper_bound=1))
    disk_of(world).works()
    assert world.values() == ["a"]


def test_a_file_truncated_by_someone_else_is_detected(world: LogWorld) -> None:
    world.append("a" * 100)
    path = Path(world.log.segments.active.path(".log"))
    data = path.read_bytes()
    for size in (0, 5, 100, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(KafkaError) as caught:
            world.log.read(0, 1000, upper_bound=1)
        assert caught.value.code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE)
    path.write_bytes(data)
    assert len(world.values()) == 1


def test_a_failed_sync_blocks_appends_until_the_log_is_reopened(world: LogWorld) -> None:
    """The kernel may have dropped the bytes and reports this only once: only reopening the log shows what is left."""
    world.append("a")
    disk_of(world).fails("sync", errno.EIO)
    fails(world.log.flush)
    disk_of(world).works()
    fails(lambda: world.append("b"))
    assert world.log.flushed_offset == 0
    assert world.values() == ["a"]
    fails(world.log.close)
    world.open(clean=False)
    assert world.append("b").base_offset == 1


def test_failed_retention_can_be_retried(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, disk=FailingDisk(), **SMALL, retention_bytes=0, file_delete_delay_ms=0)
    for number in range(30):
        world.produce(7, f"value-{number}")
    disk_of(world).fails("rename")
    fails(lambda: enforce_retention(world.log, world.now))
    disk_of(world).works()
    enforce_retention(world.log, world.now)
    assert world.values() == []
    assert world.log.log_start_offset == 30
    assert world.restart().log_start_offset == 30
    assert len(world.names(".log")) == 1


def test_closing_on_a_full_disk_raises_an_error_and_loses_no_records(world: LogWorld) -> None:
    values = ["a" * 600, "b" * 600]
    for value in values:
        world.append(value)
    assert len(world.log.segments) == 2, "a smaller log would have nothing to write"
    disk_of(world).fails("append")
    fails(world.log.close)
    disk_of(world).works()
    world.open(clean=False)
    assert world.values() == values
