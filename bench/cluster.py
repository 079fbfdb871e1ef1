"""Three brokers with replication factor 3: start, throughput and latency, then the faults of `cluster_faults.py`.

Each round starts a cluster of each contender and measures everything on it, so the two never share the cores.
"""

import time
from collections.abc import Callable
from typing import Any

from bench import throughput
from bench.brokers import Contender
from bench.cluster_faults import EVENTS, PARTITIONS, SETTLE_S, measure_faults
from bench.results import Results
from bench.wire import Lane, one_at_a_time, percentile, produce_frame
from tests.support.processes.cluster import Cluster, KafkaCluster, OttlaCluster
from tests.support.processes.oracle import PRODUCTION_JVM

SUITE = "cluster"

SETTINGS = {"auto.leader.rebalance.enable": "false"}
"""Leaders return when the benchmark elects them: Kafka would do it after five minutes, Ottla after seconds."""

CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "ottla": lambda: OttlaCluster(settings=SETTINGS),
    "kafka": lambda: KafkaCluster(settings=SETTINGS, jvm=PRODUCTION_JVM),
}


def run(names: list[str], results: Results, rounds: int, quick: bool, step: Any) -> None:
    names = [name for name in names if name in CLUSTERS]
    step(total=rounds * len(names) * (4 + len(EVENTS)))
    for round_number in range(rounds):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            step(f"{name}: start")
            with CLUSTERS[name]() as cluster:
                measure(cluster, results, quick, step)


def measure(cluster: Cluster, results: Results, quick: bool, step: Callable[[str], None]) -> None:
    def add(name: str, unit: str, value: float, *, more_is_better: bool = False) -> None:
        results.add(SUITE, name, unit, cluster.name, value, more_is_better=more_is_better)

    add("three brokers ready", "s", cluster.ready_after_s)
    time.sleep(SETTLE_S)
    add("memory of three brokers", "MB", sum(each.memory_mb() for each in processes(cluster)))
    step(f"{cluster.name}: latency")
    measure_latency(cluster, add, 500 if quick else 4000)
    for size, count in ((100, 1_000_000), (1000, 200_000)):
        step(f"{cluster.name}: {size} B records")
        for replicas in (3, 1):
            measure_throughput(cluster, add, size, replicas, count // (10 if quick else 1))
    measure_faults(cluster, results, quick, step)


def processes(cluster: Cluster) -> list[Contender]:
    return [Contender(cluster.name, node.bootstrap, node.pid) for node in cluster.nodes.values() if node.is_running]


def cpu_seconds(cluster: Cluster) -> float:
    return sum(each.cpu_seconds() for each in processes(cluster))


def measure_latency(cluster: Cluster, add: Callable[..., None], count: int) -> None:
    """One record at a time on a plain socket to the leader; every follower must have it."""
    cluster.create_topic("latency", 1)
    leader = cluster.nodes[cluster.leader("latency")]
    lane = Lane(leader.bootstrap, produce_frame("latency", -1))
    one_at_a_time(lane, count)  # warm-up
    taken = one_at_a_time(lane, count)
    lane.socket.close()
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        add(f"one record at a time, acks=all: {name}", "µs", percentile(taken, share) * 1e6)


def measure_throughput(cluster: Cluster, add: Callable[..., None], size: int, replicas: int, count: int) -> None:
    """The first run is a warm-up and is not counted."""
    for is_counted in (False, True):
        topic = f"throughput-{size}-{replicas}-{time.monotonic_ns()}"
        cluster.create_topic(topic, PARTITIONS, replicas)
        cpu, started = cpu_seconds(cluster), time.perf_counter()
        throughput.produce(cluster.bootstrap, topic, size, "all", count)
        seconds, used = time.perf_counter() - started, cpu_seconds(cluster) - cpu
        if is_counted:
            case = f"produce {size} B, acks=all, {replicas} replica{'s' if replicas > 1 else ''}"
            add(case, "records/s", count / seconds, more_is_better=True)
            add(f"brokers' CPU, {case}", "µs/record", used / count * 1e6)
        Contender(cluster.name, cluster.bootstrap, 0).delete_topic(topic)
