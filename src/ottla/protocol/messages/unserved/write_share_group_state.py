"""WriteShareGroupState (API 85): stores the state of share partitions (KIP-932). Pure.

v0   the first version
v1   number of deliveries completed (KIP-1226)

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class WriteShareGroupStateRequest(Message, api_key=85, versions=range(0, 2), flexible_since=0):
    group_id: str = field("string")
    topics:   list[WriteShareGroupStateRequest.WriteStateData] = field("[]WriteStateData")

    class WriteStateData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[WriteShareGroupStateRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition:               int = field("int32")
        state_epoch:             int = field("int32")
        leader_epoch:            int = field("int32")
        start_offset:            int = field("int64")
        delivery_complete_count: int = field("int32", "1+", default=-1, ignorable=True)
        state_batches:           list[WriteShareGroupStateRequest.StateBatch] = field("[]StateBatch")

    class StateBatch(Struct):
        first_offset:   int = field("int64")
        last_offset:    int = field("int64")
        delivery_state: int = field("int8")
        delivery_count: int = field("int16")


class WriteShareGroupStateResponse(Message, api_key=85, versions=range(0, 2), flexible_since=0):
    results: list[WriteShareGroupStateResponse.WriteStateResult] = field("[]WriteStateResult")

    class WriteStateResult(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[WriteShareGroupStateResponse.PartitionResult] = field("[]PartitionResult")

    class PartitionResult(Struct):
        partition:     int        = field("int32")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+", default=None)
