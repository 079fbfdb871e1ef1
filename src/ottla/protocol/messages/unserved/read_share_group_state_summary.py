"""ReadShareGroupStateSummary (API 87): reads a summary of the state of share partitions (KIP-932). Pure.

v0   the first version
v1   number of deliveries completed (KIP-1226)

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ReadShareGroupStateSummaryRequest(Message, api_key=87, versions=range(0, 2), flexible_since=0):
    group_id: str = field("string")
    topics:   list[ReadShareGroupStateSummaryRequest.ReadStateSummaryData] = field("[]ReadStateSummaryData")

    class ReadStateSummaryData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition:    int = field("int32")
        leader_epoch: int = field("int32")


class ReadShareGroupStateSummaryResponse(Message, api_key=87, versions=range(0, 2), flexible_since=0):
    results: list[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = field("[]ReadStateSummaryResult")

    class ReadStateSummaryResult(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = field("[]PartitionResult")

    class PartitionResult(Struct):
        partition:               int        = field("int32")
        error_code:              int        = field("int16")
        error_message:           str | None = field("string", nullable="0+", default=None)
        state_epoch:             int        = field("int32")
        leader_epoch:            int        = field("int32")
        start_offset:            int        = field("int64")
        delivery_complete_count: int        = field("int32", "1+", default=-1, ignorable=True)
