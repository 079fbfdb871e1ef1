"""A data directory belongs to one broker of one cluster; a broker with the wrong one does not start."""

from pathlib import Path

import pytest

from ottla.broker.identity import Identity, read_identity, write_identity
from ottla.errors import OttlaError
from ottla.log.disk import Disk


def test_a_directory_remembers_its_broker_and_cluster(tmp_path: Path) -> None:
    new = read_identity(Disk(), str(tmp_path), 7)
    assert new == Identity(is_new=True)
    write_identity(Disk(), str(tmp_path), new, "A", 7)
    assert read_identity(Disk(), str(tmp_path), 7) == Identity("A", 7)


def test_another_brokers_directory_is_refused(tmp_path: Path) -> None:
    write_identity(Disk(), str(tmp_path), Identity(), "A", 7)
    with pytest.raises(OttlaError, match="is the data directory of broker 7, not of broker 0") as caught:
        read_identity(Disk(), str(tmp_path), 0)
    assert "--node-id 7" in caught.value.hint


def test_the_file_is_kafkas(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("#\n#Tue\nbroker.id=1\nversion=0\ncluster.id=x_Y-z\n")
    assert read_identity(Disk(), str(tmp_path), 1) == Identity("x_Y-z", 1)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"nonsense\n", b"node.id=one\n", b"node.id=0_0\n"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.properties").write_bytes(content)
    with pytest.raises(OttlaError, match=r"cannot read .*meta\.properties"):
        read_identity(Disk(), str(tmp_path), 0)


def test_a_directory_from_before_the_file_existed_is_not_new(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    assert read_identity(Disk(), str(tmp_path), 0) == Identity(is_new=False)


def test_the_directory_of_a_whole_cluster_is_not_that_of_a_broker(tmp_path: Path) -> None:
    (tmp_path / "broker-0").mkdir()
    (tmp_path / "broker-0" / ".lock").touch()
    with pytest.raises(OttlaError, match="is the data directory of a cluster") as caught:
        read_identity(Disk(), str(tmp_path), 0)
    assert "--brokers N" in caught.value.hint


def test_a_topic_named_broker_is_not_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "broker-0").mkdir()
    assert read_identity(Disk(), str(tmp_path), 0) == Identity(is_new=False)
