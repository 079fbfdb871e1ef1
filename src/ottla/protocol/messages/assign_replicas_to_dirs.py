"""AssignReplicasToDirs (API 73): tells the controller in which log directory replicas lie. Pure."""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AssignReplicasToDirsRequest(Message, api_key=73, versions=range(0, 1), flexible_since=0):
    broker_id:    int = field("int32")
    broker_epoch: int = field("int64", default=-1)
    directories:  list[AssignReplicasToDirsRequest.DirectoryData] = field("[]DirectoryData")

    class DirectoryData(Struct):
        id:     bytes = field("uuid")
        topics: list[AssignReplicasToDirsRequest.TopicData] = field("[]TopicData")

    class TopicData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[AssignReplicasToDirsRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition_index: int = field("int32")


class AssignReplicasToDirsResponse(Message, api_key=73, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
    directories:      list[AssignReplicasToDirsResponse.DirectoryData] = field("[]DirectoryData")

    class DirectoryData(Struct):
        id:     bytes = field("uuid")
        topics: list[AssignReplicasToDirsResponse.TopicData] = field("[]TopicData")

    class TopicData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[AssignReplicasToDirsResponse.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
