"""InitProducerId (API 22): assigns a producer id and epoch, and fences older producers (KIP-98). Pure.

v0   the first version
v1   a broker answers before it throttles (KIP-219)
v2   flexible: compact lengths and tagged fields (KIP-482)
v3   the producer's current id and epoch, to recover from errors (KIP-360)
v4   may answer PRODUCER_FENCED (KIP-588)
v5   may answer TRANSACTION_ABORTABLE (KIP-890)
v6   two-phase commit (KIP-939); not yet stable in Kafka
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
