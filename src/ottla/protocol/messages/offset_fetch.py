"""OffsetFetch (API 9): reads committed offsets of groups. Pure.

v1   the oldest version since Kafka 4.0 (KIP-896)
v2   null asks for all partitions; an error code for the whole response
v3   throttle time
v4   a broker answers before it throttles (KIP-219)
v5   leader epoch of each offset (KIP-320)
v6   flexible: compact lengths and tagged fields (KIP-482)
v7   can require stable offsets: UNSTABLE_OFFSET_COMMIT while a transaction is pending (KIP-447)
v8   several groups in one request (KIP-709)
v9   member id and epoch, for groups of the new protocol (KIP-848)
v10  topic ids instead of names (KIP-848)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class OffsetFetchRequest(Message, api_key=9, versions=range(1, 11), flexible_since=6):
    group_id:       str  = field("string", "1-7")
    topics:         list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = field("[]OffsetFetchRequestTopic", "1-7", nullable="2-7")
    groups:         list[OffsetFetchRequest.OffsetFetchRequestGroup] = field("[]OffsetFetchRequestGroup", "8+")
    require_stable: bool = field("bool", "7+")

    class OffsetFetchRequestTopic(Struct):
        name:              str       = field("string", "1-7")
        partition_indexes: list[int] = field("[]int32", "1-7")

    class OffsetFetchRequestGroup(Struct):
        group_id:     str        = field("string", "8+")
        member_id:    str | None = field("string", "9+", nullable="0+", default=None, ignorable=True)
        member_epoch: int        = field("int32", "9+", default=-1, ignorable=True)
        topics:       list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = field("[]OffsetFetchRequestTopics", "8+", nullable="0+")

    class OffsetFetchRequestTopics(Struct):
        name:              str       = field("string", "8-9", ignorable=True)
        topic_id:          bytes     = field("uuid", "10+", ignorable=True)
        partition_indexes: list[int] = field("[]int32", "8+")


class OffsetFetchResponse(Message, api_key=9, versions=range(1, 11), flexible_since=6):
    throttle_time_ms: int = field("int32", "3+", ignorable=True)
    topics:           list[OffsetFetchResponse.OffsetFetchResponseTopic] = field("[]OffsetFetchResponseTopic", "1-7")
    error_code:       int = field("int16", "2-7", ignorable=True)
    groups:           list[OffsetFetchResponse.OffsetFetchResponseGroup] = field("[]OffsetFetchResponseGroup", "8+")

    class OffsetFetchResponseTopic(Struct):
        name:       str = field("string", "1-7")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = field("[]OffsetFetchResponsePartition", "1-7")

    class OffsetFetchResponseGroup(Struct):
        group_id:   str = field("string", "8+")
        topics:     list[OffsetFetchResponse.OffsetFetchResponseTopics] = field("[]OffsetFetchResponseTopics", "8+")
        error_code: int = field("int16", "8+")

    class OffsetFetchResponsePartition(Struct):
        partition_index:        int        = field("int32", "1-7")
        committed_offset:       int        = field("int64", "1-7")
        committed_leader_epoch: int        = field("int32", "5-7", default=-1, ignorable=True)
        metadata:               str | None = field("string", "1-7", nullable="0+")
        error_code:             int        = field("int16", "1-7")

    class OffsetFetchResponseTopics(Struct):
        name:       str   = field("string", "8-9", ignorable=True)
        topic_id:   bytes = field("uuid", "10+", ignorable=True)
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = field("[]OffsetFetchResponsePartitions", "8+")

    class OffsetFetchResponsePartitions(Struct):
        partition_index:        int        = field("int32", "8+")
        committed_offset:       int        = field("int64", "8+")
        committed_leader_epoch: int        = field("int32", "8+", default=-1, ignorable=True)
        metadata:               str | None = field("string", "8+", nullable="0+")
        error_code:             int        = field("int16", "8+")
