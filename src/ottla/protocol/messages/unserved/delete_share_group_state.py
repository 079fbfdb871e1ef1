"""DeleteShareGroupState (API 86): deletes the stored state of share partitions (KIP-932). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DeleteShareGroupStateRequest(Message, api_key=86, versions=range(0, 1), flexible_since=0):
    group_id: str = field("string")
    topics:   list[DeleteShareGroupStateRequest.DeleteStateData] = field("[]DeleteStateData")

    class DeleteStateData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[DeleteShareGroupStateRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition: int = field("int32")


class DeleteShareGroupStateResponse(Message, api_key=86, versions=range(0, 1), flexible_since=0):
    results: list[DeleteShareGroupStateResponse.DeleteStateResult] = field("[]DeleteStateResult")

    class DeleteStateResult(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[DeleteShareGroupStateResponse.PartitionResult] = field("[]PartitionResult")

    class PartitionResult(Struct):
        partition:     int        = field("int32")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+", default=None)
