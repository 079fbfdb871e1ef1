"""CreateAcls (API 30): adds ACLs (KIP-140). Pure.

v1   the oldest version since Kafka 4.0 (KIP-896); prefixed patterns (KIP-290)
v2   flexible: compact lengths and tagged fields (KIP-482)
v3   users as resources (KIP-373)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class CreateAclsRequest(Message, api_key=30, versions=range(1, 4), flexible_since=2):
    creations: list[CreateAclsRequest.AclCreation] = field("[]AclCreation")

    class AclCreation(Struct):
        resource_type:         int = field("int8")
        resource_name:         str = field("string")
        resource_pattern_type: int = field("int8", default=3)
        principal:             str = field("string")
        host:                  str = field("string")
        operation:             int = field("int8")
        permission_type:       int = field("int8")


class CreateAclsResponse(Message, api_key=30, versions=range(1, 4), flexible_since=2):
    throttle_time_ms: int = field("int32")
    results:          list[CreateAclsResponse.AclCreationResult] = field("[]AclCreationResult")

    class AclCreationResult(Struct):
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
