"""DeleteShareGroupOffsets (API 92): deletes the start offsets of a share group (KIP-932). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DeleteShareGroupOffsetsRequest(Message, api_key=92, versions=range(0, 1), flexible_since=0):
    group_id: str = field("string")
    topics:   list[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic] = field("[]DeleteShareGroupOffsetsRequestTopic")

    class DeleteShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = field("string")


class DeleteShareGroupOffsetsResponse(Message, api_key=92, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+", default=None)
    responses:        list[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic] = field("[]DeleteShareGroupOffsetsResponseTopic")

    class DeleteShareGroupOffsetsResponseTopic(Struct):
        topic_name:    str        = field("string")
        topic_id:      bytes      = field("uuid")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+", default=None)
