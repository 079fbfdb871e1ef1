"""`broadcast`: every member gets every partition of its topics. Pure.

A group stores one offset per partition, so the members' commits would overwrite each other. Turn `enable.auto.commit`
off and give each member its own offset store (`ottla.client.stores.stored_offsets`).
"""

from collections.abc import Mapping
from typing import ClassVar

from ottla.assignors.base import ClusterMetadata, PartitionAssignor, Subscription
from ottla.types import TopicPartition


class BroadcastAssignor(PartitionAssignor):
    """Assigns every partition to every subscribed member.

    >>> consumer = Consumer(
    ...     group_id="caches", enable_auto_commit=False, partition_assignment_strategy=[BroadcastAssignor]
    ... )
    >>> offsets = StoredOffsets(consumer, FileOffsetStore("worker-1.json"), mirror="caches.worker-1")
    >>> consumer.subscribe(["prices"], listener=offsets)
    """

    name = "broadcast"
    shares_partitions: ClassVar[bool] = True

    def assign_partitions(
        self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        return {
            member: [p for topic in sorted(set(subscription.topics)) for p in cluster.partitions_of(topic)]
            for member, subscription in subscriptions.items()
        }
