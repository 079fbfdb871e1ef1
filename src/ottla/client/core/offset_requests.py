"""Builds ListOffsets requests and reads the responses. Pure."""

from collections.abc import Mapping
from typing import Any

from ottla.client.core.cluster_view import Leader
from ottla.client.core.model import OffsetAndTimestamp
from ottla.errors import ErrorCode
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.types import TopicPartition

ISOLATION_CODES = {"read_uncommitted": 0, "read_committed": 1}


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
