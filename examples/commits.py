"""Four ways to commit: automatically, after a batch, asynchronously, and per partition.

python examples/commits.py automatic|after_a_batch|without_waiting|by_partition 127.0.0.1:9092 orders billing
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

from ottla import CommittedOffset, Consumer, ConsumerRecord, KafkaError, TopicPartition
from ottla.client.core.model import Records

BATCH = 200
Process = Callable[[ConsumerRecord], None]


@contextmanager
def subscribed(bootstrap: str, topic: str, group: str, *, auto_commit: bool) -> Iterator[Consumer]:
    settings = {"enable.auto.commit": auto_commit, "auto.commit.interval.ms": 1_000, "auto.offset.reset": "earliest"}
    with Consumer(settings, bootstrap_servers=bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        yield consumer


def polls(consumer: Consumer, until_end: bool) -> Iterator[Records]:
    """The results of poll(), endlessly or to the end of the topic."""
    while not (until_end and consumer.is_at_end()):
        yield consumer.poll(1_000)


def automatic(bootstrap: str, topic: str, group: str, process: Process, *, until_end: bool = False) -> None:
    """Every second in poll(), and in close(). The records of the previous poll() count as processed."""
    with subscribed(bootstrap, topic, group, auto_commit=True) as consumer:
        for records in polls(consumer, until_end):
            for record in records:
                process(record)


def after_a_batch(bootstrap: str, topic: str, group: str, process: Process, *, until_end: bool = False) -> None:
    """Collects records and commits after processing enough of them. A crash repeats at most one such batch."""
    with subscribed(bootstrap, topic, group, auto_commit=False) as consumer:
        waiting: list[ConsumerRecord] = []
        for records in polls(consumer, until_end):
            waiting += records
            if len(waiting) >= BATCH:
                for record in waiting:
                    process(record)
                consumer.commit()  # waits, retries transient errors and raises others
                waiting.clear()
        for record in waiting:
            process(record)
        consumer.commit()


def without_waiting(bootstrap: str, topic: str, group: str, process: Process, *, until_end: bool = False) -> list[str]:
    """Does not wait, except for the last commit. The callback reports failures; the next commit supersedes them."""
    failures: list[str] = []

    def note(offsets: dict[TopicPartition, CommittedOffset], error: KafkaError | None) -> None:
        if error is not None:
            failures.append(f"{len(offsets)} partitions: {error}")

    with subscribed(bootstrap, topic, group, auto_commit=False) as consumer:
        for records in polls(consumer, until_end):
            for record in records:
                process(record)
            consumer.commit_async(callback=note)
        consumer.commit()
    return failures


def by_partition(bootstrap: str, topic: str, group: str, process: Process, *, until_end: bool = False) -> None:
    """Commits each partition as soon as its records are processed, so a crash repeats records of only one."""
    with subscribed(bootstrap, topic, group, auto_commit=False) as consumer:
        for records in polls(consumer, until_end):
            for (name, partition), part in groupby(records, key=lambda record: (record.topic, record.partition)):
                last = -1
                for record in part:
                    process(record)
                    last = record.offset
                consumer.commit({(name, partition): last + 1})  # the offset of the next record to read


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    globals()[sys.argv[1]](*sys.argv[2:5], process=lambda record: print(record.partition, record.offset))
