"""Clients that produce and consume all the time while the brokers of a cluster are killed, and what must hold then.

`Load` runs a producer and a group of one member for each client library on one topic. Its faults (kill, pause, roll,
fail_back) run on Ottla's cluster and on Apache Kafka's. `finish()` checks that nothing that was acknowledged is lost,
that nothing is stored twice, and that the members have read everything.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from ottla.errors import ErrorCode
from tests.support.clients.members import MEMBERS, Member
from tests.support.clients.own_member import OttlaMember
from tests.support.clients.steady import STEADY, SteadyProducer
from tests.support.processes.cluster import Cluster
from tests.support.waiting import PATIENCE_S, PAUSE_S, stretched

ALL_CLIENTS = ("ottla", "confluent-kafka", "aiokafka", "kafka-python", "java")
PARTITIONS = 3
QUICK = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
"""Settings of a cluster for tests: few internal partitions, and open transactions are noticed soon."""
SESSION_MS = stretched(2_500)
IMPATIENT = {**QUICK, "broker.session.timeout.ms": str(SESSION_MS)}
"""For tests that pause a broker until its session has expired. On a busy machine, others may lose theirs too."""
MEMBER_SESSION_MS = 300_000
"""Longer than any fault: the members of a group do not rebalance when its coordinator moves."""


class Outage(NamedTuple):
    """A fault as the clients saw it: when it happened and how long each waited for an acknowledgement."""

    fault: str
    victim: int
    gaps_s: dict[str, float]
    """The longest time without an acknowledgement on one partition, by client."""

    @property
    def longest_s(self) -> float:
        return max(self.gaps_s.values())

    def __str__(self) -> str:
        gaps = ", ".join(f"{name} {gap:.2f} s" for name, gap in self.gaps_s.items())
        return f"{self.fault} (broker {self.victim}): {gaps}"


class Load:
    """Clients on one topic of a cluster, for the length of a `with` block."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        clients: Sequence[str] = ALL_CLIENTS,
        partitions: int = PARTITIONS,
        rate: float = 60.0,
    ) -> None:
        self.cluster, self.topic, self.partitions = cluster, topic, partitions
        self.clients = [name for name in clients if STEADY[name].unavailable() is None]
        members: dict[str, type[Member]] = {**MEMBERS, OttlaMember.name: OttlaMember}
        self.producers: list[SteadyProducer] = [
            STEADY[name](cluster.bootstrap, topic, partitions, rate=rate) for name in self.clients
        ]
        self.members: list[Member] = [
            members[name](cluster.bootstrap, self.group_of(name), [topic], session_timeout_ms=MEMBER_SESSION_MS)
            for name in self.clients
        ]
        self.parts: list[SteadyProducer | Member] = [*self.producers, *self.members]
        self.outages: list[Outage] = []
        self.rebalances: dict[str, int] = {}
        """Calls of the rebalance listener between the start and the end, by client."""
        self._events: Counter[str] = Counter()

    def group_of(self, client: str) -> str:
        return f"{self.topic}-{client}"

    def __enter__(self) -> Self:
        self.cluster.create_topic(self.topic, self.partitions)
        for part in self.parts:
            part.start()
        self.await_progress("the start")
        self._events = Counter({member.name: len(member.events) for member in self.members})
        return self

    def __exit__(self, *exception: object) -> None:
        for part in self.parts:
            part.begin_stopping()

    # --- progress -----------------------------------------------------------------------------------------

    def await_progress(self, what: str, since: float | None = None) -> None:
        """Waits until all partitions have acknowledged something newer to every producer, and every member reads."""
        since = time.monotonic() if since is None else since
        deadline = time.monotonic() + PATIENCE_S
        before = {member.name: len(member.received) for member in self.members}
        while True:
            behind = [
                f"{producer.name} sends ({len(producer.acks)} of {producer.sent} acknowledged)"
                for producer in self.producers
                if not self._acknowledged_everywhere(producer, since)
            ]
            behind += [
                f"{member.name} reads ({len(member.received)} records, {member.failed_commits[-1:]})"
                for member in self.members
                if len(member.received) <= before[member.name]
            ]
            if not behind:
                return
            for part in self.parts:
                part.check()
            assert time.monotonic() < deadline, f"after {what} stuck: {behind}"
            time.sleep(0.01)

    def _acknowledged_everywhere(self, producer: SteadyProducer, since: float) -> bool:
        newer = itertools.takewhile(lambda ack: ack.at > since, reversed(producer.acks))
        return len({ack.partition for ack in newer}) == self.partitions

    # --- faults -------------------------------------------------------------------------------------------

    def victim(self, role: str) -> int:
        """The broker with this role: leader and follower of partition 0, coordinator of a group, controller."""
        if role == "controller":
            return self.cluster.controller()
        if role == "coordinator":
            return self.cluster.coordinator(self.group_of(self.clients[0]))
        leader = self.cluster.leader(self.topic)
        if role == "leader":
            return leader
        others = [node for node in self.cluster.nodes if node != leader]
        controller = self.cluster.controller()
        return next((node for node in others if node != controller), others[0])

    def suffer(self, fault: str, victim: int, act: Callable[[], Any]) -> Outage:
        """Something happens to a broker; then the clients must continue, which is timed."""
        since = time.monotonic()
        act()
        self.await_progress(fault, time.monotonic())
        until = time.monotonic()
        gaps = {producer.name: producer.longest_gap(since, until).seconds for producer in self.producers}
        self.outages.append(Outage(fault, victim, gaps))
        return self.outages[-1]

    def kill(self, role: str) -> Outage:
        """SIGKILL; the broker comes back when everybody has continued."""
        node = self.cluster.nodes[self.victim(role)]
        outage = self.suffer(f"kill the {role}", node.id, node.kill)
        self.cluster.start(node.id)
        self.cluster.await_in_sync(self.topic)
        return outage

    def pause(self, role: str, seconds: float) -> Outage:
        """SIGSTOP for so long, then SIGCONT."""
        node = self.cluster.nodes[self.victim(role)]

        def stop_for_a_while() -> None:
            node.pause()
            time.sleep(seconds)
            node.resume()

        outage = self.suffer(f"pause the {role}", node.id, stop_for_a_while)
        self.cluster.await_in_sync(self.topic)
        return outage

    def roll(self) -> list[Outage]:
        """SIGTERM and restart of each broker in turn, as an upgrade does it."""
        outages = []
        for node in self.cluster.nodes.values():
            outages.append(self.suffer("terminate", node.id, node.terminate))
            self.cluster.start(node.id)
            self.cluster.await_in_sync(self.topic)
            self.cluster.await_in_sync("__consumer_offsets")
        return outages

    def fail_back(self) -> Outage:
        """The preferred leaders take over again."""
        places = range(self.partitions)
        first = self.cluster.describe(self.topic)[0].replicas[0]
        outage = self.suffer("elect preferred", first, lambda: self.cluster.elect_preferred(self.topic, places))
        states = self.cluster.describe(self.topic)
        assert all(state.leader == state.replicas[0] for state in states), states
        return outage

    # --- the end ------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Stops the clients and checks everything."""
        for producer in self.producers:
            producer.stop()
        stored = read_all(self.cluster.bootstrap, self.topic, self.partitions)
        found = wrongs(self.producers, stored)
        assert not found, "\n".join(found[:20])
        wanted = {(partition, offset) for partition, values in stored.items() for offset in values}
        deadline = time.monotonic() + PATIENCE_S
        for member in self.members:
            while len(seen := {(read.partition.partition, read.offset) for read in member.received}) < len(wanted):
                member.check()
                assert time.monotonic() < deadline, f"{member.name} has not read {sorted(wanted - seen)[:10]}"
                time.sleep(0.02)
            if len(member.events) > self._events[member.name]:
                self.rebalances[member.name] = len(member.events) - self._events[member.name]
            member.stop()
            unknown = [
                read for read in member.received if stored[read.partition.partition].get(read.offset) != read.value
            ]
            assert not unknown, f"{member.name} read what is not stored: {unknown[:5]}"
            if member.name not in self.rebalances and not member.failed_commits:
                assert len(member.received) == len(wanted), f"{member.name} read records twice"

    def errors(self) -> dict[str, list[str]]:
        """What applications would have seen: failed records and failed commits, by client."""
        found: dict[str, list[str]] = {}
        for part in self.producers:
            if part.errors:
                found[f"{part.name} sends"] = part.errors
        for member in self.members:
            if member.failed_commits:
                found[f"{member.name} commits"] = member.failed_commits
        return found


