"""ListOffsets (API 2): finds offsets by timestamp, or the first or last offset of a partition. Pure.

v1   the oldest version since Kafka 4.0 (KIP-896); one offset with its timestamp (KIP-79)
v2   isolation level (KIP-98) and throttle time
v3   a broker answers before it throttles (KIP-219)
v4   current leader epoch (KIP-320)
v5   may answer OFFSET_NOT_AVAILABLE (KIP-207)
v6   flexible: compact lengths and tagged fields (KIP-482)
v7   timestamp -3: the record with the largest timestamp (KIP-734)
v8   timestamp -4: the first offset that is not only in tiered storage (KIP-405)
v9   timestamp -5: the last offset in tiered storage (KIP-1005)
v10  a timeout, because tiered storage may be slow (KIP-1075)
v11  timestamp -6: the first offset still to be uploaded (KIP-1023)
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
