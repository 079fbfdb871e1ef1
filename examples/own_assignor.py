"""A custom assignor: each member announces its capacity and gets partitions in proportion.

python examples/own_assignor.py 127.0.0.1:9092 orders billing 3
python examples/own_assignor.py 127.0.0.1:9092 orders billing ottla.assignors.random:RandomAssignor

Included examples: ottla.assignors.random, rack_by_user_data and broadcast.
"""

import sys
import threading
from collections.abc import Mapping
from typing import Any

from ottla import Consumer, TopicPartition
from ottla.assignors import Assignment, Assignor, ClusterMetadata, Subscription
from ottla.assignors.base import subscribers_by_topic


class WeightedAssignor(Assignor):
    """Sends the weight as user data of the subscription. The user data of the assignment is a summary."""

    name = "weighted"

    def __init__(self, weight: int = 1) -> None:
        self.weight = weight
        self.summary = ""

    def subscription(self, topics: list[str]) -> Subscription:
        return Subscription(topics, user_data=b"%d" % self.weight)

    def assign(self, cluster: ClusterMetadata, subscriptions: Mapping[str, Subscription]) -> dict[str, Assignment]:
        weights = {member: int(each.user_data or b"1") for member, each in subscriptions.items()}
        shares: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
        for topic, members in sorted(subscribers_by_topic(subscriptions).items()):
            for partition in cluster.partitions_of(topic):
                # The member with the least load after getting one more.
                least = min(members, key=lambda member: ((len(shares[member]) + 1) / weights[member], member))
                shares[least].append(partition)
        total = sum(map(len, shares.values()))
        return {
            member: Assignment(partitions, user_data=b"%d of %d" % (len(partitions), total))
            for member, partitions in shares.items()
        }

    def on_assignment(self, assignment: Assignment, generation: int = -1) -> None:
        self.summary = (assignment.user_data or b"").decode()


def run(bootstrap: str, topic: str, group: str, assignor: Any, stop: threading.Event, seen: dict[str, Any]) -> None:
    """Reads until `stop` is set; `seen` gets its partitions. `assignor` is an instance, a class or module:Class."""
    with Consumer(
        {"auto.offset.reset": "earliest", "heartbeat.interval.ms": 500},
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[assignor],
    ) as consumer:
        consumer.subscribe([topic])
        while not stop.is_set():
            consumer.poll(200)
            seen["partitions"] = sorted(partition.partition for partition in consumer.assignment())


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    _, address, name, group_name, how = sys.argv
    run(address, name, group_name, WeightedAssignor(int(how)) if how.isdigit() else how, threading.Event(), {})
