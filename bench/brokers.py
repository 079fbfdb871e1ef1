"""The contenders: Ottla, Apache Kafka from its jars, and librdkafka's mock cluster, each in its own process."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.processes.oracle import PRODUCTION_JVM, RealKafka, kafka_version, oracle_available

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PARTITIONS = 4
"""Partitions of every measured topic: the mock cluster's fixed number."""


class Contender:
    """A running broker, with the CPU time and memory of its process."""

    def __init__(self, name: str, bootstrap: str, pid: int) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.pid = pid

    def cpu_seconds(self) -> float:
        """CPU time used by the broker so far, in all its threads."""
        nanoseconds = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                nanoseconds += int((task / "schedstat").read_text().split()[0])
            except FileNotFoundError:
                # The thread has just ended, or the kernel has no schedstat.
                if not task.exists():
                    continue
                fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
        return nanoseconds / 1e9

    def memory_mb(self) -> float:
        """Resident memory of the broker."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def create_topic(self, topic: str, partitions: int = PARTITIONS) -> None:
        """Creates a topic and waits until it is usable. The mock cluster creates topics automatically."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        if self.name != "mock":
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = admin.list_topics(topic, 10).topics[topic]
            if found.error is None and len(found.partitions) >= partitions:
                with contextlib.suppress(Exception):
                    wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(min(partitions, 8))}
                    for future in admin.list_offsets(wanted).values():
                        future.result(10)
                    return
            time.sleep(0.05)
        raise TimeoutError(f"{topic} is not ready on {self.name}")

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic to free the disk. The mock cluster cannot delete, but keeps only a few megabytes."""
        if self.name == "mock":
            return
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.delete_topics([topic])[topic].result(60)


@contextlib.contextmanager
def ottla() -> Iterator[Contender]:
    from ottla import Broker

    # The other contenders do not wait for more members either.
    with Broker.embedded(settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield Contender("ottla", broker.bootstrap, broker.pid)


@contextlib.contextmanager
def kafka() -> Iterator[Contender]:
    with RealKafka(jvm=PRODUCTION_JVM) as broker:
        yield Contender("kafka", broker.bootstrap, broker.pid)


@contextlib.contextmanager
def mock() -> Iterator[Contender]:
    """librdkafka's mock cluster in a child process, so that its CPU time can be measured."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.brokers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Like the other brokers: some kernels schedule sessions (autogroups) fairly, not processes.
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        bootstrap = child.stdout.readline().strip()
        if not bootstrap:
            raise RuntimeError("the mock cluster did not start")
        yield Contender("mock", bootstrap, child.pid)
    finally:
        child.stdin.close()
        child.wait(10)


def unavailable(name: str) -> str | None:
    """The reason why a contender is not available, or None."""
    if name == "kafka":
        return oracle_available()
    return None


CONTENDERS: dict[str, Any] = {"ottla": ottla, "kafka": kafka, "mock": mock}


def titles() -> dict[str, str]:
    """The names of the contenders in tables, with versions."""
    import confluent_kafka

    import ottla as package

    return {
        "ottla": f"Ottla {package.__version__}",
        "kafka": f"Kafka {kafka_version()}",
        "mock": f"mock {confluent_kafka.libversion()[0]}",
    }


@contextlib.contextmanager
def running(names: list[str]) -> Iterator[list[Contender]]:
    """Runs all contenders at the same time, so that rounds can alternate between them."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(CONTENDERS[name]()) for name in names]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory for data that outlives a broker."""
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as path:
        yield Path(path)


def serve_mock() -> None:
    """The child: prints the mock cluster's address, then waits until its standard input closes."""
    from confluent_kafka import Producer

    # Any client can host the cluster; this one sends nothing itself.
    host = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = host.list_topics(timeout=10).brokers.values()
    print(f"{broker.host}:{broker.port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve_mock()
