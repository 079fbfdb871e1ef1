"""AddOffsetsToTxn (API 25): registers a group's offsets with a transaction. Pure.

Versions: v2 may answer PRODUCER_FENCED; v3 is flexible; v4 TRANSACTION_ABORTABLE.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class AddOffsetsToTxnRequest(Message, api_key=25, versions=range(0, 5), flexible_since=3):
    transactional_id: str = field("string")
    producer_id:      int = field("int64")
    producer_epoch:   int = field("int16")
    group_id:         str = field("string")


class AddOffsetsToTxnResponse(Message, api_key=25, versions=range(0, 5), flexible_since=3):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
