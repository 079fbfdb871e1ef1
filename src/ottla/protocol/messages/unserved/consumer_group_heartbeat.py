"""ConsumerGroupHeartbeat (API 68): joins, keeps and leaves a group of the new protocol (KIP-848). Pure.

v0   the first version
v1   subscription by regular expression (KIP-848); the consumer chooses its member id (KIP-1082)

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions=range(0, 2), flexible_since=0):
    group_id:               str        = field("string")
    member_id:              str        = field("string")
    member_epoch:           int        = field("int32")
    instance_id:            str | None = field("string", nullable="0+", default=None)
    rack_id:                str | None = field("string", nullable="0+", default=None)
    rebalance_timeout_ms:   int        = field("int32", default=-1)
    subscribed_topic_names: list[str] | None = field("[]string", nullable="0+", default=None)
    subscribed_topic_regex: str | None = field("string", "1+", nullable="0+", default=None)
    server_assignor:        str | None = field("string", nullable="0+", default=None)
    topic_partitions:       list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = field("[]TopicPartitions", nullable="0+", default=None)

    class TopicPartitions(Struct):
        topic_id:   bytes     = field("uuid")
        partitions: list[int] = field("[]int32")


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions=range(0, 2), flexible_since=0):
    throttle_time_ms:      int        = field("int32")
    error_code:            int        = field("int16")
    error_message:         str | None = field("string", nullable="0+", default=None)
    member_id:             str | None = field("string", nullable="0+", default=None)
    member_epoch:          int        = field("int32")
    heartbeat_interval_ms: int        = field("int32")
    assignment:            ConsumerGroupHeartbeatResponse.Assignment | None = field("Assignment", nullable="0+", default=None)

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = field("[]TopicPartitions")

    class TopicPartitions(Struct):
        topic_id:   bytes     = field("uuid")
        partitions: list[int] = field("[]int32")
