"""LeaveGroup (API 13): leaves a classic group. Pure.

Versions: v3 takes a list of members; v4 is flexible; v5 a reason for each.
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
