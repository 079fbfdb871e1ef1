"""Sticky assignment for members with different topics: assigns, then moves partitions until balanced. Pure."""

from collections.abc import Callable, Mapping

from ottla.assignors.base import ClusterMetadata
from ottla.assignors.racks import RackInfo
from ottla.types import TopicPartition


def assign_general(
    cluster: ClusterMetadata,
    topics: Mapping[str, set[str]],
    owned: Mapping[str, list[TopicPartition]],
    racks: RackInfo,
) -> dict[str, list[TopicPartition]]:
    """Balance first, then stickiness.

    Balanced means: if one member has two partitions more than another, the other subscribes to none of their topics.
    """
    return _General(cluster, topics, racks).run(owned)


class _General:
    def __init__(self, cluster: ClusterMetadata, topics: Mapping[str, set[str]], racks: RackInfo) -> None:
        self._racks = racks
        self._topics = topics
        self._subscribers: dict[str, list[str]] = {}
        for member in sorted(topics):
            for topic in topics[member]:
                if cluster.count_of(topic):
                    self._subscribers.setdefault(topic, []).append(member)
        # Partitions with the fewest subscribers go first.
        names = sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic))
        self._partitions = [partition for topic in names for partition in cluster.partitions_of(topic)]
        self._shares: dict[str, list[TopicPartition]] = {member: [] for member in topics}
        self._holder: dict[TopicPartition, str] = {}
        self._previous: dict[TopicPartition, str] = {}
        self._moves = _Moves()

    def run(self, owned: Mapping[str, list[TopicPartition]]) -> dict[str, list[TopicPartition]]:
        for member, partitions in owned.items():
            for partition in partitions:
                if partition.topic in self._topics[member] and self._racks.matches(member, partition):
                    self._give(partition, member)
                    self._previous[partition] = member
        is_first = not self._holder
        left = [partition for partition in self._partitions if partition not in self._holder]
        if self._racks.is_used:
            left = self._racks.fewest_near_first(left)
            for partition in left:
                self._hand_out(partition, self._racks.matches)
            left = [partition for partition in left if partition not in self._holder]
        for partition in left:
            self._hand_out(partition, None)
        self._balance(is_first)
        return self._shares

    def _give(self, partition: TopicPartition, member: str) -> None:
        self._shares[member].append(partition)
        self._holder[partition] = member

    def _hand_out(self, partition: TopicPartition, may_have: Callable[[str, TopicPartition], bool] | None) -> None:
        member = self._smallest(partition, may_have)
        if member is not None:
            self._give(partition, member)

    def _smallest(
        self, partition: TopicPartition, may_have: Callable[[str, TopicPartition], bool] | None
    ) -> str | None:
        """The eligible member with the fewest partitions; among equals the first by id."""
        shares = self._shares
        best, best_size = None, -1
        for member in self._subscribers[partition.topic]:
            size = len(shares[member])
            if (best is None or size < best_size) and (may_have is None or may_have(member, partition)):
                best, best_size = member, size
        return best

    # --- balancing ----------------------------------------------------------------------------------------

    def _balance(self, is_first: bool) -> None:
        # Partitions of a topic with one subscriber cannot move; a member with only such topics cannot gain any.
        movable = [partition for partition in self._partitions if len(self._subscribers[partition.topic]) > 1]
        before = {member: list(share) for member, share in self._shares.items()}
        moved = self._move_until_balanced(movable)
        if moved and not is_first and _spread(self._shares) >= _spread(before):
            # The balance is no better than before, so nothing moves.
            self._shares = before

    def _move_until_balanced(self, movable: list[TopicPartition]) -> bool:
        moved_any = False
        for _ in range(len(movable) + 1):
            moved = False
            for partition in movable:
                if self._is_even():
                    break
                if self._improve(partition):
                    moved = moved_any = True
            if not moved or self._is_even():
                break
        return moved_any

    def _is_even(self) -> bool:
        sizes = [len(share) for share in self._shares.values()]
        return max(sizes) - min(sizes) <= 1

    def _improve(self, partition: TopicPartition) -> bool:
        holder = self._holder[partition]
        size = len(self._shares[holder])
        previous = self._previous.get(partition)
        if previous is not None and previous != holder and size > len(self._shares[previous]) + 1:
            self._move(partition, previous)
            return True
        rules: list[Callable[[str, TopicPartition], bool] | None] = [None]
        if self._racks.is_used:
            rules.insert(0, self._racks.matches)
        for may_have in rules:
            other = self._smallest(partition, may_have)
            if other is not None and size > len(self._shares[other]) + 1:
                self._move(partition, other)
                return True
        return False

    def _move(self, partition: TopicPartition, to: str) -> None:
        source = self._holder[partition]
        # Undoes an opposite move instead of letting two partitions of a topic change places.
        partition = self._moves.better_choice(partition, source, to)
        source = self._holder[partition]
        self._moves.note(partition, source, to)
        self._shares[source].remove(partition)
        self._give(partition, to)


class _Moves:
    """Which partitions moved between which members, so that none moves back and forth."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, tuple[str, str]] = {}
        self._by_pair: dict[tuple[str, str, str], dict[TopicPartition, None]] = {}

    def better_choice(self, partition: TopicPartition, source: str, to: str) -> TopicPartition:
        if partition in self._by_partition:
            source = self._by_partition[partition][0]
        reverse = self._by_pair.get((partition.topic, to, source))
        return next(iter(reverse)) if reverse else partition

    def note(self, partition: TopicPartition, source: str, to: str) -> None:
        known = self._by_partition.pop(partition, None)
        if known is not None:
            del self._by_pair[(partition.topic, *known)][partition]
            source = known[0]
        if source != to:
            self._by_partition[partition] = (source, to)
            self._by_pair.setdefault((partition.topic, source, to), {})[partition] = None


def _spread(shares: Mapping[str, list[TopicPartition]]) -> int:
    """The imbalance: the sum of the differences of all pairs of members. 0 is perfectly balanced."""
    sizes = sorted(map(len, shares.values()))
    return sum(size * (2 * rank - len(sizes) + 1) for rank, size in enumerate(sizes))
