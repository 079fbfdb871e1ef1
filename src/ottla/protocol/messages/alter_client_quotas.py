"""AlterClientQuotas (API 49): changes client quotas (KIP-546). Pure.

v0   the first version
v1   flexible: compact lengths and tagged fields (KIP-482)
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class AlterClientQuotasRequest(Message, api_key=49, versions=range(0, 2), flexible_since=1):
    entries:       list[AlterClientQuotasRequest.EntryData] = field("[]EntryData")
    validate_only: bool = field("bool")

    class EntryData(Struct):
        entity: list[AlterClientQuotasRequest.EntityData] = field("[]EntityData")
        ops:    list[AlterClientQuotasRequest.OpData] = field("[]OpData")

    class EntityData(Struct):
        entity_type: str        = field("string")
        entity_name: str | None = field("string", nullable="0+")

    class OpData(Struct):
        key:    str   = field("string")
        value:  float = field("float64")
        remove: bool  = field("bool")


class AlterClientQuotasResponse(Message, api_key=49, versions=range(0, 2), flexible_since=1):
    throttle_time_ms: int = field("int32")
    entries:          list[AlterClientQuotasResponse.EntryData] = field("[]EntryData")

    class EntryData(Struct):
        error_code:    int        = field("int16")
        error_message: str | None = field("string", nullable="0+")
        entity:        list[AlterClientQuotasResponse.EntityData] = field("[]EntityData")

    class EntityData(Struct):
        entity_type: str        = field("string")
        entity_name: str | None = field("string", nullable="0+")
