"""SyncGroup (API 14): the leader sends everyone's assignment; each member receives its own. Pure.

v0   the first version
v1   throttle time
v2   a broker answers before it throttles (KIP-219)
v3   group instance id of static members (KIP-345)
v4   flexible: compact lengths and tagged fields (KIP-482)
v5   protocol type and name in both directions (KIP-559)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class SyncGroupRequest(Message, api_key=14, versions=range(0, 6), flexible_since=4):
    group_id:          str        = field("string")
    generation_id:     int        = field("int32")
    member_id:         str        = field("string")
    group_instance_id: str | None = field("string", "3+", nullable="0+", default=None)
    protocol_type:     str | None = field("string", "5+", nullable="0+", default=None, ignorable=True)
    protocol_name:     str | None = field("string", "5+", nullable="0+", default=None, ignorable=True)
    assignments:       list[SyncGroupRequest.SyncGroupRequestAssignment] = field("[]SyncGroupRequestAssignment")

    class SyncGroupRequestAssignment(Struct):
        member_id:  str   = field("string")
        assignment: bytes = field("bytes")


class SyncGroupResponse(Message, api_key=14, versions=range(0, 6), flexible_since=4):
    throttle_time_ms: int        = field("int32", "1+", ignorable=True)
    error_code:       int        = field("int16")
    protocol_type:    str | None = field("string", "5+", nullable="0+", default=None, ignorable=True)
    protocol_name:    str | None = field("string", "5+", nullable="0+", default=None, ignorable=True)
    assignment:       bytes      = field("bytes")
