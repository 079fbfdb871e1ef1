"""Produce (API 0): appends record batches to partitions. Pure.

v3   the oldest version since Kafka 4.0 (KIP-896); record batch format 2 and the transactional id (KIP-98)
v4   may answer KAFKA_STORAGE_ERROR (KIP-112)
v5   log start offset in the response
v6   a broker answers before it throttles (KIP-219)
v7   zstd is allowed (KIP-110)
v8   errors of single records and an error message (KIP-467)
v9   flexible: compact lengths and tagged fields (KIP-482)
v10  current leader and its endpoint in the response (KIP-951)
v11  may answer TRANSACTION_ABORTABLE (KIP-890)
v12  adds the partitions to the transaction, without AddPartitionsToTxn (KIP-890)
v13  topic ids instead of names (KIP-516)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Records, Struct, field


class ProduceRequest(Message, api_key=0, versions=range(3, 14), flexible_since=9):
    transactional_id: str | None = field("string", nullable="0+", default=None)
    acks:             int        = field("int16")
    timeout_ms:       int        = field("int32")
    topic_data:       list[ProduceRequest.TopicProduceData] = field("[]TopicProduceData")

    class TopicProduceData(Struct):
        name:           str   = field("string", "3-12", ignorable=True)
        topic_id:       bytes = field("uuid", "13+", ignorable=True)
        partition_data: list[ProduceRequest.PartitionProduceData] = field("[]PartitionProduceData")

    class PartitionProduceData(Struct):
        index:   int = field("int32")
        records: Records | None = field("records", nullable="0+")


class ProduceResponse(Message, api_key=0, versions=range(3, 14), flexible_since=9):
    responses:        list[ProduceResponse.TopicProduceResponse] = field("[]TopicProduceResponse")
    throttle_time_ms: int = field("int32")
    node_endpoints:   list[ProduceResponse.NodeEndpoint] = field("[]NodeEndpoint", "10+", tag=0)

    class TopicProduceResponse(Struct):
        name:                str   = field("string", "3-12", ignorable=True)
        topic_id:            bytes = field("uuid", "13+", ignorable=True)
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = field("[]PartitionProduceResponse")

    class NodeEndpoint(Struct):
        node_id: int        = field("int32", "10+")
        host:    str        = field("string", "10+")
        port:    int        = field("int32", "10+")
        rack:    str | None = field("string", "10+", nullable="0+", default=None)

    class PartitionProduceResponse(Struct):
        index:              int        = field("int32")
        error_code:         int        = field("int16")
        base_offset:        int        = field("int64")
        log_append_time_ms: int        = field("int64", default=-1)
        log_start_offset:   int        = field("int64", "5+", default=-1, ignorable=True)
        record_errors:      list[ProduceResponse.BatchIndexAndErrorMessage] = field("[]BatchIndexAndErrorMessage", "8+", ignorable=True)
        error_message:      str | None = field("string", "8+", nullable="0+", default=None, ignorable=True)
        current_leader:     ProduceResponse.LeaderIdAndEpoch = field("LeaderIdAndEpoch", "10+", tag=0)

    class BatchIndexAndErrorMessage(Struct):
        batch_index:               int        = field("int32", "8+")
        batch_index_error_message: str | None = field("string", "8+", nullable="0+", default=None)

    class LeaderIdAndEpoch(Struct):
        leader_id:    int = field("int32", "10+", default=-1)
        leader_epoch: int = field("int32", "10+", default=-1)
