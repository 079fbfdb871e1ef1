"""Why librdkafka reports OUT_OF_ORDER_SEQUENCE_NUMBER after an outage, and why the broker is right to send it.

librdkafka numbers the records of a partition when they are queued. Records that exceed message.timeout.ms during an
outage are never sent, so the next batch skips their numbers. The broker cannot tell this from lost records and refuses
the batch, as Apache Kafka does. librdkafka then bumps its epoch, starts again at number 0 and sends the batch again.
An application sees the records that timed out, and no other error.
"""

import logging

import pytest

from ottla import Broker
from tests.support.waiting import PATIENCE_S, eventually, stretched


@pytest.mark.slow
def test_records_that_expire_during_an_outage_leave_a_gap_that_the_producer_recovers_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    results: dict[bytes, str | None] = {}

    def report(error: KafkaError | None, message: Message) -> None:
        results[message.value() or b""] = None if error is None else error.name()

    with Broker.embedded() as broker, caplog.at_level(logging.DEBUG, "librdkafka"):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": stretched(3_000),
            "topic.metadata.refresh.fast.interval.ms": 20,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 50,
            "debug": "eos,msg",
        }
        producer = Producer(settings, logger=logging.getLogger("librdkafka"))

        def send(value: bytes) -> str | None:
            """Sends a record and waits for its result: None, or the name of an error."""
            producer.produce("t", value, partition=0, on_delivery=report)
            eventually(lambda: producer.poll(0.01) is not None and value in results)
            return results[value]

        assert send(b"first") is None
        assert "out of order" not in caplog.text
        broker.kill()
        assert send(b"expired") == "_MSG_TIMED_OUT"
        broker.restart()
        values = (b"after %d" % number for number in range(100))
        delivered = next(value for value in values if send(value) is None)
        assert "out of order sequence number" in caplog.text
        assert "bumped epoch" in caplog.text
        assert set(results.values()) == {None, "_MSG_TIMED_OUT"}, "the application sees no other error"
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.assign([TopicPartition("t", 0, 0)])
        assert [message.value() for message in consumer.consume(2, PATIENCE_S)] == [b"first", delivered]
        consumer.close()
