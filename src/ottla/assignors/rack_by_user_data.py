"""`rack-by-user-data`: assigns partitions to members in the rack of their leader. Pure.

The built-in assignors use racks, too (`client.rack`, KIP-881). This one is an example of user data: each member sends
its rack as the user data of its subscription, which works with clients of any version.
"""

from collections.abc import Mapping

from ottla.assignors.base import Assignment, Assignor, ClusterMetadata, Subscription, subscribers_by_topic
from ottla.types import TopicPartition


class RackByUserDataAssignor(Assignor):
    """Assigns a partition to the member with the fewest partitions in its leader's rack, or else of all members.

    >>> consumer = Consumer(group_id="g", partition_assignment_strategy=[RackByUserDataAssignor("rack-1")])
    """

    name = "rack-by-user-data"

    def __init__(self, rack: str = "") -> None:
        self.rack = rack

    def subscription(self, topics: list[str]) -> Subscription:
        return Subscription(topics, user_data=self.rack.encode() if self.rack else None)

    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        racks = {member: read_rack(subscription.user_data) for member, subscription in subscriptions.items()}
        shares: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
        homeless: list[tuple[TopicPartition, list[str]]] = []
        for topic, members in sorted(subscribers_by_topic(subscriptions).items()):
            for info in cluster.infos_of(topic):
                partition = TopicPartition(topic, info.partition)
                near = [member for member in members if info.leader_rack and racks[member] == info.leader_rack]
                if near:
                    _least_busy(near, shares).append(partition)
                else:
                    homeless.append((partition, members))
        # Partitions without a member in their rack come last: they even out the load.
        for partition, members in homeless:
            _least_busy(members, shares).append(partition)
        return {member: Assignment(sorted(partitions)) for member, partitions in shares.items()}


def read_rack(user_data: bytes | None) -> str:
    """The rack in a member's user data; empty if there is none or it is not UTF-8."""
    try:
        return (user_data or b"").decode()
    except UnicodeDecodeError:
        return ""


def _least_busy(members: list[str], shares: dict[str, list[TopicPartition]]) -> list[TopicPartition]:
    return shares[min(members, key=lambda member: (len(shares[member]), member))]
