"""EndTxn (API 26): commits or aborts a transaction (KIP-98). Pure.

v0   the first version
v1   a broker answers before it throttles (KIP-219)
v2   may answer PRODUCER_FENCED (KIP-588)
v3   flexible: compact lengths and tagged fields (KIP-482)
v4   may answer TRANSACTION_ABORTABLE (KIP-890)
v5   every transaction gets a new epoch: the response has the next producer id and epoch (KIP-890)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class EndTxnRequest(Message, api_key=26, versions=range(0, 6), flexible_since=3):
    transactional_id: str  = field("string")
    producer_id:      int  = field("int64")
    producer_epoch:   int  = field("int16")
    committed:        bool = field("bool")


class EndTxnResponse(Message, api_key=26, versions=range(0, 6), flexible_since=3):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
    producer_id:      int = field("int64", "5+", default=-1, ignorable=True)
    producer_epoch:   int = field("int16", "5+", default=-1, ignorable=True)
