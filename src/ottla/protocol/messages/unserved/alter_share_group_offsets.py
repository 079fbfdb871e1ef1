"""AlterShareGroupOffsets (API 91): sets the start offsets of a share group (KIP-932). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AlterShareGroupOffsetsRequest(Message, api_key=91, versions=range(0, 1), flexible_since=0):
    group_id: str = field("string")
    topics:   list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic] = field("[]AlterShareGroupOffsetsRequestTopic")

    class AlterShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = field("string")
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = field("[]AlterShareGroupOffsetsRequestPartition")

    class AlterShareGroupOffsetsRequestPartition(Struct):
        partition_index: int = field("int32")
        start_offset:    int = field("int64")


class AlterShareGroupOffsetsResponse(Message, api_key=91, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+", default=None)
    responses:        list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic] = field("[]AlterShareGroupOffsetsResponseTopic")

    class AlterShareGroupOffsetsResponseTopic(Struct):
        topic_name: str   = field("string")
        topic_id:   bytes = field("uuid")
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = field("[]AlterShareGroupOffsetsResponsePartition")

    class AlterShareGroupOffsetsResponsePartition(Struct):
        partition_index: int        = field("int32")
        error_code:      int        = field("int16")
        error_message:   str | None = field("string", nullable="0+", default=None)
