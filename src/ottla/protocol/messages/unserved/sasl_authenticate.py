"""SaslAuthenticate (API 36): carries the tokens of a SASL exchange. Pure.

Versions: v1 session lifetime; v2 is flexible.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class SaslAuthenticateRequest(Message, api_key=36, versions=range(0, 3), flexible_since=2):
    auth_bytes: bytes = field("bytes")


class SaslAuthenticateResponse(Message, api_key=36, versions=range(0, 3), flexible_since=2):
    error_code:          int        = field("int16")
    error_message:       str | None = field("string", nullable="0+")
    auth_bytes:          bytes      = field("bytes")
    session_lifetime_ms: int        = field("int64", "1+", ignorable=True)
