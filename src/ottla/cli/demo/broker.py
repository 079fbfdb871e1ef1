"""`ottla demo --broker`: measures throughput and latency of one producer and one consumer on one broker."""

import asyncio
import contextlib
import os
from collections.abc import Iterator  # noqa: TC003
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ottla.child_process import memory_of
from ottla.cli.output import console, count, print_json, print_table, size
from ottla.cli.session import check_reachable, client_settings
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.core.model import Records
from ottla.client.producer.producer import AsyncProducer
from ottla.clock import monotonic
from ottla.errors import OttlaError
from ottla.net.event_loop import new_event_loop

if TYPE_CHECKING:
    from ottla.cli.demo.cluster import DemoCluster
    from ottla.cli.demo.view import Say

PARTITIONS = 3
PROBES = 300
"""Records sent one at a time on an idle broker, to measure latency."""
SEQUENCE_BYTES = 8
TURN = 500
"""Records the producer sends before it yields to the consumer."""
RECORD_TIMEOUT_MS = 10_000


def demo_broker(
    records: int,
    record_bytes: int,
    compression: str,
    bootstrap: str | None,
    as_json: bool,
    brokers: int | None = None,
) -> None:
    """Produces records, consumes them, verifies that each arrived exactly once, and prints the results."""
    if compression not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise OttlaError(f"unknown codec {compression}", "use none, gzip, snappy, lz4 or zstd")
    result = Result(records, record_bytes)
    out = console()

    def say(text: str, style: str = "default") -> None:
        if not as_json:
            out.print(text, style=style)

    with (
        _broker(bootstrap, brokers, result, say) as (address, cluster),
        Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=out,
            disable=as_json or not out.is_terminal,
        ) as progress,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(BrokerDemo(address, compression, result, progress, cluster).run())
    if as_json:
        print_json(result.document())
    else:
        result.print()
    if result.missing or result.duplicates:
        raise OttlaError("records were lost or duplicated", "this is a bug, please report it")


@dataclass
class Result:
    """Measurements of the demo."""

    records: int
    record_bytes: int
    start_s: float = 0.0
    broker_memory_bytes: int | None = None
    produce_s: float = 0.0
    consume_s: float = 0.0
    consumed: int = 0
    duplicates: int = 0
    missing: int = 0
    cluster: dict[str, Any] = field(default_factory=dict)
    acknowledged_s: list[float] = field(default_factory=list)
    end_to_end_s: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "record_bytes": self.record_bytes,
            "broker_start_ms": round(self.start_s * 1000) or None,
            "broker_memory_bytes": self.broker_memory_bytes,
            "produced_per_second": round(self.records / self.produce_s),
            "consumed_per_second": round(self.consumed / self.consume_s),
            "acknowledged_ms": _percentiles(self.acknowledged_s),
            "end_to_end_ms": _percentiles(self.end_to_end_s),
            "duplicates": self.duplicates,
            "missing": self.missing,
            **self.cluster,
        }

    def print(self) -> None:
        total = self.records * self.record_bytes
        rows = [
            ["produced", count(self.records), size(total), *_rates(self.records, total, self.produce_s)],
            ["consumed", count(self.consumed), size(total), *_rates(self.consumed, total, self.consume_s)],
        ]
        columns = ["", "records", "data", "records/s", "data/s"]
        out = console()
        out.print()
        print_table(columns, rows, right=columns[1:])
        out.print()
        acknowledged, end_to_end = _percentiles(self.acknowledged_s), _percentiles(self.end_to_end_s)
        print_table(
            ["latency on an idle broker", "p50", "p99"],
            [
                ["produce to acknowledgement", f"{acknowledged['p50']:.2f} ms", f"{acknowledged['p99']:.2f} ms"],
                ["produce to consume", f"{end_to_end['p50']:.2f} ms", f"{end_to_end['p99']:.2f} ms"],
            ],
            right=["p50", "p99"],
        )
        out.print()
        good = not self.duplicates and not self.missing
        verdict = Text(f"duplicates {self.duplicates}, missing {self.missing}", style="green" if good else "bold red")
        if self.broker_memory_bytes is not None:
            verdict.append(f" (broker memory: {size(self.broker_memory_bytes)})", style="default dim")
        out.print(verdict)


