"""Heartbeat (API 12): keeps a member of a classic group alive. Pure.

v0   the first version
v1   throttle time
v2   a broker answers before it throttles (KIP-219)
v3   group instance id of static members (KIP-345)
v4   flexible: compact lengths and tagged fields (KIP-482)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class HeartbeatRequest(Message, api_key=12, versions=range(0, 5), flexible_since=4):
    group_id:          str        = field("string")
    generation_id:     int        = field("int32")
    member_id:         str        = field("string")
    group_instance_id: str | None = field("string", "3+", nullable="0+", default=None)


class HeartbeatResponse(Message, api_key=12, versions=range(0, 5), flexible_since=4):
    throttle_time_ms: int = field("int32", "1+", ignorable=True)
    error_code:       int = field("int16")
