"""A group whose offsets are being committed by an open transaction: its members wait for the outcome (KIP-447)."""

import contextlib
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla import Admin
from ottla.verify.clients.confluent import ConfluentLibrary
from ottla.verify.clients.own import OwnLibrary
from ottla.verify.clients.port import ClientError, ClientLibrary, Received
from ottla.verify.history import COMMITTED
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.processes.oracle import Target

LIBRARIES: dict[str, Callable[[dict[str, str]], ClientLibrary]] = {"ottla": OwnLibrary, "confluent": ConfluentLibrary}


class Member:
    """A consumer of a group; a new one after an error, as in the workers of `ottla verify`."""

    def __init__(self, library: ClientLibrary, group: str, topic: str) -> None:
        self._library, self._group, self._topic = library, group, topic
        self._start()

    def _start(self) -> None:
        self.consumer = self._library.consumer("member", COMMITTED, self._group)
        self.consumer.subscribe(self._topic, lambda _: None)

    def close(self) -> None:
        self.consumer.close()

    def poll(self) -> list[Received]:
        try:
            return self.consumer.poll(0.1, 100)
        except ClientError:
            self.consumer.close()
            self._start()
            return []


def poll(seconds: float, *members: Member, enough: int = 1_000) -> set[tuple[int, int]]:
    """(partition, offset) of the records that members get, until there are enough of them.

    A record comes again if the group rebalances: the members commit nothing.
    """
    received: set[tuple[int, int]] = set()
    deadline = time.monotonic() + seconds
    while len(received) < enough and time.monotonic() < deadline:
        received |= {(record.partition, record.offset) for member in members for record in member.poll()}
    return received


def commit(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    """The coordinator of a new broker may not be ready."""
    for attempt in range(1000):
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            if attempt == 999:
                raise
            time.sleep(0.1)
        else:
            return


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["ottla", pytest.param("kafka", marks=[pytest.mark.oracle, pytest.mark.java])])
def test_members_do_not_start_over_while_a_transaction_holds_their_offsets(
    request: pytest.FixtureRequest, name: str, library: str
) -> None:
    """librdkafka by itself does, if its group rebalances meanwhile: an old answer UNSTABLE_OFFSET_COMMIT, for a
    partition that it lost and got back, makes it use auto.offset.reset."""
    target: Target = request.getfixturevalue(name)
    topic = group = f"pending-{library}-{uuid.uuid4().hex[:6]}"
    settings = {"bootstrap.servers": target.bootstrap}
    with Admin(settings) as admin:
        admin.create_topic(topic, partitions=2, replication_factor=1)
    producer = Producer({**settings, "transactional.id": topic, "transaction.timeout.ms": 600_000, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    producer.commit_transaction(PATIENCE_S)
    other = Consumer({**settings, "group.id": group})
    commit(other, [TopicPartition(topic, n, 6) for n in range(2)])
    producer.begin_transaction()
    pending = [TopicPartition(topic, n, 8) for n in range(2)]
    producer.send_offsets_to_transaction(pending, other.consumer_group_metadata(), PATIENCE_S)

    with contextlib.ExitStack() as stack:
        stack.callback(other.close)
        first = Member(LIBRARIES[library](settings), group, topic)
        stack.callback(first.close)
        assert poll(2, first) == set()
        second = Member(OwnLibrary(settings), group, topic)
        stack.callback(second.close)
        assert poll(6, first, second) == set()
        producer.abort_transaction(PATIENCE_S)
        received = poll(PATIENCE_S, first, second, enough=8)
        assert received == {(partition, offset) for partition in range(2) for offset in range(6, 10)}
