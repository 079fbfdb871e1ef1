"""ListTransactions (API 66): lists the transactions that a broker coordinates (KIP-664). Pure.

v0   filters by state and producer id
v1   filter by duration (KIP-994)
v2   filter by a pattern of transactional ids (KIP-1152)

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ListTransactionsRequest(Message, api_key=66, versions=range(0, 3), flexible_since=0):
    state_filters:            list[str]  = field("[]string")
    producer_id_filters:      list[int]  = field("[]int64")
    duration_filter:          int        = field("int64", "1+", default=-1)
    transactional_id_pattern: str | None = field("string", "2+", nullable="0+", default=None)


class ListTransactionsResponse(Message, api_key=66, versions=range(0, 3), flexible_since=0):
    throttle_time_ms:      int       = field("int32")
    error_code:            int       = field("int16")
    unknown_state_filters: list[str] = field("[]string")
    transaction_states:    list[ListTransactionsResponse.TransactionState] = field("[]TransactionState")

    class TransactionState(Struct):
        transactional_id:  str = field("string")
        producer_id:       int = field("int64")
        transaction_state: str = field("string")
