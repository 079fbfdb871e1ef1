"""A metadata file that brokers share must be on a local file system."""

from pathlib import Path

import pytest

from ottla.errors import OttlaError
from ottla.metadata.sqlite import file_systems
from ottla.metadata.sqlite.file_systems import check_local, file_system_of, is_network

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /data rw shared:7 - nfs4 server:/export rw
24 23 0:41 / /data/local rw - xfs /dev/vdb rw
25 22 0:42 / /home/ann/remote rw - fuse.sshfs ann@host: rw
26 22 0:43 / /mnt/c rw - 9p C:\\134 rw
27 22 0:44 / /twice rw - nfs a:/ rw
28 27 0:45 / /twice rw - tmpfs tmpfs rw
""".splitlines()


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/var/metadata.sqlite", "ext4", False),
        ("/data", "nfs4", True),
        ("/data/metadata.sqlite", "nfs4", True),
        ("/database/metadata.sqlite", "ext4", False),
        ("/data/local/metadata.sqlite", "xfs", False),
        ("/home/ann/remote/x/y", "fuse.sshfs", True),
        ("/mnt/c/data", "9p", True),
        ("/twice/metadata.sqlite", "tmpfs", False),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str, network: bool) -> None:
    assert file_system_of(path, MOUNTS) == kind
    assert is_network(kind) == network


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs"]
)
def test_network_file_systems(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.lxcfs", "", "apfs"]
)
def test_local_file_systems(kind: str) -> None:
    assert not is_network(kind)


def test_a_path_on_a_network_file_system_is_rejected_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 0:1 / / rw - ext4 /dev/a rw\n23 22 0:2 / {tmp_path.resolve()} rw - nfs4 host:/x rw\n")
    monkeypatch.setattr(file_systems, "MOUNTS", str(mounts))
    with pytest.raises(OttlaError, match=r"network file system \(nfs4\)") as caught:
        check_local(str(tmp_path / "new" / "metadata.sqlite"))
    assert "local disk" in caught.value.hint
    check_local("/elsewhere")
    monkeypatch.setattr(file_systems, "MOUNTS", "/no/such/file")
    check_local(str(tmp_path))
