"""DescribeConfigs (API 32): the settings of topics, brokers and groups. Pure.

v1   the oldest version since Kafka 4.0 (KIP-896); source and synonyms of each setting (KIP-226)
v2   a broker answers before it throttles (KIP-219)
v3   type and documentation (KIP-569)
v4   flexible: compact lengths and tagged fields (KIP-482)
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeConfigsRequest(Message, api_key=32, versions=range(1, 5), flexible_since=4):
    resources:             list[DescribeConfigsRequest.DescribeConfigsResource] = field("[]DescribeConfigsResource")
    include_synonyms:      bool = field("bool")
    include_documentation: bool = field("bool", "3+")

    class DescribeConfigsResource(Struct):
        resource_type:      int = field("int8")
        resource_name:      str = field("string")
        configuration_keys: list[str] | None = field("[]string", nullable="0+")


class DescribeConfigsResponse(Message, api_key=32, versions=range(1, 5), flexible_since=4):
    throttle_time_ms: int = field("int32")
    results:          list[DescribeConfigsResponse.DescribeConfigsResult] = field("[]DescribeConfigsResult")

    class DescribeConfigsResult(Struct):
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
        resource_type: int        = field("int8")
        resource_name: str        = field("string")
        configs:       list[DescribeConfigsResponse.DescribeConfigsResourceResult] = field("[]DescribeConfigsResourceResult")

    class DescribeConfigsResourceResult(Struct):
        name:          str        = field("string")
        value:         str | None = field("string", nullable="0+")
        read_only:     bool       = field("bool")
        config_source: int        = field("int8", default=-1)
        is_sensitive:  bool       = field("bool")
        synonyms:      list[DescribeConfigsResponse.DescribeConfigsSynonym] = field("[]DescribeConfigsSynonym")
        config_type:   int        = field("int8", "3+", ignorable=True)
        documentation: str | None = field("string", "3+", nullable="0+", ignorable=True)

    class DescribeConfigsSynonym(Struct):
        name:   str        = field("string")
        value:  str | None = field("string", nullable="0+")
        source: int        = field("int8")
