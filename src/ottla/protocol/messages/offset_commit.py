"""OffsetCommit (API 8): stores a group's positions. Pure.

Versions: v5 drops the retention time; v6 leader epoch; v7 instance id; v8 is flexible; v9 serves groups of
KIP-848 (member epoch); v10 topic ids.
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
