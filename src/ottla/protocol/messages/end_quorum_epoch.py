"""EndQuorumEpoch (API 54): announces that a Raft leader steps down. Pure.

Versions: v1 is flexible, with directory ids and endpoints.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class EndQuorumEpochRequest(Message, api_key=54, versions=range(0, 2), flexible_since=1):
    cluster_id:       str | None = field("string", nullable="0+", default=None)
    topics:           list[EndQuorumEpochRequest.TopicData] = field("[]TopicData")
    leader_endpoints: list[EndQuorumEpochRequest.LeaderEndpoint] = field("[]LeaderEndpoint", "1+", ignorable=True)

    class TopicData(Struct):
        topic_name: str = field("string")
        partitions: list[EndQuorumEpochRequest.PartitionData] = field("[]PartitionData")

    class LeaderEndpoint(Struct):
        name: str = field("string", "1+")
        host: str = field("string", "1+")
        port: int = field("uint16", "1+")

    class PartitionData(Struct):
        partition_index:      int       = field("int32")
        leader_id:            int       = field("int32")
        leader_epoch:         int       = field("int32")
        preferred_successors: list[int] = field("[]int32", "0", ignorable=True)
        preferred_candidates: list[EndQuorumEpochRequest.ReplicaInfo] = field("[]ReplicaInfo", "1+", ignorable=True)

    class ReplicaInfo(Struct):
        candidate_id:           int   = field("int32", "1+")
        candidate_directory_id: bytes = field("uuid", "1+")


class EndQuorumEpochResponse(Message, api_key=54, versions=range(0, 2), flexible_since=1):
    error_code:     int = field("int16")
    topics:         list[EndQuorumEpochResponse.TopicData] = field("[]TopicData")
    node_endpoints: list[EndQuorumEpochResponse.NodeEndpoint] = field("[]NodeEndpoint", "1+", tag=0)

    class TopicData(Struct):
        topic_name: str = field("string")
        partitions: list[EndQuorumEpochResponse.PartitionData] = field("[]PartitionData")

    class NodeEndpoint(Struct):
        node_id: int = field("int32", "1+")
        host:    str = field("string", "1+")
        port:    int = field("uint16", "1+")

    class PartitionData(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
        leader_id:       int = field("int32")
        leader_epoch:    int = field("int32")
