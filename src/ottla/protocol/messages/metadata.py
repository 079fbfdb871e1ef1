"""Metadata (API 3): brokers, topics, partitions and their leaders. Pure.

v0   an empty list requests all topics
v1   null requests all topics; racks, controller id, internal topics
v2   cluster id (KIP-78)
v3   throttle time
v4   the client may decline auto-creation of topics
v5   offline replicas (KIP-112)
v6   a broker answers before it throttles (KIP-219)
v7   leader epoch (KIP-320)
v8   authorized operations on request (KIP-430)
v9   flexible: compact lengths and tagged fields (KIP-482)
v10  topic ids (KIP-516)
v11  authorized operations of the cluster move to DescribeCluster (KIP-700)
v12  lookup by topic id (KIP-516)
v13  an error code for the whole response (KIP-1102)
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
