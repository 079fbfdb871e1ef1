"""Many files with few open file descriptors."""

import os
from pathlib import Path

import pytest

from ottla.log.disk import Disk
from ottla.log.open_files import LogFile, OpenFiles


@pytest.fixture
def files(tmp_path: Path) -> list[LogFile]:
    """Nine files, at most three of them open at once."""
    opened = OpenFiles(Disk(), limit=3)
    made = []
    for number in range(9):
        path = tmp_path / f"file-{number}"
        path.write_bytes(str(number).encode())
        made.append(LogFile(opened, str(path)))
    return made


def read(file: LogFile) -> str:
    return Disk().pread(file.handle(), 10, 0).decode()


def test_a_file_is_opened_on_first_use(files: list[LogFile]) -> None:
    assert not any(file.is_open for file in files)
    handle = files[0].handle()
    assert files[0].handle() == handle


def test_a_missing_file_is_created_only_on_request(tmp_path: Path) -> None:
    file = LogFile(OpenFiles(Disk(), limit=3), str(tmp_path / "missing"))
    for use in (file.handle, file.hold):
        with pytest.raises(FileNotFoundError):
            use()
    assert not file.is_open
    assert list(tmp_path.iterdir()) == []
    file.handle(create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["missing"]


def test_at_most_limit_files_are_open_and_all_can_be_read(files: list[LogFile]) -> None:
    for _ in range(3):
        assert [read(file) for file in files] == list("012345678")
        assert sum(file.is_open for file in files) <= 3


def test_recently_used_files_stay_open_longer(files: list[LogFile]) -> None:
    for file in files[1:]:
        read(files[0])
        read(file)
    assert files[0].is_open


def test_a_held_file_stays_open(files: list[LogFile]) -> None:
    handle = files[0].hold()
    for file in files[1:]:
        read(file)
    files[0].close()
    assert files[0].is_open
    assert files[0].handle() == handle
    files[0].let_go()
    assert not files[0].is_open


def test_held_files_stay_open_beyond_the_limit(files: list[LogFile]) -> None:
    for file in files[:5]:
        file.hold()
    assert [read(file) for file in files] == list("012345678")
    assert all(file.is_open for file in files[:5])


def test_closing_a_file_calls_on_release(tmp_path: Path) -> None:
    released = []
    (tmp_path / "f").write_bytes(b"")
    file = LogFile(OpenFiles(Disk()), str(tmp_path / "f"), lambda: released.append(True))
    file.close()
    assert released == []
    file.handle()
    file.close()
    file.close()
    assert released == [True]


def test_thousands_of_held_files_do_not_slow_down_the_others(tmp_path: Path) -> None:
    class CountingFiles(OpenFiles):
        def admit(self, file: LogFile) -> None:
            assert len(self) <= self.limit, "held files are not in the circle that an eviction searches"
            super().admit(file)

    opened = CountingFiles(Disk(), limit=3)
    held = []
    for number in range(300):
        path = tmp_path / f"file-{number}"
        path.write_bytes(str(number).encode())
        held.append(LogFile(opened, str(path)))
        held[-1].hold()
    assert len(opened) == 0
    for file in held:
        file.let_go()
    assert sum(file.is_open for file in held) <= 3
    assert [read(file) for file in held] == [str(number) for number in range(300)]


def test_a_file_that_is_dropped_is_closed(tmp_path: Path) -> None:
    """A log that is not closed, for example after a failed start, leaks no descriptor."""
    path = tmp_path / "dropped"
    path.write_bytes(b"0")
    opened = OpenFiles(Disk(), limit=3)
    handle = LogFile(opened, str(path)).handle()
    opened.__init__(opened.disk, limit=3)  # type: ignore[misc]  # it holds the last reference
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
