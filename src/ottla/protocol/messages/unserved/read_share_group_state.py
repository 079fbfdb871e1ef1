"""ReadShareGroupState (API 84): reads the stored state of share partitions (KIP-932). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ReadShareGroupStateRequest(Message, api_key=84, versions=range(0, 1), flexible_since=0):
    group_id: str = field("string")
    topics:   list[ReadShareGroupStateRequest.ReadStateData] = field("[]ReadStateData")

    class ReadStateData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[ReadShareGroupStateRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition:    int = field("int32")
        leader_epoch: int = field("int32")


class ReadShareGroupStateResponse(Message, api_key=84, versions=range(0, 1), flexible_since=0):
    results: list[ReadShareGroupStateResponse.ReadStateResult] = field("[]ReadStateResult")

    class ReadStateResult(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[ReadShareGroupStateResponse.PartitionResult] = field("[]PartitionResult")

    class PartitionResult(Struct):
        partition:     int        = field("int32")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+", default=None)
        state_epoch:   int        = field("int32")
        start_offset:  int        = field("int64")
        state_batches: list[ReadShareGroupStateResponse.StateBatch] = field("[]StateBatch")

    class StateBatch(Struct):
        first_offset:   int = field("int64")
        last_offset:    int = field("int64")
        delivery_state: int = field("int8")
        delivery_count: int = field("int16")
