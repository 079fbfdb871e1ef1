"""`roundrobin`: assigns all partitions in order, one member after the other. Pure."""

from collections.abc import Mapping

from ottla.assignors.base import ClusterMetadata, PartitionAssignor, Subscription, in_member_order
from ottla.types import TopicPartition


class RoundRobinAssignor(PartitionAssignor):
    """Assigns every partition of every topic in turn, and skips members that do not subscribe to the topic.

    >>> cluster = ClusterMetadata.of({"t0": 3, "t1": 3})
    >>> dealt = RoundRobinAssignor().assign_partitions(cluster, dict.fromkeys(["C0", "C1"], Subscription(["t0", "t1"])))
    >>> [str(tp) for tp in dealt["C0"]]
    ['t0-0', 't0-2', 't1-1']
    """

    name = "roundrobin"

    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        members = in_member_order(subscriptions)
        assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
        wanted = {member: set(subscriptions[member].topics) for member in members}
        turn = 0
        for topic in sorted(set().union(*wanted.values()) if wanted else ()):
            for partition in cluster.partitions_of(topic):
                while topic not in wanted[members[turn % len(members)]]:
                    turn += 1
                assigned[members[turn % len(members)]].append(partition)
                turn += 1
        return assigned
