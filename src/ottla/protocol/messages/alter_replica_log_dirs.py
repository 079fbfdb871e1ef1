"""AlterReplicaLogDirs (API 34): moves replicas between log directories of a broker (KIP-113). Pure.

v1   the oldest version since Kafka 4.0 (KIP-896)
v2   flexible: compact lengths and tagged fields (KIP-482)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AlterReplicaLogDirsRequest(Message, api_key=34, versions=range(1, 3), flexible_since=2):
    dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = field("[]AlterReplicaLogDir")

    class AlterReplicaLogDir(Struct):
        path:   str = field("string")
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = field("[]AlterReplicaLogDirTopic")

    class AlterReplicaLogDirTopic(Struct):
        name:       str       = field("string")
        partitions: list[int] = field("[]int32")


class AlterReplicaLogDirsResponse(Message, api_key=34, versions=range(1, 3), flexible_since=2):
    throttle_time_ms: int = field("int32")
    results:          list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = field("[]AlterReplicaLogDirTopicResult")

    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: str = field("string")
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = field("[]AlterReplicaLogDirPartitionResult")

    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
