"""AlterConfigs (API 33): replaces all settings of a resource. IncrementalAlterConfigs is its successor. Pure.

v0   the first version
v1   a broker answers before it throttles (KIP-219)
v2   flexible: compact lengths and tagged fields (KIP-482)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AlterConfigsRequest(Message, api_key=33, versions=range(0, 3), flexible_since=2):
    resources:     list[AlterConfigsRequest.AlterConfigsResource] = field("[]AlterConfigsResource")
    validate_only: bool = field("bool")

    class AlterConfigsResource(Struct):
        resource_type: int = field("int8")
        resource_name: str = field("string")
        configs:       list[AlterConfigsRequest.AlterableConfig] = field("[]AlterableConfig")

    class AlterableConfig(Struct):
        name:  str        = field("string")
        value: str | None = field("string", nullable="0+")


class AlterConfigsResponse(Message, api_key=33, versions=range(0, 3), flexible_since=2):
    throttle_time_ms: int = field("int32")
    responses:        list[AlterConfigsResponse.AlterConfigsResourceResponse] = field("[]AlterConfigsResourceResponse")

    class AlterConfigsResourceResponse(Struct):
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
        resource_type: int        = field("int8")
        resource_name: str        = field("string")
