"""The interface of assignors: their input, their result, and two base classes for custom ones. Pure.

The leader of a group runs `assign` for all members. A subclass of `PartitionAssignor` only decides who gets which
partitions. A subclass of `Assignor` can also send user data with subscriptions and assignments.

>>> class FirstTakesAll(PartitionAssignor):
...     name = "first-takes-all"
...     def assign_partitions(self, cluster, subscriptions):
...         first, *rest = sorted(subscriptions)
...         everything = [tp for topic in subscriptions[first].topics for tp in cluster.partitions_of(topic)]
...         return {first: everything} | {member: [] for member in rest}
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ottla.types import TopicPartition

EAGER = "EAGER"
COOPERATIVE = "COOPERATIVE"


class PartitionInfo(NamedTuple):
    """A partition and the racks of its replicas, without unknown racks."""

    topic: str
    partition: int
    racks: frozenset[str] = frozenset()
    leader_rack: str | None = None


class ClusterMetadata:
    """The partitions of each topic, as the group's leader knows them.

    >>> ClusterMetadata.of({"orders": 3}).partitions_of("orders")
    [TopicPartition(topic='orders', partition=0), TopicPartition(topic='orders', partition=1), \
TopicPartition(topic='orders', partition=2)]
    """

    def __init__(self, partitions: Iterable[PartitionInfo]) -> None:
        self._topics: dict[str, list[PartitionInfo]] = {}
        for info in partitions:
            self._topics.setdefault(info.topic, []).append(info)
        for infos in self._topics.values():
            infos.sort(key=lambda info: info.partition)

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> "ClusterMetadata":
        """Topics with the given number of partitions each, without racks."""
        return cls(PartitionInfo(topic, index) for topic, count in counts.items() for index in range(count))

    def infos_of(self, topic: str) -> list[PartitionInfo]:
        return self._topics.get(topic, [])

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, info.partition) for info in self._topics.get(topic, ())]

    def count_of(self, topic: str) -> int:
        """0 for a topic that does not exist."""
        return len(self._topics.get(topic, ()))

    def leader_rack(self, partition: TopicPartition) -> str | None:
        for info in self._topics.get(partition.topic, ()):
            if info.partition == partition.partition:
                return info.leader_rack
        return None


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member sends to the leader."""

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: list[TopicPartition] = field(default_factory=list)
    generation_id: int = -1
    rack_id: str | None = None
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader sends to a member."""

    partitions: list[TopicPartition]
    user_data: bytes | None = None


class Assignor(ABC):
    """Decides which member gets which partitions; may exchange user data with the members."""

    name: ClassVar[str]
    """The name that members of a group agree on. It must differ from the built-in names."""
    protocols: ClassVar[tuple[str, ...]] = (EAGER,)
    """EAGER: members revoke all partitions before a rebalance. COOPERATIVE: only those that move (KIP-429)."""
    shares_partitions: ClassVar[bool] = False
    """Whether one partition may go to several members, as in a broadcast. Otherwise that is an error."""

    def subscription(self, topics: list[str]) -> Subscription:
        """What this member sends when it joins: its topics, and `user_data` if the assignor needs some."""
        return Subscription(topics)

    @abstractmethod
    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        """The assignment of every member. Members without partitions need an empty one."""

    def on_assignment(self, assignment: Assignment, generation: int = -1) -> None:  # noqa: B027
        """Called when this member receives its assignment. Does nothing unless overridden.

        A method without the second parameter, `on_assignment(self, assignment)`, is called without the generation.
        """


class PartitionAssignor(Assignor):
    """An assignor without user data."""

    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        return {
            member: Assignment(partitions)
            for member, partitions in self.assign_partitions(cluster, subscriptions).items()
        }

    @abstractmethod
    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """The partitions of every member. Members without partitions need an empty list."""


def in_member_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Static members first, by instance id, then the others by member id.

    A static member that restarts under a new member id keeps its place (KIP-345).
    """

    def key(member: str) -> tuple[int, str]:
        instance = subscriptions[member].group_instance_id
        return (1, member) if instance is None else (0, instance)

    return sorted(subscriptions, key=key)


def subscribers_by_topic(subscriptions: Mapping[str, Subscription]) -> dict[str, list[str]]:
    """The subscribers of each topic, in member order."""
    topics: dict[str, list[str]] = {}
    for member in in_member_order(subscriptions):
        for topic in dict.fromkeys(subscriptions[member].topics):
            topics.setdefault(topic, []).append(member)
    return topics
