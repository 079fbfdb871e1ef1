"""CreateDelegationToken (API 38): makes a delegation token. Pure.

Versions: v2 is flexible; v3 can name another owner.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class CreateDelegationTokenRequest(Message, api_key=38, versions=range(1, 4), flexible_since=2):
    owner_principal_type: str | None = field("string", "3+", nullable="0+")
    owner_principal_name: str | None = field("string", "3+", nullable="0+")
    renewers:             list[CreateDelegationTokenRequest.CreatableRenewers] = field("[]CreatableRenewers")
    max_lifetime_ms:      int        = field("int64")

    class CreatableRenewers(Struct):
        principal_type: str = field("string")
        principal_name: str = field("string")


class CreateDelegationTokenResponse(Message, api_key=38, versions=range(1, 4), flexible_since=2):
    error_code:                     int   = field("int16")
    principal_type:                 str   = field("string")
    principal_name:                 str   = field("string")
    token_requester_principal_type: str   = field("string", "3+")
    token_requester_principal_name: str   = field("string", "3+")
    issue_timestamp_ms:             int   = field("int64")
    expiry_timestamp_ms:            int   = field("int64")
    max_timestamp_ms:               int   = field("int64")
    token_id:                       str   = field("string")
    hmac:                           bytes = field("bytes")
    throttle_time_ms:               int   = field("int32")
