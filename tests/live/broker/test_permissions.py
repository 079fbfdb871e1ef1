"""Nobody else on the machine can read what a broker stores, whatever its umask is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Admin, Broker, Producer


@pytest.fixture
def open_umask() -> Iterator[None]:
    """As some init systems and containers have it: without our own modes, everyone could read and write the files."""
    before = os.umask(0)
    yield
    os.umask(before)


def wider(directory: Path) -> list[str]:
    """What others than the owner can read, write or enter."""
    return [
        f"{path.relative_to(directory.parent)}: {stat.filemode(path.lstat().st_mode)}"
        for path in [directory, *directory.rglob("*")]
        if path.lstat().st_mode & 0o077
    ]


@pytest.mark.usefixtures("open_umask")
def test_files_directories_locks_and_pipes_are_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker.embedded(data, settings={"log.segment.bytes": 1_048_576}) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topic("orders", configs={"cleanup.policy": "compact", "segment.bytes": "1048576"})
        with Producer(bootstrap_servers=broker.bootstrap, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(40):
                producer.send("orders", b"x" * 50_000, key=b"%d" % number)
            producer.commit_transaction()
        assert any(path.name.startswith("metadata.sqlite") for path in data.rglob("*"))
        assert not wider(data)
    assert not wider(data)
    with Broker.embedded(data) as broker:
        assert "other users of this machine" not in broker.log
        assert not wider(data)


def test_a_directory_that_others_can_read_is_reported_once_with_the_fix(tmp_path: Path) -> None:
    data = tmp_path / "it's open"
    data.mkdir()
    data.chmod(0o755)
    with Broker.embedded(data) as broker:
        lines = [line for line in broker.log.splitlines() if "other users of this machine can read it" in line]
        assert len(lines) == 1
        command = lines[0].partition("with: ")[2]
    assert os.system(command) == 0
    with Broker.embedded(data) as broker:
        assert "other users of this machine" not in broker.log
