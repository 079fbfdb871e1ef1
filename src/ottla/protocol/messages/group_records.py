"""The records of `__consumer_offsets`, which group coordinators write. Pure.

A key starts with its type and a value with its version, both an int16 (see framing.py). Keys are never flexible.
A key without a value is a tombstone; readers skip unknown types. Types 0 to 2 belong to classic groups and committed
offsets, 3 to 8 and 16 to groups of the new protocol (KIP-848), 10 to 15 to share groups (KIP-932), and 17 to 23 to
streams groups (KIP-1071). The broker writes types 1 and 2; `ottla consume` can print them all.
"""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from ottla.protocol.schema import Message, Struct, field


class LegacyOffsetCommitKey(Message, api_key=0, versions=range(0, 1)):
    group:     str = field("string")
    topic:     str = field("string")
    partition: int = field("int32")


class LegacyOffsetCommitValue(Message, api_key=0, versions=range(0, 1)):
    offset:           int = field("int64")
    metadata:         str = field("string")
    commit_timestamp: int = field("int64")


class OffsetCommitKey(Message, api_key=1, versions=range(0, 1)):
    group:     str = field("string")
    topic:     str = field("string")
    partition: int = field("int32")


class OffsetCommitValue(Message, api_key=1, versions=range(0, 5), flexible_since=4):
    offset:           int   = field("int64")
    leader_epoch:     int   = field("int32", "3+", default=-1, ignorable=True)
    metadata:         str   = field("string")
    commit_timestamp: int   = field("int64")
    expire_timestamp: int   = field("int64", "1", default=-1, ignorable=True)
    topic_id:         bytes = field("uuid", "4+", tag=0, ignorable=True)


class GroupMetadataKey(Message, api_key=2, versions=range(0, 1)):
    group: str = field("string")


class GroupMetadataValue(Message, api_key=2, versions=range(0, 5), flexible_since=4):
    protocol_type:           str        = field("string")
    generation:              int        = field("int32")
    protocol:                str | None = field("string", nullable="0+")
    leader:                  str | None = field("string", nullable="0+")
    current_state_timestamp: int        = field("int64", "2+", default=-1, ignorable=True)
    members:                 list[GroupMetadataValue.MemberMetadata] = field("[]MemberMetadata")

    class MemberMetadata(Struct):
        member_id:         str        = field("string")
        group_instance_id: str | None = field("string", "3+", nullable="0+", default=None, ignorable=True)
        client_id:         str        = field("string")
        client_host:       str        = field("string")
        rebalance_timeout: int        = field("int32", "1+", default=-1, ignorable=True)
        session_timeout:   int        = field("int32")
        subscription:      bytes      = field("bytes")
        assignment:        bytes      = field("bytes")


class ConsumerGroupMetadataKey(Message, api_key=3, versions=range(0, 1)):
    group_id: str = field("string")


class ConsumerGroupMetadataValue(Message, api_key=3, versions=range(0, 1), flexible_since=0):
    epoch:         int = field("int32")
    metadata_hash: int = field("int64", tag=0)


class ConsumerGroupPartitionMetadataKey(Message, api_key=4, versions=range(0, 1)):
    group_id: str = field("string")


class ConsumerGroupPartitionMetadataValue(Message, api_key=4, versions=range(0, 1), flexible_since=0):
    topics: list[ConsumerGroupPartitionMetadataValue.TopicMetadata] = field("[]TopicMetadata")

    class TopicMetadata(Struct):
        topic_id:           bytes = field("uuid")
        topic_name:         str   = field("string")
        num_partitions:     int   = field("int32")
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata] = field("[]PartitionMetadata")

    class PartitionMetadata(Struct):
        partition: int       = field("int32")
        racks:     list[str] = field("[]string")


class ConsumerGroupMemberMetadataKey(Message, api_key=5, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class ConsumerGroupMemberMetadataValue(Message, api_key=5, versions=range(0, 1), flexible_since=0):
    instance_id:             str | None = field("string", nullable="0+")
    rack_id:                 str | None = field("string", nullable="0+")
    client_id:               str        = field("string")
    client_host:             str        = field("string")
    subscribed_topic_names:  list[str]  = field("[]string")
    subscribed_topic_regex:  str | None = field("string", nullable="0+")
    rebalance_timeout_ms:    int        = field("int32", default=-1)
    server_assignor:         str | None = field("string", nullable="0+")
    classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None = field("ClassicMemberMetadata", nullable="0+", tag=0)

    class ClassicMemberMetadata(Struct):
        session_timeout_ms:  int = field("int32")
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol] = field("[]ClassicProtocol")

    class ClassicProtocol(Struct):
        name:     str   = field("string")
        metadata: bytes = field("bytes")


