"""ListOffsets (API 2): finds offsets by timestamp, or at the ends of a log. Pure.

Versions: v2 isolation level; v4 leader epoch; v6 is flexible; v7 -3 is the largest timestamp; v8 -4
earliest local; v9 -5 latest tiered; v10 timeout; v11 -6 earliest pending upload.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ListOffsetsRequest(Message, api_key=2, versions=range(1, 12), flexible_since=6):
    replica_id:      int = field("int32")
    isolation_level: int = field("int8", "2+")
    topics:          list[ListOffsetsRequest.ListOffsetsTopic] = field("[]ListOffsetsTopic")
    timeout_ms:      int = field("int32", "10+", ignorable=True)

    class ListOffsetsTopic(Struct):
        name:       str = field("string")
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = field("[]ListOffsetsPartition")

    class ListOffsetsPartition(Struct):
        partition_index:      int = field("int32")
        current_leader_epoch: int = field("int32", "4+", default=-1, ignorable=True)
        timestamp:            int = field("int64")


class ListOffsetsResponse(Message, api_key=2, versions=range(1, 12), flexible_since=6):
    throttle_time_ms: int = field("int32", "2+", ignorable=True)
    topics:           list[ListOffsetsResponse.ListOffsetsTopicResponse] = field("[]ListOffsetsTopicResponse")

    class ListOffsetsTopicResponse(Struct):
        name:       str = field("string")
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = field("[]ListOffsetsPartitionResponse")

    class ListOffsetsPartitionResponse(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
        timestamp:       int = field("int64", default=-1)
        offset:          int = field("int64", default=-1)
        leader_epoch:    int = field("int32", "4+", default=-1)
