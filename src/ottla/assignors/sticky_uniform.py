"""Sticky assignment for members that all subscribe to the same topics: one linear pass. Pure."""

from collections import deque
from collections.abc import Mapping

from ottla.assignors.base import ClusterMetadata
from ottla.assignors.racks import RackInfo
from ottla.types import TopicPartition


def assign_uniform(
    cluster: ClusterMetadata,
    topics: Mapping[str, set[str]],
    owned: Mapping[str, list[TopicPartition]],
    racks: RackInfo,
) -> dict[str, list[TopicPartition]]:
    """Each member gets the floor or the ceiling of the average, and keeps as many of its partitions as that allows."""
    if not topics:
        return {}
    return _Uniform(cluster, topics, racks).run(owned)


class _Uniform:
    def __init__(self, cluster: ClusterMetadata, topics: Mapping[str, set[str]], racks: RackInfo) -> None:
        self._racks = racks
        self._members = sorted(topics)
        wanted = sorted(next(iter(topics.values())))
        self._partitions = [partition for topic in wanted for partition in cluster.partitions_of(topic)]
        self._wanted = set(wanted)
        self._quota, self._larger_shares = divmod(len(self._partitions), len(self._members))
        """`_larger_shares` members get one partition more than this."""
        self._larger_given = 0
        self._shares: dict[str, list[TopicPartition]] = {member: [] for member in self._members}
        self._below: list[str] = []
        """Members with less than the quota."""
        self._at_quota: deque[str] = deque()
        """Members with exactly the quota, while larger shares are left."""

    @property
    def _ceiling(self) -> int:
        return self._quota + (1 if self._larger_shares else 0)

    def run(self, owned: Mapping[str, list[TopicPartition]]) -> dict[str, list[TopicPartition]]:
        kept = self._keep(owned)
        left = [partition for partition in self._partitions if partition not in kept] if kept else self._partitions
        if self._racks.is_used:
            left = self._deal_nearby(self._racks.fewest_near_first(left))
        self._deal(left)
        return self._shares

    def _keep(self, owned: Mapping[str, list[TopicPartition]]) -> set[TopicPartition]:
        kept: set[TopicPartition] = set()
        for member in self._members:
            mine = [partition for partition in owned.get(member, ()) if partition.topic in self._wanted]
            if self._racks.is_used:
                mine = [partition for partition in mine if self._racks.matches(member, partition)]
            mine.sort(key=_by_index)
            if len(mine) < self._quota:
                self._below.append(member)
            elif len(mine) >= self._ceiling and self._larger_given < self._larger_shares:
                self._larger_given += 1
                if self._larger_given == self._larger_shares:
                    self._at_quota.clear()
                del mine[self._ceiling :]
            else:
                del mine[self._quota :]
                if self._larger_given < self._larger_shares:
                    self._at_quota.append(member)
            self._shares[member] = mine
            kept.update(mine)
        return kept

    def _deal(self, left: list[TopicPartition]) -> None:
        below, position = self._below, 0
        for partition in left:
            if below:
                position %= len(below)
                member = below[position]
                share = self._shares[member]
                share.append(partition)
                if len(share) >= self._quota:
                    del below[position]
                    if self._larger_given < self._larger_shares:
                        self._at_quota.append(member)
                else:
                    position += 1
            else:
                self._shares[self._at_quota.popleft()].append(partition)
                self._larger_given += 1

    def _deal_nearby(self, left: list[TopicPartition]) -> list[TopicPartition]:
        """Assigns partitions to members in their rack. Returns the rest."""
        rest, position = [], 0
        for partition in left:
            found = self._near(partition, self._below, position)
            if found is not None:
                member = self._below[found]
                share = self._shares[member]
                share.append(partition)
                if len(share) >= self._quota:
                    del self._below[found]
                    if self._larger_given < self._larger_shares:
                        self._at_quota.append(member)
                else:
                    found += 1
                position = found % len(self._below) if self._below else 0
                continue
            found = self._near(partition, self._at_quota, 0)
            if found is None:
                rest.append(partition)
                continue
            member = self._at_quota[found]
            del self._at_quota[found]
            self._shares[member].append(partition)
            self._larger_given += 1
            if self._larger_given == self._larger_shares:
                self._at_quota.clear()
        return rest

    def _near(self, partition: TopicPartition, members: "list[str] | deque[str]", start: int) -> int | None:
        count = len(members)
        for step in range(count):
            index = (start + step) % count
            if self._racks.is_near(members[index], partition):
                return index
        return None


def _by_index(partition: TopicPartition) -> tuple[int, str]:
    return partition.partition, partition.topic
