"""ShareAcknowledge (API 79): acknowledges records that a share group has read (KIP-932). Pure.

v1   the first stable version; version 0 was early access in Kafka 4.0
v2   renewal of locks (KIP-1222)

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ShareAcknowledgeRequest(Message, api_key=79, versions=range(1, 3), flexible_since=0):
    group_id:            str | None = field("string", nullable="0+", default=None)
    member_id:           str | None = field("string", nullable="0+")
    share_session_epoch: int        = field("int32")
    is_renew_ack:        bool       = field("bool", "2+")
    topics:              list[ShareAcknowledgeRequest.AcknowledgeTopic] = field("[]AcknowledgeTopic")

    class AcknowledgeTopic(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = field("[]AcknowledgePartition")

    class AcknowledgePartition(Struct):
        partition_index:         int = field("int32")
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = field("[]AcknowledgementBatch")

    class AcknowledgementBatch(Struct):
        first_offset:      int       = field("int64")
        last_offset:       int       = field("int64")
        acknowledge_types: list[int] = field("[]int8")


class ShareAcknowledgeResponse(Message, api_key=79, versions=range(1, 3), flexible_since=0):
    throttle_time_ms:            int        = field("int32")
    error_code:                  int        = field("int16")
    error_message:               str | None = field("string", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int        = field("int32", "2+", ignorable=True)
    responses:                   list[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = field("[]ShareAcknowledgeTopicResponse")
    node_endpoints:              list[ShareAcknowledgeResponse.NodeEndpoint] = field("[]NodeEndpoint")

    class ShareAcknowledgeTopicResponse(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[ShareAcknowledgeResponse.PartitionData] = field("[]PartitionData")

    class NodeEndpoint(Struct):
        node_id: int        = field("int32")
        host:    str        = field("string")
        port:    int        = field("int32")
        rack:    str | None = field("string", nullable="0+", default=None)

    class PartitionData(Struct):
        partition_index: int        = field("int32")
        error_code:      int        = field("int16")
        error_message:   str | None = field("string", nullable="0+", default=None)
        current_leader:  ShareAcknowledgeResponse.LeaderIdAndEpoch = field("LeaderIdAndEpoch")

    class LeaderIdAndEpoch(Struct):
        leader_id:    int = field("int32")
        leader_epoch: int = field("int32")