class BrokerDemo:
    """The run: one producer and one consumer on one event loop."""

    def __init__(
        self,
        bootstrap: str,
        compression: str,
        result: Result,
        progress: Progress,
        cluster: "DemoCluster | None" = None,
    ) -> None:
        self._cluster = cluster
        self._settings = client_settings(bootstrap)
        self._compression = compression
        self._result = result
        self._progress = progress
        self._topic = f"ottla-demo-{os.getpid()}"
        self._seen = bytearray(result.records)

    async def run(self) -> None:
        async with AsyncAdmin(self._settings) as admin:
            await admin.create_topic(self._topic, partitions=PARTITIONS)
            try:
                async with AsyncConsumer(self._settings, auto_offset_reset="earliest") as consumer:
                    await consumer.assign([(self._topic, partition) for partition in range(PARTITIONS)])
                    await asyncio.gather(self._produce(), self._consume(consumer), self._lose_a_broker())
                    self._result.missing = self._seen.count(0)
                    await self._probe(consumer)
            finally:
                await admin.delete_topics([self._topic])

    async def _lose_a_broker(self) -> None:
        """In a cluster: kills a broker while records are sent, and restarts it."""
        cluster, result = self._cluster, self._result
        if cluster is None:
            return
        while not result.consume_s:
            await asyncio.to_thread(cluster.on_progress, result.consumed / result.records, [self._topic])
            await asyncio.sleep(0.02)
        await asyncio.to_thread(cluster.restart)
        result.cluster = cluster.document()

    async def _produce(self) -> None:
        result, progress = self._result, self._progress
        task = progress.add_task("produced", total=result.records, rate="")
        filler = b"." * (result.record_bytes - SEQUENCE_BYTES)
        started = monotonic()
        settings = self._settings | {"compression.type": self._compression}
        async with AsyncProducer(settings) as producer:
            for number in range(result.records):
                delivery = await producer.send(self._topic, number.to_bytes(SEQUENCE_BYTES, "big") + filler)
                if not number % TURN:
                    _advance(progress, task, number, started)
                    await asyncio.sleep(0)
            await producer.flush()
            await delivery
        result.produce_s = monotonic() - started
        _advance(progress, task, result.records, started)

    async def _consume(self, consumer: AsyncConsumer) -> None:
        result, progress = self._result, self._progress
        task = progress.add_task("consumed", total=result.records, rate="")
        started = monotonic()
        while result.consumed < result.records:
            records = await consumer.poll(RECORD_TIMEOUT_MS)
            if not records:
                break
            self._count(records)
            _advance(progress, task, result.consumed, started)
            await asyncio.sleep(0)
        result.consume_s = monotonic() - started

    def _count(self, records: Records) -> None:
        seen, result = self._seen, self._result
        for batch in records.by_partition.values():
            for record in batch:
                number = int.from_bytes((record.value or b"")[:SEQUENCE_BYTES], "big")
                result.duplicates += seen[number]
                seen[number] = 1
            result.consumed += len(batch)

    async def _probe(self, consumer: AsyncConsumer) -> None:
        """Sends records one at a time and waits until each is acknowledged and consumed."""
        result = self._result
        task = self._progress.add_task("one by one", total=PROBES, rate="")
        value = b"." * result.record_bytes
        async with AsyncProducer(self._settings, linger_ms=0) as producer:
            for number in range(PROBES):
                reading = asyncio.ensure_future(consumer.poll(RECORD_TIMEOUT_MS))
                await asyncio.sleep(0)
                started = monotonic()
                await (await producer.send(self._topic, value))
                acknowledged_s = monotonic() - started
                if not await reading:
                    raise OttlaError(
                        f"a record was not consumed within {RECORD_TIMEOUT_MS} ms", "this is a bug, please report it"
                    )
                if number:  # the first one includes connection setup
                    result.acknowledged_s.append(acknowledged_s)
                    result.end_to_end_s.append(monotonic() - started)
                self._progress.update(task, completed=number + 1)


@contextlib.contextmanager
def _broker(
    bootstrap: str | None, brokers: int | None, result: Result, say: "Say"
) -> "Iterator[tuple[str, DemoCluster | None]]":
    """The broker to use: --bootstrap, or an embedded broker for the duration of the demo."""
    if bootstrap is not None:
        check_reachable(bootstrap)
        say(f"broker at {bootstrap}")
        yield bootstrap, None
        return
    if brokers is not None:
        from ottla.cli.demo.cluster import demo_cluster

        started = monotonic()
        with demo_cluster(brokers, None, {}, say) as cluster:
            result.start_s = monotonic() - started
            yield cluster.bootstrap, cluster
            result.broker_memory_bytes = cluster.memory_bytes()
        return
    from ottla.broker.embedded.broker import EmbeddedBroker

    started = monotonic()
    with EmbeddedBroker() as broker:
        result.start_s = monotonic() - started
        say(f"embedded broker started in {result.start_s * 1000:.0f} ms at {broker.bootstrap}")
        yield broker.bootstrap, None
        result.broker_memory_bytes = memory_of(broker.pid)


def _advance(progress: Progress, task: TaskID, done: int, started: float) -> None:
    elapsed = monotonic() - started
    rate = f"{done / elapsed:>9,.0f}/s" if elapsed > 0.2 else ""
    progress.update(task, completed=done, rate=rate)


def _rates(records: int, total_bytes: int, seconds: float) -> tuple[str, str]:
    return f"{records / seconds:,.0f}", f"{size(total_bytes / seconds)}/s"


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000, 3)
        for name, part in (("p50", 0.5), ("p99", 0.99))
    }
