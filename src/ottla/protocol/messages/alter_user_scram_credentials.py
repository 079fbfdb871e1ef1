"""AlterUserScramCredentials (API 51): adds and removes SCRAM credentials (KIP-554). Pure.

v0   the only version

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AlterUserScramCredentialsRequest(Message, api_key=51, versions=range(0, 1), flexible_since=0):
    deletions:  list[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = field("[]ScramCredentialDeletion")
    upsertions: list[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = field("[]ScramCredentialUpsertion")

    class ScramCredentialDeletion(Struct):
        name:      str = field("string")
        mechanism: int = field("int8")

    class ScramCredentialUpsertion(Struct):
        name:            str   = field("string")
        mechanism:       int   = field("int8")
        iterations:      int   = field("int32")
        salt:            bytes = field("bytes")
        salted_password: bytes = field("bytes")


class AlterUserScramCredentialsResponse(Message, api_key=51, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int = field("int32")
    results:          list[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = field("[]AlterUserScramCredentialsResult")

    class AlterUserScramCredentialsResult(Struct):
        user:          str        = field("string")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
