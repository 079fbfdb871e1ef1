"""AddRaftVoter (API 80): adds a voter to a Raft quorum. Pure.

Versions: v1 can answer before the change is committed.
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AddRaftVoterRequest(Message, api_key=80, versions=range(0, 2), flexible_since=0):
    cluster_id:         str | None = field("string", nullable="0+")
    timeout_ms:         int        = field("int32")
    voter_id:           int        = field("int32")
    voter_directory_id: bytes      = field("uuid")
    listeners:          list[AddRaftVoterRequest.Listener] = field("[]Listener")
    ack_when_committed: bool       = field("bool", "1+", default=True)

    class Listener(Struct):
        name: str = field("string")
        host: str = field("string")
        port: int = field("uint16")


class AddRaftVoterResponse(Message, api_key=80, versions=range(0, 2), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
