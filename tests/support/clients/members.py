"""Consumers of other clients as members of groups: each polls and commits by itself, and can be watched.

A member runs in a group and is watched from outside: its partitions (`assignment`), its rebalances (`events`)
and what it has read (`received`). Heartbeats are quick, so that a rebalance takes moments.
"""

import asyncio
import base64
import contextlib
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ottla.types import TopicPartition
from tests.support.clients import TIMEOUT_S
from tests.support.clients.background import BackgroundClient
from tests.support.clients.java import JavaClient
from tests.support.waiting import until

HEARTBEAT_MS = 200
SESSION_MS = 60_000
"""No member loses its session because it does not get the processor in time."""


class Read(NamedTuple):
    """One record that a member has read."""

    partition: TopicPartition
    offset: int
    value: bytes


class Event(NamedTuple):
    """A call of the rebalance listener: `assigned` or `revoked`."""

    what: str
    partitions: tuple[TopicPartition, ...]


class Member(BackgroundClient):
    """One consumer of a group. Subclasses run it; tests read these attributes.

    A topic that begins with `^` is a pattern (librdkafka, Java, Ottla).
    """

    name = ""
    assignors: frozenset[str] = frozenset({"range", "roundrobin"})

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        *,
        client_id: str = "",
        assignor: str = "range",
        instance_id: str | None = None,
        session_timeout_ms: int = SESSION_MS,
        metadata_max_age_ms: int = 300_000,
        on_record: Callable[[Read], None] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topics = list(topics)
        self.client_id = client_id or self.name
        super().__init__(self.client_id)
        self.assignor = assignor
        self.instance_id = instance_id
        self.session_timeout_ms = session_timeout_ms
        self.metadata_max_age_ms = metadata_max_age_ms
        """How soon it finds new topics that match its pattern."""
        self.on_record = on_record
        """Called for each record before its offset is committed."""
        self.assignment: set[TopicPartition] = set()
        self.events: list[Event] = []
        self.received: list[Read] = []
        self.commits: list[float] = []
        """When a commit succeeded."""
        self.failed_commits: list[str] = []

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(Event("assigned", tuple(sorted(partitions))))
        self.assignment |= set(partitions)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(Event("revoked", tuple(sorted(partitions))))
        self.assignment -= set(partitions)

    @contextlib.contextmanager
    def committing(self, *errors: type[BaseException]) -> Iterator[None]:
        """Around a commit. It may fail: after a rebalance the next owner reads the records again."""
        try:
            yield
        except errors as error:
            self.failed_commits.append(str(error))
        else:
            self.commits.append(time.monotonic())

    def read(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        read = Read(TopicPartition(topic, partition), offset, value)
        if self.on_record is not None:
            self.on_record(read)
        self.received.append(read)


class ConfluentMember(Member):
    name = "confluent-kafka"
    assignors = frozenset({"range", "roundrobin", "cooperative-sticky"})

    def run(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "client.id": self.client_id,
            "log_level": 0,
            "partition.assignment.strategy": self.assignor,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
        if self.instance_id is not None:
            settings["group.instance.id"] = self.instance_id
        consumer = Consumer(settings)
        consumer.subscribe(
            self.topics,
            on_assign=lambda _, partitions: self.assigned(_partitions(partitions)),
            on_revoke=lambda _, partitions: self.revoked(_partitions(partitions)),
            on_lost=lambda _, partitions: self.revoked(_partitions(partitions)),
        )
        try:
            while not self._stopping.is_set():
                messages: list[Any] = [m for m in consumer.consume(100, 0.05) if m.error() is None]
                for message in messages:
                    self.read(message.topic(), message.partition(), message.offset(), message.value())
                if messages:
                    with self.committing(KafkaException):
                        consumer.commit(asynchronous=False)
        finally:
            consumer.close()


def _partitions(partitions: Any) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


class KafkaPythonMember(Member):
    name = "kafka-python"
    assignors = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})

    def run(self) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.errors import KafkaError

        member = self

        class Listener(ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                member.assigned(_partitions(assigned))

            def on_partitions_revoked(self, revoked: Any) -> None:
                member.revoked(_partitions(revoked))

        more = {} if self.instance_id is None else {"group_instance_id": self.instance_id}
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            client_id=self.client_id,
            partition_assignment_strategy=[_kafka_python_assignor(self.assignor)],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            # In a group without an initial delay it may become leader before it knows the topic, and then assigns
            # nothing until its next metadata refresh.
            metadata_max_age_ms=1_000,
            bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
            **more,
        )
        try:
            consumer.subscribe(self.topics, listener=Listener())
            for topic in self.topics:
                # It must know its topics before it joins. Otherwise it assigns them in a second generation, and if a
                # poll times out during that join, it ignores the answer: it stays without partitions and heartbeats.
                consumer.partitions_for_topic(topic)
            while not self._stopping.is_set():
                polled = consumer.poll(timeout_ms=50)
                for partition, records in polled.items():
                    for record in records:
                        self.read(partition.topic, partition.partition, record.offset, record.value)
                if polled:
                    with self.committing(KafkaError):
                        consumer.commit()
        finally:
            consumer.close()


def _kafka_python_assignor(name: str) -> Any:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    known = (
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        StickyPartitionAssignor,
        CooperativeStickyAssignor,
    )
    return next(each for each in known if each.name == name)


