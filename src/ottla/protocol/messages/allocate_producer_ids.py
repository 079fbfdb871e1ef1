"""AllocateProducerIds (API 67): hands a broker a block of producer ids. Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class AllocateProducerIdsRequest(Message, api_key=67, versions=range(0, 1), flexible_since=0):
    broker_id:    int = field("int32")
    broker_epoch: int = field("int64", default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions=range(0, 1), flexible_since=0):
    throttle_time_ms:  int = field("int32")
    error_code:        int = field("int16")
    producer_id_start: int = field("int64")
    producer_id_len:   int = field("int32")
