"""The broker's coordinators, built when first needed so that a broker nobody groups on starts and stays small."""

import os
from typing import TYPE_CHECKING

from ottla.broker.config import BrokerConfig
from ottla.clock import Clock
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import ClusterImage
from ottla.replication.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from ottla.broker.group_history import GroupHistory
    from ottla.coordinator.group.shard import GroupShard
    from ottla.coordinator.runtime import CoordinatorRuntime

OFFSETS_TOPIC = "__consumer_offsets"


class Coordinators:
    """Holds the group coordinator, and passes each new image on to it."""

    def __init__(
        self, config: BrokerConfig, *, metadata: MetadataFollower, replicas: ReplicaManager, clock: Clock
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._groups: CoordinatorRuntime[GroupShard] | None = None
        self._history: GroupHistory | None = None

    @property
    def groups(self) -> "CoordinatorRuntime[GroupShard]":
        if self._groups is None:
            self._build_groups()
            assert self._groups is not None
            self._groups.apply(self._metadata.image)
        return self._groups

    def apply(self, image: ClusterImage) -> None:
        if self._groups is None and OFFSETS_TOPIC in image.topics:
            self._build_groups()
        if self._groups is not None:
            self._groups.apply(image)

    async def stop(self) -> None:
        if self._groups is not None:
            await self._groups.stop()
        if self._history is not None:
            self._history.stop()

    def _build_groups(self) -> None:
        from ottla.broker.group_history import GroupHistory
        from ottla.coordinator.group.config import GroupConfig
        from ottla.coordinator.group.shard import GroupShard
        from ottla.coordinator.runtime import CoordinatorRuntime

        config = self._config
        groups = GroupConfig(
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        )
        self._history = GroupHistory(self._metadata, self._replicas, self._clock)

        def make_shard(partition: int) -> GroupShard:
            return GroupShard(groups, random_uuid)

        self._groups = CoordinatorRuntime(
            OFFSETS_TOPIC,
            make_shard=make_shard,
            replicas=self._replicas,
            clock=self._clock,
            on_event=self._history.note,
            append_timeout_ms=config.offsets_commit_timeout_ms,
        )


def random_uuid() -> str:
    """A random UUID in its usual text form, as Kafka ends member ids with."""
    data = bytearray(os.urandom(16))
    data[6] = data[6] & 0x0F | 0x40
    data[8] = data[8] & 0x3F | 0x80
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
