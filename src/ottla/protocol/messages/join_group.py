"""JoinGroup (API 11): joins a classic group. It is answered when all members have joined. Pure.

v0   the first version
v1   rebalance timeout, apart from the session timeout (KIP-62)
v2   throttle time
v3   a broker answers before it throttles (KIP-219)
v4   a first join only returns a member id, with MEMBER_ID_REQUIRED (KIP-394)
v5   group instance id of static members (KIP-345)
v6   flexible: compact lengths and tagged fields (KIP-482)
v7   protocol type in the response (KIP-559)
v8   reason for joining (KIP-800)
v9   a flag makes the leader skip the assignment (KIP-814)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class JoinGroupRequest(Message, api_key=11, versions=range(0, 10), flexible_since=6):
    group_id:             str        = field("string")
    session_timeout_ms:   int        = field("int32")
    rebalance_timeout_ms: int        = field("int32", "1+", default=-1, ignorable=True)
    member_id:            str        = field("string")
    group_instance_id:    str | None = field("string", "5+", nullable="0+", default=None)
    protocol_type:        str        = field("string")
    protocols:            list[JoinGroupRequest.JoinGroupRequestProtocol] = field("[]JoinGroupRequestProtocol")
    reason:               str | None = field("string", "8+", nullable="0+", default=None, ignorable=True)

    class JoinGroupRequestProtocol(Struct):
        name:     str   = field("string")
        metadata: bytes = field("bytes")


class JoinGroupResponse(Message, api_key=11, versions=range(0, 10), flexible_since=6):
    throttle_time_ms: int        = field("int32", "2+", ignorable=True)
    error_code:       int        = field("int16")
    generation_id:    int        = field("int32", default=-1)
    protocol_type:    str | None = field("string", "7+", nullable="0+", default=None, ignorable=True)
    protocol_name:    str | None = field("string", nullable="7+")
    leader:           str        = field("string")
    skip_assignment:  bool       = field("bool", "9+")
    member_id:        str        = field("string")
    members:          list[JoinGroupResponse.JoinGroupResponseMember] = field("[]JoinGroupResponseMember")

    class JoinGroupResponseMember(Struct):
        member_id:         str        = field("string")
        group_instance_id: str | None = field("string", "5+", nullable="0+", default=None, ignorable=True)
        metadata:          bytes      = field("bytes")
