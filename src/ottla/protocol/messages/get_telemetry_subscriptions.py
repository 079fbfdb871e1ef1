"""GetTelemetrySubscriptions (API 71): asks which client metrics the cluster wants (KIP-714). Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions=range(0, 1), flexible_since=0):
    client_instance_id: bytes = field("uuid")


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions=range(0, 1), flexible_since=0):
    throttle_time_ms:           int       = field("int32")
    error_code:                 int       = field("int16")
    client_instance_id:         bytes     = field("uuid")
    subscription_id:            int       = field("int32")
    accepted_compression_types: list[int] = field("[]int8")
    push_interval_ms:           int       = field("int32")
    telemetry_max_bytes:        int       = field("int32")
    delta_temporality:          bool      = field("bool")
    requested_metrics:          list[str] = field("[]string")
