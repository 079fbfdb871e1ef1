"""Spec: R1. The transactional copier with real processes and real kills, with librdkafka and with Ottla's client.

Small in a test run; OTTLA_COPIES=100000 OTTLA_BOUNCES=20 for the size of the recipe. The output equals the input as
a set, nothing is doubled, order is kept, and a reader that ran all the time saw the same.
"""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker
from tests.support.processes.copier import settle
from tests.support.wire.transactional import RawClient

COPIES = int(os.environ.get("OTTLA_COPIES", "2000"))
BOUNCES = int(os.environ.get("OTTLA_BOUNCES", "3"))
SIZE = 750 if COPIES >= 20_000 else 100
DEADLINE_S = 160 + COPIES / 100
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
}


class Copiers:
    """The copier processes, restarted after they were killed."""

    def __init__(self, module: str, bootstrap: str, partitions: int, in_group: bool) -> None:
        self.module = module
        self.bootstrap = bootstrap
        count = 3 if in_group else partitions
        self._assigned = ["group" if in_group else str(i) for i in range(count)]
        self.processes = [self._start(i) for i in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        words = [self.bootstrap, "input", "output", "copiers", str(number), self._assigned[number], str(SIZE), "0.1"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen([sys.executable, "-m", self.module, *words], env=environment, stderr=subprocess.DEVNULL)

    def bounce(self, number: int, *, hard: bool) -> None:
        process = self.processes[number]
        process.kill() if hard else process.terminate()
        process.wait(60)
        self.processes[number] = self._start(number)

    def finish(self, deadline: float) -> None:
        """Waits until all have come to the end; one that fell over is started again."""
        while any(process.poll() != 0 for process in self.processes):
            assert time.monotonic() < deadline, [process.poll() for process in self.processes]
            for number, process in enumerate(self.processes):
                if process.poll() not in (None, 0):
                    self.processes[number] = self._start(number)
            time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(60)


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
        consumer.assign([TopicPartition("output", p, 0) for p in self.seen])
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
        self._thread.join(30)
        return self.seen


def fill(bootstrap: str, partitions: int) -> dict[int, list[bytes]]:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, partitions, 1) for name in ("input", "output")]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    values: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
    for number in range(COPIES):
        value = b"%d" % number
        values[number % partitions].append(value)
        producer.produce("input", value, partition=number % partitions)
        producer.poll(0)
    assert producer.flush(60) == 0
    return values


LIBRDKAFKA, OWN = "tests.support.processes.copier_process", "tests.support.processes.own_copier_process"


@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize(
    ("module", "bounced", "hard", "partitions", "in_group"),
    [
        pytest.param(LIBRDKAFKA, "broker", True, 1, False, id="broker killed"),
        pytest.param(LIBRDKAFKA, "broker", False, 3, True, id="broker restarted"),
        pytest.param(LIBRDKAFKA, "clients", True, 3, True, id="clients killed"),
        pytest.param(LIBRDKAFKA, "clients", False, 2, False, id="clients stopped"),
        pytest.param(OWN, "broker", True, 3, True, id="broker killed, own client"),
        pytest.param(OWN, "clients", True, 3, True, id="clients killed, own client"),
    ],
)
def test_the_copy_is_exact(
    tmp_path: Path, module: str, bounced: str, hard: bool, partitions: int, in_group: bool
) -> None:
    chance = random.Random(7)
    with Broker.embedded(data=tmp_path, settings=SETTINGS) as broker:
        wanted = fill(broker.bootstrap, partitions)
        reader = Reader(broker.bootstrap, partitions)
        copiers = Copiers(module, broker.bootstrap, partitions, in_group)
        deadline = time.monotonic() + DEADLINE_S
        try:
            for _ in range(BOUNCES):
                time.sleep(chance.uniform(0.5, 1.5))
                if bounced == "clients":
                    copiers.bounce(chance.randrange(len(copiers.processes)), hard=hard)
                elif hard:
                    broker.kill()
                    broker.restart()
                else:
                    broker.restart()
            copiers.finish(deadline)
            seen = reader.finish(COPIES, deadline)
        finally:
            copiers.close()
        for partition, values in wanted.items():
            assert len(seen[partition]) == len(set(seen[partition])), "nothing is doubled"
            if not in_group:
                assert seen[partition] == values
            # Members of a group hand partitions over, and each hand-over is at a committed position.
            assert sorted(seen[partition], key=int) == values
            assert seen[partition] == values, "order is kept"
        run_async(all_settled(broker.bootstrap, partitions))


async def all_settled(bootstrap: str, partitions: int) -> None:
    client = RawClient(bootstrap)
    for partition in range(partitions):
        await settle(client, "output", partition)
    client.close()


def run_async(coroutine: Any) -> None:
    import asyncio

    asyncio.run(coroutine)
