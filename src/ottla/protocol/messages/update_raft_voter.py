"""UpdateRaftVoter (API 82): updates a voter's endpoints and features. Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class UpdateRaftVoterRequest(Message, api_key=82, versions=range(0, 1), flexible_since=0):
    cluster_id:            str | None = field("string", nullable="0+")
    current_leader_epoch:  int        = field("int32")
    voter_id:              int        = field("int32")
    voter_directory_id:    bytes      = field("uuid")
    listeners:             list[UpdateRaftVoterRequest.Listener] = field("[]Listener")
    kraft_version_feature: UpdateRaftVoterRequest.KRaftVersionFeature = field("KRaftVersionFeature")

    class Listener(Struct):
        name: str = field("string")
        host: str = field("string")
        port: int = field("uint16")

    class KRaftVersionFeature(Struct):
        min_supported_version: int = field("int16")
        max_supported_version: int = field("int16")


class UpdateRaftVoterResponse(Message, api_key=82, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
    current_leader:   UpdateRaftVoterResponse.CurrentLeader = field("CurrentLeader", tag=0)

    class CurrentLeader(Struct):
        leader_id:    int = field("int32", default=-1)
        leader_epoch: int = field("int32", default=-1)
        host:         str = field("string")
        port:         int = field("int32")