class AioKafkaMember(Member):
    name = "aiokafka"
    assignors = frozenset({"range", "roundrobin", "sticky"})

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
        from aiokafka.errors import KafkaError

        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None:
                member.assigned(_partitions(assigned))

            def on_partitions_revoked(self, revoked: Any) -> None:
                member.revoked(_partitions(revoked))

        known = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)
        assignor = next(each for each in known if each.name == self.assignor)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            client_id=self.client_id,
            group_instance_id=self.instance_id,
            partition_assignment_strategy=(assignor,),
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            retry_backoff_ms=50,
        )
        consumer.subscribe(self.topics, listener=Listener())
        await consumer.start()
        try:
            while not self._stopping.is_set():
                polled: Any = await consumer.getmany(timeout_ms=50)
                for partition, records in polled.items():
                    for record in records:
                        self.read(partition.topic, partition.partition, record.offset, record.value)
                if polled:
                    with self.committing(KafkaError):
                        await consumer.commit()
        finally:
            await consumer.stop()


class KcatMember(Member):
    """kcat's balanced consumer. It commits automatically, and prints rebalances to standard error."""

    name = "kcat"
    assignors = frozenset({"range", "roundrobin", "cooperative-sticky"})

    @staticmethod
    def unavailable() -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed (./run setup-extras)"

    def run(self) -> None:
        settings = {
            "client.id": self.client_id,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": self.assignor,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.commit.interval.ms": 100,
            "fetch.wait.max.ms": 100,
        }
        if self.instance_id is not None:
            settings["group.instance.id"] = self.instance_id
        options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        command = ["kcat", "-b", self.bootstrap, *options, "-u", "-f", "%t %p %o %s\n", "-G", self.group, *self.topics]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        watcher = threading.Thread(target=self._watch, args=(process,), daemon=True)
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        watcher.start()
        reader.start()
        try:
            while not self._stopping.wait(0.02):
                if process.poll() is not None:
                    raise RuntimeError(f"kcat ended with status {process.returncode}")
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(TIMEOUT_S)
            watcher.join(TIMEOUT_S)
            reader.join(TIMEOUT_S)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            topic, partition, offset, value = line.rstrip("\n").split(" ", 3)
            self.read(topic, int(partition), int(offset), value.encode())

    def _watch(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            event = re.search(r"rebalanced .*: (assigned|revoked): (.*)", line)
            if event is None:
                continue
            found = re.findall(r"(\S+) \[(\d+)\]", event.group(2))
            partitions = [TopicPartition(topic, int(index)) for topic, index in found]
            if event.group(1) == "assigned":
                self.assigned(partitions)
            else:
                self.revoked(partitions)


_JAVA_ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


class JavaMember(Member):
    """The Java consumer, on a thread of the co-process. One co-process serves all of them."""

    name = "java"
    assignors = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
    _client: JavaClient | None = None

    @staticmethod
    def unavailable() -> str | None:
        return JavaClient().unavailable()

    @classmethod
    def client(cls) -> JavaClient:
        if JavaMember._client is None:
            JavaMember._client = JavaClient()
        return JavaMember._client

    @classmethod
    def close_client(cls) -> None:
        client, JavaMember._client = JavaMember._client, None
        if client is not None:
            client.close()

    def run(self) -> None:
        config: dict[str, Any] = {
            "group.id": self.group,
            "client.id": self.client_id,
            "partition.assignment.strategy": f"org.apache.kafka.clients.consumer.{_JAVA_ASSIGNORS[self.assignor]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": self.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "fetch.max.wait.ms": 100,
            "metadata.max.age.ms": self.metadata_max_age_ms,
        }
        if self.instance_id is not None:
            config["group.instance.id"] = self.instance_id
        name = f"{self.group}/{self.client_id}/{id(self)}"
        client = self.client()
        client.call("group_open", self.bootstrap, name=name, topics=self.topics, config=config)
        try:
            while not self._stopping.wait(0.05):
                self._take(client.call("group_state", self.bootstrap, name=name))
        finally:
            self._take(client.call("group_close", self.bootstrap, name=name))

    def _take(self, state: dict[str, Any]) -> None:
        if "error" in state:
            raise RuntimeError(f"the Java consumer failed: {state}")
        # Before the records: who waits for a record, and counts the rebalances then, has seen the first assignment.
        for what, partitions in state["events"][len(self.events) :]:
            named = [_parse_partition(text) for text in partitions]
            if what == "assigned":
                self.assigned(named)
            else:
                self.revoked(named)
        for topic, partition, offset, value in state["received"][len(self.received) :]:
            self.read(topic, partition, offset, base64.b64decode(value))


def _parse_partition(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))


MEMBERS: dict[str, type[Member]] = {
    member.name: member for member in (ConfluentMember, KafkaPythonMember, AioKafkaMember, KcatMember, JavaMember)
}


def await_true(
    what: str, holds: Callable[[], bool], members: Sequence[Member] = (), timeout_s: float = TIMEOUT_S
) -> None:
    """Waits until something holds; a member that failed in the meantime says why."""

    def is_true() -> bool:
        if holds():
            return True
        for member in members:
            member.check()
        return False

    if not until(is_true, timeout_s):
        seen = {member.client_id: sorted(map(str, member.assignment)) for member in members}
        raise AssertionError(f"not within {timeout_s} s: {what} ({seen})")
