"""RenewDelegationToken (API 39): prolongs a delegation token. Pure.

Versions: v2 is flexible.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class RenewDelegationTokenRequest(Message, api_key=39, versions=range(1, 3), flexible_since=2):
    hmac:            bytes = field("bytes")
    renew_period_ms: int   = field("int64")


class RenewDelegationTokenResponse(Message, api_key=39, versions=range(1, 3), flexible_since=2):
    error_code:          int = field("int16")
    expiry_timestamp_ms: int = field("int64")
    throttle_time_ms:    int = field("int32")
