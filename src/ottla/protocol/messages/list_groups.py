"""ListGroups (API 16): lists the groups that a broker coordinates. Pure.

v0   the first version
v1   throttle time
v2   a broker answers before it throttles (KIP-219)
v3   flexible: compact lengths and tagged fields (KIP-482)
v4   filter by state, and each group's state (KIP-518)
v5   filter by type, and each group's type (KIP-848)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ListGroupsRequest(Message, api_key=16, versions=range(0, 6), flexible_since=3):
    states_filter: list[str] = field("[]string", "4+")
    types_filter:  list[str] = field("[]string", "5+")


class ListGroupsResponse(Message, api_key=16, versions=range(0, 6), flexible_since=3):
    throttle_time_ms: int = field("int32", "1+", ignorable=True)
    error_code:       int = field("int16")
    groups:           list[ListGroupsResponse.ListedGroup] = field("[]ListedGroup")

    class ListedGroup(Struct):
        group_id:      str = field("string")
        protocol_type: str = field("string")
        group_state:   str = field("string", "4+", ignorable=True)
        group_type:    str = field("string", "5+", ignorable=True)
