"""Looks up offsets by timestamp (ListOffsets): one request per leader, with retries while leaders move."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping

from ottla.client.core.cluster_view import MISSING_TOPIC, ClusterView, Leader, missing_partition, topic_failure
from ottla.client.core.model import MAX_TIMESTAMP, OffsetAndTimestamp
from ottla.client.core.network import Network
from ottla.client.core.offset_requests import build_list_offsets, read_list_offsets
from ottla.errors import ErrorCode, KafkaError
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.list_offsets import ListOffsetsRequest
from ottla.types import TopicPartition

_MIN_VERSION = {MAX_TIMESTAMP: 7}

NO_RETRY = MISSING_TOPIC
"""Retriable in the protocol, but final for an admin call: there is no such topic."""


async def list_offsets(
    network: Network,
    wanted: Mapping[TopicPartition, int],
    *,
    isolation_level: str = "read_uncommitted",
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """For each partition the first offset at or after a timestamp (or EARLIEST, LATEST, MAX_TIMESTAMP).

    None if no record is at or after the timestamp.
    """
    found: dict[TopicPartition, OffsetAndTimestamp | None] = {}

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp | None]:
        missing = {partition: at for partition, at in wanted.items() if partition not in found}
        leaders = await leaders_of(network, missing)
        by_node: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, at in missing.items():
            by_node[leaders[partition].node_id][partition] = at
        asked = [_ask(network, node, part, leaders, isolation_level, found) for node, part in by_node.items()]
        errors = [error for error in await asyncio.gather(*asked) if error is not None]
        if errors:
            raise next((error for error in errors if not error.retriable), errors[0])
        return found

    return await network.retrying(attempt, timeout_ms=timeout_ms, final=NO_RETRY)


async def leaders_of(network: Network, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Leader]:
    view = network.view
    await network.until_connected()
    before = view.version
    for topic in {partition.topic for partition in partitions}:
        view.want(topic, network.now())
    network.wake()

    def settled() -> bool:
        return all(p.topic in view.topics or p.topic in view.topic_errors for p in partitions)

    await network.until(settled, network.config.request_timeout_ms)
    if view.version == before and any(why_missing(view, partition) for partition in partitions):
        # The metadata may be stale: the topic may have been created since, or got more partitions.
        view.request_update()
        network.wake()
        await network.until(lambda: view.version > before, network.config.request_timeout_ms)
    leaders = {}
    for partition in partitions:
        error = why_missing(view, partition)
        if error is not None:
            raise error
        leader = view.find_leader(partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment")
        leaders[partition] = leader
    return leaders


def why_missing(view: ClusterView, partition: TopicPartition) -> KafkaError | None:
    """The error if the metadata has no such topic or partition; None if it has."""
    error = view.topic_errors.get(partition.topic)
    if error is not None:
        return topic_failure(error, partition.topic)
    count = view.find_partition_count(partition.topic)
    if count is None or 0 <= partition.partition < count:
        return None
    return missing_partition(partition.topic, partition.partition, count)


async def _ask(
    network: Network,
    node_id: int,
    wanted: Mapping[TopicPartition, int],
    leaders: Mapping[TopicPartition, Leader],
    isolation_level: str,
    found: dict[TopicPartition, OffsetAndTimestamp | None],
) -> KafkaError | None:
    """Requests offsets from one leader and adds them to `found`. Returns the last error, if any."""

    def build(version: int) -> ListOffsetsRequest:
        for at in wanted.values():
            if version < _MIN_VERSION.get(at, 0):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker cannot look up the largest timestamp")
        return build_list_offsets(wanted, leaders, isolation_level, version, network.config.request_timeout_ms)

    try:
        answer = await network.request(ApiKey.LIST_OFFSETS, build, destination=node_id)
    except KafkaError as error:
        return error
    failure: KafkaError | None = None
    for partition, code, result in read_list_offsets(answer.message):
        if code != ErrorCode.NONE:
            failure = KafkaError(code, f"looking up an offset of {partition}")
        else:
            found[partition] = result
    missing = ", ".join(str(partition) for partition in wanted if partition not in found)
    if failure is None and missing:
        detail = f"looking up offsets: the response does not include {missing}"
        failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, detail)
    return failure
