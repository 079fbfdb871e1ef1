"""InitializeShareGroupState (API 83): creates the stored state of share partitions (KIP-932). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class InitializeShareGroupStateRequest(Message, api_key=83, versions=range(0, 1), flexible_since=0):
    group_id: str = field("string")
    topics:   list[InitializeShareGroupStateRequest.InitializeStateData] = field("[]InitializeStateData")

    class InitializeStateData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[InitializeShareGroupStateRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition:    int = field("int32")
        state_epoch:  int = field("int32")
        start_offset: int = field("int64")


class InitializeShareGroupStateResponse(Message, api_key=83, versions=range(0, 1), flexible_since=0):
    results: list[InitializeShareGroupStateResponse.InitializeStateResult] = field("[]InitializeStateResult")

    class InitializeStateResult(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[InitializeShareGroupStateResponse.PartitionResult] = field("[]PartitionResult")

    class PartitionResult(Struct):
        partition:     int        = field("int32")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+", default=None)
