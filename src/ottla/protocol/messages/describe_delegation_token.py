"""DescribeDelegationToken (API 41): lists delegation tokens. Pure.

Versions: v2 is flexible; v3 who asked for each.
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeDelegationTokenRequest(Message, api_key=41, versions=range(1, 4), flexible_since=2):
    owners: list[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = field("[]DescribeDelegationTokenOwner", nullable="0+")

    class DescribeDelegationTokenOwner(Struct):
        principal_type: str = field("string")
        principal_name: str = field("string")


class DescribeDelegationTokenResponse(Message, api_key=41, versions=range(1, 4), flexible_since=2):
    error_code:       int = field("int16")
    tokens:           list[DescribeDelegationTokenResponse.DescribedDelegationToken] = field("[]DescribedDelegationToken")
    throttle_time_ms: int = field("int32")

    class DescribedDelegationToken(Struct):
        principal_type:                 str   = field("string")
        principal_name:                 str   = field("string")
        token_requester_principal_type: str   = field("string", "3+")
        token_requester_principal_name: str   = field("string", "3+")
        issue_timestamp:                int   = field("int64")
        expiry_timestamp:               int   = field("int64")
        max_timestamp:                  int   = field("int64")
        token_id:                       str   = field("string")
        hmac:                           bytes = field("bytes")
        renewers:                       list[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = field("[]DescribedDelegationTokenRenewer")

    class DescribedDelegationTokenRenewer(Struct):
        principal_type: str = field("string")
        principal_name: str = field("string")
