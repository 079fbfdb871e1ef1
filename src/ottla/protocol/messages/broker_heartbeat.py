"""BrokerHeartbeat (API 63): keeps a broker's registration alive. Pure.

Versions: v1 offline log directories; v2 cordoned ones.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class BrokerHeartbeatRequest(Message, api_key=63, versions=range(0, 3), flexible_since=0):
    broker_id:               int         = field("int32")
    broker_epoch:            int         = field("int64", default=-1)
    current_metadata_offset: int         = field("int64")
    want_fence:              bool        = field("bool")
    want_shut_down:          bool        = field("bool")
    offline_log_dirs:        list[bytes] = field("[]uuid", "1+", tag=0)
    cordoned_log_dirs:       list[bytes] | None = field("[]uuid", "2+", nullable="0+", default=None, tag=1)


class BrokerHeartbeatResponse(Message, api_key=63, versions=range(0, 3), flexible_since=0):
    throttle_time_ms: int  = field("int32")
    error_code:       int  = field("int16")
    is_caught_up:     bool = field("bool")
    is_fenced:        bool = field("bool", default=True)
    should_shut_down: bool = field("bool")
