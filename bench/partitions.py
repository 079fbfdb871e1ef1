"""Ten thousand partitions: creating them, starting and stopping with them, deleting them, and how long others wait.

"Others" is one client that sends ApiVersions continuously. Its longest wait is the longest time in which the broker
served no client.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.brokers import Contender, scratch
from bench.results import Results
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from tests.support.ports import fixed_port
from tests.support.processes.oracle import answers_metadata
from tests.support.wire.pulse import Pulse
from tests.support.wire.raw import RawConnection, batch

SUITE = "partitions"
PARTITIONS = 10_000
QUICK_PARTITIONS = 1_000
REQUEST_PARTITIONS = 500
PATIENCE_S = 600.0
NAME = "ottla"


class Server:
    """A broker in its own process, started and stopped with the time that takes."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = fixed_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> tuple[float, float]:
        """Seconds until the first metadata response, and CPU seconds used for that."""
        command = [sys.executable, "-m", "ottla", "serve", "--listen", self.bootstrap]
        command += ["--data", str(self.data), "--log-level", "warning"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment, start_new_session=True)
        while not answers_metadata("127.0.0.1", self.port):
            if self.process.poll() is not None or time.perf_counter() - started > PATIENCE_S:
                raise RuntimeError("Ottla did not start")
            time.sleep(0.001)
        return time.perf_counter() - started, self.contender.cpu_seconds()

    def end(self, with_signal: signal.Signals = signal.SIGTERM) -> tuple[float, float]:
        """Seconds until the process has ended, and CPU seconds used for that."""
        assert self.process is not None
        used, used_by_all = self.contender.cpu_seconds(), children_cpu_seconds()
        process, self.process = self.process, None
        started = time.perf_counter()
        process.send_signal(with_signal)
        process.wait(PATIENCE_S)
        return time.perf_counter() - started, children_cpu_seconds() - used_by_all - used

    @property
    def contender(self) -> Contender:
        assert self.process is not None
        return Contender(NAME, self.bootstrap, self.process.pid)


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    partitions = QUICK_PARTITIONS if quick else PARTITIONS
    layouts = [(1, partitions), (partitions // 10, 10)]
    step(total=rounds * len(layouts))
    for _ in range(rounds):
        for topics, each in layouts:
            step(f"{topics:,} topics with {each:,} partitions")
            with scratch() as directory:
                measure(results, directory, topics, each)


def measure(results: Results, directory: Path, topics: int, each: int) -> None:
    names = [f"topic-{number}" for number in range(topics)]
    suite = f"{SUITE}: {topics:,} × {each:,}"

    def add(name: str, unit: str, value: float) -> None:
        results.add(suite, name, unit, NAME, value)

    def add_both(name: str, took: tuple[float, float]) -> None:
        add(name, "s", took[0])
        add(f"{name}: CPU time", "s", took[1])

    def ask_beside(name: str, request: Any, version: int) -> None:
        """Times a request while another client is served."""
        used = server.contender.cpu_seconds()
        with Pulse(server.bootstrap) as pulse:
            started = time.perf_counter()
            ask(server, request, version)
            took = time.perf_counter() - started
        add_both(name, (took, server.contender.cpu_seconds() - used))
        add(f"{name}: longest wait of another client", "ms", pulse.longest_s * 1000)

    server = Server(directory)
    server.start()
    try:
        ask_beside("create", create(names, each), 7)
        add("memory", "MB", server.contender.memory_mb())
        ask_beside("metadata of all", MetadataRequest(topics=None), 12)
        add_both("stop, nothing written", server.end())
        add_both("start", server.start())
        produce(server, names, each)
        add_both("stop, one record in each", server.end())
        add_both("start, one record in each", server.start())
        add("memory after a start", "MB", server.contender.memory_mb())
        server.end(signal.SIGKILL)
        add_both("start after kill -9", server.start())
        ask_beside("delete", delete(names), 6)
        add_both("stop after deleting", server.end())
        add_both("start after deleting", server.start())
    finally:
        if server.process is not None:
            server.end()


def children_cpu_seconds() -> float:
    """CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ask(server: Server, request: Any, version: int) -> Any:
    with RawConnection(server.bootstrap, timeout_s=PATIENCE_S) as connection:
        return connection.ask(request, version)


def create(names: list[str], partitions: int) -> CreateTopicsRequest:
    topics = [
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=int(PATIENCE_S * 1000))


def delete(names: list[str]) -> DeleteTopicsRequest:
    topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
    return DeleteTopicsRequest(topics=topics, timeout_ms=int(PATIENCE_S * 1000))


def produce(server: Server, names: list[str], partitions: int) -> None:
    """One record to each partition."""
    record = batch(b"x" * 100)
    places = [(name, index) for name in names for index in range(partitions)]
    with RawConnection(server.bootstrap, timeout_s=PATIENCE_S) as connection:
        for first in range(0, len(places), REQUEST_PARTITIONS):
            topics = [
                ProduceRequest.TopicProduceData(
                    name=name, partition_data=[ProduceRequest.PartitionProduceData(index=index, records=record)]
                )
                for name, index in places[first : first + REQUEST_PARTITIONS]
            ]
            connection.ask(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics), 9)
