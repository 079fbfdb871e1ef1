"""ConsumerGroupDescribe (API 69): describes groups of the new protocol (KIP-848). Pure.

v0   the first version
v1   type of each member: classic or new (KIP-1099)

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ConsumerGroupDescribeRequest(Message, api_key=69, versions=range(0, 2), flexible_since=0):
    group_ids:                     list[str] = field("[]string")
    include_authorized_operations: bool      = field("bool")


class ConsumerGroupDescribeResponse(Message, api_key=69, versions=range(0, 2), flexible_since=0):
    throttle_time_ms: int = field("int32")
    groups:           list[ConsumerGroupDescribeResponse.DescribedGroup] = field("[]DescribedGroup")

    class DescribedGroup(Struct):
        error_code:            int        = field("int16")
        error_message:         str | None = field("string", nullable="0+", default=None)
        group_id:              str        = field("string")
        group_state:           str        = field("string")
        group_epoch:           int        = field("int32")
        assignment_epoch:      int        = field("int32")
        assignor_name:         str        = field("string")
        members:               list[ConsumerGroupDescribeResponse.Member] = field("[]Member")
        authorized_operations: int        = field("int32", default=-(2**31))

    class Member(Struct):
        member_id:              str        = field("string")
        instance_id:            str | None = field("string", nullable="0+", default=None)
        rack_id:                str | None = field("string", nullable="0+", default=None)
        member_epoch:           int        = field("int32")
        client_id:              str        = field("string")
        client_host:            str        = field("string")
        subscribed_topic_names: list[str]  = field("[]string")
        subscribed_topic_regex: str | None = field("string", nullable="0+", default=None)
        assignment:             ConsumerGroupDescribeResponse.Assignment = field("Assignment")
        target_assignment:      ConsumerGroupDescribeResponse.Assignment = field("Assignment")
        member_type:            int        = field("int8", "1+", default=-1, ignorable=True)

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = field("[]TopicPartitions")

    class TopicPartitions(Struct):
        topic_id:   bytes     = field("uuid")
        topic_name: str       = field("string")
        partitions: list[int] = field("[]int32")
