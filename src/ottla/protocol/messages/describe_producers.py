"""DescribeProducers (API 61): the active producers of partitions (KIP-664). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeProducersRequest(Message, api_key=61, versions=range(0, 1), flexible_since=0):
    topics: list[DescribeProducersRequest.TopicRequest] = field("[]TopicRequest")

    class TopicRequest(Struct):
        name:              str       = field("string")
        partition_indexes: list[int] = field("[]int32")


class DescribeProducersResponse(Message, api_key=61, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int = field("int32")
    topics:           list[DescribeProducersResponse.TopicResponse] = field("[]TopicResponse")

    class TopicResponse(Struct):
        name:       str = field("string")
        partitions: list[DescribeProducersResponse.PartitionResponse] = field("[]PartitionResponse")

    class PartitionResponse(Struct):
        partition_index:  int        = field("int32")
        error_code:       int        = field("int16")
        error_message:    str | None = field("string", nullable="0+", default=None)
        active_producers: list[DescribeProducersResponse.ProducerState] = field("[]ProducerState")

    class ProducerState(Struct):
        producer_id:              int = field("int64")
        producer_epoch:           int = field("int32")
        last_sequence:            int = field("int32", default=-1)
        last_timestamp:           int = field("int64", default=-1)
        coordinator_epoch:        int = field("int32")
        current_txn_start_offset: int = field("int64", default=-1)
