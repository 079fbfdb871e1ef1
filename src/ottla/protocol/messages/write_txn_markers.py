"""WriteTxnMarkers (API 27): writes commit and abort markers; sent by the coordinator to leaders (KIP-98). Pure.

v1   the oldest version since Kafka 4.0 (KIP-896); flexible (KIP-482)
v2   transaction version of each marker (KIP-1228)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class WriteTxnMarkersRequest(Message, api_key=27, versions=range(1, 3), flexible_since=1):
    markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = field("[]WritableTxnMarker")

    class WritableTxnMarker(Struct):
        producer_id:         int  = field("int64")
        producer_epoch:      int  = field("int16")
        transaction_result:  bool = field("bool")
        topics:              list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = field("[]WritableTxnMarkerTopic")
        coordinator_epoch:   int  = field("int32")
        transaction_version: int  = field("int8", "2+", ignorable=True)

    class WritableTxnMarkerTopic(Struct):
        name:              str       = field("string")
        partition_indexes: list[int] = field("[]int32")


class WriteTxnMarkersResponse(Message, api_key=27, versions=range(1, 3), flexible_since=1):
    markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = field("[]WritableTxnMarkerResult")

    class WritableTxnMarkerResult(Struct):
        producer_id: int = field("int64")
        topics:      list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = field("[]WritableTxnMarkerTopicResult")

    class WritableTxnMarkerTopicResult(Struct):
        name:       str = field("string")
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = field("[]WritableTxnMarkerPartitionResult")

    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
