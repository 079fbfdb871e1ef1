"""OffsetCommit (API 8): stores committed offsets of a group. Pure.

v2   the oldest version since Kafka 4.0 (KIP-896); retention time
v3   throttle time
v4   a broker answers before it throttles (KIP-219)
v5   no retention time: the broker's setting decides (KIP-211)
v6   leader epoch of each offset (KIP-320)
v7   group instance id of static members (KIP-345)
v8   flexible: compact lengths and tagged fields (KIP-482)
v9   member epoch, for groups of the new protocol (KIP-848)
v10  topic ids instead of names (KIP-848)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class OffsetCommitRequest(Message, api_key=8, versions=range(2, 11), flexible_since=8):
    group_id:                      str        = field("string")
    generation_id_or_member_epoch: int        = field("int32", default=-1)
    member_id:                     str        = field("string")
    group_instance_id:             str | None = field("string", "7+", nullable="0+", default=None)
    retention_time_ms:             int        = field("int64", "2-4", default=-1, ignorable=True)
    topics:                        list[OffsetCommitRequest.OffsetCommitRequestTopic] = field("[]OffsetCommitRequestTopic")

    class OffsetCommitRequestTopic(Struct):
        name:       str   = field("string", "2-9", ignorable=True)
        topic_id:   bytes = field("uuid", "10+", ignorable=True)
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = field("[]OffsetCommitRequestPartition")

    class OffsetCommitRequestPartition(Struct):
        partition_index:        int        = field("int32")
        committed_offset:       int        = field("int64")
        committed_leader_epoch: int        = field("int32", "6+", default=-1, ignorable=True)
        committed_metadata:     str | None = field("string", nullable="0+")


class OffsetCommitResponse(Message, api_key=8, versions=range(2, 11), flexible_since=8):
    throttle_time_ms: int = field("int32", "3+", ignorable=True)
    topics:           list[OffsetCommitResponse.OffsetCommitResponseTopic] = field("[]OffsetCommitResponseTopic")

    class OffsetCommitResponseTopic(Struct):
        name:       str   = field("string", "2-9", ignorable=True)
        topic_id:   bytes = field("uuid", "10+", ignorable=True)
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = field("[]OffsetCommitResponsePartition")

    class OffsetCommitResponsePartition(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
