"""OffsetDelete (API 47): deletes committed offsets of a group (KIP-496). Pure.

v0   the only version; not flexible
"""

# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class OffsetDeleteRequest(Message, api_key=47, versions=range(0, 1)):
    group_id: str = field("string")
    topics:   list[OffsetDeleteRequest.OffsetDeleteRequestTopic] = field("[]OffsetDeleteRequestTopic")

    class OffsetDeleteRequestTopic(Struct):
        name:       str = field("string")
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = field("[]OffsetDeleteRequestPartition")

    class OffsetDeleteRequestPartition(Struct):
        partition_index: int = field("int32")


class OffsetDeleteResponse(Message, api_key=47, versions=range(0, 1)):
    error_code:       int = field("int16")
    throttle_time_ms: int = field("int32")
    topics:           list[OffsetDeleteResponse.OffsetDeleteResponseTopic] = field("[]OffsetDeleteResponseTopic")

    class OffsetDeleteResponseTopic(Struct):
        name:       str = field("string")
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = field("[]OffsetDeleteResponsePartition")

    class OffsetDeleteResponsePartition(Struct):
        partition_index: int = field("int32")
        error_code:      int = field("int16")