class ConsumerGroupTargetAssignmentMetadataKey(Message, api_key=6, versions=range(0, 1)):
    group_id: str = field("string")


class ConsumerGroupTargetAssignmentMetadataValue(Message, api_key=6, versions=range(0, 1), flexible_since=0):
    assignment_epoch:     int = field("int32")
    assignment_timestamp: int = field("int64", tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, api_key=7, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class ConsumerGroupTargetAssignmentMemberValue(Message, api_key=7, versions=range(0, 1), flexible_since=0):
    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValue.TopicPartition] = field("[]TopicPartition")

    class TopicPartition(Struct):
        topic_id:   bytes     = field("uuid")
        partitions: list[int] = field("[]int32")


class ConsumerGroupCurrentMemberAssignmentKey(Message, api_key=8, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class ConsumerGroupCurrentMemberAssignmentValue(Message, api_key=8, versions=range(0, 1), flexible_since=0):
    member_epoch:                  int = field("int32")
    previous_member_epoch:         int = field("int32")
    state:                         int = field("int8")
    assigned_partitions:           list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = field("[]TopicPartitions")
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = field("[]TopicPartitions")

    class TopicPartitions(Struct):
        topic_id:          bytes     = field("uuid")
        partitions:        list[int] = field("[]int32")
        assignment_epochs: list[int] | None = field("[]int32", nullable="0+", tag=0)


class ShareGroupMemberMetadataKey(Message, api_key=10, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class ShareGroupMemberMetadataValue(Message, api_key=10, versions=range(0, 1), flexible_since=0):
    rack_id:                str | None = field("string", nullable="0+")
    client_id:              str        = field("string")
    client_host:            str        = field("string")
    subscribed_topic_names: list[str]  = field("[]string")


class ShareGroupMetadataKey(Message, api_key=11, versions=range(0, 1)):
    group_id: str = field("string")


class ShareGroupMetadataValue(Message, api_key=11, versions=range(0, 1), flexible_since=0):
    epoch:         int = field("int32")
    metadata_hash: int = field("int64")


class ShareGroupTargetAssignmentMetadataKey(Message, api_key=12, versions=range(0, 1)):
    group_id: str = field("string")


class ShareGroupTargetAssignmentMetadataValue(Message, api_key=12, versions=range(0, 1), flexible_since=0):
    assignment_epoch:     int = field("int32")
    assignment_timestamp: int = field("int64", tag=0)


class ShareGroupTargetAssignmentMemberKey(Message, api_key=13, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class ShareGroupTargetAssignmentMemberValue(Message, api_key=13, versions=range(0, 1), flexible_since=0):
    topic_partitions: list[ShareGroupTargetAssignmentMemberValue.TopicPartition] = field("[]TopicPartition")

    class TopicPartition(Struct):
        topic_id:   bytes     = field("uuid")
        partitions: list[int] = field("[]int32")


class ShareGroupCurrentMemberAssignmentKey(Message, api_key=14, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class ShareGroupCurrentMemberAssignmentValue(Message, api_key=14, versions=range(0, 1), flexible_since=0):
    member_epoch:          int = field("int32")
    previous_member_epoch: int = field("int32")
    state:                 int = field("int8")
    assigned_partitions:   list[ShareGroupCurrentMemberAssignmentValue.TopicPartitions] = field("[]TopicPartitions")

    class TopicPartitions(Struct):
        topic_id:   bytes     = field("uuid")
        partitions: list[int] = field("[]int32")


class ShareGroupStatePartitionMetadataKey(Message, api_key=15, versions=range(0, 1)):
    group_id: str = field("string")


class ShareGroupStatePartitionMetadataValue(Message, api_key=15, versions=range(0, 1), flexible_since=0):
    initializing_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = field("[]TopicPartitionsInfo")
    initialized_topics:  list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = field("[]TopicPartitionsInfo")
    deleting_topics:     list[ShareGroupStatePartitionMetadataValue.TopicInfo] = field("[]TopicInfo")

    class TopicPartitionsInfo(Struct):
        topic_id:   bytes     = field("uuid")
        topic_name: str       = field("string")
        partitions: list[int] = field("[]int32")

    class TopicInfo(Struct):
        topic_id:   bytes = field("uuid")
        topic_name: str   = field("string")


class ConsumerGroupRegularExpressionKey(Message, api_key=16, versions=range(0, 1)):
    group_id:           str = field("string")
    regular_expression: str = field("string")


class ConsumerGroupRegularExpressionValue(Message, api_key=16, versions=range(0, 1), flexible_since=0):
    topics:    list[str] = field("[]string")
    version:   int       = field("int64")
    timestamp: int       = field("int64")


class StreamsGroupMetadataKey(Message, api_key=17, versions=range(0, 1)):
    group_id: str = field("string")


class StreamsGroupMetadataValue(Message, api_key=17, versions=range(0, 1), flexible_since=0):
    epoch:                             int = field("int32")
    metadata_hash:                     int = field("int64")
    validated_topology_epoch:          int = field("int32", default=-1, tag=0)
    last_assignment_configs:           list[StreamsGroupMetadataValue.LastAssignmentConfig] | None = field("[]LastAssignmentConfig", nullable="0+", tag=1)
    stored_description_topology_epoch: int = field("int32", default=-1, tag=2)
    failed_description_topology_epoch: int = field("int32", default=-1, tag=3)

    class LastAssignmentConfig(Struct):
        key:   str = field("string")
        value: str = field("string")


class StreamsGroupMemberMetadataKey(Message, api_key=19, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class StreamsGroupMemberMetadataValue(Message, api_key=19, versions=range(0, 1), flexible_since=0):
    instance_id:          str | None = field("string", nullable="0+")
    rack_id:              str | None = field("string", nullable="0+")
    client_id:            str        = field("string")
    client_host:          str        = field("string")
    rebalance_timeout_ms: int        = field("int32", default=-1)
    topology_epoch:       int        = field("int32")
    process_id:           str        = field("string")
    user_endpoint:        StreamsGroupMemberMetadataValue.Endpoint | None = field("Endpoint", nullable="0+", default=None)
    client_tags:          list[StreamsGroupMemberMetadataValue.KeyValue] = field("[]KeyValue")

    class Endpoint(Struct):
        host: str = field("string")
        port: int = field("uint16")

    class KeyValue(Struct):
        key:   str = field("string")
        value: str = field("string")


class StreamsGroupTargetAssignmentMetadataKey(Message, api_key=20, versions=range(0, 1)):
    group_id: str = field("string")


class StreamsGroupTargetAssignmentMetadataValue(Message, api_key=20, versions=range(0, 1), flexible_since=0):
    assignment_epoch:     int = field("int32")
    assignment_timestamp: int = field("int64", tag=0)


class StreamsGroupTargetAssignmentMemberKey(Message, api_key=21, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class StreamsGroupTargetAssignmentMemberValue(Message, api_key=21, versions=range(0, 1), flexible_since=0):
    active_tasks:  list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = field("[]TaskIds")
    standby_tasks: list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = field("[]TaskIds")
    warmup_tasks:  list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = field("[]TaskIds")

    class TaskIds(Struct):
        subtopology_id: str       = field("string")
        partitions:     list[int] = field("[]int32")


class StreamsGroupCurrentMemberAssignmentKey(Message, api_key=22, versions=range(0, 1)):
    group_id:  str = field("string")
    member_id: str = field("string")


class StreamsGroupCurrentMemberAssignmentValue(Message, api_key=22, versions=range(0, 1), flexible_since=0):
    member_epoch:                     int = field("int32")
    previous_member_epoch:            int = field("int32")
    state:                            int = field("int8")
    active_tasks:                     list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = field("[]TaskIds")
    standby_tasks:                    list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = field("[]TaskIds")
    warmup_tasks:                     list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = field("[]TaskIds")
    active_tasks_pending_revocation:  list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = field("[]TaskIds")
    standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = field("[]TaskIds")
    warmup_tasks_pending_revocation:  list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = field("[]TaskIds")

    class TaskIds(Struct):
        subtopology_id:    str       = field("string")
        partitions:        list[int] = field("[]int32")
        assignment_epochs: list[int] | None = field("[]int32", nullable="0+", tag=0)


class StreamsGroupTopologyKey(Message, api_key=23, versions=range(0, 1)):
    group_id: str = field("string")


class StreamsGroupTopologyValue(Message, api_key=23, versions=range(0, 1), flexible_since=0):
    epoch:         int = field("int32")
    subtopologies: list[StreamsGroupTopologyValue.Subtopology] = field("[]Subtopology")

    class Subtopology(Struct):
        subtopology_id:            str       = field("string")
        source_topics:             list[str] = field("[]string")
        source_topic_regex:        list[str] = field("[]string")
        state_changelog_topics:    list[StreamsGroupTopologyValue.TopicInfo] = field("[]TopicInfo")
        repartition_sink_topics:   list[str] = field("[]string")
        repartition_source_topics: list[StreamsGroupTopologyValue.TopicInfo] = field("[]TopicInfo")
        copartition_groups:        list[StreamsGroupTopologyValue.CopartitionGroup] = field("[]CopartitionGroup")

    class TopicInfo(Struct):
        name:               str = field("string")
        partitions:         int = field("int32")
        replication_factor: int = field("int16")
        topic_configs:      list[StreamsGroupTopologyValue.TopicConfig] = field("[]TopicConfig")

    class CopartitionGroup(Struct):
        source_topics:             list[int] = field("[]int16")
        source_topic_regex:        list[int] = field("[]int16")
        repartition_source_topics: list[int] = field("[]int16")

    class TopicConfig(Struct):
        key:   str = field("string")
        value: str = field("string")


KEYS: dict[int, type[Message]] = {
    0: LegacyOffsetCommitKey,
    1: OffsetCommitKey,
    2: GroupMetadataKey,
    3: ConsumerGroupMetadataKey,
    4: ConsumerGroupPartitionMetadataKey,
    5: ConsumerGroupMemberMetadataKey,
    6: ConsumerGroupTargetAssignmentMetadataKey,
    7: ConsumerGroupTargetAssignmentMemberKey,
    8: ConsumerGroupCurrentMemberAssignmentKey,
    10: ShareGroupMemberMetadataKey,
    11: ShareGroupMetadataKey,
    12: ShareGroupTargetAssignmentMetadataKey,
    13: ShareGroupTargetAssignmentMemberKey,
    14: ShareGroupCurrentMemberAssignmentKey,
    15: ShareGroupStatePartitionMetadataKey,
    16: ConsumerGroupRegularExpressionKey,
    17: StreamsGroupMetadataKey,
    19: StreamsGroupMemberMetadataKey,
    20: StreamsGroupTargetAssignmentMetadataKey,
    21: StreamsGroupTargetAssignmentMemberKey,
    22: StreamsGroupCurrentMemberAssignmentKey,
    23: StreamsGroupTopologyKey,
}
"""The class of a key by its type."""

VALUES: dict[int, type[Message]] = {
    0: LegacyOffsetCommitValue,
    1: OffsetCommitValue,
    2: GroupMetadataValue,
    3: ConsumerGroupMetadataValue,
    4: ConsumerGroupPartitionMetadataValue,
    5: ConsumerGroupMemberMetadataValue,
    6: ConsumerGroupTargetAssignmentMetadataValue,
    7: ConsumerGroupTargetAssignmentMemberValue,
    8: ConsumerGroupCurrentMemberAssignmentValue,
    10: ShareGroupMemberMetadataValue,
    11: ShareGroupMetadataValue,
    12: ShareGroupTargetAssignmentMetadataValue,
    13: ShareGroupTargetAssignmentMemberValue,
    14: ShareGroupCurrentMemberAssignmentValue,
    15: ShareGroupStatePartitionMetadataValue,
    16: ConsumerGroupRegularExpressionValue,
    17: StreamsGroupMetadataValue,
    19: StreamsGroupMemberMetadataValue,
    20: StreamsGroupTargetAssignmentMetadataValue,
    21: StreamsGroupTargetAssignmentMemberValue,
    22: StreamsGroupCurrentMemberAssignmentValue,
    23: StreamsGroupTopologyValue,
}
"""The class of a value by the type of its key."""
