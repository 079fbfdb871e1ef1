"""UnregisterBroker (API 64): removes a broker from the cluster. Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class UnregisterBrokerRequest(Message, api_key=64, versions=range(0, 1), flexible_since=0):
    broker_id: int = field("int32")


class UnregisterBrokerResponse(Message, api_key=64, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
