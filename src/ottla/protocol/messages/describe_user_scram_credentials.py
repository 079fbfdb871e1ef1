"""DescribeUserScramCredentials (API 50): lists which SCRAM credentials users have (KIP-554). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions=range(0, 1), flexible_since=0):
    users: list[DescribeUserScramCredentialsRequest.UserName] | None = field("[]UserName", nullable="0+")

    class UserName(Struct):
        name: str = field("string")


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
    results:          list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = field("[]DescribeUserScramCredentialsResult")

    class DescribeUserScramCredentialsResult(Struct):
        user:             str        = field("string")
        error_code:       int        = field("int16")
        error_message:    str | None = field("string", nullable="0+")
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = field("[]CredentialInfo")

    class CredentialInfo(Struct):
        mechanism:  int = field("int8")
        iterations: int = field("int32")
