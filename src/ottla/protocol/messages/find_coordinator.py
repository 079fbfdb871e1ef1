"""FindCoordinator (API 10): names the broker that coordinates a group or a transactional id. Pure.

Versions: v1 key type (0 group, 1 transaction, 2 share); v3 is flexible; v4 many keys at once; v5 may answer
TRANSACTION_ABORTABLE; v6 share group keys.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class FindCoordinatorRequest(Message, api_key=10, versions=range(0, 7), flexible_since=3):
    key:              str       = field("string", "0-3")
    key_type:         int       = field("int8", "1+")
    coordinator_keys: list[str] = field("[]string", "4+")


class FindCoordinatorResponse(Message, api_key=10, versions=range(0, 7), flexible_since=3):
    throttle_time_ms: int        = field("int32", "1+", ignorable=True)
    error_code:       int        = field("int16", "0-3")
    error_message:    str | None = field("string", "1-3", nullable="0+", ignorable=True)
    node_id:          int        = field("int32", "0-3")
    host:             str        = field("string", "0-3")
    port:             int        = field("int32", "0-3")
    coordinators:     list[FindCoordinatorResponse.Coordinator] = field("[]Coordinator", "4+")

    class Coordinator(Struct):
        key:           str        = field("string", "4+")
        node_id:       int        = field("int32", "4+")
        host:          str        = field("string", "4+")
        port:          int        = field("int32", "4+")
        error_code:    int        = field("int16", "4+")
        error_message: str | None = field("string", "4+", nullable="0+", ignorable=True)
