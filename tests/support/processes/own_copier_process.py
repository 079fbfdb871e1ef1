"""The transactional copier with Ottla's client, in its own process so that it can be killed. Spec: R1

python -m tests.support.processes.own_copier_process BOOTSTRAP INPUT OUTPUT GROUP NUMBER ASSIGNED SIZE ABORTS

As copier_process: partition p of INPUT goes to partition p of OUTPUT in transactions of SIZE records, positions with
them; a share of them is aborted at will. ASSIGNED lists partitions, or is `group`. Ends when everything is copied.
"""

import random
import sys
import time

from ottla import Consumer, ConsumerRecord, KafkaError, Producer, TopicPartition, TransactionAbortable

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}


class _Doomed(Exception):
    """Aborts this transaction on purpose."""


class OwnCopier:
    def __init__(
        self, bootstrap: str, source: str, target: str, group: str, name: str, assigned: str, size: int, aborts: float
    ) -> None:
        self.bootstrap, self.source, self.target, self.group, self.name = bootstrap, source, target, group, name
        self.assigned, self.size, self.aborts = assigned, size, aborts
        self.random = random.Random()

    def run(self) -> None:
        """One instance, until everything is copied. A KafkaError ends it; the next continues from the last commit."""
        writing = {"transactional.id": self.name, "transaction.timeout.ms": 300_000, "batch.size": 512, "linger.ms": 2}
        reading = {
            "group.id": self.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "range",
            "max.poll.records": self.size,
        }
        with (
            Producer(writing | QUICK, bootstrap_servers=self.bootstrap) as producer,
            Consumer(reading | QUICK, bootstrap_servers=self.bootstrap) as consumer,
        ):
            # The producer first: it ends the last instance's transaction, which may commit the positions read next.
            producer.init_transactions()
            if self.assigned == "group":
                consumer.subscribe([self.source])
            else:
                consumer.assign([(self.source, int(partition)) for partition in self.assigned.split(",")])
            while True:
                records = list(consumer.poll(300))
                if records:
                    self._copy(producer, consumer, records)
                elif self._is_done(consumer):
                    return

    def _copy(self, producer: Producer, consumer: Consumer, records: list[ConsumerRecord]) -> None:
        doomed = self.random.random() < self.aborts
        following = {(record.topic, record.partition): record.offset + 1 for record in records}
        try:
            with producer.transaction():
                for record in records:
                    producer.send(self.target, b"aborted" if doomed else record.value, partition=record.partition)
                producer.send_offsets_to_transaction(following, consumer.group_metadata())
                if doomed:
                    raise _Doomed
        except (TransactionAbortable, _Doomed):
            mine = consumer.assignment()
            for record in reversed(records):
                if (record.topic, record.partition) in mine:
                    consumer.seek((record.topic, record.partition), record.offset)

    def _is_done(self, consumer: Consumer) -> bool:
        """Whether everything is copied, by this copier or another: a killed member may still hold a partition
        whose remaining records this copier then gets."""
        try:
            topic = consumer.partitions_for(self.source, timeout_ms=60_000)
            places = [TopicPartition(self.source, each.partition) for each in topic.partitions]
            committed = consumer.committed(places, timeout_ms=60_000)
            ends = consumer.end_offsets(places)
        except KafkaError:
            return False  # the broker is down
        found = {place: offset.offset if offset is not None else 0 for place, offset in committed.items()}
        return all(found[place] >= end for place, end in ends.items())


def main(words: list[str]) -> None:
    bootstrap, source, target, group, number, assigned, size, aborts = words
    copier = OwnCopier(bootstrap, source, target, group, f"copier-{number}", assigned, int(size), float(aborts))
    for _ in range(200):
        try:
            copier.run()
            return
        except KafkaError as error:
            print(f"copier-{number}: {error}", file=sys.stderr)
            time.sleep(0.1)
    sys.exit("no instance copied everything")


if __name__ == "__main__":
    main(sys.argv[1:])
