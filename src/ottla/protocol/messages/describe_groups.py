"""DescribeGroups (API 15): describes classic groups and their members. Pure.

v0   the first version
v1   throttle time
v2   a broker answers before it throttles (KIP-219)
v3   authorized operations on request (KIP-430)
v4   group instance ids (KIP-345)
v5   flexible: compact lengths and tagged fields (KIP-482)
v6   an unknown group is GROUP_ID_NOT_FOUND with a message, not a dead group (KIP-1043)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeGroupsRequest(Message, api_key=15, versions=range(0, 7), flexible_since=5):
    groups:                        list[str] = field("[]string")
    include_authorized_operations: bool      = field("bool", "3+")


class DescribeGroupsResponse(Message, api_key=15, versions=range(0, 7), flexible_since=5):
    throttle_time_ms: int = field("int32", "1+", ignorable=True)
    groups:           list[DescribeGroupsResponse.DescribedGroup] = field("[]DescribedGroup")

    class DescribedGroup(Struct):
        error_code:            int        = field("int16")
        error_message:         str | None = field("string", "6+", nullable="0+", default=None)
        group_id:              str        = field("string")
        group_state:           str        = field("string")
        protocol_type:         str        = field("string")
        protocol_data:         str        = field("string")
        members:               list[DescribeGroupsResponse.DescribedGroupMember] = field("[]DescribedGroupMember")
        authorized_operations: int        = field("int32", "3+", default=-(2**31))

    class DescribedGroupMember(Struct):
        member_id:         str        = field("string")
        group_instance_id: str | None = field("string", "4+", nullable="0+", default=None, ignorable=True)
        client_id:         str        = field("string")
        client_host:       str        = field("string")
        member_metadata:   bytes      = field("bytes")
        member_assignment: bytes      = field("bytes")
