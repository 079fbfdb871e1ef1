"""DeleteGroups (API 42): deletes empty groups (KIP-229). Pure.

v0   the first version
v1   a broker answers before it throttles (KIP-219)
v2   flexible: compact lengths and tagged fields (KIP-482)
v3   error message
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DeleteGroupsRequest(Message, api_key=42, versions=range(0, 4), flexible_since=2):
    groups_names: list[str] = field("[]string")


class DeleteGroupsResponse(Message, api_key=42, versions=range(0, 4), flexible_since=2):
    throttle_time_ms: int = field("int32")
    results:          list[DeleteGroupsResponse.DeletableGroupResult] = field("[]DeletableGroupResult")

    class DeletableGroupResult(Struct):
        group_id:      str        = field("string")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", "3+", nullable="0+", default=None, ignorable=True)
