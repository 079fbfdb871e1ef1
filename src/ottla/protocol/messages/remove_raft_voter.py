"""RemoveRaftVoter (API 81): removes a voter from a Raft quorum. Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, field


class RemoveRaftVoterRequest(Message, api_key=81, versions=range(0, 1), flexible_since=0):
    cluster_id:         str | None = field("string", nullable="0+")
    voter_id:           int        = field("int32")
    voter_directory_id: bytes      = field("uuid")


class RemoveRaftVoterResponse(Message, api_key=81, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
