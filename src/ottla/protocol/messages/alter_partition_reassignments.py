"""AlterPartitionReassignments (API 45): moves partitions to other replicas, or cancels it (KIP-455). Pure.

v0   the first version
v1   whether the replication factor may change (KIP-860)

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions=range(0, 2), flexible_since=0):
    timeout_ms:                      int  = field("int32", default=60_000)
    allow_replication_factor_change: bool = field("bool", "1+", default=True)
    topics:                          list[AlterPartitionReassignmentsRequest.ReassignableTopic] = field("[]ReassignableTopic")

    class ReassignableTopic(Struct):
        name:       str = field("string")
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = field("[]ReassignablePartition")

    class ReassignablePartition(Struct):
        partition_index: int = field("int32")
        replicas:        list[int] | None = field("[]int32", nullable="0+", default=None)


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions=range(0, 2), flexible_since=0):
    throttle_time_ms:                int        = field("int32")
    allow_replication_factor_change: bool       = field("bool", "1+", default=True, ignorable=True)
    error_code:                      int        = field("int16")
    error_message:                   str | None = field("string", nullable="0+")
    responses:                       list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = field("[]ReassignableTopicResponse")

    class ReassignableTopicResponse(Struct):
        name:       str = field("string")
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = field("[]ReassignablePartitionResponse")

    class ReassignablePartitionResponse(Struct):
        partition_index: int        = field("int32")
        error_code:      int        = field("int16")
        error_message:   str | None = field("string", nullable="0+")
