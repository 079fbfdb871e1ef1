"""EndTxn (API 26): commits or aborts a transaction. Pure.

Versions: v2 may answer PRODUCER_FENCED; v3 is flexible; v4 TRANSACTION_ABORTABLE; v5 returns the next
producer id and epoch (KIP-890).
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
