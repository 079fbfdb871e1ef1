"""DeleteRecords (API 21): deletes records before an offset by moving the log start offset (KIP-107). Pure.

v0   the first version
v1   a broker answers before it throttles (KIP-219)
v2   flexible: compact lengths and tagged fields (KIP-482)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DeleteRecordsRequest(Message, api_key=21, versions=range(0, 3), flexible_since=2):
    topics:     list[DeleteRecordsRequest.DeleteRecordsTopic] = field("[]DeleteRecordsTopic")
    timeout_ms: int = field("int32")

    class DeleteRecordsTopic(Struct):
        name:       str = field("string")
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = field("[]DeleteRecordsPartition")

    class DeleteRecordsPartition(Struct):
        partition_index: int = field("int32")
        offset:          int = field("int64")


class DeleteRecordsResponse(Message, api_key=21, versions=range(0, 3), flexible_since=2):
    throttle_time_ms: int = field("int32")
    topics:           list[DeleteRecordsResponse.DeleteRecordsTopicResult] = field("[]DeleteRecordsTopicResult")

    class DeleteRecordsTopicResult(Struct):
        name:       str = field("string")
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = field("[]DeleteRecordsPartitionResult")

    class DeleteRecordsPartitionResult(Struct):
        partition_index: int = field("int32")
        low_watermark:   int = field("int64")
        error_code:      int = field("int16")
