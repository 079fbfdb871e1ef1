"""StreamsGroupDescribe (API 89): shows streams groups. Pure.

Versions: v1 description of the topology.
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class StreamsGroupDescribeRequest(Message, api_key=89, versions=range(0, 2), flexible_since=0):
    group_ids:                     list[str] = field("[]string")
    include_authorized_operations: bool      = field("bool")
    include_topology_description:  bool      = field("bool", "1+")


class StreamsGroupDescribeResponse(Message, api_key=89, versions=range(0, 2), flexible_since=0):
    throttle_time_ms: int = field("int32")
    groups:           list[StreamsGroupDescribeResponse.DescribedGroup] = field("[]DescribedGroup")

    class DescribedGroup(Struct):
        error_code:                  int        = field("int16")
        error_message:               str | None = field("string", nullable="0+", default=None)
        group_id:                    str        = field("string")
        group_state:                 str        = field("string")
        group_epoch:                 int        = field("int32")
        assignment_epoch:            int        = field("int32")
        topology:                    StreamsGroupDescribeResponse.Topology | None = field("Topology", nullable="0+", default=None)
        members:                     list[StreamsGroupDescribeResponse.Member] = field("[]Member")
        authorized_operations:       int        = field("int32", default=-(2**31))
        topology_description:        StreamsGroupDescribeResponse.TopologyDescription | None = field("TopologyDescription", "1+", nullable="0+", default=None)
        topology_description_status: int        = field("int8", "1+")
        assignor_name:               str | None = field("string", "1+", nullable="0+", default=None, ignorable=True)

    class Topology(Struct):
        epoch:         int = field("int32")
        subtopologies: list[StreamsGroupDescribeResponse.Subtopology] | None = field("[]Subtopology", nullable="0+", default=None)

    class Member(Struct):
        member_id:         str        = field("string")
        member_epoch:      int        = field("int32")
        instance_id:       str | None = field("string", nullable="0+", default=None)
        rack_id:           str | None = field("string", nullable="0+", default=None)
        client_id:         str        = field("string")
        client_host:       str        = field("string")
        topology_epoch:    int        = field("int32")
        process_id:        str        = field("string")
        user_endpoint:     StreamsGroupDescribeResponse.Endpoint | None = field("Endpoint", nullable="0+", default=None)
        client_tags:       list[StreamsGroupDescribeResponse.KeyValue] = field("[]KeyValue")
        task_offsets:      list[StreamsGroupDescribeResponse.TaskOffset] = field("[]TaskOffset")
        task_end_offsets:  list[StreamsGroupDescribeResponse.TaskOffset] = field("[]TaskOffset")
        assignment:        StreamsGroupDescribeResponse.Assignment = field("Assignment")
        target_assignment: StreamsGroupDescribeResponse.Assignment = field("Assignment")
        is_classic:        bool       = field("bool")

    class TopologyDescription(Struct):
        subtopologies: list[StreamsGroupDescribeResponse.TopologyDescriptionSubtopology] = field("[]TopologyDescriptionSubtopology", "1+")
        global_stores: list[StreamsGroupDescribeResponse.TopologyDescriptionGlobalStore] = field("[]TopologyDescriptionGlobalStore", "1+")

    class Subtopology(Struct):
        subtopology_id:            str       = field("string")
        source_topics:             list[str] = field("[]string")
        repartition_sink_topics:   list[str] = field("[]string")
        state_changelog_topics:    list[StreamsGroupDescribeResponse.TopicInfo] = field("[]TopicInfo")
        repartition_source_topics: list[StreamsGroupDescribeResponse.TopicInfo] = field("[]TopicInfo")

    class TopicInfo(Struct):
        name:               str = field("string")
        partitions:         int = field("int32")
        replication_factor: int = field("int16")
        topic_configs:      list[StreamsGroupDescribeResponse.KeyValue] = field("[]KeyValue")

    class KeyValue(Struct):
        key:   str = field("string")
        value: str = field("string")

    class Endpoint(Struct):
        host: str = field("string")
        port: int = field("uint16")

    class TaskOffset(Struct):
        subtopology_id: str = field("string")
        partition:      int = field("int32")
        offset:         int = field("int64")

    class Assignment(Struct):
        active_tasks:  list[StreamsGroupDescribeResponse.TaskIds] = field("[]TaskIds")
        standby_tasks: list[StreamsGroupDescribeResponse.TaskIds] = field("[]TaskIds")
        warmup_tasks:  list[StreamsGroupDescribeResponse.TaskIds] = field("[]TaskIds")

    class TaskIds(Struct):
        subtopology_id: str       = field("string")
        partitions:     list[int] = field("[]int32")

    class TopologyDescriptionSubtopology(Struct):
        subtopology_id: str = field("string", "1+")
        nodes:          list[StreamsGroupDescribeResponse.TopologyDescriptionNode] = field("[]TopologyDescriptionNode", "1+")

    class TopologyDescriptionGlobalStore(Struct):
        source:    StreamsGroupDescribeResponse.TopologyDescriptionNode = field("TopologyDescriptionNode", "1+")
        processor: StreamsGroupDescribeResponse.TopologyDescriptionNode = field("TopologyDescriptionNode", "1+")

    class TopologyDescriptionNode(Struct):
        name:          str        = field("string", "1+")
        node_type:     int        = field("int8", "1+")
        source_topics: list[str]  = field("[]string", "1+")
        sink_topic:    str | None = field("string", "1+", nullable="0+", default=None)
        stores:        list[str]  = field("[]string", "1+")
        successors:    list[str]  = field("[]string", "1+")
