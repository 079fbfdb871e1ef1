"""One exactly-once query on Spark from topic to topic, the drivers that run it, and what it must have written."""

import json
import time
from pathlib import Path
from typing import Any

from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.core.model import LATEST
from ottla.types import TopicPartition
from tests.support.processes.spark_driver import LIMIT_S, Driver, start
from tests.support.waiting import eventually

PARTITIONS = 2
PLACES = ["before-decision", "after-decision", "after-part-commit", "after-commit"]
"""Where the driver commits. At after-part-commit one part is committed and the other is held back: see `failpoints`."""


class Story:
    """One query from one topic to another, and the drivers that run it."""

    def __init__(self, bootstrap: str, name: str, directory: Path, *, query: str = "copy", **task: Any) -> None:
        self.bootstrap, self.directory, self.starts = bootstrap, directory, 0
        self.input, self.output = f"{name}-in", f"{name}-out"
        self.task = {
            "bootstrap": bootstrap,
            "input": self.input,
            "output": self.output,
            "checkpoint": str(directory / "checkpoint"),
            "query": query,
            "rows_per_batch": 70,
            "conf": {
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.memory": "700m",
                "spark.executor.memory": "512m",
                "spark.local.dir": str(directory / "local"),
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
            },
            **task,
        }
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(self.input, partitions=PARTITIONS)
            admin.create_topic(self.output, partitions=PARTITIONS)

    def produce(self, values: list[str]) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            for number, value in enumerate(values):
                producer.send(self.input, value, partition=number % PARTITIONS)
            producer.flush()

    def start(self, failpoint: str = "") -> Driver:
        self.starts += 1
        return start(self.task, self.directory / f"driver-{self.starts}.log", failpoint)

    def failpoints(self, action: str, *places: str) -> str:
        """One action at each place, once. Parts are committed concurrently, so one is held back for the others."""
        chosen = [f"{place}:{action}:{self.directory / place}" for place in places]
        if "after-part-commit" in places:
            chosen.append(f"before-part-commit:hold:{self.directory / 'held'}")
        return ",".join(chosen)

    def kill_at(self, place: str) -> None:
        """Starts the driver and kills it, with its JVM, once it has reached this place."""
        (self.directory / "held").unlink(missing_ok=True)
        driver = self.start(self.failpoints("stop", place))
        try:
            driver.wait_for(self.directory / place)
        finally:
            driver.kill()

    def written(self) -> list[str]:
        """What a read_committed consumer reads, sorted."""
        partitions = [TopicPartition(self.output, index) for index in range(PARTITIONS)]
        settings = {"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed"}
        with Consumer(settings) as consumer, Admin(bootstrap_servers=self.bootstrap) as admin:
            # Others use the same brokers, so the question is whether anything is open in this output.
            wanted = dict.fromkeys(partitions, LATEST)
            eventually(
                lambda: admin.list_offsets(wanted) == admin.list_offsets(wanted, isolation_level="read_committed"),
                LIMIT_S,
            )
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions)
            found = []
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += [(record.value or b"").decode() for record in consumer.poll(1000)]
        return sorted(found)


NUMBERS = [f"{number:03}" for number in range(200)]


def orders() -> tuple[list[str], list[str]]:
    """Orders, and the totals of their windows that a batch query would give. The last window stays open."""
    sent: list[str] = []
    totals: dict[int, tuple[int, int]] = {}
    for number in range(200):
        at = 1_700_000_000 + number // 2
        sent.append(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), "amount": number}))
        start = at - at % 10
        count, amount = totals.get(start, (0, 0))
        totals[start] = (count + 1, amount + number)
    sent.append(json.dumps({"at": "2030-01-01T00:00:00Z", "amount": 0}))
    answer = [
        json.dumps({"start": start, "orders": count, "amount": amount}, separators=(",", ":"))
        for start, (count, amount) in totals.items()
    ]
    return sent, sorted(answer)
