"""DescribeAcls (API 29): lists the ACLs that match a filter (KIP-140). Pure.

v1   the oldest version since Kafka 4.0 (KIP-896); prefixed patterns (KIP-290)
v2   flexible: compact lengths and tagged fields (KIP-482)
v3   users as resources (KIP-373)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeAclsRequest(Message, api_key=29, versions=range(1, 4), flexible_since=2):
    resource_type_filter: int        = field("int8")
    resource_name_filter: str | None = field("string", nullable="0+")
    pattern_type_filter:  int        = field("int8", default=3)
    principal_filter:     str | None = field("string", nullable="0+")
    host_filter:          str | None = field("string", nullable="0+")
    operation:            int        = field("int8")
    permission_type:      int        = field("int8")


class DescribeAclsResponse(Message, api_key=29, versions=range(1, 4), flexible_since=2):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
    resources:        list[DescribeAclsResponse.DescribeAclsResource] = field("[]DescribeAclsResource")

    class DescribeAclsResource(Struct):
        resource_type: int = field("int8")
        resource_name: str = field("string")
        pattern_type:  int = field("int8", default=3)
        acls:          list[DescribeAclsResponse.AclDescription] = field("[]AclDescription")

    class AclDescription(Struct):
        principal:       str = field("string")
        host:            str = field("string")
        operation:       int = field("int8")
        permission_type: int = field("int8")
