"""StreamsGroupHeartbeat (API 88): joins, keeps and leaves a streams group (KIP-1071). Pure.

Versions: v1 asks for a description of the topology.
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class StreamsGroupHeartbeatRequest(Message, api_key=88, versions=range(0, 2), flexible_since=0):
    group_id:                   str        = field("string")
    member_id:                  str        = field("string")
    member_epoch:               int        = field("int32")
    endpoint_information_epoch: int        = field("int32")
    instance_id:                str | None = field("string", nullable="0+", default=None)
    rack_id:                    str | None = field("string", nullable="0+", default=None)
    rebalance_timeout_ms:       int        = field("int32", default=-1)
    topology:                   StreamsGroupHeartbeatRequest.Topology | None = field("Topology", nullable="0+", default=None)
    active_tasks:               list[StreamsGroupHeartbeatRequest.TaskIds] | None = field("[]TaskIds", nullable="0+", default=None)
    standby_tasks:              list[StreamsGroupHeartbeatRequest.TaskIds] | None = field("[]TaskIds", nullable="0+", default=None)
    warmup_tasks:               list[StreamsGroupHeartbeatRequest.TaskIds] | None = field("[]TaskIds", nullable="0+", default=None)
    process_id:                 str | None = field("string", nullable="0+", default=None)
    user_endpoint:              StreamsGroupHeartbeatRequest.Endpoint | None = field("Endpoint", nullable="0+", default=None)
    client_tags:                list[StreamsGroupHeartbeatRequest.KeyValue] | None = field("[]KeyValue", nullable="0+", default=None)
    task_offsets:               list[StreamsGroupHeartbeatRequest.TaskOffset] | None = field("[]TaskOffset", nullable="0+", default=None)
    task_end_offsets:           list[StreamsGroupHeartbeatRequest.TaskOffset] | None = field("[]TaskOffset", nullable="0+", default=None)
    shutdown_application:       bool       = field("bool")

    class Topology(Struct):
        epoch:         int = field("int32")
        subtopologies: list[StreamsGroupHeartbeatRequest.Subtopology] = field("[]Subtopology")

    class TaskIds(Struct):
        subtopology_id: str       = field("string")
        partitions:     list[int] = field("[]int32")

    class Endpoint(Struct):
        host: str = field("string")
        port: int = field("uint16")

    class KeyValue(Struct):
        key:   str = field("string")
        value: str = field("string")

    class TaskOffset(Struct):
        subtopology_id: str = field("string")
        partition:      int = field("int32")
        offset:         int = field("int64")

    class Subtopology(Struct):
        subtopology_id:            str       = field("string")
        source_topics:             list[str] = field("[]string")
        source_topic_regex:        list[str] = field("[]string")
        state_changelog_topics:    list[StreamsGroupHeartbeatRequest.TopicInfo] = field("[]TopicInfo")
        repartition_sink_topics:   list[str] = field("[]string")
        repartition_source_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = field("[]TopicInfo")
        copartition_groups:        list[StreamsGroupHeartbeatRequest.CopartitionGroup] = field("[]CopartitionGroup")

    class TopicInfo(Struct):
        name:               str = field("string")
        partitions:         int = field("int32")
        replication_factor: int = field("int16")
        topic_configs:      list[StreamsGroupHeartbeatRequest.KeyValue] = field("[]KeyValue")

    class CopartitionGroup(Struct):
        source_topics:             list[int] = field("[]int16")
        source_topic_regex:        list[int] = field("[]int16")
        repartition_source_topics: list[int] = field("[]int16")


class StreamsGroupHeartbeatResponse(Message, api_key=88, versions=range(0, 2), flexible_since=0):
    throttle_time_ms:               int        = field("int32")
    error_code:                     int        = field("int16")
    error_message:                  str | None = field("string", nullable="0+", default=None)
    member_id:                      str        = field("string")
    member_epoch:                   int        = field("int32")
    heartbeat_interval_ms:          int        = field("int32")
    acceptable_recovery_lag_legacy: int        = field("int32", "0")
    task_offset_interval_ms:        int        = field("int32")
    acceptable_recovery_lag:        int        = field("int64", "1+", default=-1, ignorable=True)
    status:                         list[StreamsGroupHeartbeatResponse.Status] | None = field("[]Status", nullable="0+")
    active_tasks:                   list[StreamsGroupHeartbeatResponse.TaskIds] | None = field("[]TaskIds", nullable="0+", default=None)
    standby_tasks:                  list[StreamsGroupHeartbeatResponse.TaskIds] | None = field("[]TaskIds", nullable="0+", default=None)
    warmup_tasks:                   list[StreamsGroupHeartbeatResponse.TaskIds] | None = field("[]TaskIds", nullable="0+", default=None)
    topology_description_required:  bool       = field("bool", "1+")
    endpoint_information_epoch:     int        = field("int32")
    partitions_by_user_endpoint:    list[StreamsGroupHeartbeatResponse.EndpointToPartitions] | None = field("[]EndpointToPartitions", nullable="0+", default=None)

    class Status(Struct):
        status_code:   int = field("int8")
        status_detail: str = field("string")

    class TaskIds(Struct):
        subtopology_id: str       = field("string")
        partitions:     list[int] = field("[]int32")

    class EndpointToPartitions(Struct):
        user_endpoint:      StreamsGroupHeartbeatResponse.Endpoint = field("Endpoint")
        active_partitions:  list[StreamsGroupHeartbeatResponse.TopicPartition] = field("[]TopicPartition")
        standby_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = field("[]TopicPartition")

    class Endpoint(Struct):
        host: str = field("string")
        port: int = field("uint16")

    class TopicPartition(Struct):
        topic:      str       = field("string")
        partitions: list[int] = field("[]int32")
