"""AlterPartition (API 56): changes in-sync replicas; sent by leaders to the controller (KIP-497). Pure.

v2   the oldest version since Kafka 4.0 (KIP-896); topic ids (KIP-841)
v3   broker epochs in the in-sync set (KIP-903)

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AlterPartitionRequest(Message, api_key=56, versions=range(2, 4), flexible_since=0):
    broker_id:    int = field("int32")
    broker_epoch: int = field("int64", default=-1)
    topics:       list[AlterPartitionRequest.TopicData] = field("[]TopicData")

    class TopicData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[AlterPartitionRequest.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition_index:       int       = field("int32")
        leader_epoch:          int       = field("int32")
        new_isr:               list[int] = field("[]int32", "2")
        new_isr_with_epochs:   list[AlterPartitionRequest.BrokerState] = field("[]BrokerState", "3+")
        leader_recovery_state: int       = field("int8")
        partition_epoch:       int       = field("int32")

    class BrokerState(Struct):
        broker_id:    int = field("int32", "3+")
        broker_epoch: int = field("int64", "3+", default=-1)


class AlterPartitionResponse(Message, api_key=56, versions=range(2, 4), flexible_since=0):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
    topics:           list[AlterPartitionResponse.TopicData] = field("[]TopicData")

    class TopicData(Struct):
        topic_id:   bytes = field("uuid")
        partitions: list[AlterPartitionResponse.PartitionData] = field("[]PartitionData")

    class PartitionData(Struct):
        partition_index:       int       = field("int32")
        error_code:            int       = field("int16")
        leader_id:             int       = field("int32")
        leader_epoch:          int       = field("int32")
        isr:                   list[int] = field("[]int32")
        leader_recovery_state: int       = field("int8")
        partition_epoch:       int       = field("int32")
