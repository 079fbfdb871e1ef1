"""How a start knows whether the last one lost anything: the clean-shutdown file and the running file."""

from pathlib import Path

import pytest

from ottla.clock import MonotonicMs
from ottla.log.disk import Disk
from ottla.log.log_directory import LogDirectory
from ottla.log.shutdown_marks import CLEAN_SHUTDOWN_FILE, RUNNING_FILE

BOOT = "0f0a"


def opened(path: Path, boot_id: str = BOOT) -> LogDirectory:
    return LogDirectory.open(str(path), disk=Disk(), clock=lambda: 0, monotonic=lambda: MonotonicMs(0), boot_id=boot_id)


def killed(directory: LogDirectory) -> None:
    directory.disk.close(directory._lock)  # noqa: SLF001 - as the kernel does


def test_a_new_directory_has_no_previous_broker(tmp_path: Path) -> None:
    assert opened(tmp_path).previous_broker_epoch is None


def test_a_clean_shutdown_keeps_the_broker_epoch(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.load()
    directory.registered(7)
    directory.close()
    assert opened(tmp_path, "another boot").previous_broker_epoch == 7


@pytest.mark.parametrize(("boot_id", "epoch"), [(BOOT, 8), ("another boot", None), ("", None)])
def test_a_killed_process_lost_nothing_unless_the_machine_restarted(
    tmp_path: Path, boot_id: str, epoch: int | None
) -> None:
    directory = opened(tmp_path)
    directory.load()
    directory.registered(7)
    directory.registered(8)
    killed(directory)
    assert opened(tmp_path, boot_id).previous_broker_epoch == epoch


def test_after_a_failed_sync_a_killed_process_may_have_lost_something(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.load()
    directory.registered(7)
    directory.lost_writes()
    directory.registered(8)
    killed(directory)
    assert opened(tmp_path).previous_broker_epoch is None


def test_an_unreadable_mark_names_no_epoch(tmp_path: Path) -> None:
    (tmp_path / CLEAN_SHUTDOWN_FILE).write_bytes(b"{")
    directory = opened(tmp_path)
    assert directory.previous_broker_epoch == -1
    killed(directory)
    (tmp_path / CLEAN_SHUTDOWN_FILE).unlink()
    (tmp_path / RUNNING_FILE).write_bytes(b"[]")
    assert opened(tmp_path).previous_broker_epoch is None
