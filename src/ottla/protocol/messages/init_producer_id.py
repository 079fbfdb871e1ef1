"""InitProducerId (API 22): gives a producer its id and epoch, and fences older ones. Pure.

Versions: v2 is flexible; v3 sends the current id and epoch (KIP-360); v4 may answer PRODUCER_FENCED; v5
TRANSACTION_ABORTABLE; v6 two-phase commit (KIP-939, not yet stable in Kafka).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class InitProducerIdRequest(Message, api_key=22, versions=range(0, 7), flexible_since=2):
    transactional_id:       str | None = field("string", nullable="0+")
    transaction_timeout_ms: int        = field("int32")
    producer_id:            int        = field("int64", "3+", default=-1)
    producer_epoch:         int        = field("int16", "3+", default=-1)
    enable2_pc:             bool       = field("bool", "6+")
    keep_prepared_txn:      bool       = field("bool", "6+")


class InitProducerIdResponse(Message, api_key=22, versions=range(0, 7), flexible_since=2):
    throttle_time_ms:           int = field("int32")
    error_code:                 int = field("int16")
    producer_id:                int = field("int64", default=-1)
    producer_epoch:             int = field("int16")
    ongoing_txn_producer_id:    int = field("int64", "6+", default=-1)
    ongoing_txn_producer_epoch: int = field("int16", "6+", default=-1)
