"""The transactional copier with librdkafka, in its own process so that it can be killed. Spec: R1

python -m tests.support.processes.copier_process BOOTSTRAP INPUT OUTPUT GROUP NUMBER ASSIGNED SIZE ABORTS

Copies partition p of INPUT to partition p of OUTPUT in transactions of SIZE records, the positions with them, and
aborts a share of them at will. ASSIGNED lists its partitions, or is `group` for a member of GROUP. Ends by itself when
everything is copied, by this copier or another.
"""

import random
import signal
import sys
import time
from typing import Any

STUCK_S = 12
"""A copier that makes no progress for this long exits: after a restart of the broker, librdkafka 2.x may hang in
send_offsets_to_transaction, beyond its timeout, for a request that it never sends. The process that started the
copier starts it again. On a busy machine it is longer: see `patience_s`."""
_started = time.monotonic() - time.process_time()


def patience_s() -> int:
    """STUCK_S, and more if the start of this process took much longer than its processor time."""
    slowness = (time.monotonic() - _started) / max(time.process_time(), 0.01)
    return int(STUCK_S * min(max(1.0, slowness / 2), 25.0))


def main(words: list[str]) -> None:
    from confluent_kafka import KafkaException

    patience = patience_s()
    bootstrap, source, target, group, number, assigned, size, aborts = words
    copier = _Copier(bootstrap, source, target, group, f"copier-{number}", assigned, int(size), float(aborts), patience)
    for _ in range(200):
        try:
            if copier.run():
                return
        except KafkaException as failure:
            error = failure.args[0]
            print(f"copier-{number}: {error}", file=sys.stderr)
            time.sleep(0.1)
    sys.exit("no instance copied everything")


class _Copier:
    def __init__(
        self,
        bootstrap: str,
        source: str,
        target: str,
        group: str,
        name: str,
        assigned: str,
        size: int,
        aborts: float,
        patience: int,
    ) -> None:
        self.bootstrap, self.source, self.target, self.group, self.name = bootstrap, source, target, group, name
        self.assigned, self.size, self.aborts, self.patience = assigned, size, aborts, patience
        self.random = random.Random()
        self.began: dict[int, int] = {}
        """The start offset of this copier in each of its partitions."""

    def run(self) -> bool:
        """One instance. Returns True when everything is copied, False when a new instance must continue."""
        from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

        quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "log_level": 0}
        signal.alarm(self.patience)
        # The producer first: it ends the last instance's transaction, which may commit the positions read next.
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": 300_000,
                "message.timeout.ms": 300_000,
                "batch.size": 512,
                "linger.ms": 2,
                **quick,
            }
        )
        producer.init_transactions(60)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": "range",
                **quick,
            }
        )
        try:
            if self.assigned == "group":
                consumer.subscribe([self.source], on_assign=self._begin)
            else:
                self._begin(consumer, [TopicPartition(self.source, int(p)) for p in self.assigned.split(",")])
            while True:
                signal.alarm(self.patience)
                messages: list[Any] = [m for m in consumer.consume(self.size, 0.3) if m.error() is None]
                if not messages:
                    if self._is_done(consumer):
                        return True
                    continue
                if any(message.offset() < self.began.get(message.partition(), sys.maxsize) for message in messages):
                    # After a rebalance librdkafka may return records that it had fetched when it owned the partition
                    # before. The owner in between has copied them.
                    return False
                producer.begin_transaction()
                doomed = self.random.random() < self.aborts
                following: dict[int, int] = {}
                for message in messages:
                    partition, offset, value = message.partition(), message.offset(), message.value()
                    assert partition is not None
                    assert offset is not None
                    assert value is not None
                    self._send(producer, partition, b"aborted" if doomed else value)
                    following[partition] = offset + 1
                offsets = [TopicPartition(self.source, p, offset) for p, offset in following.items()]
                try:
                    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
                    if doomed:
                        producer.abort_transaction(60)
                        return False  # the positions in memory are ahead of what was committed
                    producer.commit_transaction(60)
                except KafkaException:
                    return False  # the next instance aborts the open transaction
        finally:
            consumer.close()

    def _begin(self, consumer: Any, partitions: list[Any]) -> None:
        positions = consumer.committed(partitions, timeout=60)
        for position in positions:
            position.offset = max(0, position.offset)
        self.began = {position.partition: position.offset for position in positions}
        consumer.assign(positions)

    def _is_done(self, consumer: Any) -> bool:
        """Whether everything is copied, by this copier or another: a killed member may still hold a partition
        whose remaining records this copier then gets."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            partitions = consumer.list_topics(self.source, 60).topics[self.source].partitions
            committed = consumer.committed([TopicPartition(self.source, p) for p in partitions], timeout=60)
            return all(
                position.offset >= consumer.get_watermark_offsets(position, timeout=60)[1] for position in committed
            )
        except KafkaException:
            return False  # the broker is down

    def _send(self, producer: Any, partition: int, value: bytes) -> None:
        while True:
            try:
                producer.produce(self.target, value, partition=partition)
                producer.poll(0)
                return
            except BufferError:
                producer.poll(0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
