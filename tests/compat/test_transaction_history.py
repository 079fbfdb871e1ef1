"""Random transactions of librdkafka and Ottla clients while the broker is killed and paused. Spec: R2

Small in a test run; OTTLA_HISTORY_S=120 for a longer look.
"""

import itertools
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker, Consumer, ErrorCode, KafkaError, Producer, TransactionAbortable
from ottla.verify.checks.checker import check
from ottla.verify.history import FAIL, OK, UNKNOWN, History, Operation, Read, Sent, partition_name
from tests.support.histories import final_read
from tests.support.waiting import PATIENCE_S, stretched, until
from tests.support.wire.raw import RawConnection
from tests.support.wire.raw_transactions import RawTransactions

LIMIT_MS = stretched(5_000)
"""For a transaction: one that was left open is aborted then."""
SECONDS = float(os.environ.get("OTTLA_HISTORY_S", "8"))
WORKERS, PARTITIONS = 4, 3
QUICK = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "log_level": 0,
}
SETTINGS = {
    "transaction.state.log.num.partitions": 5,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


class Worker(threading.Thread):
    """Transactions of up to four sends and polls, one after the other, despite errors."""

    def __init__(self, number: int, bootstrap: str, values: Any, history: list[Operation], ending: Any) -> None:
        super().__init__(daemon=True)
        self.number, self.bootstrap, self.values, self.history, self.ending = number, bootstrap, values, history, ending
        self.random = random.Random(number)

    def run(self) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"worker {self.number}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                **QUICK,
            }
        )
        consumer.assign([TopicPartition("t", p, 0) for p in range(PARTITIONS)])
        while not self.ending.is_set():
            try:
                self._instance(consumer)
            except KafkaException:
                time.sleep(0.05)
        consumer.close()

    def _instance(self, consumer: Any) -> None:
        """Runs a producer until an error that it cannot recover from."""
        from confluent_kafka import KafkaException, Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"worker-{self.number}",
                "transaction.timeout.ms": LIMIT_MS,
                "message.timeout.ms": LIMIT_MS,
                "linger.ms": 1,
                **QUICK,
            }
        )
        producer.init_transactions(LIMIT_MS / 500)
        while not self.ending.is_set():
            transaction = Operation(f"worker {self.number}")
            self.history.append(transaction)
            producer.begin_transaction()
            for _ in range(self.random.randint(1, 4)):
                if self.random.random() < 0.6:
                    partition, value = self.random.randrange(PARTITIONS), next(self.values)
                    transaction.sent.append(Sent(partition_name("t", partition), value))
                    producer.produce("t", b"%d" % value, partition=partition)
                else:
                    for message in consumer.consume(20, 0.02):
                        if message.error() is None:
                            place = (partition_name("t", message.partition()), message.offset())
                            transaction.polled.append(Read(*place, int(message.value())))
            if self.random.random() < 0.2:
                producer.abort_transaction(LIMIT_MS / 500)
                transaction.outcome = FAIL
                continue
            for _ in range(5):
                try:
                    producer.commit_transaction(LIMIT_MS / 500)
                    transaction.outcome = OK
                    break
                except KafkaException as failure:
                    error = failure.args[0]
                    if error.txn_requires_abort():
                        producer.abort_transaction(LIMIT_MS / 500)
                        transaction.outcome = FAIL
                        break
                    if not error.retriable():
                        raise


