"""continue_as(): several transactional ids, one after the other, on one producer's connections."""

from typing import TYPE_CHECKING

import pytest

from ottla.client.blocking import Admin, Consumer, Producer
from ottla.errors import ArgumentError, OttlaError
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from ottla.broker.embedded.broker import EmbeddedBroker


def test_a_prepared_transaction_stays_while_its_producer_continues_with_another_id(
    broker: "EmbeddedBroker", topic: str
) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-0") as producer:
            prepared = []
            for number in range(3):
                if number:
                    producer.continue_as(f"{topic}-{number}")
                assert producer.config.transactional_id == f"{topic}-{number}"
                producer.init_transactions()
                producer.begin_transaction()
                producer.send(topic, f"{number}")
                producer.send_offsets_to_transaction({(topic, 0): number}, topic)
                prepared.append(producer.prepare_transaction())
        assert [each.transactional_id for each in prepared] == [f"{topic}-{number}" for number in range(3)]
        admin.commit_prepared(prepared[2])
        admin.abort_prepared(prepared[1])
        admin.commit_prepared(prepared[0])
    with Consumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        found: list[bytes | None] = []

        def both_are_there() -> bool:
            found.extend(record.value for record in consumer.poll(500))
            return len(found) == 2

        eventually(both_are_there)  # the commit returns before its marker is written
    assert found == [b"0", b"2"]


def test_continue_as_is_refused_in_an_open_transaction_and_without_an_id(broker: "EmbeddedBroker", topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(OttlaError, match=r"continue_as\(\) is not possible"):
            producer.continue_as("another")
        producer.abort_transaction()
        producer.continue_as("another")
        with pytest.raises(ArgumentError, match=r"the new id is empty\. Pass a non-empty transactional id\."):
            producer.continue_as("")
    with Producer(bootstrap_servers=broker.bootstrap) as plain, pytest.raises(OttlaError, match="transactional"):
        plain.continue_as("another")
