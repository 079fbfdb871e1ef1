"""Keeps a running total per partition and hands it over in the commit metadata when the partition moves.

python examples/rebalance_listener.py 127.0.0.1:9092 orders totals
"""

import sys

from ottla import CommittedOffset, Consumer, RebalanceListener, TopicPartition


class Totals(RebalanceListener):
    """One number per partition. With a cooperative assignor, partitions that do not move are not touched."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.totals: dict[TopicPartition, int] = {}

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        for partition, committed in self.consumer.committed(partitions).items():
            self.totals[partition] = int(committed.metadata) if committed is not None and committed.metadata else 0

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.commit(partitions)
        for partition in partitions:
            del self.totals[partition]

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:  # they belong to other members already: store nothing
            del self.totals[partition]

    def commit(self, partitions: list[TopicPartition]) -> None:
        """Commits the positions together with the totals."""
        self.consumer.commit(
            {p: CommittedOffset(self.consumer.position(p), metadata=str(self.totals[p])) for p in partitions}
        )


def run(bootstrap: str, topic: str, group: str, *, until_end: bool = False) -> dict[TopicPartition, int]:
    settings = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    strategy = "cooperative-sticky"
    with Consumer(
        settings, bootstrap_servers=bootstrap, group_id=group, partition_assignment_strategy=strategy
    ) as consumer:
        totals = Totals(consumer)
        consumer.subscribe([topic], listener=totals)
        while not (until_end and consumer.is_at_end()):
            records = consumer.poll(1_000)
            for record in records:
                totals.totals[TopicPartition(record.topic, record.partition)] += int(record.value or b"0")
            if records:
                totals.commit(list(totals.totals))
        return dict(totals.totals)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    run(*sys.argv[1:4])
