"""Whether a path is on a file system of this host. SQLite's locks and shared memory do not work over a network.

Linux lists the mounted file systems in /proc/self/mountinfo. On other systems nothing is checked.
"""

import os
from collections.abc import Iterable

from ottla.errors import OttlaError

NETWORK_FILE_SYSTEMS = frozenset(
    [
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "davfs2",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "ncp",
        "nfs",
        "nfs3",
        "nfs4",
        "ocfs2",
        "orangefs",
        "pvfs2",
        "smb2",
        "smb3",
        "smbfs",
        "sshfs",
    ]
)
_NETWORK_FUSE = ("ceph", "curlftpfs", "dav", "gcs", "gluster", "goofys", "juicefs", "lustre", "mfs", "moose", "nfs",
                 "rclone", "s3", "smb", "ssh")  # fmt: skip
MOUNTS = "/proc/self/mountinfo"


def check_local(path: str) -> None:
    """Raises OttlaError if `path` is on a network file system."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            kind = file_system_of(os.path.realpath(path), file)
    except OSError:
        return
    if is_network(kind):
        raise OttlaError(
            f"{path} is on a network file system ({kind}): its locks do not protect the metadata of a cluster",
            "Choose a path on a local disk; all brokers that share it must run on one host.",
        )


def is_network(kind: str) -> bool:
    """Whether a type of file system, as Linux names it, is accessed over a network.

    >>> is_network("nfs4"), is_network("fuse.sshfs"), is_network("ext4"), is_network("fuse.lxcfs")
    (True, True, False, False)
    """
    name, _, helper = kind.partition(".")
    if name in ("fuse", "fuseblk"):
        return helper.startswith(_NETWORK_FUSE)
    return name in NETWORK_FILE_SYSTEMS


def file_system_of(path: str, mounts: Iterable[str]) -> str:
    """The type of the file system that holds an absolute path, from the lines of Linux's mountinfo.

    >>> mounts = ["22 1 0:1 / / rw - ext4 /dev/a rw", "23 22 0:2 / /mnt/my\\\\040nfs rw shared:1 - nfs4 h:/x rw"]
    >>> file_system_of("/mnt/my nfs/a", mounts), file_system_of("/mnt/my", mounts)
    ('nfs4', 'ext4')
    """
    found, longest = "", -1
    for line in mounts:
        fields = line.split()
        if "-" not in fields[6:]:
            continue
        mount_point = _unescaped(fields[4])
        prefix = mount_point.rstrip("/") + "/"
        # The last of several mounts on one point hides the others.
        if (path == mount_point or path.startswith(prefix)) and len(prefix) >= longest:
            longest, found = len(prefix), fields[fields.index("-", 6) + 1]
    return found


def _unescaped(text: str) -> str:
    """Mount points with spaces, tabs, newlines and backslashes as octal escapes."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text
