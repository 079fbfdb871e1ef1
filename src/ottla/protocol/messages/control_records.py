"""Keys and values of control records, which the log keeps and applications never see. Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ControlRecordTypeSchema(Message, versions=range(0, 1)):
    type: int = field("int16")


class EndTxnMarker(Message, versions=range(0, 1)):
    coordinator_epoch: int = field("int32")


class LeaderChangeMessage(Message, versions=range(0, 2), flexible_since=0):
    version:         int = field("int16")
    leader_id:       int = field("int32")
    voters:          list[LeaderChangeMessage.Voter] = field("[]Voter")
    granting_voters: list[LeaderChangeMessage.Voter] = field("[]Voter")

    class Voter(Struct):
        voter_id:           int   = field("int32")
        voter_directory_id: bytes = field("uuid", "1+")


class SnapshotHeaderRecord(Message, versions=range(0, 1), flexible_since=0):
    version:                      int = field("int16")
    last_contained_log_timestamp: int = field("int64")


class SnapshotFooterRecord(Message, versions=range(0, 1), flexible_since=0):
    version: int = field("int16")


class KRaftVersionRecord(Message, versions=range(0, 1), flexible_since=0):
    version:       int = field("int16")
    kraft_version: int = field("int16")


class VotersRecord(Message, versions=range(0, 1), flexible_since=0):
    version: int = field("int16")
    voters:  list[VotersRecord.Voter] = field("[]Voter")

    class Voter(Struct):
        voter_id:              int   = field("int32")
        voter_directory_id:    bytes = field("uuid")
        endpoints:             list[VotersRecord.Endpoint] = field("[]Endpoint")
        kraft_version_feature: VotersRecord.KRaftVersionFeature = field("KRaftVersionFeature")

    class Endpoint(Struct):
        name: str = field("string")
        host: str = field("string")
        port: int = field("uint16")

    class KRaftVersionFeature(Struct):
        min_supported_version: int = field("int16")
        max_supported_version: int = field("int16")
