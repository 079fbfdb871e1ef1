"""SaslAuthenticate (API 36): carries the tokens of a SASL exchange (KIP-152). Pure.

v0   the first version
v1   session lifetime, for re-authentication (KIP-368)
v2   flexible: compact lengths and tagged fields (KIP-482)
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
