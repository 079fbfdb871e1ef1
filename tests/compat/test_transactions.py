"""Transactions of other clients have the same outcomes on Ottla and on Apache Kafka.
Spec: E1, E2, E3, E4, E5, E6, E7, E8, E9.

Java 4.x speaks transaction.version 2 (partitions added by writing, EndTxn v5), the others the protocol before it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.clients import ClientError, ForeignClient
from tests.support.clients.transactions import open_transactional, read_committed
from tests.support.waiting import eventually, stretched, until
from tests.support.wire.raw import RawConnection
from tests.support.wire.raw_transactions import RawTransactions

FENCED = {
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "_FENCED",
    "ProducerFenced",
    "ProducerFencedError",
    "ProducerFencedException",
}
"""The names that clients have for the error: another producer uses the transactional id."""


@pytest.fixture
def opened(client: ForeignClient, broker: Any, fresh_name: Callable[[], str]) -> Iterator[Callable[..., Any]]:
    """Opens producers under one transactional id, and closes them."""
    name = fresh_name()
    made: list[Any] = []

    def open_one(**options: Any) -> Any:
        made.append(open_transactional(client, broker.bootstrap, name, **options))
        return made[-1]

    yield open_one
    for producer in made:
        with contextlib.suppress(Exception):
            producer.close()


@pytest.fixture
def created(client: ForeignClient, broker: Any, topic: str) -> str:
    assert client.create_topic(broker.bootstrap, topic, partitions=2) == "ok"
    return topic


def committed(broker: Any, group: str, topic: str) -> Any:
    with RawConnection(broker.bootstrap) as connection:
        transactions = RawTransactions(connection, "")
        transactions.find_coordinator(group, 0)
        transactions.until(
            lambda: transactions.fetch_offset(group, topic, stable=True) == "UNSTABLE_OFFSET_COMMIT", False
        )
        return transactions.fetch_offset(group, topic, stable=True)


def seen(client: Any, broker: Any, topic: str, count: int, partition: int = 0) -> list[bytes]:
    """What a read_committed consumer sees of a partition, once that many records are visible: the markers are written
    after the answer to the commit."""
    found: list[bytes] = []

    def enough() -> bool:
        found[:] = read_committed(client, broker.bootstrap, topic, partition)
        return len(found) >= count

    until(enough)
    return found


def test_read_committed_returns_committed_records_only(client: Any, broker: Any, created: str, opened: Any) -> None:
    """Spec: E8."""
    producer = opened()
    producer.init()
    for number in range(6):
        producer.begin()
        producer.send(created, [b"%d" % number] * 3)
        producer.send(created, [b"other %d" % number], partition=1)
        if number % 2:
            producer.abort()
        else:
            producer.commit()
    wanted = [b"%d" % number for number in (0, 0, 0, 2, 2, 2, 4, 4, 4)]
    assert seen(client, broker, created, 9) == wanted
    assert seen(client, broker, created, 3, 1) == [b"other 0", b"other 2", b"other 4"]


def test_an_empty_transaction_can_be_committed_and_aborted(client: Any, broker: Any, created: str, opened: Any) -> None:
    """Spec: R4. Commit of an empty transaction."""
    producer = opened()
    producer.init()
    for end in (producer.commit, producer.abort, producer.commit):
        producer.begin()
        end()
    producer.begin()
    producer.send(created, [b"v"])
    producer.commit()
    producer.begin()
    producer.abort()
    assert seen(client, broker, created, 1) == [b"v"]


def test_offsets_are_committed_with_their_transaction(client: Any, broker: Any, created: str, opened: Any) -> None:
    """Spec: E5."""
    group = f"group of {created}"
    producer = opened()
    producer.init()
    for offset, commit in ((3, True), (5, False), (7, True), (9, False)):
        producer.begin()
        producer.send(created, [b"%d" % offset])
        producer.send_offsets(group, created, offset)
        if commit:
            producer.commit()
        else:
            producer.abort()
    assert committed(broker, group, created) == 7
    assert seen(client, broker, created, 2) == [b"3", b"7"]


def test_a_transaction_may_contain_only_offsets(client: Any, broker: Any, created: str, opened: Any) -> None:
    group = f"group of {created}"
    producer = opened()
    producer.init()
    for offset in (1, 2):
        producer.begin()
        producer.send_offsets(group, created, offset)
        producer.commit()
    assert committed(broker, group, created) == 2


def test_a_second_producer_fences_the_first_and_aborts_what_it_left(
    client: Any, broker: Any, created: str, opened: Any
) -> None:
    """Spec: E3."""
    old = opened()
    old.init()
    old.begin()
    old.send(created, [b"left open"])
    new = opened()
    new.init()
    with pytest.raises(ClientError) as failure:  # noqa: PT012 (clients differ in which call fails)
        old.send(created, [b"zombie"])
        old.commit()
    assert failure.value.name in FENCED, failure.value
    if broker.name == "kafka":
        # In Apache Kafka, a fenced client that bumps its old epoch also aborts the transaction of its successor.
        old.close()
    new.begin()
    new.send(created, [b"new"])
    new.commit()
    assert seen(client, broker, created, 1) == [b"new"]


def test_a_transaction_that_takes_too_long_is_aborted(client: Any, broker: Any, created: str, opened: Any) -> None:
    """Spec: E3. The coordinator aborts it, and a new producer can continue."""
    slow = opened(timeout_ms=stretched(5_000))
    slow.init()
    slow.begin()
    slow.send(created, [b"too slow"])
    with RawConnection(broker.bootstrap) as connection:
        transactions = RawTransactions(connection, "")
        eventually(lambda: transactions.stable_offset(created) == 2)  # the record and its marker
    with pytest.raises(ClientError):
        slow.commit()
    successor = opened()
    successor.init()
    successor.begin()
    successor.send(created, [b"in time"])
    successor.commit()
    assert seen(client, broker, created, 1) == [b"in time"]


def test_the_transaction_of_a_vanished_instance_is_aborted(client: Any, broker: Any, created: str, opened: Any) -> None:
    for number in range(3):
        producer = opened()
        producer.init()
        producer.begin()
        producer.send(created, [b"done %d" % number])
        producer.commit()
        producer.begin()
        producer.send(created, [b"never"])
    assert seen(client, broker, created, 3) == [b"done 0", b"done 1", b"done 2"]


@pytest.mark.java
def test_javas_admin_sees_a_transaction_and_fences_its_producer(
    client: Any, broker: Any, created: str, fresh_name: Callable[[], str]
) -> None:
    if client.name != "java":
        pytest.skip("only the Java client has these calls")
    name = fresh_name()
    producer = open_transactional(client, broker.bootstrap, name)
    producer.init()
    producer.begin()
    producer.send(created, [b"v"])
    producer.commit()
    producer.begin()
    producer.send(created, [b"w"])
    described = client.call("txn_describe", broker.bootstrap, transactional_id=name)
    # KIP-890: the second transaction has the second epoch.
    assert described == {"state": "Ongoing", "producer_epoch": 1, "timeout_ms": 60_000, "partitions": 1}
    assert client.call("txn_list", broker.bootstrap, transactional_id=name) == ["Ongoing"]
    client.call("txn_fence", broker.bootstrap, transactional_id=name)
    with pytest.raises(ClientError) as failure:  # noqa: PT012 (clients differ in which call fails)
        producer.send(created, [b"zombie"])
        producer.commit()
    assert failure.value.name in FENCED
    producer.close()
    assert seen(client, broker, created, 1) == [b"v"]