def wrongs(producers: Sequence[SteadyProducer], stored: dict[int, dict[int, bytes]]) -> list[str]:
    """Acknowledged and not there, elsewhere, stored twice, or out of order: one line each."""
    found = []
    counts = Counter(value for values in stored.values() for value in values.values())
    found += [f"{value!r} is stored {count} times" for value, count in counts.items() if count > 1]
    for producer in producers:
        for ack in producer.acks:
            # librdkafka does not know the offset of a retried record that was already stored.
            there = ack.value if ack.offset is None else stored[ack.partition].get(ack.offset)
            if there != ack.value or not counts[ack.value]:
                what = "lost" if not counts[ack.value] else "elsewhere"
                found.append(f"{ack.value!r} was acknowledged at {ack.partition}@{ack.offset}: {what}, not {there!r}")
        prefix = producer.name.encode() + b"-"
        for partition, values in stored.items():
            numbers = [int(value[len(prefix) :]) for value in values.values() if value.startswith(prefix)]
            if numbers != sorted(numbers):
                found.append(f"partition {partition}: the records of {producer.name} are not in order")
    return found


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, dict[int, bytes]]:
    """Everything in a topic: {partition: {offset: value}}."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "read-all",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + PATIENCE_S
    found: dict[int, dict[int, bytes]] = {partition: {} for partition in range(partitions)}
    try:
        ends = {}
        for partition in range(partitions):
            while partition not in ends:
                try:
                    wanted = TopicPartition(topic, partition)
                    _, ends[partition] = consumer.get_watermark_offsets(wanted, timeout=PATIENCE_S)
                except KafkaException as failure:
                    # librdkafka does not retry this call when the leader has just changed.
                    moved = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
                    if failure.args[0].code() not in moved or time.monotonic() > deadline:
                        raise
                    time.sleep(PAUSE_S)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        while any(len(found[partition]) < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, {p: (len(found[p]), end) for p, end in ends.items()}
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is not None:
                    if not error.retriable() and error.fatal():
                        raise KafkaException(error)
                    continue
                place, offset = message.partition(), message.offset()
                assert place is not None
                assert offset is not None
                found[place][offset] = message.value() or b""
    finally:
        consumer.close()
    return found
