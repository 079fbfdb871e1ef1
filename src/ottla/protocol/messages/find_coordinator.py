"""FindCoordinator (API 10): finds the broker that coordinates a group or a transactional id. Pure.

v0   groups only
v1   key type: 0 group, 1 transactional id (KIP-98); throttle time and error message
v2   a broker answers before it throttles (KIP-219)
v3   flexible: compact lengths and tagged fields (KIP-482)
v4   several keys in one request (KIP-699)
v5   may answer TRANSACTION_ABORTABLE (KIP-890)
v6   key type 2: a partition of a share group (KIP-932)
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
