"""Memory leaks: resident memory of a client and a broker while millions of records are produced and consumed.

The client is a separate process: it sends a chunk of records, waits for the acknowledgements, consumes them, and
repeats. After each chunk the resident memory of client and broker is sampled. The reported growth is the slope of a
line fitted to the samples, without the first third, in which caches and heaps reach their size.
"""

import subprocess
import sys
from typing import Any

from bench.brokers import Contender
from bench.process_memory import resident_bytes
from bench.results import Results
from ottla import Broker

SUITE = "memory"
CHUNK = 20_000
VALUE_BYTES = 100
TIMEOUT_S = 1800
BROKER = {"log.retention.check.interval.ms": "1000", "group.initial.rebalance.delay.ms": "0"}
TOPIC = {"retention.bytes": "8388608", "segment.bytes": "4194304", "file.delete.delay.ms": "1000"}
"""Short retention: a broker keeps the indexes of its segments in memory, which would grow with the disk."""


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    chunks = 50 if quick else 500
    step(total=chunks)
    with Broker.embedded(settings=BROKER) as running:
        broker = Contender("ottla", running.bootstrap, running.pid)
        command = [sys.executable, "-m", "bench.memory", broker.bootstrap, str(chunks)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as client:
            assert client.stdout is not None
            samples: dict[str, list[float]] = {"client": [], "broker": []}
            for line in client.stdout:
                samples["client"].append(float(line))
                samples["broker"].append(broker.memory_mb() * 2**20)
                growth = slope(samples["client"]) if len(samples["client"]) > 10 else 0.0
                step(f"{len(samples['client']) * CHUNK:,} records; client grows {growth:,.0f} B per million")
            if client.wait(TIMEOUT_S) != 0:
                raise RuntimeError("the client ended early")
    assert len(samples["client"]) == chunks
    total = chunks * CHUNK / 1e6
    for name, found in samples.items():
        settled = found[len(found) // 3 :]
        results.add(SUITE, f"{name}: growth over {total:g} million records", "bytes/million", "ottla", slope(settled))
        for share, place in ((1 / 3, len(found) // 3), (2 / 3, 2 * len(found) // 3), (1, len(found) - 1)):
            label = f"{name}: resident after {share * total:.2g} million"
            results.add(SUITE, label, "MB", "ottla", found[place] / 2**20)


def slope(samples: list[float]) -> float:
    """Growth of memory in bytes per million records: the slope of a line fitted to the samples.

    >>> round(slope([100.0, 120.0, 140.0, 160.0]))
    1000
    """
    count = len(samples)
    middle, mean = (count - 1) / 2, sum(samples) / count
    above = sum((index - middle) * (value - mean) for index, value in enumerate(samples))
    per_chunk = above / sum((index - middle) ** 2 for index in range(count))
    return per_chunk * 1e6 / CHUNK


def main(bootstrap: str, chunks: str) -> None:
    """The child process: prints its resident memory after each chunk."""
    from ottla import Admin, Consumer, Producer

    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic("memory", partitions=2, configs=TOPIC)
    heard = [0]

    def on_delivery(_: Any) -> None:
        heard[0] += 1

    values = [bytes([i % 256]) * VALUE_BYTES for i in range(1000)]
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(bootstrap_servers=bootstrap, group_id="memory", auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe(["memory"])
        for chunk in range(int(chunks)):
            for number in range(CHUNK):
                # Keys are unique, so that anything that remembers keys forever shows up as growth.
                key = b"%d-%d" % (chunk, number)
                delivery = producer.send("memory", values[number % 1000], key=key)
                if not number % 10:
                    delivery.add_done_callback(on_delivery)
            producer.flush()
            received = 0
            while received < CHUNK:
                received += sum(len(record.value or b"") == VALUE_BYTES for record in consumer.poll(10_000))
            print(resident_bytes(), flush=True)
    assert heard[0] == int(chunks) * CHUNK // 10


if __name__ == "__main__":
    main(*sys.argv[1:])
