"""Admin calls about topics: create, list, describe, delete, add partitions, delete records, count records."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.client.admin.requests import ask, fixed, retrying
from ottla.client.core.arguments import ByPartition, as_names, as_new_topics, by_partition
from ottla.client.core.cluster_view import describe_topic
from ottla.client.core.model import EARLIEST, LATEST, CreatedTopic, NewTopic, TopicDescription
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import leaders_of, list_offsets
from ottla.client.core.polling import CONTROLLER
from ottla.errors import ErrorCode, KafkaError, raise_for
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_records import DeleteRecordsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.types import TopicPartition

log = logging.getLogger("ottla.client")

KNOWN_TIMEOUT_MS = 10_000
"""How long creating a topic waits until all brokers know it."""
KNOWN_REQUEST_MS = 2_000


async def create_topics(
    network: Network, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> list[CreatedTopic]:
    message = CreateTopicsRequest(
        topics=[_creatable(topic) for topic in as_new_topics(topics)],
        timeout_ms=network.config.request_timeout_ms,
        validate_only=validate_only,
    )

    async def attempt() -> list[CreatedTopic]:
        response = await ask(network, ApiKey.CREATE_TOPICS, fixed(message), CONTROLLER)
        for result in response.topics:
            raise_for(result.error_code, f"creating topic {result.name}", result.error_message)
        return [
            CreatedTopic(
                result.name,
                result.topic_id,
                result.num_partitions,
                result.replication_factor,
                {config.name: config.value for config in result.configs or ()},
            )
            for result in response.topics
        ]

    created = await retrying(network, attempt)
    if not validate_only:
        await _until_known(network, created)
    return created


async def _until_known(network: Network, created: Sequence[CreatedTopic]) -> None:
    """Waits until every broker knows the topics and their leaders: the controller responds when they are created, and
    the brokers learn of them a moment later. So a send() or subscribe() does not fail because a broker lags behind.

    The topics exist in any case, so a timeout or an unreachable broker is not an error."""
    names = [topic.name for topic in created]
    pending = set(network.view.brokers)
    deadline = network.now() + KNOWN_TIMEOUT_MS
    failures = 0
    while pending and network.now() < deadline:
        for node_id in sorted(pending):
            try:
                response = await network.request(
                    ApiKey.METADATA, _metadata_request(names), destination=node_id, timeout_ms=KNOWN_REQUEST_MS
                )
            except KafkaError:
                pending.discard(node_id)
                continue
            leaders = {
                topic.name: topic.partitions and all(partition.leader_id >= 0 for partition in topic.partitions)
                for topic in response.message.topics
                if topic.error_code == ErrorCode.NONE
            }
            if all(leaders.get(name) for name in names):
                pending.discard(node_id)
        if pending:
            failures += 1
            await asyncio.sleep(min(100, 5 * 2 ** min(failures, 10)) / 1000)
    if pending:
        names_text, brokers = ", ".join(names), ", ".join(map(str, sorted(pending)))
        log.info("admin: topics %s are created, but brokers %s do not know them yet", names_text, brokers)


async def list_topics(network: Network, *, include_internal: bool = False) -> list[TopicDescription]:
    response = await metadata(network, None)
    found = [describe_topic(topic) for topic in response.topics if topic.error_code == ErrorCode.NONE]
    return sorted((t for t in found if include_internal or not t.is_internal), key=lambda topic: topic.name)


async def describe_topics(network: Network, names: Sequence[str]) -> list[TopicDescription]:
    names = as_names(names, "topics")

    async def attempt() -> list[TopicDescription]:
        response = await metadata(network, names)
        by_name = {topic.name: topic for topic in response.topics}
        for name in names:
            raise_for(by_name[name].error_code, f"topic {name}")
        return [describe_topic(by_name[name]) for name in names]

    return await retrying(network, attempt)


async def delete_topics(network: Network, names: Sequence[str]) -> None:
    names, timeout_ms = as_names(names, "topics"), network.config.request_timeout_ms

    def build(version: int) -> DeleteTopicsRequest:
        if version >= 6:
            states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
            return DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)
        return DeleteTopicsRequest(topic_names=names, timeout_ms=timeout_ms)

    async def attempt() -> None:
        response = await ask(network, ApiKey.DELETE_TOPICS, build, CONTROLLER)
        for result in response.responses:
            raise_for(result.error_code, f"deleting topic {result.name}", result.error_message)

    await retrying(network, attempt)


async def create_partitions(network: Network, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
    message = CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
            for name, count in totals.items()
        ],
        timeout_ms=network.config.request_timeout_ms,
        validate_only=validate_only,
    )

    async def attempt() -> None:
        response = await ask(network, ApiKey.CREATE_PARTITIONS, fixed(message), CONTROLLER)
        for result in response.results:
            raise_for(result.error_code, f"adding partitions to {result.name}", result.error_message)

    await retrying(network, attempt)


async def delete_records(network: Network, before: ByPartition[int]) -> dict[TopicPartition, int]:
    offsets_before = by_partition(before, "before", '{("orders", 0): 1000}')
    done: dict[TopicPartition, int] = {}

    async def attempt() -> dict[TopicPartition, int]:
        missing = {partition: offset for partition, offset in offsets_before.items() if partition not in done}
        leaders = await leaders_of(network, missing)
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in missing.items():
            by_node.setdefault(leaders[partition].node_id, {})[partition] = offset
        for node_id, offsets in by_node.items():
            message = _delete_request(offsets, network.config.request_timeout_ms)
            response = await ask(network, ApiKey.DELETE_RECORDS, fixed(message), node_id)
            for topic in response.topics:
                for result in topic.partitions:
                    partition = TopicPartition(topic.name, result.partition_index)
                    raise_for(result.error_code, f"deleting records of {partition}")
                    done[partition] = result.low_watermark
        return done

    return await retrying(network, attempt)


async def count_records(network: Network, names: Sequence[str]) -> dict[str, int]:
    topics = await describe_topics(network, names)
    partitions = [TopicPartition(t.name, p.partition) for t in topics for p in t.partitions if p.leader >= 0]
    first = await list_offsets(network, dict.fromkeys(partitions, EARLIEST))
    last = await list_offsets(network, dict.fromkeys(partitions, LATEST))
    counts = dict.fromkeys(names, 0)
    for partition in partitions:
        start, end = first[partition], last[partition]
        counts[partition.topic] += end.offset - start.offset if start is not None and end is not None else 0
    return counts


async def metadata(network: Network, names: Sequence[str] | None) -> Any:
    """A Metadata response about these topics; None asks for all of them."""
    return await retrying(network, lambda: ask(network, ApiKey.METADATA, _metadata_request(names)))


def _metadata_request(names: Sequence[str] | None) -> Callable[[int], MetadataRequest]:
    def build(version: int) -> MetadataRequest:
        topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        if version >= 4:
            # Describing a topic must not create it.
            return MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        return MetadataRequest(topics=topics)

    return build


def _creatable(topic: NewTopic) -> Any:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in topic.assignments.items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


def _delete_request(offsets: Mapping[TopicPartition, int], timeout_ms: int) -> DeleteRecordsRequest:
    topics: dict[str, Any] = {}
    for partition, offset in offsets.items():
        topic = topics.setdefault(partition.topic, DeleteRecordsRequest.DeleteRecordsTopic(name=partition.topic))
        topic.partitions.append(
            DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        )
    return DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=timeout_ms)
