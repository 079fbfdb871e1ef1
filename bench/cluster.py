"""Three brokers with replication factor 3: throughput, latency, start, and how long clients wait when brokers fail.

Each round starts a cluster of each contender and measures everything on it, so the two never share the cores. While
brokers are killed, confluent-kafka produces with idempotence and acks=all, commits offsets and runs transactions; a gap
is the longest time without an acknowledgement on one partition, without a commit, or without a transaction.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import throughput
from bench.brokers import Contender
from bench.results import Results
from bench.wire import Lane, one_at_a_time, percentile, produce_frame
from tests.support.clients.steady import ConfluentSteady
from tests.support.processes.cluster import TRANSACTION, Cluster, KafkaCluster, OttlaCluster
from tests.support.processes.oracle import PRODUCTION_JVM

SUITE = "cluster"
FAULTS = "cluster faults"
PARTITIONS = 6
RATE = 600.0
"""Records a second while brokers fail: an acknowledgement on each partition every 10 ms."""
PAUSE_S = 13.5
"""How long a broker is paused: one and a half times broker.session.timeout.ms."""
SETTLE_S = 1.0
CALM_S = 11.0
"""Between two faults: librdkafka doubles its wait before a connection until there was none for ten seconds, and would
otherwise measure the faults before."""

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


# --- faults -----------------------------------------------------------------------------------------------


class Repeated:
    """Does something again and again in a thread, and notes when it succeeded."""

    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.times: list[float] = []
        self.errors: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.run, name=type(self).__name__, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(120)

    def run(self) -> None:
        raise NotImplementedError

    def longest_gap_s(self, since: float, until: float) -> float:
        times = [*self.times, time.monotonic()]
        return max(
            (after - before for before, after in itertools.pairwise(times) if after > since and before < until),
            default=until - since,
        )

    def await_success(self, since: float, timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.times or self.times[-1] < since:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{type(self).__name__}: nothing for {timeout_s} s; last error: {self.errors[-1:]}")
            time.sleep(0.005)


class Committer(Repeated):
    """Commits an offset all the time."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        super().__init__(cluster)
        self.group, self.topic = group, topic

    def run(self) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0})
        offset = 0
        while not self._stopping.wait(0.01):
            offset += 1
            try:
                consumer.commit(offsets=[TopicPartition(self.topic, 0, offset)], asynchronous=False)
                self.times.append(time.monotonic())
            except KafkaException as error:
                self.errors.append(str(error))
        consumer.close()


class Transactions(Repeated):
    """Commits a transaction of one record all the time."""

    def __init__(self, cluster: Cluster, transactional_id: str, topic: str) -> None:
        super().__init__(cluster)
        self.transactional_id, self.topic = transactional_id, topic

    def run(self) -> None:
        from confluent_kafka import KafkaException

        while not self._stopping.is_set():
            try:
                self._instance()
            except KafkaException as error:
                self.errors.append(str(error))

    def _instance(self) -> None:
        from confluent_kafka import KafkaException, Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.transactional_id,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        producer.init_transactions(60)
        while not self._stopping.wait(0.01):
            producer.begin_transaction()
            producer.produce(self.topic, b"x" * 100, partition=0)
            try:
                producer.commit_transaction(60)
                self.times.append(time.monotonic())
            except KafkaException as error:
                self.errors.append(str(error))
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(60)


class Stage:
    """A cluster with clients that work while brokers fail."""

    topic = "faults"

    def __init__(self, cluster: Cluster, results: Results, quick: bool) -> None:
        self.cluster, self.results, self.quick = cluster, results, quick
        cluster.create_topic(self.topic, PARTITIONS)
        self.group = self._apart("group", 0)
        transactional_id = self._apart("transactions", TRANSACTION)
        self.producer = ConfluentSteady(cluster.bootstrap, self.topic, PARTITIONS, rate=RATE)
        self.committer = Committer(cluster, self.group, self.topic)
        self.transactions = Transactions(cluster, transactional_id, self.topic)
        self.transactional_id = transactional_id

    def _apart(self, name: str, key_type: int) -> str:
        """A group or transactional id whose coordinator is not the controller."""
        controller = self.cluster.controller()
        names = [f"{name}-{number}" for number in range(40)]
        return next(each for each in names if self.cluster.coordinator(each, key_type) != controller)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        parts = (self.producer, self.committer, self.transactions)
        for part in parts:
            part.start()
        try:
            self.settle(time.monotonic())
            yield
        finally:
            for part in parts:
                part.stop()

    def settle(self, since: float) -> None:
        """Waits until every partition has acknowledged something newer, and commits and transactions have continued."""
        deadline = time.monotonic() + 120
        while {ack.partition for ack in self.producer.acks[-3000:] if ack.at > since} != set(range(PARTITIONS)):
            self.producer.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no acknowledgements for 120 s: {self.producer.errors[-1:]}")
            time.sleep(0.005)
        self.committer.await_success(since)
        self.transactions.await_success(since)

    def add(self, name: str, unit: str, value: float) -> None:
        self.results.add(FAULTS, name, unit, self.cluster.name, value)

    def time(self, name: str, victim: int | None, act: Callable[[], Any]) -> None:
        """Lets something happen, waits until everybody has continued, and adds the gaps.

        A client may wait longer than the cluster needs for the partitions that the victim led: it has requests there.
        """
        led = {state.partition for state in self.cluster.describe(self.topic) if state.leader == victim}
        since = time.monotonic()
        act()
        self.settle(time.monotonic())
        time.sleep(SETTLE_S)
        until = time.monotonic()
        gaps = self.producer.gaps(since, until)
        for places, whose in ((led, ", its partitions"), (set(gaps) - led, ", the others" if led else "")):
            if places:
                self.add(f"{name}: acknowledgements{whose}", "s", max(gaps[place].seconds for place in places))
        self.add(f"{name}: commits", "s", self.committer.longest_gap_s(since, until))
        self.add(f"{name}: transactions", "s", self.transactions.longest_gap_s(since, until))

    def recover(self) -> None:
        """Everything runs, is in sync, and is led by its first replica."""
        self.cluster.restore()
        for topic in (self.topic, "__consumer_offsets", "__transaction_state"):
            self.cluster.await_in_sync(topic)
        self.cluster.elect_preferred(self.topic, range(PARTITIONS))
        self.settle(time.monotonic())
        time.sleep(CALM_S)

    def leader(self) -> int:
        """A leader that is neither controller nor one of the coordinators, if there is one."""
        busy = [
            self.cluster.controller(),
            self.cluster.coordinator(self.group),
            self.cluster.coordinator(self.transactional_id, TRANSACTION),
        ]
        leaders = {state.leader for state in self.cluster.describe(self.topic)}
        return next((node for node in sorted(leaders) if node not in busy), next(n for n in leaders if n != busy[0]))


