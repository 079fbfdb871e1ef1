"""One or more brokers on one host with replication factor 1: what more processes gain, next to Apache Kafka."""

import os
import time
from collections.abc import Callable
from typing import Any

from bench import throughput
from bench.brokers import Contender
from bench.cluster import cpu_seconds
from bench.results import Results
from bench.wire import Lane, all_together, one_at_a_time, percentile, produce_frame
from tests.support.processes.cluster import Cluster, KafkaCluster, OttlaCluster
from tests.support.processes.oracle import PRODUCTION_JVM

PARTITIONS = 4
CONNECTIONS = 16
SETTINGS = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
CLUSTERS: dict[str, Callable[[int], Cluster]] = {
    "ottla": lambda brokers: OttlaCluster(brokers, SETTINGS),
    "kafka": lambda brokers: KafkaCluster(brokers, SETTINGS, jvm=PRODUCTION_JVM),
}


def broker_counts() -> list[int]:
    """One and two brokers, and four if there are at least four cores."""
    return [count for count in (1, 2, 4) if count <= max(2, os.cpu_count() or 1)]


def run(names: list[str], results: Results, rounds: int, quick: bool, step: Any) -> None:
    names = [name for name in names if name in CLUSTERS]
    step(total=rounds * len(names) * len(broker_counts()))
    for round_number in range(rounds):
        turn = round_number % len(names)
        for brokers in broker_counts():
            for name in names[turn:] + names[:turn]:
                step(f"{name}: {brokers} brokers")
                with CLUSTERS[name](brokers) as cluster:
                    measure(cluster, results, quick)


def measure(cluster: Cluster, results: Results, quick: bool) -> None:
    suite = f"cores: {cluster.count} broker{'s' if cluster.count > 1 else ''}"

    def add(name: str, unit: str, value: float, *, more_is_better: bool = False) -> None:
        results.add(suite, name, unit, cluster.name, value, more_is_better=more_is_better)

    for size, count in ((100, 1_000_000), (1000, 200_000)):
        count //= 10 if quick else 1
        for is_counted in (False, True):
            topic = f"cores-{size}-{time.monotonic_ns()}"
            cluster.create_topic(topic, PARTITIONS, 1)
            cpu, started = cpu_seconds(cluster), time.perf_counter()
            throughput.produce(cluster.bootstrap, topic, size, "all", count)
            seconds, used = time.perf_counter() - started, cpu_seconds(cluster) - cpu
            if is_counted:
                add(f"produce {size} B, acks=all", "records/s", count / seconds, more_is_better=True)
                add(f"brokers' CPU, produce {size} B", "µs/record", used / count * 1e6)
            Contender(cluster.name, cluster.bootstrap, 0).delete_topic(topic)
    small_requests(cluster, add, 4000 if quick else 30_000)


def open_lane(bootstrap: str, frame: bytes) -> Lane:
    """A connection on which requests succeed. The leader of a new topic may learn of its role a moment later."""
    deadline = time.monotonic() + 30
    while True:
        lane = Lane(bootstrap, frame)
        try:
            one_at_a_time(lane, 3)
            return lane
        except AssertionError:
            lane.socket.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def small_requests(cluster: Cluster, add: Callable[..., None], count: int) -> None:
    """One-record requests on plain sockets, one in flight on each connection, spread over all leaders."""
    topic = "cores-requests"
    cluster.create_topic(topic, PARTITIONS, 1)
    leaders = {state.partition: state.leader for state in cluster.describe(topic)}
    lanes = []
    for number in range(CONNECTIONS):
        partition = number % PARTITIONS
        lanes.append(open_lane(cluster.nodes[leaders[partition]].bootstrap, produce_frame(topic, 1, partition)))
    all_together(lanes, count // 2, 1)  # warm-up
    cpu = cpu_seconds(cluster)
    taken, seconds = all_together(lanes, count, 1)
    used = cpu_seconds(cluster) - cpu
    for lane in lanes:
        lane.socket.close()
    label = f"{CONNECTIONS} connections, 1 in flight each"
    add(label, "requests/s", count / seconds, more_is_better=True)
    add(f"brokers' CPU, {label}", "µs/request", used / count * 1e6)
    add(f"p50, {label}", "µs", percentile(taken, 0.5) * 1e6)
    add(f"p99, {label}", "µs", percentile(taken, 0.99) * 1e6)
