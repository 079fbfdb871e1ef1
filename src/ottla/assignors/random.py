"""`random`: assigns each partition to a random subscriber. An example of a minimal custom assignor. Pure."""

import random
from collections.abc import Mapping

from ottla.assignors.base import ClusterMetadata, PartitionAssignor, Subscription, subscribers_by_topic
from ottla.types import TopicPartition


class RandomAssignor(PartitionAssignor):
    """Assigns partitions at random: even in the long run, and not sticky.

    >>> consumer = Consumer(group_id="g", partition_assignment_strategy=[RandomAssignor])
    """

    name = "random"

    def __init__(self, rng: random.Random | None = None) -> None:
        self._random = rng if rng is not None else random.Random()

    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        shares: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
        for topic, members in subscribers_by_topic(subscriptions).items():
            for partition in cluster.partitions_of(topic):
                shares[self._random.choice(members)].append(partition)
        return shares
