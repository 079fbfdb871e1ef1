"""Group commit: what is on stable storage, and what a flush in progress covers."""

from pathlib import Path
from typing import Any

import pytest

from ottla.log.cleaning.log_cleaning import enforce_retention
from ottla.testing.sim_disk import SimPlatter
from ottla.testing.sim_loop import SimLoop
from tests.support.worlds.log_world import FailingDisk, LogWorld

SMALL: dict[str, Any] = {"segment_bytes": 1000, "index_interval_bytes": 150}


@pytest.fixture
def world(tmp_path: Path) -> LogWorld:
    return LogWorld(tmp_path, disk=FailingDisk(), **SMALL)


def test_an_appended_record_is_unsynced_until_its_flush_completes(world: LogWorld) -> None:
    assert not world.log.has_unsynced
    world.append("a")
    ticket = world.log.unsynced()
    assert ticket.offset == 1
    assert len(ticket.handles) == 1
    assert world.log.flushed_offset == 0
    ticket.sync(world.disk)
    world.log.flushed(ticket)
    assert world.log.flushed_offset == 1
    assert not world.log.has_unsynced


def test_a_flush_of_an_empty_log_syncs_nothing(world: LogWorld) -> None:
    world.append("a")
    world.log.flush()
    ticket = world.log.unsynced()
    assert ticket.handles == ()
    assert ticket.directory is None
    world.log.flushed(ticket)
    assert world.log.flushed_offset == 1


def test_records_appended_during_a_flush_need_the_next_one(world: LogWorld) -> None:
    world.append("a")
    ticket = world.log.unsynced()
    world.append("b")
    world.log.flushed(ticket)
    assert world.log.flushed_offset == 1
    assert world.log.has_unsynced
    world.log.flush()
    assert world.log.flushed_offset == 2


def test_a_rolled_segment_its_indexes_and_its_directory_entry_are_synced(world: LogWorld) -> None:
    for number in range(15):
        world.append(f"value-{number}")
    assert len(world.log.segments) == 2
    ticket = world.log.unsynced()
    assert len(ticket.handles) == 5, "two logs, and of the finished one two indexes and the producers at its end"
    assert ticket.directory == world.directory
    ticket.sync(world.disk)
    world.log.flushed(ticket)
    assert not world.log.has_unsynced
    assert world.log.unsynced().directory is None


def test_aborted_transactions_are_flushed_with_their_markers(world: LogWorld) -> None:
    world.produce(7, "a", transactional=True)
    world.ends(7, abort=True)
    assert len(world.log.unsynced().handles) == 2
    assert (Path(world.directory) / "00000000000000000000.txnindex").stat().st_size == 34


def test_a_flush_from_before_a_truncation_does_not_count(world: LogWorld) -> None:
    world.append("a")
    world.log.flush()
    world.append("b", commit=False)
    ticket = world.log.unsynced()
    world.log.truncate_to(1)
    world.append("c")
    world.log.flushed(ticket)
    assert world.log.flushed_offset == 1
    assert world.log.has_unsynced


def test_a_handle_being_synced_stays_open_when_its_segment_is_removed(tmp_path: Path) -> None:
    """A closed descriptor could be reused, and another file synced."""
    world = LogWorld(tmp_path, **SMALL, retention_bytes=0, file_delete_delay_ms=0)
    for number in range(15):
        world.append(f"value-{number}")
    ticket = world.log.unsynced()
    enforce_retention(world.log, world.now)
    enforce_retention(world.log, world.now)
    assert world.values() == []
    ticket.sync(world.disk)
    world.log.flushed(ticket)
    assert world.log.flushed_offset == 15
    with pytest.raises(OSError, match="Bad file descriptor"):
        ticket.sync(world.disk)


def test_flush_messages_and_flush_ms_require_a_flush(tmp_path: Path) -> None:
    world = LogWorld(tmp_path, flush_messages=3, flush_ms=1000)
    assert not world.log.needs_flush(world.now + 5000), "there is nothing to flush"
    world.append("a", "b")
    assert not world.log.needs_flush(world.now)
    assert world.log.needs_flush(world.now + 1000)
    world.append("c")
    assert world.log.needs_flush(world.now)
    world.log.flush()
    assert not world.log.needs_flush(world.now + 5000)


@pytest.mark.parametrize("recovery_point", [0, 1])
def test_a_snapshot_from_before_a_kill_is_synced_too(recovery_point: int) -> None:
    """The page cache has it, so the process that is started next finds it, and relies on it."""
    platter = SimPlatter(SimLoop())
    world = LogWorld("/data", disk=platter.disk())
    world.produce(7, "a")
    world.log.flush()
    world.log.roll()
    snapshot = platter.files[f"{world.directory}/00000000000000000001.snapshot"]
    assert snapshot.synced != snapshot.content
    world.disk = platter.disk()
    world.crash(recovery_point)
    world.log.flush()
    assert snapshot.synced == snapshot.content
    assert not world.log.has_unsynced


def test_by_default_no_flush_is_required(world: LogWorld) -> None:
    for number in range(50):
        world.append(f"value-{number}")
    assert not world.log.needs_flush(world.now + 10**12)


def test_a_clean_shutdown_syncs_written_logs_and_skips_idle_ones(world: LogWorld) -> None:
    world.append("a")
    world.log.close()
    disk = world.disk
    assert isinstance(disk, FailingDisk)
    assert "sync" in disk.calls
    world.open(recovery_point=1)
    disk.calls.clear()
    world.log.close()
    assert not {"sync", "append", "write_file", "create"} & set(disk.calls)


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_flush_keeps_its_files_open_until_it_ends_and_no_longer(world: LogWorld, succeeds: bool) -> None:
    for number in range(15):
        world.append(f"value-{number}")
    ticket = world.log.unsynced()
    assert len(ticket.files) == len(ticket.handles)
    assert [file.holds for file in ticket.files] == [1] * len(ticket.files)
    assert {segment.file for segment in world.log.segments} <= set(ticket.files)
    world.log.flushed(ticket) if succeeds else world.log.flush_failed(ticket)
    assert [file.holds for file in ticket.files] == [0] * len(ticket.files)


def test_new_files_are_synced_again_if_the_log_was_truncated_during_the_flush(world: LogWorld) -> None:
    for number in range(15):
        world.append(f"value-{number}", commit=False)
    ticket = world.log.unsynced()
    assert ticket.directory == world.directory
    world.log.truncate_to(14)
    world.log.flushed(ticket)
    assert world.log.unsynced().directory == world.directory
