"""ElectLeaders (API 43): starts preferred or unclean leader elections. Pure.

v0   preferred elections (KIP-183)
v1   election type: preferred or unclean (KIP-460); an error code for the whole response
v2   flexible: compact lengths and tagged fields (KIP-482)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ElectLeadersRequest(Message, api_key=43, versions=range(0, 3), flexible_since=2):
    election_type:    int = field("int8", "1+")
    topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None = field("[]TopicPartitions", nullable="0+")
    timeout_ms:       int = field("int32", default=60_000)

    class TopicPartitions(Struct):
        topic:      str       = field("string")
        partitions: list[int] = field("[]int32")


class ElectLeadersResponse(Message, api_key=43, versions=range(0, 3), flexible_since=2):
    throttle_time_ms:         int = field("int32")
    error_code:               int = field("int16", "1+")
    replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult] = field("[]ReplicaElectionResult")

    class ReplicaElectionResult(Struct):
        topic:            str = field("string")
        partition_result: list[ElectLeadersResponse.PartitionResult] = field("[]PartitionResult")

    class PartitionResult(Struct):
        partition_id:  int        = field("int32")
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
