"""DescribeClientQuotas (API 48): lists the client quotas that match a filter (KIP-546). Pure.

v0   the first version
v1   flexible: compact lengths and tagged fields (KIP-482)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class DescribeClientQuotasRequest(Message, api_key=48, versions=range(0, 2), flexible_since=1):
    components: list[DescribeClientQuotasRequest.ComponentData] = field("[]ComponentData")
    strict:     bool = field("bool")

    class ComponentData(Struct):
        entity_type: str        = field("string")
        match_type:  int        = field("int8")
        match:       str | None = field("string", nullable="0+")


class DescribeClientQuotasResponse(Message, api_key=48, versions=range(0, 2), flexible_since=1):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+")
    entries:          list[DescribeClientQuotasResponse.EntryData] | None = field("[]EntryData", nullable="0+")

    class EntryData(Struct):
        entity: list[DescribeClientQuotasResponse.EntityData] = field("[]EntityData")
        values: list[DescribeClientQuotasResponse.ValueData] = field("[]ValueData")

    class EntityData(Struct):
        entity_type: str        = field("string")
        entity_name: str | None = field("string", nullable="0+")

    class ValueData(Struct):
        key:   str   = field("string")
        value: float = field("float64")
