"""Metadata (API 3): tells brokers, topics, partitions and leaders. Pure.

Versions: v0 reads an empty list as all topics, later null means all; v4 auto creation can be declined; v5
offline replicas; v7 leader epoch; v8 authorized operations; v9 is flexible; v10 topic ids; v11 drops the
cluster's operations; v12 lookup by topic id; v13 an error for the whole answer.
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class MetadataRequest(Message, api_key=3, versions=range(0, 14), flexible_since=9):
    topics:                                list[MetadataRequest.MetadataRequestTopic] | None = field("[]MetadataRequestTopic", nullable="1+")
    allow_auto_topic_creation:             bool = field("bool", "4+", default=True)
    include_cluster_authorized_operations: bool = field("bool", "8-10")
    include_topic_authorized_operations:   bool = field("bool", "8+")

    class MetadataRequestTopic(Struct):
        topic_id: bytes      = field("uuid", "10+", ignorable=True)
        name:     str | None = field("string", nullable="10+")


class MetadataResponse(Message, api_key=3, versions=range(0, 14), flexible_since=9):
    throttle_time_ms:              int        = field("int32", "3+", ignorable=True)
    brokers:                       list[MetadataResponse.MetadataResponseBroker] = field("[]MetadataResponseBroker")
    cluster_id:                    str | None = field("string", "2+", nullable="0+", default=None, ignorable=True)
    controller_id:                 int        = field("int32", "1+", default=-1, ignorable=True)
    topics:                        list[MetadataResponse.MetadataResponseTopic] = field("[]MetadataResponseTopic")
    cluster_authorized_operations: int        = field("int32", "8-10", default=-(2**31))
    error_code:                    int        = field("int16", "13+", ignorable=True)

    class MetadataResponseBroker(Struct):
        node_id: int        = field("int32")
        host:    str        = field("string")
        port:    int        = field("int32")
        rack:    str | None = field("string", "1+", nullable="0+", default=None, ignorable=True)

    class MetadataResponseTopic(Struct):
        error_code:                  int        = field("int16")
        name:                        str | None = field("string", nullable="12+")
        topic_id:                    bytes      = field("uuid", "10+", ignorable=True)
        is_internal:                 bool       = field("bool", "1+", ignorable=True)
        partitions:                  list[MetadataResponse.MetadataResponsePartition] = field("[]MetadataResponsePartition")
        topic_authorized_operations: int        = field("int32", "8+", default=-(2**31))

    class MetadataResponsePartition(Struct):
        error_code:       int       = field("int16")
        partition_index:  int       = field("int32")
        leader_id:        int       = field("int32")
        leader_epoch:     int       = field("int32", "7+", default=-1, ignorable=True)
        replica_nodes:    list[int] = field("[]int32")
        isr_nodes:        list[int] = field("[]int32")
        offline_replicas: list[int] = field("[]int32", "5+", ignorable=True)
