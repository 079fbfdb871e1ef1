"""PushTelemetry (API 72): sends client metrics (KIP-714). Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class PushTelemetryRequest(Message, api_key=72, versions=range(0, 1), flexible_since=0):
    client_instance_id: bytes = field("uuid")
    subscription_id:    int   = field("int32")
    terminating:        bool  = field("bool")
    compression_type:   int   = field("int8")
    metrics:            bytes = field("bytes")


class PushTelemetryResponse(Message, api_key=72, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
