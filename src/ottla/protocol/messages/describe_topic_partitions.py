"""DescribeTopicPartitions (API 75): describes topics page by page (KIP-966). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeTopicPartitionsRequest(Message, api_key=75, versions=range(0, 1), flexible_since=0):
    topics:                   list[DescribeTopicPartitionsRequest.TopicRequest] = field("[]TopicRequest")
    response_partition_limit: int = field("int32", default=2000)
    cursor:                   DescribeTopicPartitionsRequest.Cursor | None = field("Cursor", nullable="0+", default=None)

    class TopicRequest(Struct):
        name: str = field("string")

    class Cursor(Struct):
        topic_name:      str = field("string")
        partition_index: int = field("int32")


class DescribeTopicPartitionsResponse(Message, api_key=75, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int = field("int32")
    topics:           list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = field("[]DescribeTopicPartitionsResponseTopic")
    next_cursor:      DescribeTopicPartitionsResponse.Cursor | None = field("Cursor", nullable="0+", default=None)

    class DescribeTopicPartitionsResponseTopic(Struct):
        error_code:                  int        = field("int16")
        name:                        str | None = field("string", nullable="0+")
        topic_id:                    bytes      = field("uuid")
        is_internal:                 bool       = field("bool")
        partitions:                  list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = field("[]DescribeTopicPartitionsResponsePartition")
        topic_authorized_operations: int        = field("int32", default=-(2**31))

    class Cursor(Struct):
        topic_name:      str = field("string")
        partition_index: int = field("int32")

    class DescribeTopicPartitionsResponsePartition(Struct):
        error_code:               int       = field("int16")
        partition_index:          int       = field("int32")
        leader_id:                int       = field("int32")
        leader_epoch:             int       = field("int32", default=-1)
        replica_nodes:            list[int] = field("[]int32")
        isr_nodes:                list[int] = field("[]int32")
        eligible_leader_replicas: list[int] | None = field("[]int32", nullable="0+", default=None)
        last_known_elr:           list[int] | None = field("[]int32", nullable="0+", default=None)
        offline_replicas:         list[int] = field("[]int32")
