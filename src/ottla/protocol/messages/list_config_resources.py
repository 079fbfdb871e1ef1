"""ListConfigResources (API 74): lists the resources that have settings. Pure.

v0   client metrics only (KIP-1000)
v1   any type of resource, with a filter (KIP-1142)

Flexible from the start (KIP-482).
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class ListConfigResourcesRequest(Message, api_key=74, versions=range(0, 2), flexible_since=0):
    resource_types: list[int] = field("[]int8", "1+")


class ListConfigResourcesResponse(Message, api_key=74, versions=range(0, 2), flexible_since=0):
    throttle_time_ms: int = field("int32")
    error_code:       int = field("int16")
    config_resources: list[ListConfigResourcesResponse.ConfigResource] = field("[]ConfigResource")

    class ConfigResource(Struct):
        resource_name: str = field("string")
        resource_type: int = field("int8", "1+", default=16, ignorable=True)
