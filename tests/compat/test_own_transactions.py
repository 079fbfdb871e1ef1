"""Ottla's own transactional producer against Ottla and against Apache Kafka: the same calls, the same outcomes."""

from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Admin, Consumer, ErrorCode, KafkaError, Producer, SnapshotStore, transform
from ottla.client.transactions.errors import TransactionAbortable, TransactionFatal
from ottla.client.transactions.requests import GroupMetadata
from ottla.types import TopicPartition
from tests.support.waiting import eventually, stretched


@pytest.fixture
def admin(broker: Any) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def producer(broker: Any, topic: str, admin: Admin) -> Iterator[Producer]:
    admin.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as client:
        client.init_transactions()
        yield client


@pytest.fixture(params=["as finalized", "by request"])
def both_ways(request: pytest.FixtureRequest, producer: Producer) -> Producer:
    """With the protocol of KIP-890 part 2 (partitions added by writing, a new epoch per transaction), and before it."""
    if request.param == "by request":
        use_old_protocol(producer)
    return producer


def use_old_protocol(producer: Producer) -> None:
    transactional = producer._async._transactional  # noqa: SLF001 (there is no setting for the old protocol)
    assert transactional.manager is not None
    transactional.manager.transaction_version = lambda: 1


def committed(bootstrap: str, topic: str, partition: int = 0, isolation: str = "read_committed") -> list[str]:
    """The values that a consumer reads, up to the current end."""
    place = TopicPartition(topic, partition)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=isolation) as consumer:
        consumer.assign([place])
        (end,) = consumer.end_offsets([place]).values()
        values: list[str] = []
        for _ in range(200):
            if consumer.position(place) >= end:
                return values
            values += [(record.value or b"").decode() for record in consumer.poll(500)]
    raise AssertionError(f"stuck before {end}")


def test_committed_records_are_read_and_aborted_ones_are_not(broker: Any, both_ways: Producer, topic: str) -> None:
    """Spec: E1, E8."""
    for number in range(6):
        both_ways.begin_transaction()
        for partition in (0, 1):
            both_ways.send(topic, f"{number}", partition=partition)
        if number % 2:
            both_ways.flush()  # so that the aborted records are stored
            both_ways.abort_transaction()
        else:
            both_ways.commit_transaction()
    for partition in (0, 1):
        eventually(lambda: committed(broker.bootstrap, topic, partition) == ["0", "2", "4"])  # noqa: B023 (called here)
        everything = committed(broker.bootstrap, topic, partition, "read_uncommitted")
        assert everything == [f"{number}" for number in range(6)]


def test_a_transaction_block_commits_or_aborts(broker: Any, both_ways: Producer, topic: str) -> None:
    with both_ways.transaction():
        both_ways.send(topic, "kept", partition=0)
    with pytest.raises(ZeroDivisionError), both_ways.transaction():  # noqa: PT012 (the block is what is tested)
        both_ways.send(topic, "dropped", partition=0)
        raise ZeroDivisionError
    with both_ways.transaction():
        pass  # an empty transaction is allowed
    with both_ways.transaction():
        both_ways.send(topic, "kept too", partition=0)
    eventually(lambda: committed(broker.bootstrap, topic) == ["kept", "kept too"])


def test_offsets_are_committed_with_the_records(broker: Any, both_ways: Producer, admin: Admin, topic: str) -> None:
    """Spec: E9."""
    place, group = TopicPartition(topic, 1), f"{topic}-group"

    def position() -> int | None:
        found = admin.list_group_offsets(group).get(place)
        return None if found is None else found.offset

    with both_ways.transaction():
        both_ways.send(topic, "one", partition=0)
        both_ways.send_offsets_to_transaction({place: 7}, group)
    eventually(lambda: position() == 7)
    with pytest.raises(ZeroDivisionError), both_ways.transaction():  # noqa: PT012 (the block is what is tested)
        both_ways.send_offsets_to_transaction({(topic, 1): 9}, group)
        raise ZeroDivisionError
    with both_ways.transaction():
        both_ways.send_offsets_to_transaction({}, group)
    assert position() == 7
    with both_ways.transaction():
        both_ways.send_offsets_to_transaction({place: 12}, GroupMetadata(group))
    eventually(lambda: position() == 12)


def test_a_member_that_was_replaced_may_only_abort(broker: Any, both_ways: Producer, topic: str) -> None:
    """Spec: E9. KIP-447: a zombie is fenced by the group generation, and its producer remains usable."""
    both_ways.begin_transaction()
    both_ways.send(topic, "from a zombie", partition=0)
    with pytest.raises(TransactionAbortable) as caught:
        both_ways.send_offsets_to_transaction({(topic, 1): 3}, GroupMetadata(f"{topic}-group", 5, "ghost"))
    assert caught.value.code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
    with pytest.raises(TransactionAbortable):
        both_ways.commit_transaction()
    with pytest.raises(TransactionAbortable):
        both_ways.send(topic, "more", partition=0)
    both_ways.abort_transaction()
    with both_ways.transaction():
        both_ways.send(topic, "alive", partition=0)
    eventually(lambda: committed(broker.bootstrap, topic) == ["alive"])


