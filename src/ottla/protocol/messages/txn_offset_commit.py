"""TxnOffsetCommit (API 28): stores a group's positions inside a transaction. Pure.

Versions: v2 leader epoch; v3 is flexible, with member id, generation and instance id; v4
TRANSACTION_ABORTABLE; v5 adds the group to the transaction by itself; v6 topic ids.
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class TxnOffsetCommitRequest(Message, api_key=28, versions=range(0, 7), flexible_since=3):
    transactional_id:              str        = field("string")
    group_id:                      str        = field("string")
    producer_id:                   int        = field("int64")
    producer_epoch:                int        = field("int16")
    generation_id_or_member_epoch: int        = field("int32", "3+", default=-1)
    member_id:                     str        = field("string", "3+")
    group_instance_id:             str | None = field("string", "3+", nullable="0+", default=None)
    topics:                        list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = field("[]TxnOffsetCommitRequestTopic")

    class TxnOffsetCommitRequestTopic(Struct):
        name:       str   = field("string", "0-5", ignorable=True)
        topic_id:   bytes = field("uuid", "6+", ignorable=True)
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = field("[]TxnOffsetCommitRequestPartition")

    class TxnOffsetCommitRequestPartition(Struct):
        partition_index:        int        = field("int32")
        committed_offset:       int        = field("int64")
        committed_leader_epoch: int        = field("int32", "2+", default=-1, ignorable=True)
        committed_metadata:     str | None = field("string", nullable="0+")


class TxnOffsetCommitResponse(Message, api_key=28, versions=range(0, 7), flexible_since=3):
    throttle_time_ms: int = field("int32")
    topics:           list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = field("[]TxnOffsetCommitResponseTopic")

    class TxnOffsetCommitResponseTopic(Struct):
        name:       str   = field("string", "0-5", ignorable=True)
        topic_id:   bytes = field("uuid", "6+", ignorable=True)
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = field("[]TxnOffsetCommitResponsePartition")

    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
