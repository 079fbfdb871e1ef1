"""State that stays where its partition stays: with a sticky assignor only what really moved is built anew.

python examples/sticky_listener.py 127.0.0.1:9092 orders totals

An eager assignor takes everything away before it gives out the next shares. A listener that drops its state when
partitions are revoked builds all of it again (`Forgetting`); one that waits for the next share keeps what has come back
(`Keeping`). With `cooperative-sticky` only what moves is revoked, and the simple listener is good enough.
"""

import sys
import threading
from collections import Counter

from ottla import Consumer, RebalanceListener, TopicPartition


class Forgetting(RebalanceListener):
    """Commits and drops on revocation, builds on assignment."""

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
        """As costly as it gets: read from a database, replayed from a topic."""
        self.state[partition] = 0
        self.built[partition.partition] += 1


class Keeping(Forgetting):
    """Commits on revocation; compares the new share with the old one."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.consumer.commit()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for gone in self.state.keys() - set(partitions):
            del self.state[gone]
        for come in sorted(set(partitions) - self.state.keys()):
            self.build(come)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.state.clear()  # somebody else may have changed what the state stands for


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
    """Counts records by partition until told to stop."""
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
