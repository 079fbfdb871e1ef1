"""DescribeTransactions (API 65): state and partitions of transactions (KIP-664). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeTransactionsRequest(Message, api_key=65, versions=range(0, 1), flexible_since=0):
    transactional_ids: list[str] = field("[]string")


class DescribeTransactionsResponse(Message, api_key=65, versions=range(0, 1), flexible_since=0):
    throttle_time_ms:   int = field("int32")
    transaction_states: list[DescribeTransactionsResponse.TransactionState] = field("[]TransactionState")

    class TransactionState(Struct):
        error_code:                int = field("int16")
        transactional_id:          str = field("string")
        transaction_state:         str = field("string")
        transaction_timeout_ms:    int = field("int32")
        transaction_start_time_ms: int = field("int64")
        producer_id:               int = field("int64")
        producer_epoch:            int = field("int16")
        topics:                    list[DescribeTransactionsResponse.TopicData] = field("[]TopicData")

    class TopicData(Struct):
        topic:      str       = field("string")
        partitions: list[int] = field("[]int32")
