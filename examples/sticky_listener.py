"""Keeps the state of partitions that do not move: with a sticky assignor only the others are rebuilt.

python examples/sticky_listener.py 127.0.0.1:9092 orders totals

An eager rebalance revokes all partitions before it assigns new ones. A listener that drops its state in
on_partitions_revoked rebuilds all of it (`Forgetting`); one that waits for the new assignment keeps the state of
partitions that are assigned again (`Keeping`). With `cooperative-sticky` only the partitions that move are revoked, so
the simple listener is enough.
"""

import sys
import threading
from collections import Counter

from ottla import Consumer, RebalanceListener, TopicPartition


class Forgetting(RebalanceListener):
    """Commits and drops state on revocation, rebuilds it on assignment."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.state: dict[TopicPartition, int] = {}
        self.built: Counter[int] = Counter()

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.consumer.commit()
        for partition in partitions:
            del self.state[partition]

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self.build(partition)

    def build(self, partition: TopicPartition) -> None:
        """A placeholder for something expensive, such as reading a database or replaying a topic."""
        self.state[partition] = 0
        self.built[partition.partition] += 1


class Keeping(Forgetting):
    """Commits on revocation; compares the new assignment with the old one."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.consumer.commit()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for gone in self.state.keys() - set(partitions):
            del self.state[gone]
        for come in sorted(set(partitions) - self.state.keys()):
            self.build(come)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.state.clear()  # another member may have processed records meanwhile


def run(
    bootstrap: str,
    topic: str,
    group: str,
    kind: type[Forgetting] = Keeping,
    *,
    stop: threading.Event,
    strategy: str = "sticky",
    seen: list[Forgetting] | None = None,
) -> None:
    """Counts records per partition until `stop` is set."""
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 500}
    with Consumer(
        settings, bootstrap_servers=bootstrap, group_id=group, partition_assignment_strategy=strategy
    ) as consumer:
        listener = kind(consumer)
        if seen is not None:
            seen.append(listener)
        consumer.subscribe([topic], listener=listener)
        while not stop.is_set():
            for record in consumer.poll(200):
                listener.state[TopicPartition(record.topic, record.partition)] += 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    _, address, name, group_name = sys.argv
    run(address, name, group_name, stop=threading.Event())
