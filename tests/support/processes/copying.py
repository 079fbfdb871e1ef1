"""The transactional copier over processes: what it copies, the copiers, and a reader that runs all the time. Spec: R1.

The copiers are copier_process (librdkafka) and own_copier_process (Ottla's client). `check_copy` says what must hold:
the output equals the input, nothing is duplicated, order is kept, and the reader saw the same.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from ottla import Admin, TopicPartition
from ottla.client.core.model import LATEST
from tests.support.waiting import PATIENCE_S, eventually

LIBRDKAFKA, OWN = "tests.support.processes.copier_process", "tests.support.processes.own_copier_process"
INPUT, OUTPUT = "input", "output"


class Copiers:
    """The copier processes, restarted after they were killed."""

    def __init__(self, module: str, bootstrap: str, partitions: int, in_group: bool, size: int) -> None:
        self.module, self.bootstrap, self.size = module, bootstrap, size
        count = 3 if in_group else partitions
        self._assigned = ["group" if in_group else str(i) for i in range(count)]
        self.processes = [self._start(i) for i in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        words = [self.bootstrap, INPUT, OUTPUT, "copiers", str(number), self._assigned[number], str(self.size), "0.1"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([sys.executable, "-m", self.module, *words], env=environment, stderr=subprocess.DEVNULL)

    def bounce(self, number: int, *, hard: bool) -> None:
        process = self.processes[number]
        process.kill() if hard else process.terminate()
        process.wait(PATIENCE_S)
        self.processes[number] = self._start(number)

    @property
    def are_done(self) -> bool:
        return all(process.poll() == 0 for process in self.processes)

    def finish(self, deadline: float) -> None:
        """Waits until all have finished; one that failed is started again."""
        while not self.are_done:
            assert time.monotonic() < deadline, [process.poll() for process in self.processes]
            for number, process in enumerate(self.processes):
                if process.poll() not in (None, 0):
                    self.processes[number] = self._start(number)
            time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(PATIENCE_S)


class Reader:
    """A read_committed consumer that runs all the time."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.seen: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(OUTPUT, p, 0) for p in self.seen])
        while not self._stop.is_set():
            for message in consumer.consume(1000, 0.2):
                partition = message.partition()
                if message.error() is None and partition is not None:
                    self.seen[partition].append(message.value() or b"")
        consumer.close()

    def finish(self, wanted: int, deadline: float) -> dict[int, list[bytes]]:
        while sum(map(len, self.seen.values())) < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        self._stop.set()
        self._thread.join(PATIENCE_S)
        return self.seen


def fill(bootstrap: str, partitions: int, count: int, replicas: int = 1) -> dict[int, list[bytes]]:
    """Creates both topics and writes the numbers below `count` to the input; returns them by partition."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, partitions, replicas) for name in (INPUT, OUTPUT)]).values():
        future.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    values: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
    for number in range(count):
        value = b"%d" % number
        values[number % partitions].append(value)
        producer.produce(INPUT, value, partition=number % partitions)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return values


def check_copy(
    bootstrap: str,
    module: str,
    *,
    partitions: int,
    in_group: bool,
    count: int,
    replicas: int = 1,
    bounces: int,
    bounce_broker: Callable[[], None] | None,
    hard: bool,
) -> None:
    """Copies `count` records while brokers (`bounce_broker`) or copiers are bounced, and checks the copy."""
    chance = random.Random(7)
    size = 750 if count >= 20_000 else 100
    wanted = fill(bootstrap, partitions, count, replicas)
    reader = Reader(bootstrap, partitions)
    copiers = Copiers(module, bootstrap, partitions, in_group, size)
    deadline = time.monotonic() + deadline_s(count)
    try:
        for _ in range(bounces):
            time.sleep(chance.uniform(0.5, 1.5))
            if bounce_broker is None:
                copiers.bounce(chance.randrange(len(copiers.processes)), hard=hard)
            else:
                bounce_broker()
        copiers.finish(deadline)
        seen = reader.finish(count, deadline)
    finally:
        copiers.close()
    for partition, values in wanted.items():
        assert len(seen[partition]) == len(set(seen[partition])), "a record was duplicated"
        assert sorted(seen[partition], key=int) == values
        # Members of a group hand partitions over, and each hand-over is at a committed position.
        assert seen[partition] == values, "records changed their order"
    await_settled(bootstrap, partitions)


def deadline_s(count: int) -> float:
    return 3 * PATIENCE_S + count / 100


def await_settled(bootstrap: str, partitions: int) -> None:
    """No transaction is left open: the last stable offset reaches the end."""
    wanted = {TopicPartition(OUTPUT, partition): LATEST for partition in range(partitions)}
    with Admin(bootstrap_servers=bootstrap) as admin:
        eventually(lambda: admin.list_offsets(wanted) == admin.list_offsets(wanted, isolation_level="read_committed"))
