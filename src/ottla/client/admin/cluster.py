"""Admin calls about the cluster: its brokers, their API versions, features and log directories."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ottla.checks import require_number
from ottla.client.admin.requests import ask, ask_named, fixed, retrying
from ottla.client.admin.topics import metadata
from ottla.client.core.model import ApiVersionRange, ClusterDescription, Feature, LogDirectory, Node, ReplicaSize
from ottla.client.core.network import Network
from ottla.client.core.polling import CONTROLLER
from ottla.errors import ArgumentError, ErrorCode, KafkaError, raise_for
from ottla.protocol.api import API, ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.update_features import UpdateFeaturesRequest
from ottla.protocol.wire_values import UpgradeType
from ottla.types import TopicPartition


async def describe_cluster(network: Network) -> ClusterDescription:
    async def attempt() -> ClusterDescription:
        try:
            response = await ask(network, ApiKey.DESCRIBE_CLUSTER, fixed(DescribeClusterRequest()))
            raise_for(response.error_code, "describing the cluster", response.error_message)
            nodes = [Node(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
        except KafkaError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            response = await metadata(network, [])  # brokers before 2.8 have no DescribeCluster (KIP-700)
            nodes = [Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers]
        nodes.sort(key=lambda node: node.node_id)
        return ClusterDescription(response.cluster_id or "", response.controller_id, tuple(nodes))

    return await retrying(network, attempt)


async def describe_api_versions(network: Network, node_id: int | None = None) -> list[ApiVersionRange]:
    async def attempt() -> list[ApiVersionRange]:
        response = await _api_versions(network, node_id, "requesting API versions")
        return [
            ApiVersionRange(
                entry.api_key,
                API[entry.api_key].name if entry.api_key in API else f"unknown {entry.api_key}",
                entry.min_version,
                entry.max_version,
            )
            for entry in sorted(response.api_keys, key=lambda entry: entry.api_key)
        ]

    return await retrying(network, attempt)


async def describe_features(network: Network, node_id: int | None = None) -> list[Feature]:
    async def attempt() -> list[Feature]:
        response = await _api_versions(network, node_id, "requesting features")
        agreed = {each.name: each.max_version_level for each in response.finalized_features}
        found = [
            Feature(each.name, each.min_version, each.max_version, agreed.get(each.name, 0))
            for each in response.supported_features
        ]
        return sorted(found, key=lambda feature: feature.name)

    return await retrying(network, attempt)


async def update_features(
    network: Network, levels: Mapping[str, int], *, allow_downgrade: bool = False, validate_only: bool = False
) -> None:
    if not isinstance(levels, Mapping):
        raise ArgumentError(f"levels must be a dict, not {levels!r}", 'Write {"transaction.version": 2}.')
    levels = {name: require_number(level, f"the level of {name}") for name, level in levels.items()}
    current = {f.name: f.finalized for f in await describe_features(network)} if allow_downgrade else {}

    def build(version: int) -> UpdateFeaturesRequest:
        if version < 1 and (allow_downgrade or validate_only):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "the broker can only upgrade features (KIP-778)")
        updates = []
        for name, level in levels.items():
            update = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level)
            if level < current.get(name, 0):
                update.upgrade_type = UpgradeType.SAFE_DOWNGRADE
            updates.append(update)
        return UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)

    async def attempt() -> None:
        response = await ask(network, ApiKey.UPDATE_FEATURES, build, CONTROLLER)
        raise_for(response.error_code, "updating features", response.error_message)
        for result in response.results:
            raise_for(result.error_code, f"updating feature {result.feature}", result.error_message)

    await retrying(network, attempt)


async def describe_log_dirs(network: Network, node_ids: Sequence[int] | None = None) -> list[LogDirectory]:
    if node_ids is None:
        node_ids = [node.node_id for node in (await describe_cluster(network)).brokers]
    await network.until_connected()
    message = DescribeLogDirsRequest(topics=None)

    async def of(node_id: int) -> list[LogDirectory]:
        async def attempt() -> list[LogDirectory]:
            response = await ask_named(network, ApiKey.DESCRIBE_LOG_DIRS, fixed(message), node_id)
            raise_for(response.error_code, f"log directories of broker {node_id}")
            return [_log_directory(node_id, result) for result in response.results]

        return await retrying(network, attempt)

    found = await asyncio.gather(*(of(node_id) for node_id in node_ids))
    return [directory for directories in found for directory in directories]


async def _api_versions(network: Network, node_id: int | None, doing: str) -> Any:
    message = ApiVersionsRequest(client_software_name="ottla", client_software_version="admin")
    response = await ask_named(network, ApiKey.API_VERSIONS, fixed(message), node_id)
    raise_for(response.error_code, doing)
    return response


def _log_directory(node_id: int, result: Any) -> LogDirectory:
    replicas = [
        ReplicaSize(TopicPartition(topic.name, p.partition_index), p.partition_size, p.offset_lag)
        for topic in result.topics
        for p in topic.partitions
    ]
    return LogDirectory(
        node_id=node_id,
        path=result.log_dir,
        replicas=tuple(sorted(replicas, key=lambda replica: replica.partition)),
        total_bytes=result.total_bytes,
        usable_bytes=result.usable_bytes,
        error=ErrorCode(result.error_code),
    )
