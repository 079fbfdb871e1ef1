"""Compaction of a topic with transactions: consumers get the same from Ottla and from Apache Kafka."""

from typing import Any

from ottla import Admin, Consumer, Producer
from ottla.types import TopicPartition
from tests.support.waiting import eventually


def contents(bootstrap: str, topic: str, isolation: str) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values that a consumer reads, up to the current end."""
    place = TopicPartition(topic, 0)
    with Consumer(
        None, bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level=isolation
    ) as consumer:
        consumer.assign([place])
        (end,) = consumer.end_offsets([place]).values()
        found: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(200):
            if consumer.position(place) >= end:
                return found
            found += [(record.key, record.value) for record in consumer.poll(200)]
    raise AssertionError(f"stuck before {end}")


def test_a_deleted_key_stays_deleted_after_an_earlier_abort(broker: Any, topic: str) -> None:
    """The producer aborts a transaction, which is compacted; then it deletes a key that it wrote before."""
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "segment.ms": "50",
        "delete.retention.ms": "200",
    }
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1, configs=configs)
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()

        def transaction(key: bytes, value: bytes | None, *, abort: bool = False) -> None:
            producer.begin_transaction()
            producer.send_and_wait(topic, value, key=key)
            if abort:
                producer.abort_transaction()
            else:
                producer.commit_transaction()

        def is_gone(key: bytes, value: bytes | None) -> bool:
            transaction(b"roll", b"x")  # The first append after segment.ms starts a segment.
            return (key, value) not in contents(broker.bootstrap, topic, "read_uncommitted")

        transaction(b"k", b"value")
        transaction(b"other", b"aborted", abort=True)
        eventually(lambda: is_gone(b"other", b"aborted"))
        assert (b"k", b"value") in contents(broker.bootstrap, topic, "read_committed")
        transaction(b"k", None)
        eventually(lambda: is_gone(b"k", None))
        left = contents(broker.bootstrap, topic, "read_committed")
        assert {key for key, _ in left} == {b"roll"}