def kill_leader(stage: Stage) -> None:
    victim = stage.leader()
    stage.time("kill -9 of a leader", victim, stage.cluster.nodes[victim].kill)


def kill_controller(stage: Stage) -> None:
    victim = stage.cluster.controller()
    stage.time("kill -9 of the controller", victim, stage.cluster.nodes[victim].kill)


def kill_coordinator(stage: Stage) -> None:
    victim = stage.cluster.coordinator(stage.group)
    stage.time("kill -9 of a group coordinator", victim, stage.cluster.nodes[victim].kill)


def terminate(stage: Stage) -> None:
    node = stage.cluster.nodes[stage.leader()]
    ended: list[float] = []
    stage.time("SIGTERM of a leader", node.id, lambda: ended.append(node.terminate()))
    stage.add("SIGTERM: process ends after", "s", ended[0])


def fail_back(stage: Stage) -> None:
    node = stage.leader()
    stage.cluster.nodes[node].terminate()
    stage.cluster.start(node)
    stage.cluster.await_in_sync(stage.topic)
    time.sleep(CALM_S)
    stage.time("preferred election", None, lambda: stage.cluster.elect_preferred(stage.topic, range(PARTITIONS)))


def pause(stage: Stage) -> None:
    node = stage.cluster.nodes[stage.leader()]

    def stop_for_a_while() -> None:
        node.pause()
        time.sleep(PAUSE_S)
        node.resume()

    stage.time(f"SIGSTOP of a leader for {PAUSE_S} s", node.id, stop_for_a_while)


def catch_up(stage: Stage) -> None:
    megabytes = 40 if stage.quick else 400
    node = stage.leader()
    stage.cluster.nodes[node].kill()
    stage.settle(time.monotonic())
    throughput.produce(stage.cluster.bootstrap, stage.topic, 1000, "all", megabytes * 1000)
    started = time.monotonic()
    serving_s = stage.cluster.start(node)
    stage.cluster.await_in_sync(stage.topic)
    stage.add(f"killed, {megabytes} MB behind: in sync after", "s", time.monotonic() - started)
    stage.add("killed: serving after", "s", serving_s)


def rolling_restart(stage: Stage) -> None:
    errors = len(stage.producer.errors), len(stage.committer.errors), len(stage.transactions.errors)

    def roll() -> None:
        for node in stage.cluster.nodes.values():
            node.terminate()
            stage.cluster.start(node.id)
            for topic in (stage.topic, "__consumer_offsets", "__transaction_state"):
                stage.cluster.await_in_sync(topic)

    stage.time("rolling restart of all three", None, roll)
    stage.add("rolling restart: failed records", "records", len(stage.producer.errors) - errors[0])
    stage.add("rolling restart: failed commits", "commits", len(stage.committer.errors) - errors[1])
    stage.add("rolling restart: failed transactions", "transactions", len(stage.transactions.errors) - errors[2])


EVENTS = (kill_leader, kill_controller, kill_coordinator, terminate, fail_back, pause, catch_up, rolling_restart)


def measure_faults(cluster: Cluster, results: Results, quick: bool, step: Callable[[str], None]) -> None:
    stage = Stage(cluster, results, quick)
    with stage.working():
        for event in EVENTS:
            step(f"{cluster.name}: {event.__name__.replace('_', ' ')}")
            event(stage)
            stage.recover()
