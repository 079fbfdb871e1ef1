"""CreateTopics (API 19): creates topics. Pure.

v2   the oldest version since Kafka 4.0 (KIP-896)
v3   a broker answers before it throttles (KIP-219)
v4   -1 requests the default number of partitions or replicas (KIP-464)
v5   flexible: compact lengths and tagged fields (KIP-482); settings in the response (KIP-525)
v6   may answer THROTTLING_QUOTA_EXCEEDED (KIP-599)
v7   topic id in the response (KIP-516)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class CreateTopicsRequest(Message, api_key=19, versions=range(2, 8), flexible_since=5):
    topics:        list[CreateTopicsRequest.CreatableTopic] = field("[]CreatableTopic")
    timeout_ms:    int  = field("int32", default=60_000)
    validate_only: bool = field("bool")

    class CreatableTopic(Struct):
        name:               str = field("string")
        num_partitions:     int = field("int32")
        replication_factor: int = field("int16")
        assignments:        list[CreateTopicsRequest.CreatableReplicaAssignment] = field("[]CreatableReplicaAssignment")
        configs:            list[CreateTopicsRequest.CreatableTopicConfig] = field("[]CreatableTopicConfig")

    class CreatableReplicaAssignment(Struct):
        partition_index: int       = field("int32")
        broker_ids:      list[int] = field("[]int32")

    class CreatableTopicConfig(Struct):
        name:  str        = field("string")
        value: str | None = field("string", nullable="0+")


class CreateTopicsResponse(Message, api_key=19, versions=range(2, 8), flexible_since=5):
    throttle_time_ms: int = field("int32")
    topics:           list[CreateTopicsResponse.CreatableTopicResult] = field("[]CreatableTopicResult")

    class CreatableTopicResult(Struct):
        name:                    str        = field("string")
        topic_id:                bytes      = field("uuid", "7+", ignorable=True)
        error_code:              int        = field("int16")
        error_message:           str | None = field("string", nullable="0+")
        topic_config_error_code: int        = field("int16", "5+", tag=0, ignorable=True)
        num_partitions:          int        = field("int32", "5+", default=-1, ignorable=True)
        replication_factor:      int        = field("int16", "5+", default=-1, ignorable=True)
        configs:                 list[CreateTopicsResponse.CreatableTopicConfigs] | None = field("[]CreatableTopicConfigs", "5+", nullable="0+", ignorable=True)

    class CreatableTopicConfigs(Struct):
        name:          str        = field("string", "5+")
        value:         str | None = field("string", "5+", nullable="0+")
        read_only:     bool       = field("bool", "5+")
        config_source: int        = field("int8", "5+", default=-1, ignorable=True)
        is_sensitive:  bool       = field("bool", "5+")
