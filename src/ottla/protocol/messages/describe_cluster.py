"""DescribeCluster (API 60): brokers, controller and cluster id (KIP-700). Pure.

v0   the first version
v1   endpoint type: brokers or controllers (KIP-919)
v2   fenced brokers on request (KIP-1073)

Flexible from the start (KIP-482).
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeClusterRequest(Message, api_key=60, versions=range(0, 3), flexible_since=0):
    include_cluster_authorized_operations: bool = field("bool")
    endpoint_type:                         int  = field("int8", "1+", default=1)
    include_fenced_brokers:                bool = field("bool", "2+")


class DescribeClusterResponse(Message, api_key=60, versions=range(0, 3), flexible_since=0):
    throttle_time_ms:              int        = field("int32")
    error_code:                    int        = field("int16")
    error_message:                 str | None = field("string", nullable="0+", default=None)
    endpoint_type:                 int        = field("int8", "1+", default=1)
    cluster_id:                    str        = field("string")
    controller_id:                 int        = field("int32", default=-1)
    brokers:                       list[DescribeClusterResponse.DescribeClusterBroker] = field("[]DescribeClusterBroker")
    cluster_authorized_operations: int        = field("int32", default=-(2**31))

    class DescribeClusterBroker(Struct):
        broker_id: int        = field("int32")
        host:      str        = field("string")
        port:      int        = field("int32")
        rack:      str | None = field("string", nullable="0+", default=None)
        is_fenced: bool       = field("bool", "2+")
