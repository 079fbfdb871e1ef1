"""The port to the file system, on a real file system."""

import errno
import os
import resource
import signal
from pathlib import Path

import pytest

from ottla.errors import OttlaError
from ottla.log.disk import Disk


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_appends_go_to_the_end_after_other_writes_and_truncation(tmp_path: Path, disk: Disk) -> None:
    path = str(tmp_path / "f")
    handle = disk.open(path, create=True)
    assert disk.append(handle, (b"abc", memoryview(b"def"))) == 6
    disk.pwrite(handle, b"X", 0)
    disk.append(handle, [b"ghi"])
    disk.truncate(handle, 7)
    disk.append(handle, [b"!"])
    disk.sync(handle)
    assert disk.size(handle) == 8
    assert disk.pread(handle, 99, 0) == b"Xbcdefg!"
    disk.close(handle)
    handle = disk.open(path)
    disk.append(handle, [b"?"])
    assert disk.read_file(path) == b"Xbcdefg!?"
    assert disk.file_size(path) == 9
    disk.close(handle)


def test_more_buffers_than_one_writev_accepts_are_written(tmp_path: Path, disk: Disk) -> None:
    handle = disk.open(str(tmp_path / "f"), create=True)
    assert disk.append(handle, [b"ab"] * 3000) == 6000
    assert disk.size(handle) == 6000
    disk.close(handle)


def test_a_partial_write_is_truncated(tmp_path: Path, disk: Disk) -> None:
    """A file size limit behaves like a full disk, without special privileges."""
    handle = disk.open(str(tmp_path / "f"), create=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        disk.append(handle, [b"a" * 900])
        with pytest.raises(OSError, match="File too large") as caught:
            disk.append(handle, [b"b" * 50, b"c" * 200])
        assert disk.size(handle) == 900
        disk.append(handle, [b"d" * 100])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
        disk.close(handle)
    assert caught.value.errno == errno.EFBIG
    assert disk.read_file(str(tmp_path / "f")) == b"a" * 900 + b"d" * 100


def test_a_missing_file_is_created_only_with_create(tmp_path: Path, disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open(str(tmp_path / "f"))
    assert not disk.exists(str(tmp_path / "f"))


def test_a_file_is_replaced_atomically(tmp_path: Path, disk: Disk) -> None:
    path = str(tmp_path / "f")
    disk.write_file(path, b"old")
    disk.write_file(path, b"new")
    assert disk.read_file(path) == b"new"
    assert disk.list(str(tmp_path)) == ["f"]


def test_directories_are_created_listed_and_removed(tmp_path: Path, disk: Disk) -> None:
    deep = str(tmp_path / "a" / "b")
    disk.make_directories(deep)
    disk.make_directories(deep)
    disk.write_file(deep + "/f", b"x")
    disk.rename(str(tmp_path / "a"), str(tmp_path / "c"))
    disk.sync_directory(str(tmp_path))
    assert disk.exists(str(tmp_path / "c" / "b" / "f"))
    disk.remove_tree(str(tmp_path / "c"))
    assert disk.list(str(tmp_path)) == []


def test_a_directory_in_use_is_rejected_with_its_path_and_process_id(tmp_path: Path, disk: Disk) -> None:
    held = disk.lock(str(tmp_path / ".lock"))
    with pytest.raises(OttlaError) as caught:
        disk.lock(str(tmp_path / ".lock"))
    assert caught.value.message == f"data directory {tmp_path} is in use by process {os.getpid()}"
    assert caught.value.hint
    disk.close(held)
    disk.close(disk.lock(str(tmp_path / ".lock")))
