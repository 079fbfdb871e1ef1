"""Which broker of which cluster a data directory belongs to: Kafka's file meta.properties.

A broker deletes partitions that its cluster does not know. With the directory of another broker or cluster it would
lose records, so it does not start with one.
"""

import logging
from typing import NamedTuple

from ottla.broker.one_host import broker_directory
from ottla.checks import number_from_text
from ottla.config import read_properties
from ottla.errors import OttlaError
from ottla.log.disk import Disk
from ottla.log.log_directory import LOCK_FILE, partition_of

log = logging.getLogger("ottla.broker")

FILE = "meta.properties"


class Identity(NamedTuple):
    """What a data directory says about itself."""

    cluster_id: str | None = None
    node_id: int | None = None
    is_new: bool = False
    """No broker has used it, and it has no partition."""


def read_identity(disk: Disk, path: str, node_id: int) -> Identity:
    """OttlaError if the directory is that of another broker or of a whole cluster, or its file cannot be read."""
    if disk.exists(f"{broker_directory(path, 0)}/{LOCK_FILE}"):
        raise OttlaError(
            f"{path} is the data directory of a cluster",
            f"Start the cluster with --brokers N, or one of its brokers with --data {broker_directory(path, 0)}.",
        )
    names = disk.list(path)
    if FILE not in names:
        return Identity(is_new=not any(partition_of(name) for name in names))
    try:
        found = read_properties(disk.read_file(f"{path}/{FILE}").decode())
        number = found.get("node.id") or found.get("broker.id")
        node = number_from_text(number) if number else None
        if number and node is None:
            raise ValueError(f"the node id {number!r} is not a whole number")
        identity = Identity(found.get("cluster.id"), node)
    except (UnicodeDecodeError, ValueError, OttlaError) as error:
        raise OttlaError(
            f"cannot read {path}/{FILE}: {error}", "Restore it, or delete it if the directory is the right one."
        ) from None
    if identity.node_id is not None and identity.node_id != node_id:
        raise OttlaError(
            f"{path} is the data directory of broker {identity.node_id}, not of broker {node_id}",
            f"Start it with --node-id {identity.node_id}, or choose another directory with --data DIR.",
        )
    return identity


def write_identity(disk: Disk, path: str, identity: Identity, cluster_id: str, node_id: int) -> None:
    """Writes the file if the directory has none, or an incomplete one."""
    if (identity.cluster_id, identity.node_id) == (cluster_id, node_id):
        return
    text = f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n"
    try:
        disk.write_file(f"{path}/{FILE}", text.encode())
    except OSError as error:  # a full disk; written at the next start
        log.warning("%s: cannot write %s: %s", path, FILE, error)
