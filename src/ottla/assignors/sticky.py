"""`sticky` and `cooperative-sticky`: as balanced as possible, then as few moves as possible (KIP-54). Pure.

Both share one core. If all members subscribe to the same topics, one linear pass is enough (`sticky_uniform.py`).
Otherwise partitions are assigned and then moved until nothing improves (`sticky_general.py`).
"""

from collections.abc import Mapping
from typing import ClassVar

from ottla.assignors.base import (
    COOPERATIVE,
    EAGER,
    Assignment,
    Assignor,
    ClusterMetadata,
    Subscription,
)
from ottla.assignors.racks import RackInfo
from ottla.assignors.sticky_general import assign_general
from ottla.assignors.sticky_uniform import assign_uniform
from ottla.protocol.primitives import ProtocolError
from ottla.protocol.schema import Message, Struct, field
from ottla.protocol.wire_values import NO_GENERATION
from ottla.types import TopicPartition, partitions_by_topic


class StickyUserData(Message, versions=range(0, 2)):
    """The user data of an eager sticky member: its previous assignment and generation."""

    previous_assignment: list["StickyUserData.TopicAssignment"] = field("[]TopicAssignment")
    generation: int = field("int32", "1+", default=NO_GENERATION, ignorable=True)

    class TopicAssignment(Struct):
        topic: str = field("string")
        partitions: list[int] = field("[]int32")


class Ownership:
    """The previous assignment, without claims that cannot be true."""

    def __init__(self, claims: Mapping[str, tuple[list[TopicPartition], int]], cluster: ClusterMetadata) -> None:
        """`claims`: member to (partitions, generation)."""
        self.owned: dict[str, list[TopicPartition]] = {member: [] for member in claims}
        # Members that claim nothing are ignored: one that joined in a rebalance that never reached an assignment has a
        # newer generation than every valid claim.
        newest = max((generation for owned, generation in claims.values() if owned), default=NO_GENERATION)
        owners: dict[TopicPartition, str] = {}
        self.disputed: set[TopicPartition] = set()
        counts: dict[str, int] = {}
        for member, (partitions, generation) in claims.items():
            # A claim of an older generation comes from a zombie (KIP-341).
            if generation != newest:
                continue
            for partition in partitions:
                topic, index = partition
                count = counts.get(topic)
                if count is None:
                    count = counts[topic] = cluster.count_of(topic)
                if index >= count:
                    continue
                if partition in owners:
                    self.disputed.add(partition)
                else:
                    owners[partition] = member
                    self.owned[member].append(partition)
        if self.disputed:
            # Two members of one generation cannot both have owned it: neither keeps it.
            for member, kept in self.owned.items():
                self.owned[member] = [partition for partition in kept if partition not in self.disputed]


class StickyAssignor(Assignor):
    """Members keep their partitions as far as balance allows. They revoke all of them during a rebalance (EAGER).

    >>> subscriptions = dict.fromkeys(["C0", "C1", "C2"], Subscription(["t0", "t1", "t2", "t3"]))
    >>> shares = StickyAssignor().assign(ClusterMetadata.of(dict.fromkeys(["t0", "t1", "t2", "t3"], 2)), subscriptions)
    >>> [str(tp) for tp in shares["C2"].partitions]
    ['t1-0', 't2-1']
    """

    name = "sticky"
    protocols: ClassVar[tuple[str, ...]] = (EAGER,)

    def __init__(self) -> None:
        self._assigned: list[TopicPartition] = []
        self._generation = NO_GENERATION

    def subscription(self, topics: list[str]) -> Subscription:
        if not self._assigned:
            return Subscription(topics)
        by_topic = partitions_by_topic(self._assigned)
        previous = [StickyUserData.TopicAssignment(topic=t, partitions=p) for t, p in by_topic.items()]
        data = StickyUserData(previous_assignment=previous, generation=self._generation)
        return Subscription(topics, user_data=data.encode(1))

    def on_assignment(self, assignment: Assignment, generation: int = NO_GENERATION) -> None:
        self._assigned = list(assignment.partitions)
        self._generation = generation

    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        return {member: Assignment(partitions) for member, partitions in self._share(cluster, subscriptions).items()}

    def _share(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        ordered = {member: subscriptions[member] for member in sorted(subscriptions)}
        claims = {member: self.claim(subscription) for member, subscription in ordered.items()}
        ownership = Ownership(claims, cluster)
        topics = {member: set(subscription.topics) for member, subscription in ordered.items()}
        racks = RackInfo(cluster, ordered)
        is_uniform = len(set(map(frozenset, topics.values()))) <= 1
        share = assign_uniform if is_uniform else assign_general
        return self._hand_over(share(cluster, topics, ownership.owned, racks), ownership, ordered)

    def _hand_over(
        self,
        shares: dict[str, list[TopicPartition]],
        ownership: Ownership,
        subscriptions: Mapping[str, Subscription],
    ) -> dict[str, list[TopicPartition]]:
        """The partitions to assign in this rebalance: all of them, because eager members have revoked everything."""
        return shares

    def claim(self, subscription: Subscription) -> tuple[list[TopicPartition], int]:
        """(partitions, generation) that a member claims to have owned."""
        data = subscription.user_data
        if not data:
            return subscription.owned_partitions, subscription.generation_id
        # An eager member owns nothing when it joins: its previous assignment is only in its user data.
        for version in (1, 0):
            try:
                decoded = StickyUserData.decode(data, version)
            except ProtocolError:
                continue
            partitions = [
                TopicPartition(part.topic, partition)
                for part in decoded.previous_assignment
                for partition in part.partitions
            ]
            return partitions, decoded.generation
        return [], NO_GENERATION


class CooperativeStickyAssignor(StickyAssignor):
    """The same assignment in two rebalances: partitions that move are first revoked, then assigned in the next one.

    Members keep consuming the partitions that do not move (KIP-429).
    """

    name = "cooperative-sticky"
    protocols = (COOPERATIVE, EAGER)

    def subscription(self, topics: list[str]) -> Subscription:
        return Subscription(topics, user_data=self._generation.to_bytes(4, "big", signed=True))

    def claim(self, subscription: Subscription) -> tuple[list[TopicPartition], int]:
        generation = subscription.generation_id
        data = subscription.user_data
        if generation == NO_GENERATION and data is not None and len(data) >= 4:
            # Subscriptions before v2 have no field for the generation (KIP-792).
            generation = int.from_bytes(data[:4], "big", signed=True)
        return subscription.owned_partitions, generation

    def _hand_over(
        self,
        shares: dict[str, list[TopicPartition]],
        ownership: Ownership,
        subscriptions: Mapping[str, Subscription],
    ) -> dict[str, list[TopicPartition]]:
        """Members keep what they own. Other partitions are assigned once no other member claims to own them."""
        owners: dict[TopicPartition, str | None] = {}
        for member, subscription in subscriptions.items():
            for partition in subscription.owned_partitions:
                owners[partition] = None if partition in owners else member
        handed: dict[str, list[TopicPartition]] = {}
        for member, partitions in shares.items():
            kept = set(ownership.owned[member])
            handed[member] = [p for p in partitions if p in kept or owners.get(p, member) == member]
        return handed
