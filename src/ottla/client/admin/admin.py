"""AsyncAdmin: topics, partitions, configs, records, offsets and the cluster itself, by request.

Its calls about groups, transactions and features are in admin_groups.py and its neighbours.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from ottla.client.admin.admin_arguments import as_names, as_new_topics, by_partition
from ottla.client.admin.features import AsyncFeatureAdmin, resource_type
from ottla.client.admin.groups import AsyncGroupAdmin
from ottla.client.admin.prepared import AsyncPreparedAdmin
from ottla.client.admin.transactions import AsyncTransactionAdmin
from ottla.client.consumer.consumer_arguments import ByPartition
from ottla.client.core.cluster_view import describe_topic
from ottla.client.core.model import (
    CONFIG_SOURCES,
    CONFIG_TYPES,
    EARLIEST,
    LATEST,
    ApiVersionRange,
    ClusterDescription,
    ConfigEntry,
    CreatedTopic,
    LogDirectory,
    NewTopic,
    Node,
    OffsetAndTimestamp,
    ReplicaSize,
    TopicDescription,
    error_of,
)
from ottla.client.core.network import Network
from ottla.client.core.offset_lookup import NO_RETRY, leaders_of, list_offsets
from ottla.client.core.polling import ANY_NODE, CONTROLLER
from ottla.client.core.settings import AdminConfig, build
from ottla.clock import Clock, system_clock
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.protocol.api import API, ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_records import DeleteRecordsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.types import TopicPartition

_SET, _DELETE = 0, 1
VIEW_IDLE_MS = 300_000
"""Topics that were asked about are kept in view this long."""


class AsyncAdmin(AsyncGroupAdmin, AsyncTransactionAdmin, AsyncPreparedAdmin, AsyncFeatureAdmin):
    """Asks about the cluster and changes it. Errors are KafkaError with the broker's code and words.

    >>> async with AsyncAdmin({"bootstrap.servers": "127.0.0.1:9092"}) as admin:
    ...     await admin.create_topic("orders", partitions=3)
    ...     for topic in await admin.list_topics():
    ...         print(topic.name, len(topic.partitions))
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        clock: Clock = system_clock,
        rng: random.Random | None = None,
        **keywords: Any,
    ) -> None:
        self.config = build(AdminConfig, settings, keywords)
        self._network = Network(self.config, max_idle_ms=VIEW_IDLE_MS, clock=clock, rng=rng)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._network.close()

    # --- topics -------------------------------------------------------------------------------------------

    async def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Creates topics; raises for the first that could not be.

        >>> await admin.create_topics([NewTopic("a", 3), NewTopic("b", configs={"cleanup.policy": "compact"})])
        """

        wanted = as_new_topics(topics)

        def request(version: int) -> CreateTopicsRequest:
            return CreateTopicsRequest(
                topics=[_creatable(topic) for topic in wanted],
                timeout_ms=self.config.request_timeout_ms,
                validate_only=validate_only,
            )

        async def attempt() -> list[CreatedTopic]:
            response = await self._ask(ApiKey.CREATE_TOPICS, request, CONTROLLER)
            for result in response.topics:
                _raise_for(result.error_code, f"creating topic {result.name}", result.error_message)
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

        return await self._retrying(attempt)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> CreatedTopic:
        """Creates one topic; -1 leaves a number to the broker's defaults."""
        created = await self.create_topics([NewTopic(name, partitions, replication_factor, configs or {})])
        return created[0]

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicDescription]:
        """Every topic there is, by name."""
        response = await self._metadata(None)
        found = [describe_topic(topic) for topic in response.topics if topic.error_code == ErrorCode.NONE]
        return sorted((t for t in found if include_internal or not t.is_internal), key=lambda topic: topic.name)

    async def describe_topics(self, names: Sequence[str]) -> list[TopicDescription]:
        """Topics with their partitions, in the order asked; raises UNKNOWN_TOPIC_OR_PARTITION for a missing one."""
        names = as_names(names, "topics")

        async def attempt() -> list[TopicDescription]:
            response = await self._metadata(names)
            by_name = {topic.name: topic for topic in response.topics}
            for name in names:
                _raise_for(by_name[name].error_code, f"topic {name}")
            return [describe_topic(by_name[name]) for name in names]

        return await self._retrying(attempt)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics with everything in them; raises for the first that could not be."""
        names = as_names(names, "topics")

        def request(version: int) -> DeleteTopicsRequest:
            if version >= 6:
                states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
                return DeleteTopicsRequest(topics=states, timeout_ms=self.config.request_timeout_ms)
            return DeleteTopicsRequest(topic_names=names, timeout_ms=self.config.request_timeout_ms)

        async def attempt() -> None:
            response = await self._ask(ApiKey.DELETE_TOPICS, request, CONTROLLER)
            for result in response.responses:
                _raise_for(result.error_code, f"deleting topic {result.name}", result.error_message)

        await self._retrying(attempt)

    async def create_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Grows topics to a total number of partitions.

        >>> await admin.create_partitions({"orders": 6})
        """

        def request(version: int) -> CreatePartitionsRequest:
            return CreatePartitionsRequest(
                topics=[
                    CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
                    for name, count in totals.items()
                ],
                timeout_ms=self.config.request_timeout_ms,
                validate_only=validate_only,
            )

        async def attempt() -> None:
            response = await self._ask(ApiKey.CREATE_PARTITIONS, request, CONTROLLER)
            for result in response.results:
                _raise_for(result.error_code, f"adding partitions to {result.name}", result.error_message)

        await self._retrying(attempt)

    # --- configs ------------------------------------------------------------------------------------------

    async def describe_configs(
        self, kind: str, name: str, *, names: Iterable[str] | None = None, with_documentation: bool = False
    ) -> list[ConfigEntry]:
        """The settings of a topic ("topic", its name) or a broker ("broker", its id).

        >>> await admin.describe_configs("topic", "orders")
        """
        asked, number = None if names is None else list(names), resource_type(kind)

        def request(version: int) -> DescribeConfigsRequest:
            message = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=number, resource_name=name, configuration_keys=asked
                    )
                ]
            )
            if version >= 3:
                message.include_documentation = with_documentation
            return message

        async def attempt() -> list[ConfigEntry]:
            response = await self._ask(ApiKey.DESCRIBE_CONFIGS, request, _config_owner(kind, name))
            (result,) = response.results
            _raise_for(result.error_code, f"settings of {kind} {name}", result.error_message)
            return sorted((_config_entry(config) for config in result.configs), key=lambda entry: entry.name)

        return await self._retrying(attempt)

    async def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Changes some settings and leaves the others; None puts one back to its default.

        >>> await admin.alter_configs("topic", "orders", {"retention.ms": "60000", "cleanup.policy": None})
        """
        number = resource_type(kind)

        def request(version: int) -> IncrementalAlterConfigsRequest:
            configs = [
                IncrementalAlterConfigsRequest.AlterableConfig(
                    name=setting, config_operation=_DELETE if value is None else _SET, value=value
                )
                for setting, value in changes.items()
            ]
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=number, resource_name=name, configs=configs
            )
            return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)

        async def attempt() -> None:
            owner = _config_owner(kind, name)
            destination = CONTROLLER if owner == ANY_NODE else owner
            response = await self._ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, destination)
            for result in response.responses:
                _raise_for(result.error_code, f"changing settings of {kind} {name}", result.error_message)

        await self._retrying(attempt)

    # --- records and offsets ------------------------------------------------------------------------------

    async def delete_records(self, before: ByPartition[int]) -> dict[TopicPartition, int]:
        """Deletes the records below an offset (-1: all that are committed); gives each partition's new first offset.

        >>> await admin.delete_records({TopicPartition("orders", 0): 1000})
        """
        offsets_before = by_partition(before, "before", '{("orders", 0): 1000}')
        done: dict[TopicPartition, int] = {}

        async def attempt() -> dict[TopicPartition, int]:
            missing = {partition: offset for partition, offset in offsets_before.items() if partition not in done}
            leaders = await leaders_of(self._network, missing)
            by_node: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
            for partition, offset in missing.items():
                by_node[leaders[partition].node_id][partition] = offset
            for node_id, offsets in by_node.items():
                response = await self._ask(ApiKey.DELETE_RECORDS, self._delete_request(offsets), node_id)
                for topic in response.topics:
                    for result in topic.partitions:
                        partition = TopicPartition(topic.name, result.partition_index)
                        _raise_for(result.error_code, f"deleting records of {partition}")
                        done[partition] = result.low_watermark
            return done

        return await self._retrying(attempt)

    def _delete_request(self, offsets: Mapping[TopicPartition, int]) -> Callable[[int], DeleteRecordsRequest]:
        topics: dict[str, Any] = {}
        for partition, offset in offsets.items():
            topic = topics.setdefault(partition.topic, DeleteRecordsRequest.DeleteRecordsTopic(name=partition.topic))
            topic.partitions.append(
                DeleteRecordsRequest.DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
            )
        message = DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=self.config.request_timeout_ms)
        return lambda version: message

    async def list_offsets(
        self, wanted: ByPartition[int], *, isolation_level: str = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after a timestamp, or EARLIEST, LATEST, MAX_TIMESTAMP; None if no record is that late.

        >>> await admin.list_offsets({TopicPartition("orders", 0): LATEST})
        """
        asked = by_partition(wanted, "wanted", '{("orders", 0): LATEST}')
        return await list_offsets(self._network, asked, isolation_level=isolation_level)

    async def count_records(self, names: Sequence[str]) -> dict[str, int]:
        """How many offsets lie between each topic's first and last record (markers and gaps counted too).

        Partitions without a leader cannot be asked and count as empty.
        """
        topics = await self.describe_topics(names)
        partitions = [TopicPartition(t.name, p.partition) for t in topics for p in t.partitions if p.leader >= 0]
        first = await self.list_offsets(dict.fromkeys(partitions, EARLIEST))
        last = await self.list_offsets(dict.fromkeys(partitions, LATEST))
        counts = dict.fromkeys(names, 0)
        for partition in partitions:
            start, end = first[partition], last[partition]
            counts[partition.topic] += end.offset - start.offset if start is not None and end is not None else 0
        return counts

    # --- the cluster --------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers, the controller and the cluster's id."""

        async def attempt() -> ClusterDescription:
            try:
                response = await self._ask(ApiKey.DESCRIBE_CLUSTER, lambda version: DescribeClusterRequest())
                _raise_for(response.error_code, "describing the cluster", response.error_message)
                nodes = [Node(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
            except KafkaError as error:
                if error.code != ErrorCode.UNSUPPORTED_VERSION:
                    raise
                response = await self._metadata([])  # a broker from before 2.8 tells the same this way
                nodes = [Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers]
            nodes.sort(key=lambda node: node.node_id)
            return ClusterDescription(response.cluster_id or "", response.controller_id, tuple(nodes))

        return await self._retrying(attempt)

    async def describe_api_versions(self, node_id: int | None = None) -> list[ApiVersionRange]:
        """The APIs that a broker serves and in which versions; of any broker if none is named."""

        async def attempt() -> list[ApiVersionRange]:
            def request(version: int) -> ApiVersionsRequest:
                return ApiVersionsRequest(client_software_name="ottla", client_software_version="admin")

            response = await self._ask(ApiKey.API_VERSIONS, request, ANY_NODE if node_id is None else node_id)
            _raise_for(response.error_code, "asking for API versions")
            return [
                ApiVersionRange(
                    entry.api_key,
                    API[entry.api_key].name if entry.api_key in API else f"unknown {entry.api_key}",
                    entry.min_version,
                    entry.max_version,
                )
                for entry in sorted(response.api_keys, key=lambda entry: entry.api_key)
            ]

        return await self._retrying(attempt)

    async def describe_log_dirs(self, node_ids: Sequence[int] | None = None) -> list[LogDirectory]:
        """The data directories of brokers (all of them by default) and the size of each replica in them."""
        if node_ids is None:
            node_ids = [node.node_id for node in (await self.describe_cluster()).brokers]
        await self._network.until_connected()

        async def of(node_id: int) -> list[LogDirectory]:
            async def attempt() -> list[LogDirectory]:
                request = DescribeLogDirsRequest(topics=None)
                response = await self._ask(ApiKey.DESCRIBE_LOG_DIRS, lambda version: request, node_id)
                _raise_for(response.error_code, f"log directories of broker {node_id}")
                return [_log_directory(node_id, result) for result in response.results]

            return await self._retrying(attempt)

        found = await asyncio.gather(*(of(node_id) for node_id in node_ids))
        return [directory for directories in found for directory in directories]

    # --- asking -------------------------------------------------------------------------------------------

    async def _retrying(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await self._network.retrying(attempt, final=NO_RETRY)

    async def _ask(self, api_key: int, request: Callable[[int], Any], destination: int = ANY_NODE) -> Any:
        if destination != ANY_NODE:
            await self._network.until_connected()
            self._network.check_node(destination)
        return (await self._network.request(api_key, request, destination=destination)).message

    async def _metadata(self, names: Sequence[str] | None) -> Any:
        def request(version: int) -> MetadataRequest:
            topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
            if version >= 4:
                # Asking about a topic must not bring it into being.
                return MetadataRequest(topics=topics, allow_auto_topic_creation=False)
            return MetadataRequest(topics=topics)

        async def attempt() -> Any:
            return await self._ask(ApiKey.METADATA, request)

        return await self._retrying(attempt)


def _raise_for(error_code: int, doing: str, message: str | None = None) -> None:
    if error_code != ErrorCode.NONE:
        raise KafkaError(error_of(error_code), f"{doing}: {message}" if message else doing)


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


def _config_owner(kind: str, name: str) -> int:
    """Only the broker itself knows its settings; a topic's are known to all."""
    if kind not in ("broker", "broker-logger") or not name:
        return ANY_NODE
    if not name.isascii() or not name.isdigit():
        raise OttlaError(f"{name!r} is not the id of a broker", "describe_cluster() tells the ids.")
    return int(name)


def _config_entry(config: Any) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=CONFIG_SOURCES.get(config.config_source, "unknown"),
        is_default=config.config_source == 5,
        is_read_only=config.read_only,
        is_sensitive=config.is_sensitive,
        config_type=CONFIG_TYPES[config.config_type] if 0 <= config.config_type < len(CONFIG_TYPES) else "unknown",
        documentation=config.documentation,
    )


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
        error=error_of(result.error_code),
    )
