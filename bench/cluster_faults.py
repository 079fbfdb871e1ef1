"""How long clients wait when brokers of a cluster fail.

confluent-kafka produces with idempotence and acks=all, commits offsets and runs transactions. A gap is the longest time
without an acknowledgement on one partition, without a commit, or without a transaction. Every fault gets new clients:
librdkafka doubles its reconnect backoff and resets it only after ten quiet seconds, so earlier faults would affect the
result. A measurement that fails is reported, and the next fault is measured.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import throughput
from bench.results import Results
from tests.support.clients.steady import ConfluentSteady
from tests.support.processes.cluster import TRANSACTION, Cluster

SUITE = "cluster faults"
TOPIC = "faults"
PARTITIONS = 6
RATE = 600.0
"""Records a second while brokers fail: an acknowledgement on each partition every 10 ms."""
PAUSE_S = 13.5
"""How long a broker is paused: one and a half times broker.session.timeout.ms."""
SETTLE_S = 1.0


class Repeated:
    """Repeats an action in a thread, and records when it succeeded."""

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
    """Reads a topic and commits an offset continuously.

    It reads, as consumers do, so it is connected to every broker. If librdkafka is connected only to the coordinator,
    it asks the dead one for its successor first, and another broker a second later.
    """

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        super().__init__(cluster)
        self.group, self.topic = group, topic

    def run(self) -> None:
        from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0})
        consumer.assign([TopicPartition(self.topic, partition, OFFSET_END) for partition in range(PARTITIONS)])
        offset = 0
        while not self._stopping.is_set():
            consumer.consume(1000, 0.01)
            offset += 1
            try:
                consumer.commit(offsets=[TopicPartition(self.topic, 0, offset)], asynchronous=False)
                self.times.append(time.monotonic())
            except KafkaException as error:
                self.errors.append(str(error))
        consumer.close()


class Transactions(Repeated):
    """Commits transactions of one record continuously."""

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


class Clients:
    """The clients that run while a broker fails."""

    def __init__(self, cluster: Cluster, group: str, transactional_id: str) -> None:
        self.producer = ConfluentSteady(cluster.bootstrap, TOPIC, PARTITIONS, rate=RATE)
        self.committer = Committer(cluster, group, TOPIC)
        self.transactions = Transactions(cluster, transactional_id, TOPIC)

    def start(self) -> None:
        for part in (self.producer, self.committer, self.transactions):
            part.start()
        self.settle(time.monotonic())

    def stop(self) -> None:
        self.producer.begin_stopping()
        for part in (self.producer, self.committer, self.transactions):
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


class Stage:
    """A cluster whose brokers fail."""

    def __init__(self, cluster: Cluster, results: Results, quick: bool) -> None:
        self.cluster, self.results, self.quick = cluster, results, quick
        cluster.create_topic(TOPIC, PARTITIONS)
        self.group = self._apart("group", 0)
        self.transactional_id = self._apart("transactions", TRANSACTION)

    def _apart(self, name: str, key_type: int) -> str:
        """A group or transactional id whose coordinator is not the controller."""
        controller = self.cluster.controller()
        names = [f"{name}-{number}" for number in range(40)]
        return next(each for each in names if self.cluster.coordinator(each, key_type) != controller)

    @contextlib.contextmanager
    def working(self) -> Iterator[Clients]:
        clients = Clients(self.cluster, self.group, self.transactional_id)
        try:
            clients.start()
            yield clients
        finally:
            clients.stop()

    def add(self, name: str, unit: str, value: float) -> None:
        self.results.add(SUITE, name, unit, self.cluster.name, value)

    def time(self, name: str, victim: int | None, act: Callable[[], Any]) -> Clients:
        """Causes a fault, waits until all clients have continued, and adds the gaps.

        A client may wait longer than the cluster needs for the partitions that the victim led: it has requests there.
        """
        led = {state.partition for state in self.cluster.describe(TOPIC) if state.leader == victim}
        with self.working() as clients:
            time.sleep(SETTLE_S)
            since = time.monotonic()
            act()
            clients.settle(time.monotonic())
            time.sleep(SETTLE_S)
            until = time.monotonic()
        gaps = clients.producer.gaps(since, until)
        for places, whose in ((led, ", its partitions"), (set(gaps) - led, ", the others" if led else "")):
            if places:
                self.add(f"{name}: acknowledgements{whose}", "s", max(gaps[place].seconds for place in places))
        self.add(f"{name}: commits", "s", clients.committer.longest_gap_s(since, until))
        self.add(f"{name}: transactions", "s", clients.transactions.longest_gap_s(since, until))
        return clients

    def recover(self) -> None:
        """Waits until all brokers run, all replicas are in sync, and preferred replicas lead."""
        self.cluster.restore()
        for topic in (TOPIC, "__consumer_offsets", "__transaction_state"):
            self.cluster.await_in_sync(topic)
        self.cluster.elect_preferred(TOPIC, range(PARTITIONS))

    def leader(self) -> int:
        """A leader that is neither controller nor one of the coordinators, if there is one."""
        busy = [
            self.cluster.controller(),
            self.cluster.coordinator(self.group),
            self.cluster.coordinator(self.transactional_id, TRANSACTION),
        ]
        leaders = {state.leader for state in self.cluster.describe(TOPIC)}
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
    stage.cluster.await_in_sync(TOPIC)
    stage.time("preferred election", None, lambda: stage.cluster.elect_preferred(TOPIC, range(PARTITIONS)))


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
    throughput.produce(stage.cluster.bootstrap, TOPIC, 1000, "all", megabytes * 1000)
    started = time.monotonic()
    serving_s = stage.cluster.start(node)
    stage.cluster.await_in_sync(TOPIC)
    stage.add(f"killed, {megabytes} MB behind: in sync after", "s", time.monotonic() - started)
    stage.add("killed: serving after", "s", serving_s)


def rolling_restart(stage: Stage) -> None:
    def roll() -> None:
        for node in stage.cluster.nodes.values():
            node.terminate()
            stage.cluster.start(node.id)
            for topic in (TOPIC, "__consumer_offsets", "__transaction_state"):
                stage.cluster.await_in_sync(topic)

    clients = stage.time("rolling restart of all three", None, roll)
    stage.add("rolling restart: failed records", "records", len(clients.producer.errors))
    stage.add("rolling restart: failed commits", "commits", len(clients.committer.errors))
    stage.add("rolling restart: failed transactions", "transactions", len(clients.transactions.errors))


EVENTS = (kill_leader, kill_controller, kill_coordinator, terminate, fail_back, pause, catch_up, rolling_restart)


def measure_faults(cluster: Cluster, results: Results, quick: bool, step: Callable[[str], None]) -> None:
    stage = Stage(cluster, results, quick)
    for event in EVENTS:
        name = event.__name__.replace("_", " ")
        step(f"{cluster.name}: {name}")
        try:
            event(stage)
        except (OSError, RuntimeError, AssertionError) as error:
            results.failures.append(f"{cluster.name}: {name}: {type(error).__name__}: {error}")
        stage.recover()
