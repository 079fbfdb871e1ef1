"""ListPartitionReassignments (API 46): lists the partitions that are being moved (KIP-455). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ListPartitionReassignmentsRequest(Message, api_key=46, versions=range(0, 1), flexible_since=0):
    timeout_ms: int = field("int32", default=60_000)
    topics:     list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = field("[]ListPartitionReassignmentsTopics", nullable="0+", default=None)

    class ListPartitionReassignmentsTopics(Struct):
        name:              str       = field("string")
        partition_indexes: list[int] = field("[]int32")


class ListPartitionReassignmentsResponse(Message, api_key=46, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
    topics:           list[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = field("[]OngoingTopicReassignment")

    class OngoingTopicReassignment(Struct):
        name:       str = field("string")
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = field("[]OngoingPartitionReassignment")

    class OngoingPartitionReassignment(Struct):
        partition_index:   int       = field("int32")
        replicas:          list[int] = field("[]int32")
        adding_replicas:   list[int] = field("[]int32")
        removing_replicas: list[int] = field("[]int32")
