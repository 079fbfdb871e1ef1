"""DescribeShareGroupOffsets (API 90): the start offsets of share groups (KIP-932). Pure.

v0   the first version
v1   lag (KIP-1226)

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeShareGroupOffsetsRequest(Message, api_key=90, versions=range(0, 2), flexible_since=0):
    groups: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup] = field("[]DescribeShareGroupOffsetsRequestGroup")

    class DescribeShareGroupOffsetsRequestGroup(Struct):
        group_id: str = field("string")
        topics:   list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = field("[]DescribeShareGroupOffsetsRequestTopic", nullable="0+")

    class DescribeShareGroupOffsetsRequestTopic(Struct):
        topic_name: str       = field("string")
        partitions: list[int] = field("[]int32")


class DescribeShareGroupOffsetsResponse(Message, api_key=90, versions=range(0, 2), flexible_since=0):
    throttle_time_ms: int = field("int32")
    groups:           list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup] = field("[]DescribeShareGroupOffsetsResponseGroup")

    class DescribeShareGroupOffsetsResponseGroup(Struct):
        group_id:      str        = field("string")
        topics:        list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = field("[]DescribeShareGroupOffsetsResponseTopic")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+", default=None)

    class DescribeShareGroupOffsetsResponseTopic(Struct):
        topic_name: str   = field("string")
        topic_id:   bytes = field("uuid")
        partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = field("[]DescribeShareGroupOffsetsResponsePartition")

    class DescribeShareGroupOffsetsResponsePartition(Struct):
        partition_index: int        = field("int32")
        start_offset:    int        = field("int64")
        leader_epoch:    int        = field("int32")
        lag:             int        = field("int64", "1+", default=-1, ignorable=True)
        error_code:      int        = field("int16")
        error_message:   str | None = field("string", nullable="0+", default=None)
