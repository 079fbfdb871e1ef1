"""LeaveGroup (API 13): removes members from a classic group. Pure.

v0   one member
v1   throttle time
v2   a broker answers before it throttles (KIP-219)
v3   a list of members, with their group instance ids (KIP-345)
v4   flexible: compact lengths and tagged fields (KIP-482)
v5   a reason for each member (KIP-800)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class LeaveGroupRequest(Message, api_key=13, versions=range(0, 6), flexible_since=4):
    group_id:  str = field("string")
    member_id: str = field("string", "0-2")
    members:   list[LeaveGroupRequest.MemberIdentity] = field("[]MemberIdentity", "3+")

    class MemberIdentity(Struct):
        member_id:         str        = field("string", "3+")
        group_instance_id: str | None = field("string", "3+", nullable="0+", default=None)
        reason:            str | None = field("string", "5+", nullable="0+", default=None, ignorable=True)


class LeaveGroupResponse(Message, api_key=13, versions=range(0, 6), flexible_since=4):
    throttle_time_ms: int = field("int32", "1+", ignorable=True)
    error_code:       int = field("int16")
    members:          list[LeaveGroupResponse.MemberResponse] = field("[]MemberResponse", "3+")

    class MemberResponse(Struct):
        member_id:         str        = field("string", "3+")
        group_instance_id: str | None = field("string", "3+", nullable="0+")
        error_code:        int        = field("int16", "3+")
