"""A snapshot of a cluster for `ottla cluster`: its metadata, and the disk usage of every broker."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from ottla.cli.session import NOT_SERVED
from ottla.client.blocking import Admin
from ottla.client.core.model import (
    ClusterDescription,
    LogDirectory,
    PartitionDescription,
    QuorumDescription,
    Reassignment,
    TopicDescription,
)
from ottla.errors import ErrorCode, KafkaError
from ottla.types import TopicPartition

T = TypeVar("T")

GONE = (ErrorCode.BROKER_NOT_AVAILABLE,)
SIZES_S = 3.0
"""How long to wait for the sizes of replicas on each broker."""


@dataclass(frozen=True)
class Behind:
    """A replica that is not in sync."""

    partition: TopicPartition
    broker: int
    leader: int | None
    is_running: bool
    is_new: bool
    """It is being added by a reassignment."""
    bytes: int | None
    leader_bytes: int | None

    @property
    def missing_bytes(self) -> int | None:
        """Approximately how much it still has to copy: sizes also differ where logs were cleaned at different times."""
        if self.bytes is None or self.leader_bytes is None:
            return None
        return max(0, self.leader_bytes - self.bytes)

    @property
    def progress(self) -> float | None:
        """From 0 to 1; None if it is not known."""
        if self.bytes is None or not self.leader_bytes:
            return None
        return min(1.0, self.bytes / self.leader_bytes)

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "broker": self.broker,
            "running": self.is_running,
            "adding": self.is_new,
            "bytes": self.bytes,
            "leader_bytes": self.leader_bytes,
            "missing_bytes": self.missing_bytes,
        }


class ClusterState:
    """One snapshot of the cluster."""

    def __init__(
        self,
        description: ClusterDescription,
        quorum: QuorumDescription | None,
        topics: list[TopicDescription],
        directories: list[LogDirectory],
        reassignments: dict[TopicPartition, Reassignment],
    ) -> None:
        self.description = description
        self.quorum = quorum
        self.topics = topics
        self.reassignments = reassignments
        self.running = {node.node_id: node for node in description.brokers}
        self.sizes: dict[int, dict[TopicPartition, int]] = {}
        for directory in directories:
            sizes = self.sizes.setdefault(directory.node_id, {})
            for held in directory.replicas:
                sizes[held.partition] = held.size_bytes
        self.leads: dict[int, int] = defaultdict(int)
        self.holds: dict[int, int] = defaultdict(int)
        self.in_sync: dict[int, int] = defaultdict(int)
        self.offline: list[tuple[TopicPartition, PartitionDescription]] = []
        self.under_replicated: list[tuple[TopicPartition, PartitionDescription]] = []
        for partition, p in self.partitions():
            self.leads[p.leader] += 1
            for replica in p.replicas:
                self.holds[replica] += 1
                self.in_sync[replica] += replica in p.in_sync_replicas
            if p.leader < 0:
                self.offline.append((partition, p))
            if len(p.in_sync_replicas) < len(p.replicas):
                self.under_replicated.append((partition, p))

    @property
    def down(self) -> list[int]:
        """Brokers that have replicas but are not running."""
        return sorted(broker for broker in self.holds if broker not in self.running)

    @property
    def is_healthy(self) -> bool:
        return not self.offline and not self.under_replicated and not self.reassignments

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics)

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionDescription]]:
        for topic in self.topics:
            for p in topic.partitions:
                yield TopicPartition(topic.name, p.partition), p

    def behind(self) -> list[Behind]:
        """Every replica that is not in sync, the one with the most to copy first."""
        found = []
        for partition, p in self.under_replicated:
            moving = self.reassignments.get(partition)
            for broker in p.replicas:
                if broker in p.in_sync_replicas:
                    continue
                found.append(
                    Behind(
                        partition,
                        broker,
                        p.leader if p.leader >= 0 else None,
                        broker in self.running,
                        moving is not None and broker in moving.adding_replicas,
                        self.sizes.get(broker, {}).get(partition),
                        self.sizes.get(p.leader, {}).get(partition),
                    )
                )
        return sorted(found, key=lambda each: -(each.missing_bytes or 0))


def read_state(admin: Admin) -> ClusterState:
    """Takes a snapshot. Brokers that die meanwhile are left out."""
    description = admin.describe_cluster()
    topics = admin.list_topics(include_internal=True)
    return ClusterState(
        description,
        _if_served(admin.describe_quorum),
        topics,
        _directories(admin, [node.node_id for node in description.brokers]),
        _if_served(admin.list_partition_reassignments) or {},
    )


def _directories(admin: Admin, node_ids: list[int]) -> list[LogDirectory]:
    """Queries all brokers in parallel. One that hangs or has just died does not delay the others."""
    pool = ThreadPoolExecutor(max(1, len(node_ids)))
    try:
        asked = [pool.submit(admin.describe_log_dirs, [node_id]) for node_id in node_ids]
        answered, _ = wait(asked, SIZES_S)
        return [directory for future in asked if future in answered for directory in _answer(future)]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answer(future: "Future[list[LogDirectory]]") -> list[LogDirectory]:
    error = future.exception()
    if error is None:
        return future.result()
    if not isinstance(error, KafkaError) or not (error.retriable or error.code in (*NOT_SERVED, *GONE)):
        raise error
    return []


def _if_served(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except KafkaError as error:
        if error.code not in NOT_SERVED:
            raise
        return None
