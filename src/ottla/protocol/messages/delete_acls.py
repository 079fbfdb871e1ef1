"""DeleteAcls (API 31): removes the ACLs that match filters (KIP-140). Pure.

v1   the oldest version since Kafka 4.0 (KIP-896); prefixed patterns (KIP-290)
v2   flexible: compact lengths and tagged fields (KIP-482)
v3   users as resources (KIP-373)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DeleteAclsRequest(Message, api_key=31, versions=range(1, 4), flexible_since=2):
    filters: list[DeleteAclsRequest.DeleteAclsFilter] = field("[]DeleteAclsFilter")

    class DeleteAclsFilter(Struct):
        resource_type_filter: int        = field("int8")
        resource_name_filter: str | None = field("string", nullable="0+")
        pattern_type_filter:  int        = field("int8", default=3)
        principal_filter:     str | None = field("string", nullable="0+")
        host_filter:          str | None = field("string", nullable="0+")
        operation:            int        = field("int8")
        permission_type:      int        = field("int8")


class DeleteAclsResponse(Message, api_key=31, versions=range(1, 4), flexible_since=2):
    throttle_time_ms: int = field("int32")
    filter_results:   list[DeleteAclsResponse.DeleteAclsFilterResult] = field("[]DeleteAclsFilterResult")

    class DeleteAclsFilterResult(Struct):
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = field("[]DeleteAclsMatchingAcl")

    class DeleteAclsMatchingAcl(Struct):
        error_code:      int        = field("int16")
        error_message:   str | None = field("string", nullable="0+")
        resource_type:   int        = field("int8")
        resource_name:   str        = field("string")
        pattern_type:    int        = field("int8", default=3)
        principal:       str        = field("string")
        host:            str        = field("string")
        operation:       int        = field("int8")
        permission_type: int        = field("int8")
