"""`range`: contiguous partitions of each topic in member order; rack-aware (KIP-881). Pure."""

from collections.abc import Callable, Mapping

from ottla.assignors.base import ClusterMetadata, PartitionAssignor, Subscription, subscribers_by_topic
from ottla.types import TopicPartition


class _Topic:
    """One topic during its assignment."""

    def __init__(
        self, topic: str, cluster: ClusterMetadata, members: list[str], racks: Mapping[str, str | None]
    ) -> None:
        self.topic = topic
        self.members = members
        self.member_racks = [racks[member] for member in members]
        infos = cluster.infos_of(topic)
        self.racks = {info.partition: info.racks for info in infos}
        self.unassigned = dict.fromkeys(info.partition for info in infos)
        self.quota, self.members_with_one_more = divmod(len(infos), len(members))
        self.taken = dict.fromkeys(members, 0)
        self._rack_of = dict(zip(members, self.member_racks, strict=True))
        self.is_rack_aware = self._racks_matter()

    def _racks_matter(self) -> bool:
        """Whether racks matter: some member shares a rack with a replica, and not all partitions are equal."""
        everywhere = frozenset().union(*self.racks.values()) if self.racks else frozenset()
        if not everywhere & {rack for rack in self.member_racks if rack is not None}:
            return False
        return any(racks != everywhere for racks in self.racks.values())

    def matches(self, member: str, partition: int) -> bool:
        rack = self._rack_of[member]
        return rack is None or rack in self.racks[partition]

    def room(self, member: str) -> int:
        return max(0, self.quota + (1 if self.members_with_one_more > 0 else 0) - self.taken[member])

    def give(self, member: str, partitions: list[int], assigned: dict[str, list[TopicPartition]]) -> None:
        before = self.taken[member]
        self.taken[member] += len(partitions)
        if before <= self.quota < self.taken[member]:
            self.members_with_one_more -= 1
        for partition in partitions:
            del self.unassigned[partition]
            assigned[member].append(TopicPartition(self.topic, partition))


class RangeAssignor(PartitionAssignor):
    """Splits each topic into contiguous ranges; the first (partitions % members) members get one more.

    >>> cluster = ClusterMetadata.of({"t0": 3, "t1": 3})
    >>> shares = RangeAssignor().assign_partitions(cluster, dict.fromkeys(["C0", "C1"], Subscription(["t0", "t1"])))
    >>> [str(tp) for tp in shares["C1"]]
    ['t0-2', 't1-2']
    """

    name = "range"

    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        racks = {member: subscription.rack_id for member, subscription in subscriptions.items()}
        topics = [
            _Topic(topic, cluster, members, racks)
            for topic, members in sorted(subscribers_by_topic(subscriptions).items())
            if cluster.count_of(topic)
        ]
        assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
        rack_aware = [topic for topic in topics if topic.is_rack_aware]
        if rack_aware:
            _match_racks(rack_aware, assigned)
        for topic in topics:
            _share(topic, lambda member, partition: True, assigned)
        if rack_aware:
            for partitions in assigned.values():
                partitions.sort()
        return assigned


def _match_racks(topics: list[_Topic], assigned: dict[str, list[TopicPartition]]) -> None:
    """First pass: the same quotas, but only partitions with a replica in the member's rack.

    Topics with the same members and number of partitions are handled together, so that equal partitions of
    co-partitioned topics go to the same member.
    """
    alike: dict[tuple[tuple[str, ...], int], list[_Topic]] = {}
    for topic in topics:
        alike.setdefault((tuple(topic.members), len(topic.racks)), []).append(topic)
    for (members, count), group in alike.items():
        if len(group) == 1:
            _share(group[0], group[0].matches, assigned)
            continue
        remaining = list(members)
        for partition in range(count):
            fitting = next(
                (
                    member
                    for member in remaining
                    if all(topic.matches(member, partition) and topic.room(member) > 0 for topic in group)
                ),
                None,
            )
            if fitting is None:
                continue
            for topic in group:
                topic.give(fitting, [partition], assigned)
            if all(topic.room(fitting) == 0 for topic in group):
                remaining.remove(fitting)


def _share(topic: _Topic, may_have: Callable[[str, int], bool], assigned: dict[str, list[TopicPartition]]) -> None:
    for member in topic.members:
        if not topic.unassigned:
            return
        room = topic.room(member)
        chosen: list[int] = []
        for partition in topic.unassigned:
            if len(chosen) == room:
                break
            if may_have(member, partition):
                chosen.append(partition)
        if chosen:
            topic.give(member, chosen, assigned)
