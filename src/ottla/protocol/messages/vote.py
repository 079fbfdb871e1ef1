"""Vote (API 52): asks for a vote in a Raft quorum. Pure.

Versions: v1 names voters by directory id too; v2 pre-votes.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class VoteRequest(Message, api_key=52, versions=range(0, 3), flexible_since=0):
    cluster_id: str | None = field("string", nullable="0+", default=None)
    voter_id:   int        = field("int32", "1+", default=-1, ignorable=True)
    topics:     list[VoteRequest.TopicData] = field("[]TopicData")

    class TopicData(Struct):
        topic_name: str = field("string")
        partitions: list[VoteRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition_index:      int   = field("int32")
        replica_epoch:        int   = field("int32")
        replica_id:           int   = field("int32")
        replica_directory_id: bytes = field("uuid", "1+", ignorable=True)
        voter_directory_id:   bytes = field("uuid", "1+", ignorable=True)
        last_offset_epoch:    int   = field("int32")
        last_offset:          int   = field("int64")
        pre_vote:             bool  = field("bool", "2+")


class VoteResponse(Message, api_key=52, versions=range(0, 3), flexible_since=0):
    error_code:     int = field("int16")
    topics:         list[VoteResponse.TopicData] = field("[]TopicData")
    node_endpoints: list[VoteResponse.NodeEndpoint] = field("[]NodeEndpoint", "1+", tag=0)

    class TopicData(Struct):
        topic_name: str = field("string")
        partitions: list[VoteResponse.PartitionData] = field("[]PartitionData")

    class NodeEndpoint(Struct):
        node_id: int = field("int32", "1+")
        host:    str = field("string", "1+")
        port:    int = field("uint16", "1+")

    class PartitionData(Struct):
        partition_index: int  = field("int32")
        error_code:      int  = field("int16")
        leader_id:       int  = field("int32")
        leader_epoch:    int  = field("int32")
        vote_granted:    bool = field("bool")