def test_a_removed_member_is_fenced_by_its_old_member_id(
    broker: Any, admin: Admin, both_ways: Producer, topic: str
) -> None:
    """Spec: E9. KIP-447: it exceeded max.poll.interval.ms, and another member owns its partitions."""
    with Producer(bootstrap_servers=broker.bootstrap) as writer:
        writer.send(topic, "input", partition=1)
    settings = {"group.id": f"{topic}-group", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    settings |= {"max.poll.interval.ms": stretched(500), "session.timeout.ms": 60_000}
    with Consumer(settings, bootstrap_servers=broker.bootstrap) as slow:
        slow.subscribe([topic])
        eventually(lambda: bool(slow.poll(500)))
        before = slow.group_metadata()
        eventually(lambda: admin.describe_groups([f"{topic}-group"])[0].members == ())
        assert slow.group_metadata() == before
        assert before.generation_id > 0
        both_ways.begin_transaction()
        both_ways.send(topic, "from a zombie", partition=0)
        with pytest.raises(TransactionAbortable) as caught:
            both_ways.send_offsets_to_transaction({(topic, 1): 1}, slow.group_metadata())
        assert caught.value.code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
        both_ways.abort_transaction()
        eventually(lambda: bool(slow.poll(500)))  # it comes back, and what it read is read again
        assert slow.group_metadata() != before
    assert admin.list_group_offsets(f"{topic}-group") == {}


def test_the_next_instance_fences_the_last(broker: Any, both_ways: Producer, topic: str) -> None:
    """Spec: E9. The open transaction of the old instance is aborted, and it cannot write again."""
    both_ways.begin_transaction()
    both_ways.send(topic, "left open", partition=0)
    both_ways.flush()
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as successor:
        successor.init_transactions()
        with pytest.raises(TransactionFatal) as caught:
            both_ways.commit_transaction()
        assert caught.value.code == ErrorCode.PRODUCER_FENCED
        with pytest.raises(TransactionFatal):
            both_ways.abort_transaction()
        with pytest.raises(TransactionFatal):
            both_ways.send(topic, "late", partition=0)
        with successor.transaction():
            successor.send(topic, "new", partition=0)
        eventually(lambda: committed(broker.bootstrap, topic) == ["new"])


def test_a_fenced_producer_fails_at_the_abort(broker: Any, both_ways: Producer, topic: str) -> None:
    """INVALID_PRODUCER_EPOCH from a partition leader is abortable; fencing by the coordinator is fatal."""
    both_ways.begin_transaction()
    both_ways.send(topic, "first", partition=0)
    both_ways.flush()
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as successor:
        successor.init_transactions()
    delivery = both_ways.send(topic, "second", partition=0)
    both_ways.flush()
    assert isinstance(delivery.exception(), KafkaError)
    with pytest.raises(KafkaError):
        both_ways.commit_transaction()
    with pytest.raises(TransactionFatal):
        both_ways.abort_transaction()
    assert committed(broker.bootstrap, topic) == []


def test_a_too_large_record_fails_only_its_transaction(broker: Any, admin: Admin, topic: str) -> None:
    """MESSAGE_TOO_LARGE is abortable, and the sequence numbers are reset."""
    admin.create_topic(topic, partitions=1, configs={"max.message.bytes": "1000"})
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for version in (2, 1):
            if version == 1:
                use_old_protocol(producer)
            producer.begin_transaction()
            good = producer.send(topic, "small")
            producer.flush()
            bad = producer.send(topic, b"x" * 5_000)
            with pytest.raises(TransactionAbortable) as caught:
                producer.commit_transaction()
            assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
            assert good.exception() is None
            assert bad.exception() is not None
            producer.abort_transaction()
            with producer.transaction():
                producer.send(topic, f"after {version}")
        eventually(lambda: committed(broker.bootstrap, topic) == ["after 2", "after 1"])


def test_closing_aborts_what_is_open(broker: Any, producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    producer.send(topic, "open", partition=0)
    producer.flush()
    producer.close()
    with Producer(bootstrap_servers=broker.bootstrap) as plain:
        plain.send(topic, "plain", partition=0)
    # The reader would wait behind an open transaction.
    eventually(lambda: committed(broker.bootstrap, topic) == ["plain"])


def test_a_prepared_transaction_outlives_its_producer(
    broker: Any, admin: Admin, both_ways: Producer, topic: str
) -> None:
    """Prepared by one process, decided by another, with a ledger entry in the same transaction."""
    place, group = TopicPartition(topic, 1), f"{topic}-ledger"
    both_ways.begin_transaction()
    both_ways.send(topic, "prepared", partition=0)
    prepared = both_ways.prepare_transaction()
    both_ways.close()
    assert committed(broker.bootstrap, topic) == []
    admin.commit_prepared(prepared, offsets={place: 8}, group=group)
    eventually(lambda: committed(broker.bootstrap, topic) == ["prepared"])
    eventually(lambda: place in admin.list_group_offsets(group))
    assert admin.list_group_offsets(group)[place].offset == 8
    admin.commit_prepared(prepared)  # repeating it changes nothing
    with pytest.raises(TransactionFatal):
        admin.abort_prepared(prepared)


def test_a_prepared_transaction_can_be_aborted(broker: Any, admin: Admin, producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    producer.send(topic, "prepared", partition=0)
    prepared = producer.prepare_transaction()
    admin.abort_prepared(prepared)
    admin.abort_prepared(prepared)
    producer.close()
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as successor:
        successor.init_transactions()
        with pytest.raises(TransactionFatal):
            admin.commit_prepared(prepared)
        with successor.transaction():
            successor.send(topic, "next", partition=0)
    eventually(lambda: committed(broker.bootstrap, topic) == ["next"])


def test_an_empty_prepared_transaction_can_be_committed(
    broker: Any, admin: Admin, producer: Producer, topic: str
) -> None:
    """A task without rows still has its ledger entry."""
    place, group = TopicPartition(topic, 0), f"{topic}-ledger"
    producer.begin_transaction()
    empty = producer.prepare_transaction()
    assert empty.is_empty
    admin.commit_prepared(empty)
    admin.commit_prepared(empty, offsets={place: 1}, group=group)
    eventually(lambda: place in admin.list_group_offsets(group))


@pytest.mark.slow
def test_a_transaction_that_takes_too_long_is_aborted(broker: Any, admin: Admin, topic: str) -> None:
    """The coordinator aborts it. With a new epoch per transaction (KIP-890) its producer can continue."""
    admin.create_topic(topic, partitions=1)
    with Producer(
        bootstrap_servers=broker.bootstrap, transactional_id=topic, transaction_timeout_ms=stretched(3_000)
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "slow", partition=0)
        producer.flush()
        eventually(lambda: admin.describe_transactions([topic])[0].state == "CompleteAbort")
        late = producer.send(topic, "late", partition=0)
        producer.flush()
        assert late.exception() is not None
        with pytest.raises(TransactionAbortable):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, "in time", partition=0)
        eventually(lambda: committed(broker.bootstrap, topic) == ["in time"])


def test_a_transaction_timeout_above_the_maximum_is_fatal(broker: Any, topic: str) -> None:
    settings = {"bootstrap_servers": broker.bootstrap, "transactional_id": topic}
    with Producer(None, transaction_timeout_ms=2_000_000_000, **settings) as producer:
        with pytest.raises(TransactionFatal) as caught:
            producer.init_transactions()
        assert caught.value.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        with pytest.raises(TransactionFatal):
            producer.begin_transaction()


def test_two_phase_commit_is_rejected_if_it_is_disabled(broker: Any, topic: str) -> None:
    """KIP-939: both brokers reject it unless it is enabled."""
    settings = {"bootstrap_servers": broker.bootstrap, "transactional_id": topic}
    with Producer(None, transaction_two_phase_commit_enable=True, **settings) as producer:
        with pytest.raises(TransactionFatal) as caught:
            producer.init_transactions()
        assert caught.value.code in (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_a_group_transforms_one_topic_into_another(broker: Any, admin: Admin, topic: str, guarantee: str) -> None:
    """Spec: E9. In one call, with any guarantee."""
    for name in (f"{topic}-in", f"{topic}-out"):
        admin.create_topic(name, partitions=1)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(100):
            producer.send(f"{topic}-in", f"{number}")
    options = {"group_id": topic, "guarantee": guarantee, "bootstrap_servers": broker.bootstrap, "max_poll_records": 30}
    for _ in range(2):  # the second finds everything done
        transform(lambda record: record.value, f"{topic}-in", f"{topic}-out", until_end=True, **options)
    eventually(lambda: committed(broker.bootstrap, f"{topic}-out") == [f"{number}" for number in range(100)])


def test_snapshots_in_topics_are_restored(broker: Any, admin: Admin, topic: str) -> None:
    """Spec: E10."""
    for name in (topic, f"{topic}-offsets", f"{topic}-state"):
        admin.create_topic(name, partitions=1, configs={"cleanup.policy": "compact"})
    places: dict[str, Any] = {"incremental": (f"{topic}-offsets", 0), "full": (f"{topic}-state", 0)}
    places |= {"bootstrap_servers": broker.bootstrap, "transactional_id": topic}
    with SnapshotStore.open(**places) as store:
        with store.transaction({("in", 0): 5}):
            store.producer.send(topic, "out", key="k")
        store.save_full(b"five")
        with pytest.raises(ZeroDivisionError), store.transaction({("in", 0): 8}):
            raise ZeroDivisionError
    with SnapshotStore.open(**places) as store:
        assert store.restored.offsets == store.restored.state_offsets == {TopicPartition("in", 0): 5}
        assert store.restored.state == b"five"
