"""DescribeQuorum (API 55): the state of a Raft quorum (KIP-595). Pure.

v0   the first version
v1   when each replica last fetched and was caught up (KIP-836)
v2   directory ids, listeners and error messages (KIP-853)

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeQuorumRequest(Message, api_key=55, versions=range(0, 3), flexible_since=0):
    topics: list[DescribeQuorumRequest.TopicData] = field("[]TopicData")

    class TopicData(Struct):
        topic_name: str = field("string")
        partitions: list[DescribeQuorumRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition_index: int = field("int32")


class DescribeQuorumResponse(Message, api_key=55, versions=range(0, 3), flexible_since=0):
    error_code:    int        = field("int16")
    error_message: str | None = field("string", "2+", nullable="0+", ignorable=True)
    topics:        list[DescribeQuorumResponse.TopicData] = field("[]TopicData")
    nodes:         list[DescribeQuorumResponse.Node] = field("[]Node", "2+")

    class TopicData(Struct):
        topic_name: str = field("string")
        partitions: list[DescribeQuorumResponse.PartitionData] = field("[]PartitionData")

    class Node(Struct):
        node_id:   int = field("int32", "2+")
        listeners: list[DescribeQuorumResponse.Listener] = field("[]Listener", "2+")

    class PartitionData(Struct):
        partition_index: int        = field("int32")
        error_code:      int        = field("int16")
        error_message:   str | None = field("string", "2+", nullable="0+", ignorable=True)
        leader_id:       int        = field("int32")
        leader_epoch:    int        = field("int32")
        high_watermark:  int        = field("int64")
        current_voters:  list[DescribeQuorumResponse.ReplicaState] = field("[]ReplicaState")
        observers:       list[DescribeQuorumResponse.ReplicaState] = field("[]ReplicaState")

    class ReplicaState(Struct):
        replica_id:               int   = field("int32")
        replica_directory_id:     bytes = field("uuid", "2+")
        log_end_offset:           int   = field("int64")
        last_fetch_timestamp:     int   = field("int64", "1+", default=-1, ignorable=True)
        last_caught_up_timestamp: int   = field("int64", "1+", default=-1, ignorable=True)

    class Listener(Struct):
        name: str = field("string", "2+")
        host: str = field("string", "2+")
        port: int = field("uint16", "2+")
