"""The broker's coordinators, built when first needed, so that a broker without groups starts fast and stays small."""

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ottla.broker.settings.config import BrokerConfig, Settings
from ottla.clock import Clock
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_LEADER
from ottla.replication.replica_manager import ReplicaManager
from ottla.types import OFFSETS_TOPIC, REBALANCES_TOPIC, TRANSACTIONS_TOPIC, TopicPartition, partition_for, uuid4_from

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.group_history import GroupHistory
    from ottla.coordinator.broker_requests import AddPartitionsRequests, Codes
    from ottla.coordinator.group.shard import GroupShard
    from ottla.coordinator.markers import MarkerDelivery, MarkerWriter
    from ottla.coordinator.runtime import CoordinatorRuntime
    from ottla.coordinator.transaction.shard import TransactionShard
    from ottla.replication.broker_peers import BrokerPeers


class Coordinators:
    """Holds the group and the transaction coordinator, and passes each new image to them."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        metadata: MetadataFollower,
        replicas: ReplicaManager,
        clock: Clock,
        peers: "BrokerPeers | None" = None,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self.replicas = replicas
        self._clock = clock
        self._peers = peers
        self._groups: CoordinatorRuntime[GroupShard] | None = None
        self._history: GroupHistory | None = None
        self._transactions: CoordinatorRuntime[TransactionShard] | None = None
        self._marker_writer: MarkerWriter | None = None
        self._add_partitions: AddPartitionsRequests | None = None
        self.marker_delivery: MarkerDelivery | None = None

    @property
    def groups(self) -> "CoordinatorRuntime[GroupShard]":
        if self._groups is None:
            self._build_groups()
            assert self._groups is not None
            self._groups.apply(self._metadata.image)
        return self._groups

    @property
    def transactions(self) -> "CoordinatorRuntime[TransactionShard]":
        if self._transactions is None:
            self._build_transactions()
            assert self._transactions is not None
            self._transactions.apply(self._metadata.image)
        return self._transactions

    @property
    def marker_writer(self) -> "MarkerWriter":
        """Appends transaction markers to the partitions this broker leads."""
        if self._marker_writer is None:
            from ottla.coordinator.markers import MarkerWriter

            self._marker_writer = MarkerWriter(self.replicas, lambda: self.groups, self._clock)
        return self._marker_writer

    def apply(self, image: ClusterImage) -> None:
        if self._groups is None and OFFSETS_TOPIC in image.topics:
            self._build_groups()
        if self._groups is not None:
            self._groups.apply(image)
        if self._transactions is None and TRANSACTIONS_TOPIC in image.topics:
            self._build_transactions()
        if self._transactions is not None:
            self._transactions.apply(image)
        if self.marker_delivery is not None:
            self.marker_delivery.apply(image)

    def ask_coordinator(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        implicit: bool,
    ) -> "asyncio.Future[Codes] | None":
        """Asks the broker that coordinates a transaction whether partitions are part of it, or to add them if
        `implicit` (KIP-890). None if no other broker coordinates it."""
        topic = self._metadata.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        coordinator = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        if coordinator in (NO_LEADER, self.replicas.broker_id):
            return None
        from ottla.coordinator.broker_requests import Addition, AddPartitionsRequests

        if self._add_partitions is None:
            self._add_partitions = AddPartitionsRequests(self._peers)
        addition = Addition(transactional_id, producer_id, producer_epoch, tuple(partitions), not implicit)
        return self._add_partitions.ask(coordinator, addition)

    def runtimes(self) -> "list[CoordinatorRuntime[Any]]":
        """Those that have been built."""
        return [runtime for runtime in (self._groups, self._transactions) if runtime is not None]

    async def stop(self) -> None:
        if self.marker_delivery is not None:
            self.marker_delivery.stop()
        if self._transactions is not None:
            await self._transactions.stop()
        if self._groups is not None:
            await self._groups.stop()
        if self._history is not None:
            self._history.stop()

    def _build_groups(self) -> None:
        from ottla.broker.group_history import GroupHistory
        from ottla.coordinator.group.shard import GroupShard
        from ottla.coordinator.runtime import CoordinatorRuntime

        self._history = GroupHistory(
            self._metadata.changes,
            self.replicas,
            lambda: Settings(self._config).automatic_topic(self._metadata.image, REBALANCES_TOPIC),
            self._peers,
        )

        def make_shard(partition: int) -> GroupShard:
            return GroupShard(self._config, random_uuid, total_usage)

        def total_usage() -> int:
            return sum(hosted.shard.usage.size_bytes for hosted in groups.active_shards())

        self._groups = groups = CoordinatorRuntime(
            OFFSETS_TOPIC,
            make_shard=make_shard,
            replicas=self.replicas,
            clock=self._clock,
            on_event=self._history.note,
            append_timeout_ms=self._config.offsets_commit_timeout_ms,
        )

    def _build_transactions(self) -> None:
        from ottla.coordinator.broker_requests import MarkerRequests
        from ottla.coordinator.markers import MarkerDelivery
        from ottla.coordinator.runtime import CoordinatorRuntime
        from ottla.coordinator.transaction.shard import SendMarkers, TransactionShard

        def on_event(event: object) -> None:
            if isinstance(event, SendMarkers):
                delivery.send(event)

        runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTIONS_TOPIC,
            make_shard=lambda partition: TransactionShard(self._config),
            replicas=self.replicas,
            clock=self._clock,
            on_event=on_event,
        )
        delivery = MarkerDelivery(self.marker_writer, self.replicas, runtime, MarkerRequests(self._peers))
        self._transactions, self.marker_delivery = runtime, delivery


def random_uuid() -> str:
    """A random UUID as text; Kafka's member ids end with one."""
    text = uuid4_from(os.urandom(16)).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
