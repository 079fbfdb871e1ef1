"""IncrementalAlterConfigs (API 44): sets, deletes, appends to or subtracts from settings (KIP-339). Pure.

v0   the first version
v1   flexible: compact lengths and tagged fields (KIP-482)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class IncrementalAlterConfigsRequest(Message, api_key=44, versions=range(0, 2), flexible_since=1):
    resources:     list[IncrementalAlterConfigsRequest.AlterConfigsResource] = field("[]AlterConfigsResource")
    validate_only: bool = field("bool")

    class AlterConfigsResource(Struct):
        resource_type: int = field("int8")
        resource_name: str = field("string")
        configs:       list[IncrementalAlterConfigsRequest.AlterableConfig] = field("[]AlterableConfig")

    class AlterableConfig(Struct):
        name:             str        = field("string")
        config_operation: int        = field("int8")
        value:            str | None = field("string", nullable="0+")


class IncrementalAlterConfigsResponse(Message, api_key=44, versions=range(0, 2), flexible_since=1):
    throttle_time_ms: int = field("int32")
    responses:        list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = field("[]AlterConfigsResourceResponse")

    class AlterConfigsResourceResponse(Struct):
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
        resource_type: int        = field("int8")
        resource_name: str        = field("string")
