"""The metadata stores: commits, changes seen by another session, large commits, and clusters on each of them.

etcd has three members on this machine, with its defaults. SQLite is one file. Both sync every commit to disk.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.results import Results
from bench.wire import percentile
from ottla.metadata.opening import open_store
from ottla.metadata.store import Change, Create, MetadataStore, Set
from tests.support.clients.steady import ConfluentSteady, OttlaSteady
from tests.support.processes.cluster import Cluster, OttlaCluster
from tests.support.processes.etcd import EtcdCluster, NoEtcd
from tests.support.processes.etcd_brokers import EtcdBrokers

SUITE = "stores"
MANY = 10_000
PARTITIONS = 6
RATE = 300.0
"""Records per second of each producer."""
WARM_UP_S, AFTERWARDS_S = 2.0, 3.0


@contextmanager
def sqlite() -> Iterator[tuple[str, Callable[[], Cluster]]]:
    with TemporaryDirectory() as home:
        yield str(Path(home) / "metadata.sqlite"), OttlaCluster


@contextmanager
def etcd() -> Iterator[tuple[str, Callable[[], Cluster]]]:
    with EtcdCluster(members=3, heartbeat_ms=100, options=()) as members:
        yield members.url("/bench"), lambda: EtcdBrokers(members, prefix="/brokers")


STORES = {"sqlite": sqlite, "etcd": etcd}


def run(results: Results, rounds: int, quick: bool, step: Any) -> None:
    step(total=rounds * len(STORES) * 2)
    for _ in range(rounds):
        for name, started in STORES.items():
            step(f"{name}: commits")
            with ExitStack() as stack:
                try:
                    location, make_cluster = stack.enter_context(started())
                except NoEtcd as reason:
                    results.failures.append(f"{name}: {reason}")
                    continue
                taken = asyncio.run(measure(location, 100 if quick else 1_000))
                step(f"{name}: cluster")
                taken |= measure_cluster(make_cluster())
                for (what, unit), value in taken.items():
                    results.add(SUITE, what, unit, name, value)


async def measure(location: str, count: int) -> dict[tuple[str, str], float]:
    writer, reader = (open_store(location, session_timeout_ms=10_000) for _ in range(2))
    await writer.start()
    await reader.start()
    try:
        await writer.commit([Create("/a", b"0")])
        await reader.sync()
        commits, seen = await measure_commits(writer, reader, count)
        started = time.perf_counter()
        await writer.commit([Create(f"/many/{number}", b"x" * 100) for number in range(MANY)])
        large_s = time.perf_counter() - started
    finally:
        await writer.close()
        await reader.close()
    return {
        ("one commit: p50", "ms"): percentile(commits, 0.5) * 1000,
        ("one commit: p99", "ms"): percentile(commits, 0.99) * 1000,
        ("commit to change seen by another session: p50", "ms"): percentile(seen, 0.5) * 1000,
        (f"commit of {MANY:,} keys", "s"): large_s,
    }


async def measure_commits(writer: MetadataStore, reader: MetadataStore, count: int) -> tuple[list[float], list[float]]:
    arrived: asyncio.Queue[float] = asyncio.Queue()

    def note(changes: "list[Change] | Any") -> None:
        arrived.put_nowait(time.perf_counter())

    stop = reader.watch("/a", note)
    commits, seen = [], []
    for number in range(count):
        started = time.perf_counter()
        await writer.commit([Set("/a", b"%d" % number)])
        commits.append(time.perf_counter() - started)
        seen.append(await arrived.get() - started)
    stop()
    return commits, seen


def measure_cluster(cluster: Cluster) -> dict[tuple[str, str], float]:
    """Kills the leader of partition 0 while two producers send, and waits until another broker leads."""
    with cluster:
        cluster.create_topic("t", PARTITIONS)
        producers = [made(cluster.bootstrap, "t", PARTITIONS, rate=RATE) for made in (OttlaSteady, ConfluentSteady)]
        for producer in producers:
            producer.start()
        try:
            time.sleep(WARM_UP_S)
            led = [state.partition for state in cluster.describe("t") if state.leader == cluster.leader("t")]
            victim = cluster.leader("t")
            killed_at = time.monotonic()
            cluster.nodes[victim].kill()
            while any(state.leader in (victim, -1) for state in cluster.describe("t")):
                time.sleep(0.005)
            elected_s = time.monotonic() - killed_at
            time.sleep(AFTERWARDS_S)
            gaps = [producer.gaps(killed_at, time.monotonic()) for producer in producers]
        finally:
            for producer in producers:
                producer.stop()
        return {
            ("three brokers ready", "s"): cluster.ready_after_s,
            ("kill -9 of a leader: new leaders", "s"): elected_s,
        } | {
            (f"kill -9 of a leader: {producer.name} without acknowledgement", "s"): max(gap[p].seconds for p in led)
            for producer, gap in zip(producers, gaps, strict=True)
        }
