"""Producers of several clients that send all the time and record every acknowledgement: they show the cost of a fault.

Each sends numbered values to all partitions of a topic in turn, at a steady rate, with idempotence and acks=all. No
value is sent twice by the test, so a value that is stored twice was duplicated by a client or a broker.
"""

import asyncio
import base64
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.support.clients import ClientError
from tests.support.clients.background import BackgroundClient
from tests.support.clients.java import JavaClient
from tests.support.waiting import PATIENCE_S

FLUSH_S = PATIENCE_S
DELIVERY_MS = int(PATIENCE_S * 1000)
"""Longer than any fault: a record that fails is an error that an application would see."""


class Ack(NamedTuple):
    """One acknowledgement, and when it arrived."""

    at: float
    partition: int
    offset: int | None
    value: bytes


class Gap(NamedTuple):
    """A time without acknowledgements on one partition."""

    seconds: float
    partition: int
    at: float


class SteadyProducer(BackgroundClient):
    """One producer in a thread of its own. Subclasses send; tests read `acks` and `errors`."""

    name = ""
    stop_timeout_s = 2 * FLUSH_S
    """It waits until everything that was sent is acknowledged or has failed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, rate: float = 100.0) -> None:
        super().__init__(f"the producer of {self.name}")
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, partitions
        self.pause_s = 1 / rate
        self.acks: list[Ack] = []
        self.errors: list[str] = []
        """Records that were not acknowledged: they may be stored or not."""
        self.sent = 0

    def paced(self) -> Iterator[tuple[int, bytes, float]]:
        """(partition, value, seconds until the next one) until the producer is stopped."""
        following = time.monotonic()
        for number in itertools.count():
            if self._stopping.is_set():
                return
            following = max(following + self.pause_s, time.monotonic() - 0.1)
            self.sent += 1
            yield number % self.partitions, b"%s-%d" % (self.name.encode(), number), following - time.monotonic()

    def acknowledged(self, partition: int, offset: int | None, value: bytes) -> None:
        self.acks.append(Ack(time.monotonic(), partition, offset, value))

    def failed(self, error: object) -> None:
        self.errors.append(str(error) or type(error).__name__)

    def longest_gap(self, since: float, until: float) -> Gap:
        """The longest time between two acknowledgements of a partition that overlaps this time."""
        return max(self.gaps(since, until).values())

    def gaps(self, since: float, until: float) -> dict[int, Gap]:
        """The longest gap of each partition."""
        return longest_gaps(self.acks, self.partitions, since, until)


def longest_gaps(acks: list[Ack], partitions: int, since: float, until: float) -> dict[int, Gap]:
    """For each partition the longest time between two acknowledgements that overlaps this time.

    >>> acks = [Ack(1.0, 0, 0, b""), Ack(2.0, 0, 1, b""), Ack(5.0, 0, 2, b"")]
    >>> longest_gaps(acks, 1, 1.5, 3.0)
    {0: Gap(seconds=3.0, partition=0, at=2.0)}
    """
    times: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
    for ack in list(acks):
        times[ack.partition].append(ack.at)
    found = {}
    for partition, at in times.items():
        pairs = itertools.pairwise([*at, max(until, at[-1])]) if at else [(since, until)]
        gaps = [Gap(after - before, partition, before) for before, after in pairs if after > since and before < until]
        found[partition] = max(gaps, default=Gap(0.0, partition, since))
    return found


class ConfluentSteady(SteadyProducer):
    name = "confluent-kafka"

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": DELIVERY_MS,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                self.failed(error)
            else:
                self.acknowledged(message.partition(), message.offset(), message.value())

        for partition, value, pause_s in self.paced():
            producer.produce(self.topic, value, partition=partition, on_delivery=on_delivery)
            deadline = time.monotonic() + pause_s
            producer.poll(0)
            while (left := deadline - time.monotonic()) > 0:
                producer.poll(left)
        left = producer.flush(FLUSH_S)
        self.errors += ["not delivered"] * left


class KafkaPythonSteady(SteadyProducer):
    name = "kafka-python"

    def run(self) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            delivery_timeout_ms=DELIVERY_MS,
            max_block_ms=DELIVERY_MS,
            bootstrap_timeout_ms=DELIVERY_MS,
        )
        try:
            for partition, value, pause_s in self.paced():
                future = producer.send(self.topic, value, partition=partition)
                future.add_callback(self._noting(value))
                future.add_errback(self.failed)
                time.sleep(max(0.0, pause_s))
            producer.flush(FLUSH_S)
        finally:
            producer.close(FLUSH_S)

    def _noting(self, value: bytes) -> Callable[[Any], None]:
        return lambda stored: self.acknowledged(stored.partition, stored.offset, value)


class AioKafkaSteady(SteadyProducer):
    name = "aiokafka"

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, enable_idempotence=True, acks="all", request_timeout_ms=DELIVERY_MS
        )
        await producer.start()
        try:
            for partition, value, pause_s in self.paced():
                future = await producer.send(self.topic, value, partition=partition)
                future.add_done_callback(self._noting(value))
                await asyncio.sleep(max(0.0, pause_s))
            await asyncio.wait_for(producer.flush(), FLUSH_S)
        finally:
            await asyncio.wait_for(producer.stop(), FLUSH_S)

    def _noting(self, value: bytes) -> "Callable[[asyncio.Future[Any]], None]":
        def done(future: "asyncio.Future[Any]") -> None:
            error = future.exception()
            if error is not None:
                self.failed(error)
            else:
                self.acknowledged(future.result().partition, future.result().offset, value)

        return done


class JavaSteady(SteadyProducer):
    """The Java producer in a co-process of its own: five records at a time, each waited for."""

    name = "java"

    @staticmethod
    def unavailable() -> str | None:
        return JavaClient().unavailable()

    def run(self) -> None:
        client = JavaClient()
        config = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "delivery.timeout.ms": DELIVERY_MS,
            "max.block.ms": DELIVERY_MS,
        }
        try:
            client.call("txn_open", self.bootstrap, handle=self.name, config=config)
            for partition, value, pause_s in self.paced():
                text = base64.b64encode(value).decode()
                try:
                    (offset,) = client.call(
                        "txn_send",
                        self.bootstrap,
                        handle=self.name,
                        topic=self.topic,
                        partition=partition,
                        values=[text],
                    )
                    self.acknowledged(partition, offset, value)
                except ClientError as failure:
                    self.failed(failure)
                time.sleep(max(0.0, pause_s))
            client.call("txn_close", self.bootstrap, handle=self.name)
        finally:
            client.close()


class OttlaSteady(SteadyProducer):
    name = "ottla"

    def run(self) -> None:
        from ottla import Producer

        with Producer({"delivery.timeout.ms": DELIVERY_MS}, bootstrap_servers=self.bootstrap) as producer:
            for partition, value, pause_s in self.paced():
                producer.send(self.topic, value, partition=partition).add_done_callback(self._noting(value))
                time.sleep(max(0.0, pause_s))
            producer.flush(int(FLUSH_S * 1000))

    def _noting(self, value: bytes) -> Callable[[Any], None]:
        def done(delivery: Any) -> None:
            error = delivery.exception()
            if error is not None:
                self.failed(error)
            else:
                stored = delivery.result()
                self.acknowledged(stored.partition, stored.offset, value)

        return done


STEADY: dict[str, type[SteadyProducer]] = {
    steady.name: steady for steady in (OttlaSteady, ConfluentSteady, KafkaPythonSteady, AioKafkaSteady, JavaSteady)
}
