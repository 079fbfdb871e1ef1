"""ShareGroupHeartbeat (API 76): joins, keeps and leaves a share group (KIP-932). Pure.

v1   the first stable version; version 0 was early access in Kafka 4.0

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ShareGroupHeartbeatRequest(Message, api_key=76, versions=range(1, 2), flexible_since=0):
    group_id:               str        = field("string")
    member_id:              str        = field("string")
    member_epoch:           int        = field("int32")
    rack_id:                str | None = field("string", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = field("[]string", nullable="0+", default=None)


class ShareGroupHeartbeatResponse(Message, api_key=76, versions=range(1, 2), flexible_since=0):
    throttle_time_ms:      int        = field("int32")
    error_code:            int        = field("int16")
    error_message:         str | None = field("string", nullable="0+", default=None)
    member_id:             str | None = field("string", nullable="0+", default=None)
    member_epoch:          int        = field("int32")
    heartbeat_interval_ms: int        = field("int32")
    assignment:            ShareGroupHeartbeatResponse.Assignment | None = field("Assignment", nullable="0+", default=None)

    class Assignment(Struct):
        topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions] = field("[]TopicPartitions")

    class TopicPartitions(Struct):
        topic_id:   bytes     = field("uuid")
        partitions: list[int] = field("[]int32")
