"""Builds ListOffsets, OffsetCommit and OffsetFetch requests. Pure."""

from collections.abc import Mapping
from typing import Any

from ottla.client.core.cluster_view import Leader
from ottla.client.core.model import CommittedOffset, OffsetAndTimestamp
from ottla.errors import ErrorCode
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.wire_values import READ_COMMITTED, READ_UNCOMMITTED
from ottla.types import TopicPartition, partitions_by_topic

ISOLATION_CODES = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
MAX_VERSION_WITH_NAMES = 9
"""From version 10 on OffsetCommit and OffsetFetch name topics by id (KIP-848), and a deleted topic has none."""


def build_list_offsets(
    wanted: Mapping[TopicPartition, int],
    leaders: Mapping[TopicPartition, Leader],
    isolation_level: str,
    version: int,
    timeout_ms: int,
) -> ListOffsetsRequest:
    """A ListOffsets request for partitions that one node leads."""
    topics: dict[str, Any] = {}
    for partition, at in wanted.items():
        topic = topics.setdefault(partition.topic, ListOffsetsRequest.ListOffsetsTopic(name=partition.topic))
        topic.partitions.append(
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=partition.partition, current_leader_epoch=leaders[partition].epoch, timestamp=at
            )
        )
    request = ListOffsetsRequest(replica_id=-1, topics=list(topics.values()), timeout_ms=timeout_ms)
    if version >= 2:
        request.isolation_level = ISOLATION_CODES[isolation_level]
    return request


def read_list_offsets(response: Any) -> list[tuple[TopicPartition, ErrorCode, OffsetAndTimestamp | None]]:
    """Every partition of a ListOffsets response: its error, or its offset (None: no such record)."""
    read = []
    for topic in response.topics:
        for p in topic.partitions:
            result = OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch) if p.offset >= 0 else None
            read.append((TopicPartition(topic.name, p.partition_index), ErrorCode(p.error_code), result))
    return read


def commit_topics(offsets: Mapping[TopicPartition, CommittedOffset]) -> list[Any]:
    """The topics of an OffsetCommit request."""
    topics = []
    for name, indexes in partitions_by_topic(sorted(offsets)).items():
        partitions = []
        for index in indexes:
            committed = offsets[TopicPartition(name, index)]
            partitions.append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        topics.append(OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=partitions))
    return topics


def build_offset_fetch(
    group_id: str, wanted: Mapping[str, list[int]] | None, require_stable: bool, version: int
) -> OffsetFetchRequest:
    """An OffsetFetch request for one group; `wanted` is None for all partitions. Before version 7 offsets of open
    transactions cannot be waited for (KIP-447)."""
    if version >= 8:  # several groups in one request (KIP-709)
        topic = OffsetFetchRequest.OffsetFetchRequestTopics
        topics = None if wanted is None else [topic(name=n, partition_indexes=p) for n, p in wanted.items()]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        return OffsetFetchRequest(groups=[group], require_stable=require_stable)
    old = OffsetFetchRequest.OffsetFetchRequestTopic
    named = None if wanted is None else [old(name=n, partition_indexes=p) for n, p in wanted.items()]
    return OffsetFetchRequest(group_id=group_id, topics=named, require_stable=require_stable and version >= 7)
