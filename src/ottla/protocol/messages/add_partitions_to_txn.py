"""AddPartitionsToTxn (API 24): adds partitions to a transaction (KIP-98). Pure.

v0   the first version
v1   a broker answers before it throttles (KIP-219)
v2   may answer PRODUCER_FENCED (KIP-588)
v3   flexible: compact lengths and tagged fields (KIP-482)
v4   for brokers: several transactions, or only a check that partitions were added (KIP-890)
v5   may answer TRANSACTION_ABORTABLE (KIP-890)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AddPartitionsToTxnRequest(Message, api_key=24, versions=range(0, 6), flexible_since=3):
    transactions:                  list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = field("[]AddPartitionsToTxnTransaction", "4+")
    v3_and_below_transactional_id: str = field("string", "0-3")
    v3_and_below_producer_id:      int = field("int64", "0-3")
    v3_and_below_producer_epoch:   int = field("int16", "0-3")
    v3_and_below_topics:           list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = field("[]AddPartitionsToTxnTopic", "0-3")

    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: str  = field("string", "4+")
        producer_id:      int  = field("int64", "4+")
        producer_epoch:   int  = field("int16", "4+")
        verify_only:      bool = field("bool", "4+")
        topics:           list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = field("[]AddPartitionsToTxnTopic", "4+")

    class AddPartitionsToTxnTopic(Struct):
        name:       str       = field("string")
        partitions: list[int] = field("[]int32")


class AddPartitionsToTxnResponse(Message, api_key=24, versions=range(0, 6), flexible_since=3):
    throttle_time_ms:              int = field("int32")
    error_code:                    int = field("int16", "4+", ignorable=True)
    results_by_transaction:        list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = field("[]AddPartitionsToTxnResult", "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = field("[]AddPartitionsToTxnTopicResult", "0-3")

    class AddPartitionsToTxnResult(Struct):
        transactional_id: str = field("string", "4+")
        topic_results:    list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = field("[]AddPartitionsToTxnTopicResult", "4+")

    class AddPartitionsToTxnTopicResult(Struct):
        name:                 str = field("string")
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = field("[]AddPartitionsToTxnPartitionResult")

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index:      int = field("int32")
        partition_error_code: int = field("int16")
