"""BeginQuorumEpoch (API 53): announces a new Raft leader. Pure.

Versions: v1 is flexible, with directory ids and endpoints.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class BeginQuorumEpochRequest(Message, api_key=53, versions=range(0, 2), flexible_since=1):
    cluster_id:       str | None = field("string", nullable="0+", default=None)
    voter_id:         int        = field("int32", "1+", default=-1, ignorable=True)
    topics:           list[BeginQuorumEpochRequest.TopicData] = field("[]TopicData")
    leader_endpoints: list[BeginQuorumEpochRequest.LeaderEndpoint] = field("[]LeaderEndpoint", "1+", ignorable=True)

    class TopicData(Struct):
        topic_name: str = field("string")
        partitions: list[BeginQuorumEpochRequest.PartitionData] = field("[]PartitionData")

    class LeaderEndpoint(Struct):
        name: str = field("string", "1+")
        host: str = field("string", "1+")
        port: int = field("uint16", "1+")

    class PartitionData(Struct):
        partition_index:    int   = field("int32")
        voter_directory_id: bytes = field("uuid", "1+", ignorable=True)
        leader_id:          int   = field("int32")
        leader_epoch:       int   = field("int32")


class BeginQuorumEpochResponse(Message, api_key=53, versions=range(0, 2), flexible_since=1):
    error_code:     int = field("int16")
    topics:         list[BeginQuorumEpochResponse.TopicData] = field("[]TopicData")
    node_endpoints: list[BeginQuorumEpochResponse.NodeEndpoint] = field("[]NodeEndpoint", "1+", tag=0)

    class TopicData(Struct):
        topic_name: str = field("string")
        partitions: list[BeginQuorumEpochResponse.PartitionData] = field("[]PartitionData")

    class NodeEndpoint(Struct):
        node_id: int = field("int32", "1+")
        host:    str = field("string", "1+")
        port:    int = field("uint16", "1+")

    class PartitionData(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
        leader_id:       int = field("int32")
        leader_epoch:    int = field("int32")
