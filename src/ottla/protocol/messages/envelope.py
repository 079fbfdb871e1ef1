"""Envelope (API 58): wraps a request that a broker forwards to the controller. Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class EnvelopeRequest(Message, api_key=58, versions=range(0, 1), flexible_since=0):
    request_data:        bytes        = field("bytes")
    request_principal:   bytes | None = field("bytes", nullable="0+")
    client_host_address: bytes        = field("bytes")


class EnvelopeResponse(Message, api_key=58, versions=range(0, 1), flexible_since=0):
    response_data: bytes | None = field("bytes", nullable="0+", default=None)
    error_code:    int          = field("int16")


class DefaultPrincipalData(Message, versions=range(0, 1), flexible_since=0):
    type:                str  = field("string")
    name:                str  = field("string")
    token_authenticated: bool = field("bool")
