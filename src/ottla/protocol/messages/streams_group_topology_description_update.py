"""StreamsGroupTopologyDescriptionUpdate (API 93): stores how a streams topology looks. Pure."""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class StreamsGroupTopologyDescriptionUpdateRequest(Message, api_key=93, versions=range(0, 1), flexible_since=0):
    group_id:             str = field("string")
    member_id:            str = field("string")
    topology_epoch:       int = field("int32")
    topology_description: StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescription = field("TopologyDescription")

    class TopologyDescription(Struct):
        subtopologies: list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionSubtopology] = field("[]TopologyDescriptionSubtopology")
        global_stores: list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionGlobalStore] = field("[]TopologyDescriptionGlobalStore")

    class TopologyDescriptionSubtopology(Struct):
        subtopology_id: str = field("string")
        nodes:          list[StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode] = field("[]TopologyDescriptionNode")

    class TopologyDescriptionGlobalStore(Struct):
        source:    StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode = field("TopologyDescriptionNode")
        processor: StreamsGroupTopologyDescriptionUpdateRequest.TopologyDescriptionNode = field("TopologyDescriptionNode")

    class TopologyDescriptionNode(Struct):
        name:          str        = field("string")
        node_type:     int        = field("int8")
        source_topics: list[str]  = field("[]string")
        sink_topic:    str | None = field("string", nullable="0+", default=None)
        stores:        list[str]  = field("[]string")
        successors:    list[str]  = field("[]string")


class StreamsGroupTopologyDescriptionUpdateResponse(Message, api_key=93, versions=range(0, 1), flexible_since=0):
    throttle_time_ms: int        = field("int32")
    error_code:       int        = field("int16")
    error_message:    str | None = field("string", nullable="0+", default=None)
