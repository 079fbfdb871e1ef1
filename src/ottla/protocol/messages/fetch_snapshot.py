"""FetchSnapshot (API 59): reads a part of a Raft snapshot. Pure.

Versions: v1 replica directory ids and endpoints.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Records, Struct, field


class FetchSnapshotRequest(Message, api_key=59, versions=range(0, 2), flexible_since=0):
    cluster_id: str | None = field("string", nullable="0+", default=None, tag=0)
    replica_id: int        = field("int32", default=-1)
    max_bytes:  int        = field("int32", default=2**31 - 1)
    topics:     list[FetchSnapshotRequest.TopicSnapshot] = field("[]TopicSnapshot")

    class TopicSnapshot(Struct):
        name:       str = field("string")
        partitions: list[FetchSnapshotRequest.PartitionSnapshot] = field("[]PartitionSnapshot")

    class PartitionSnapshot(Struct):
        partition:            int   = field("int32")
        current_leader_epoch: int   = field("int32")
        snapshot_id:          FetchSnapshotRequest.SnapshotId = field("SnapshotId")
        position:             int   = field("int64")
        replica_directory_id: bytes = field("uuid", "1+", tag=0, ignorable=True)

    class SnapshotId(Struct):
        end_offset: int = field("int64")
        epoch:      int = field("int32")


class FetchSnapshotResponse(Message, api_key=59, versions=range(0, 2), flexible_since=0):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
    topics:           list[FetchSnapshotResponse.TopicSnapshot] = field("[]TopicSnapshot")
    node_endpoints:   list[FetchSnapshotResponse.NodeEndpoint] = field("[]NodeEndpoint", "1+", tag=0)

    class TopicSnapshot(Struct):
        name:       str = field("string")
        partitions: list[FetchSnapshotResponse.PartitionSnapshot] = field("[]PartitionSnapshot")

    class NodeEndpoint(Struct):
        node_id: int = field("int32", "1+")
        host:    str = field("string", "1+")
        port:    int = field("uint16", "1+")

    class PartitionSnapshot(Struct):
        index:             int = field("int32")
        error_code:        int = field("int16")
        snapshot_id:       FetchSnapshotResponse.SnapshotId = field("SnapshotId")
        current_leader:    FetchSnapshotResponse.LeaderIdAndEpoch = field("LeaderIdAndEpoch", tag=0)
        size:              int = field("int64")
        position:          int = field("int64")
        unaligned_records: Records | None = field("records")

    class SnapshotId(Struct):
        end_offset: int = field("int64")
        epoch:      int = field("int32")

    class LeaderIdAndEpoch(Struct):
        leader_id:    int = field("int32")
        leader_epoch: int = field("int32")