class OwnWorker(Worker):
    """The same with Ottla's client."""

    def run(self) -> None:
        quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50}
        settings = {"bootstrap.servers": self.bootstrap, **quick}
        with Consumer(settings, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", p) for p in range(PARTITIONS)])
            while not self.ending.is_set():
                try:
                    self._own_instance(consumer, settings)
                except KafkaError:
                    time.sleep(0.05)

    def _own_instance(self, consumer: Consumer, settings: dict[str, Any]) -> None:
        """Runs a producer until an error that it cannot recover from."""
        own = {"transactional.id": f"worker-{self.number}", "transaction.timeout.ms": LIMIT_MS, "linger.ms": 1}
        own |= {"delivery.timeout.ms": LIMIT_MS, "request.timeout.ms": LIMIT_MS * 3 // 5, "max.block.ms": 2 * LIMIT_MS}
        producer = Producer(settings | own)
        try:
            producer.init_transactions()
            while not self.ending.is_set():
                transaction = Operation(f"worker {self.number}")
                self.history.append(transaction)
                try:
                    self._own_transaction(producer, consumer, transaction)
                except TransactionAbortable:
                    producer.abort_transaction()
                    transaction.outcome = FAIL
        finally:
            producer.close(timeout_ms=0)  # as a crash would

    def _own_transaction(self, producer: Producer, consumer: Consumer, transaction: Operation) -> None:
        producer.begin_transaction()
        for _ in range(self.random.randint(1, 4)):
            if self.random.random() < 0.6:
                partition, value = self.random.randrange(PARTITIONS), next(self.values)
                transaction.sent.append(Sent(partition_name("t", partition), value))
                producer.send("t", b"%d" % value, partition=partition)
            else:
                for record in consumer.poll(20, max_records=20):
                    place = (partition_name("t", record.partition), record.offset)
                    transaction.polled.append(Read(*place, int(record.value or b"")))
        if self.random.random() < 0.2:
            producer.abort_transaction()
            transaction.outcome = FAIL
            return
        for attempt in range(5):
            try:
                producer.commit_transaction()
                transaction.outcome = OK
                return
            except KafkaError as error:
                if error.code != ErrorCode.REQUEST_TIMED_OUT or attempt == 4:
                    raise


def read_all(bootstrap: str) -> dict[int, list[tuple[int, int]]]:
    """The content of the topic when no transaction is open."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    with RawConnection(bootstrap) as connection:
        looking = RawTransactions(connection, "")
        deadline = time.monotonic() + PATIENCE_S
        # Transactions that were left open time out first.
        for partition in range(PARTITIONS):
            while looking.stable_offset("t", partition) < looking.end_offset("t", partition):
                assert time.monotonic() < deadline, f"a transaction hangs in partition {partition}"
                time.sleep(0.1)
    found: dict[int, list[tuple[int, int]]] = {p: [] for p in range(PARTITIONS)}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUICK,
        }
    )
    consumer.assign([TopicPartition("t", p, 0) for p in range(PARTITIONS)])
    over: set[int] = set()
    while len(over) < PARTITIONS:
        for message in consumer.consume(500, 1.0):
            error, place, offset = message.error(), message.partition(), message.offset()
            assert place is not None
            if error is None:
                assert offset is not None
                found[place].append((offset, int(message.value() or b"")))
            elif error.code() == KafkaError._PARTITION_EOF:
                over.add(place)
        assert time.monotonic() < deadline + 60
    consumer.close()
    return found


@pytest.mark.timeout(1800 + 2 * SECONDS)
@pytest.mark.parametrize("kind", [Worker, OwnWorker], ids=["librdkafka", "own client"])
def test_kills_and_pauses_cause_no_anomaly(tmp_path: Path, kind: type[Worker]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    chance = random.Random(11)
    history: list[Operation] = []
    ending = threading.Event()
    with Broker.embedded(data=tmp_path, settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(PATIENCE_S)
        values = itertools.count(1)
        workers = [kind(i, broker.bootstrap, values, history, ending) for i in range(WORKERS)]
        for worker in workers:
            worker.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(chance.uniform(0.5, 1.5))
            if chance.random() < 0.7:
                broker.kill()
                broker.restart()
            else:
                os.kill(broker.pid, signal.SIGSTOP)
                time.sleep(chance.uniform(0.2, 1.0))
                os.kill(broker.pid, signal.SIGCONT)
        until(lambda: sum(transaction.outcome == OK for transaction in history) > 5)
        ending.set()
        for worker in workers:
            worker.join(PATIENCE_S)
            assert not worker.is_alive(), "a worker hangs"
        final = read_all(broker.bootstrap)
    committed = sum(transaction.outcome == OK for transaction in history)
    unknown = sum(transaction.outcome == UNKNOWN for transaction in history)
    assert committed > 5, (committed, unknown)
    assert sum(map(len, final.values())) > 5, (committed, unknown)
    contents = {partition_name("t", partition): records for partition, records in final.items()}
    assert check(History([*history, final_read(contents)])) == []
