"""OffsetForLeaderEpoch (API 23): the end offset of a leader epoch, to detect truncation (KIP-101). Pure.

v2   the oldest version since Kafka 4.0 (KIP-896); current leader epoch (KIP-320)
v3   replica id
v4   flexible: compact lengths and tagged fields (KIP-482)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class OffsetForLeaderEpochRequest(Message, api_key=23, versions=range(2, 5), flexible_since=4):
    replica_id: int = field("int32", "3+", default=-2, ignorable=True)
    topics:     list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = field("[]OffsetForLeaderTopic")

    class OffsetForLeaderTopic(Struct):
        topic:      str = field("string")
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = field("[]OffsetForLeaderPartition")

    class OffsetForLeaderPartition(Struct):
        partition:            int = field("int32")
        current_leader_epoch: int = field("int32", default=-1)
        leader_epoch:         int = field("int32")


class OffsetForLeaderEpochResponse(Message, api_key=23, versions=range(2, 5), flexible_since=4):
    throttle_time_ms: int = field("int32")
    topics:           list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = field("[]OffsetForLeaderTopicResult")

    class OffsetForLeaderTopicResult(Struct):
        topic:      str = field("string")
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = field("[]EpochEndOffset")

    class EpochEndOffset(Struct):
        error_code:   int = field("int16")
        partition:    int = field("int32")
        leader_epoch: int = field("int32", default=-1)
        end_offset:   int = field("int64", default=-1)
