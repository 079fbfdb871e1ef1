"""ShareGroupDescribe (API 77): describes share groups (KIP-932). Pure.

v1   the first stable version; version 0 was early access in Kafka 4.0

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ShareGroupDescribeRequest(Message, api_key=77, versions=range(1, 2), flexible_since=0):
    group_ids:                     list[str] = field("[]string")
    include_authorized_operations: bool      = field("bool")


class ShareGroupDescribeResponse(Message, api_key=77, versions=range(1, 2), flexible_since=0):
    throttle_time_ms: int = field("int32")
    groups:           list[ShareGroupDescribeResponse.DescribedGroup] = field("[]DescribedGroup")

    class DescribedGroup(Struct):
        error_code:            int        = field("int16")
        error_message:         str | None = field("string", nullable="0+", default=None)
        group_id:              str        = field("string")
        group_state:           str        = field("string")
        group_epoch:           int        = field("int32")
        assignment_epoch:      int        = field("int32")
        assignor_name:         str        = field("string")
        members:               list[ShareGroupDescribeResponse.Member] = field("[]Member")
        authorized_operations: int        = field("int32", default=-(2**31))

    class Member(Struct):
        member_id:              str        = field("string")
        rack_id:                str | None = field("string", nullable="0+", default=None)
        member_epoch:           int        = field("int32")
        client_id:              str        = field("string")
        client_host:            str        = field("string")
        subscribed_topic_names: list[str]  = field("[]string")
        assignment:             ShareGroupDescribeResponse.Assignment = field("Assignment")

    class Assignment(Struct):
        topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions] = field("[]TopicPartitions")

    class TopicPartitions(Struct):
        topic_id:   bytes     = field("uuid")
        topic_name: str       = field("string")
        partitions: list[int] = field("[]int32")
