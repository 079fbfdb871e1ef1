"""ShareFetch (API 78): reads records for a share group and acknowledges earlier ones (KIP-932). Pure.

v1   the first stable version; version 0 was early access in Kafka 4.0
v2   acquire mode (KIP-1206) and renewal of locks (KIP-1222)

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Records, Struct, field


class ShareFetchRequest(Message, api_key=78, versions=range(1, 3), flexible_since=0):
    group_id:              str | None = field("string", nullable="0+", default=None)
    member_id:             str | None = field("string", nullable="0+")
    share_session_epoch:   int        = field("int32")
    max_wait_ms:           int        = field("int32")
    min_bytes:             int        = field("int32")
    max_bytes:             int        = field("int32", default=2**31 - 1)
    max_records:           int        = field("int32")
    batch_size:            int        = field("int32")
    share_acquire_mode:    int        = field("int8", "2+", ignorable=True)
    is_renew_ack:          bool       = field("bool", "2+")
    topics:                list[ShareFetchRequest.FetchTopic] = field("[]FetchTopic")
    forgotten_topics_data: list[ShareFetchRequest.ForgottenTopic] = field("[]ForgottenTopic")

    class FetchTopic(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[ShareFetchRequest.FetchPartition] = field("[]FetchPartition")

    class ForgottenTopic(Struct):
        topic_id:   bytes     = field("uuid")
        partitions: list[int] = field("[]int32")

    class FetchPartition(Struct):
        partition_index:         int = field("int32")
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = field("[]AcknowledgementBatch")

    class AcknowledgementBatch(Struct):
        first_offset:      int       = field("int64")
        last_offset:       int       = field("int64")
        acknowledge_types: list[int] = field("[]int8")


class ShareFetchResponse(Message, api_key=78, versions=range(1, 3), flexible_since=0):
    throttle_time_ms:            int        = field("int32")
    error_code:                  int        = field("int16")
    error_message:               str | None = field("string", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int        = field("int32")
    responses:                   list[ShareFetchResponse.ShareFetchableTopicResponse] = field("[]ShareFetchableTopicResponse")
    node_endpoints:              list[ShareFetchResponse.NodeEndpoint] = field("[]NodeEndpoint")

    class ShareFetchableTopicResponse(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[ShareFetchResponse.PartitionData] = field("[]PartitionData")

    class NodeEndpoint(Struct):
        node_id: int        = field("int32")
        host:    str        = field("string")
        port:    int        = field("int32")
        rack:    str | None = field("string", nullable="0+", default=None)

    class PartitionData(Struct):
        partition_index:           int        = field("int32")
        error_code:                int        = field("int16")
        error_message:             str | None = field("string", nullable="0+", default=None)
        acknowledge_error_code:    int        = field("int16")
        acknowledge_error_message: str | None = field("string", nullable="0+", default=None)
        current_leader:            ShareFetchResponse.LeaderIdAndEpoch = field("LeaderIdAndEpoch")
        records:                   Records | None = field("records")
        acquired_records:          list[ShareFetchResponse.AcquiredRecords] = field("[]AcquiredRecords")

    class LeaderIdAndEpoch(Struct):
        leader_id:    int = field("int32")
        leader_epoch: int = field("int32")

    class AcquiredRecords(Struct):
        first_offset:   int = field("int64")
        last_offset:    int = field("int64")
        delivery_count: int = field("int16")
