"""What every assignor is given and gives back, and the two ways to write one. Pure.

The leader of a group runs `assign` for all members. A subclass of `PartitionAssignor` only says who gets which
partitions; a subclass of `Assignor` also sends data of its own with each member's subscription and assignment.

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
    """A partition and the racks its replicas are in (unknown racks are left out)."""

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
        """Topics with this many partitions each, racks unknown."""
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
    """What a member tells the leader."""

    topics: list[str]
    user_data: bytes | None = None
    owned_partitions: list[TopicPartition] = field(default_factory=list)
    generation_id: int = -1
    rack_id: str | None = None
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the leader gives a member."""

    partitions: list[TopicPartition]
    user_data: bytes | None = None


class Assignor(ABC):
    """Decides who gets which partition, with data of its own on the way if it likes."""

    name: ClassVar[str]
    """What members of a group agree on; it must differ from the built-in names."""
    protocols: ClassVar[tuple[str, ...]] = (EAGER,)
    """EAGER: everything is given up before a rebalance. COOPERATIVE: only what moves is."""
    shares_partitions: ClassVar[bool] = False
    """Whether one partition may go to several members, as in a broadcast; otherwise that is a mistake."""

    def subscription(self, topics: list[str]) -> Subscription:
        """What this member sends when it joins: the topics, and `user_data` if the assignor wants some."""
        return Subscription(topics)

    @abstractmethod
    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        """Every member of `subscriptions` must be in the answer, if only with nothing."""

    def on_assignment(self, assignment: Assignment, generation: int = -1) -> None:  # noqa: B027
        """This member got its part. Does nothing unless overridden."""


class PartitionAssignor(Assignor):
    """An assignor without data of its own."""

    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        return {
            member: Assignment(partitions)
            for member, partitions in self.assign_partitions(cluster, subscriptions).items()
        }

    @abstractmethod
    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        """Who gets what. Every member must be in the answer."""


def in_member_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Static members first, by instance id, so that a restart under a new member id changes nothing; then the
    others by member id."""

    def key(member: str) -> tuple[int, str]:
        instance = subscriptions[member].group_instance_id
        return (1, member) if instance is None else (0, instance)

    return sorted(subscriptions, key=key)


def subscribers_by_topic(subscriptions: Mapping[str, Subscription]) -> dict[str, list[str]]:
    """Topic to members in member order."""
    topics: dict[str, list[str]] = {}
    for member in in_member_order(subscriptions):
        for topic in dict.fromkeys(subscriptions[member].topics):
            topics.setdefault(topic, []).append(member)
    return topics
