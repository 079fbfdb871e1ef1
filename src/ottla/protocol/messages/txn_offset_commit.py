"""TxnOffsetCommit (API 28): stores committed offsets of a group within a transaction (KIP-98). Pure.

v0   the first version
v1   a broker answers before it throttles (KIP-219)
v2   leader epoch of each offset (KIP-320)
v3   flexible (KIP-482); member id, generation and group instance id fence stale members (KIP-447)
v4   may answer TRANSACTION_ABORTABLE (KIP-890)
v5   adds the group to the transaction, without AddOffsetsToTxn (KIP-890)
v6   topic ids instead of names
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
