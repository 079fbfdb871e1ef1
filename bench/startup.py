"""Time from process start to the first metadata response, and idle memory; empty and with 1,000 partitions."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.brokers import Contender, scratch
from bench.results import Results
from tests.support.ports import fixed_port
from tests.support.processes.oracle import PRODUCTION_JVM, RealKafka, answers_metadata

SUITE = "startup"
PARTITIONS = 1000
REST_SECONDS = 3.0


class Started:
    """A started broker and the time until its first response."""

    def __init__(self, contender: Contender, seconds: float) -> None:
        self.contender = contender
        self.seconds = seconds


@contextlib.contextmanager
def start_ottla(data: Path) -> Iterator[Started]:
    port = fixed_port()
    command = [sys.executable, "-m", "ottla", "serve", "--stop-with-stdin"]
    command += ["--listen", f"127.0.0.1:{port}", "--data", str(data), "--log-level", "warning"]
    # As when installed: modules are compiled once, by the first start, which is not counted.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    try:
        while not answers_metadata("127.0.0.1", port):
            if process.poll() is not None or time.perf_counter() - started > 60:
                raise RuntimeError("Ottla did not start")
            time.sleep(0.001)
        seconds = time.perf_counter() - started
        yield Started(Contender("ottla", f"127.0.0.1:{port}", process.pid), seconds)
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def start_kafka(data: Path) -> Iterator[Started]:
    with RealKafka(jvm=PRODUCTION_JVM, data=str(data)) as broker:
        yield Started(Contender("kafka", broker.bootstrap, broker.pid), broker.ready_after_s)


STARTERS: dict[str, Any] = {"ottla": start_ottla, "kafka": start_kafka}


def run(names: list[str], results: Results, rounds: int, quick: bool, step: Any) -> None:
    names = [name for name in names if name in STARTERS]
    step(total=rounds * len(names) * 2)
    with scratch() as directory:
        for name in names:
            with STARTERS[name](directory / f"{name}-thousand") as started:
                started.contender.create_topic("thousand", PARTITIONS)
        for round_number in range(rounds):
            for name in names:
                step(f"{name}: empty")
                with STARTERS[name](directory / f"{name}-empty-{round_number}") as started:
                    results.add(SUITE, "start to first metadata response", "ms", name, started.seconds * 1000)
                    time.sleep(REST_SECONDS / (3 if quick else 1))
                    results.add(SUITE, "idle memory", "MB", name, started.contender.memory_mb())
                step(f"{name}: 1,000 partitions")
                with STARTERS[name](directory / f"{name}-thousand") as started:
                    results.add(SUITE, "start with 1,000 partitions", "ms", name, started.seconds * 1000)
                    time.sleep(1.0)
                    cpu = started.contender.cpu_seconds()
                    time.sleep(REST_SECONDS)
                    used = (started.contender.cpu_seconds() - cpu) / REST_SECONDS
                    results.add(SUITE, "idle CPU, 1,000 partitions", "% of a core", name, used * 100)
                    results.add(SUITE, "memory, 1,000 partitions", "MB", name, started.contender.memory_mb())
