"""CreatePartitions (API 37): adds partitions to topics (KIP-195). Pure.

v0   the first version
v1   a broker answers before it throttles (KIP-219)
v2   flexible: compact lengths and tagged fields (KIP-482)
v3   may answer THROTTLING_QUOTA_EXCEEDED (KIP-599)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class CreatePartitionsRequest(Message, api_key=37, versions=range(0, 4), flexible_since=2):
    topics:        list[CreatePartitionsRequest.CreatePartitionsTopic] = field("[]CreatePartitionsTopic")
    timeout_ms:    int  = field("int32")
    validate_only: bool = field("bool")

    class CreatePartitionsTopic(Struct):
        name:        str = field("string")
        count:       int = field("int32")
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = field("[]CreatePartitionsAssignment", nullable="0+")

    class CreatePartitionsAssignment(Struct):
        broker_ids: list[int] = field("[]int32")


class CreatePartitionsResponse(Message, api_key=37, versions=range(0, 4), flexible_since=2):
    throttle_time_ms: int = field("int32")
    results:          list[CreatePartitionsResponse.CreatePartitionsTopicResult] = field("[]CreatePartitionsTopicResult")

    class CreatePartitionsTopicResult(Struct):
        name:          str        = field("string")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+", default=None)
