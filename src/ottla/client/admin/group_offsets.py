"""Admin calls about the offsets that groups have committed: list, alter, delete."""

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.admin.requests import ask_coordinator, fixed, retrying
from ottla.client.core.arguments import ByPartition, PartitionLike, as_committed_offsets, as_partitions
from ottla.client.core.model import CommittedOffset
from ottla.client.core.network import Network
from ottla.client.core.offset_requests import (
    MAX_VERSION_WITH_NAMES,
    build_offset_fetch,
    commit_topics,
)
from ottla.errors import ErrorCode, KafkaError, error_for, raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.types import TopicPartition, partitions_by_topic


async def list_group_offsets(
    network: Network,
    group_id: str,
    partitions: Iterable[PartitionLike] | None = None,
    *,
    require_stable: bool = False,
) -> dict[TopicPartition, CommittedOffset]:
    wanted = None if partitions is None else partitions_by_topic(sorted(as_partitions(partitions)))

    def build(version: int) -> OffsetFetchRequest:
        if require_stable and version < 7:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot wait for stable offsets (KIP-447)")
        return build_offset_fetch(group_id, wanted, require_stable, version)

    async def attempt() -> dict[TopicPartition, CommittedOffset]:
        response = await ask_coordinator(
            network, ApiKey.OFFSET_FETCH, build, group_id, max_version=MAX_VERSION_WITH_NAMES
        )
        answer = response.groups[0] if response.groups else response
        doing = f"reading the offsets of group {group_id}"
        raise_for(answer.error_code, doing)
        committed = {}
        for topic in answer.topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                raise_for(p.error_code, f"{doing}: {partition}")
                if p.committed_offset >= 0:
                    offset = CommittedOffset(p.committed_offset, p.committed_leader_epoch, p.metadata or "")
                    committed[partition] = offset
        return dict(sorted(committed.items()))

    return await retrying(network, attempt)


async def alter_group_offsets(network: Network, group_id: str, offsets: ByPartition[int | CommittedOffset]) -> None:
    wanted = as_committed_offsets(offsets)
    done: set[TopicPartition] = set()

    async def attempt() -> None:
        missing = {partition: offset for partition, offset in wanted.items() if partition not in done}
        message = commit_request(group_id, missing)
        response = await ask_coordinator(
            network, ApiKey.OFFSET_COMMIT, fixed(message), group_id, max_version=MAX_VERSION_WITH_NAMES
        )
        _check_partitions(response, f"committing offsets of group {group_id}", done)

    if wanted:
        await retrying(network, attempt)


async def delete_group_offsets(network: Network, group_id: str, partitions: Iterable[PartitionLike]) -> None:
    topics = [
        OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=name,
            partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=p) for p in indexes],
        )
        for name, indexes in partitions_by_topic(sorted(as_partitions(partitions))).items()
    ]
    message = OffsetDeleteRequest(group_id=group_id, topics=topics)
    doing = f"deleting offsets of group {group_id}"

    async def attempt() -> None:
        response = await ask_coordinator(network, ApiKey.OFFSET_DELETE, fixed(message), group_id)
        raise_for(response.error_code, doing)
        _check_partitions(response, doing, set())

    await retrying(network, attempt)


def commit_request(group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> OffsetCommitRequest:
    """A commit from outside the group: no member id, no generation."""
    topics = commit_topics(offsets)
    return OffsetCommitRequest(group_id=group_id, generation_id_or_member_epoch=-1, member_id="", topics=topics)


def _check_partitions(response: Any, doing: str, done: set[TopicPartition]) -> None:
    """Adds the partitions that succeeded to `done`; raises for one that failed, preferably with a final error."""
    raised: KafkaError | None = None
    for topic in response.topics:
        for p in topic.partitions:
            partition = TopicPartition(topic.name, p.partition_index)
            if p.error_code == ErrorCode.NONE:
                done.add(partition)
            elif raised is None or raised.retriable:
                raised = error_for(p.error_code, f"{doing}: {partition}")
    if raised is not None:
        raise raised
