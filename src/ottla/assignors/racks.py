"""Which members are in the rack of a replica (KIP-881). Pure."""

from collections.abc import Mapping

from ottla.assignors.base import ClusterMetadata, Subscription
from ottla.types import TopicPartition


class RackInfo:
    """Racks of members and partitions. They are ignored if they make no difference."""

    def __init__(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> None:
        self.members = {m: s.rack_id for m, s in subscriptions.items() if s.rack_id is not None}
        self.is_used = False
        self._partitions: dict[TopicPartition, frozenset[str]] = {}
        self._near: dict[TopicPartition, int] = {}
        if not self.members:
            return
        topics = sorted({topic for subscription in subscriptions.values() for topic in subscription.topics})
        racks = {
            TopicPartition(topic, info.partition): info.racks for topic in topics for info in cluster.infos_of(topic)
        }
        everywhere = frozenset().union(*racks.values()) if racks else frozenset()
        if not everywhere & set(self.members.values()) or all(each == everywhere for each in racks.values()):
            return
        self.is_used = True
        self._partitions = racks
        subscribers: dict[str, list[str]] = {}
        for member, subscription in subscriptions.items():
            if member in self.members:
                for topic in set(subscription.topics):
                    subscribers.setdefault(topic, []).append(self.members[member])
        self._near = {
            partition: sum(rack in near for rack in subscribers.get(partition.topic, ()))
            for partition, near in racks.items()
        }

    def matches(self, member: str, partition: TopicPartition) -> bool:
        """Whether the partition has a replica in the member's rack. True for a member without a rack."""
        rack = self.members.get(member)
        return rack is None or rack in self._partitions.get(partition, frozenset())

    def is_near(self, member: str, partition: TopicPartition) -> bool:
        """Like `matches`, but False for a member without a rack."""
        rack = self.members.get(member)
        return rack is not None and rack in self._partitions.get(partition, frozenset())

    def fewest_near_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Orders partitions by the number of members in their racks, so that those with little choice go first."""
        return sorted(partitions, key=self._near.__getitem__) if self.is_used else partitions
