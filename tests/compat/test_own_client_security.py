"""Ottla's client and a secured Apache Kafka: every way to log in, every mistake, and sessions that end."""

import itertools
from typing import Any

import pytest

from ottla import Admin, AuthenticationError, Consumer, ErrorCode, Producer
from ottla.clock import monotonic
from tests.support.processes.secure_oracle import SecureKafka
from tests.support.waiting import PATIENCE_S, slowness

pytestmark = pytest.mark.oracle


def round_trip(settings: dict[str, str], topic: str, records: int = 20) -> list[bytes | None]:
    with Admin(settings) as admin:
        admin.create_topic(topic, partitions=1)
    with Producer(settings) as producer:
        sent = [producer.send(topic, str(number)) for number in range(records)]
        assert [delivery.result(PATIENCE_S).offset for delivery in sent] == list(range(records))
    found: list[bytes | None] = []
    with Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        for _ in range(200):
            found += [record.value for record in consumer.poll(500)]
            if len(found) >= records:
                break
    return found


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("SSL", ""),
        ("MTLS", ""),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_PLAINTEXT", "OAUTHBEARER"),
    ],
)
def test_records_go_through_every_kind_of_listener(
    secure_kafka: SecureKafka, topic: str, listener: str, mechanism: str
) -> None:
    assert round_trip(secure_kafka.client_settings(listener, mechanism), topic) == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_fails_the_call_at_once(secure_kafka: SecureKafka, mechanism: str) -> None:
    settings = secure_kafka.client_settings("SASL_SSL", mechanism, password="wrong-one")

    def with_admin() -> None:
        with Admin(settings) as admin:
            admin.list_topics()

    def with_producer() -> None:
        with Producer(settings) as producer:
            producer.send("t", b"x").result(PATIENCE_S)

    def with_consumer() -> None:
        with Consumer({**settings, "group.id": "g"}) as consumer:
            consumer.subscribe(["t"])
            consumer.poll(300_000)

    calls = [with_admin, with_producer, with_consumer]
    for call in calls:
        started = monotonic()
        with pytest.raises(
            AuthenticationError, match=rf"rejected {mechanism} as alice: Authentication failed"
        ) as raised:
            call()
        assert raised.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "wrong-one" not in str(raised.value)
        assert monotonic() - started < 20 * slowness()


MISTAKES: list[tuple[str, str, str]] = [
    ("PLAINTEXT", "SSL", "uses TLS, but this client does not"),
    ("PLAINTEXT", "SASL_PLAINTEXT", "requires SASL.*PLAIN"),
    ("SSL", "PLAINTEXT", "does not use TLS"),
    ("SSL", "SASL_PLAINTEXT", "does not use TLS"),
    ("SSL", "SASL_SSL", "requires SASL"),
    ("SSL", "MTLS", "requires a client certificate"),
    ("SASL_PLAINTEXT", "PLAINTEXT", "does not use SASL"),
    ("SASL_PLAINTEXT", "SASL_SSL", "uses TLS, but this client does not"),
    ("SASL_SSL", "SSL", "does not use SASL"),
]


@pytest.mark.parametrize(("client", "listener", "said"), MISTAKES)
def test_the_error_on_a_wrong_port_says_what_the_port_expects(
    secure_kafka: SecureKafka, client: str, listener: str, said: str
) -> None:
    settings: dict[str, Any] = secure_kafka.client_settings(client, "PLAIN")
    settings["bootstrap.servers"] = address = secure_kafka.addresses[listener]
    with Admin(settings) as admin, pytest.raises(AuthenticationError, match=said) as raised:
        admin.list_topics()
    assert address in raised.value.detail
    assert "Set " in raised.value.hint


def test_a_certificate_of_another_authority_is_refused_by_either_side(secure_kafka: SecureKafka) -> None:
    stranger = str(secure_kafka.directory / "stranger.pem")
    mutual = secure_kafka.client_settings("MTLS")
    for settings, said in (
        (mutual | {"ssl.truststore.location": stranger}, "not signed by a CA that this client trusts"),
        (mutual | {"ssl.keystore.location": stranger}, "rejected the client's certificate"),
    ):
        with Admin(settings) as admin, pytest.raises(AuthenticationError, match=said):
            admin.list_topics()


def test_a_session_that_ends_is_renewed_while_records_flow(secure_kafka: SecureKafka, topic: str) -> None:
    """KIP-368: the broker closes connections that continue without a new login. No record is lost or reordered."""
    settings = secure_kafka.client_settings("BRIEF", "SCRAM-SHA-512")
    with Admin(settings) as admin:
        admin.create_topic(topic, partitions=1)
    reading = {**settings, "group.id": topic, "auto.offset.reset": "earliest"}
    with Producer(settings) as producer, Consumer(reading) as consumer:
        consumer.subscribe([topic])
        sent, found = [], []
        until = monotonic() + 2.5 * secure_kafka.session_ms / 1000
        for number in itertools.count():
            sent.append(producer.send(topic, str(number)))
            found += [record.value for record in consumer.poll(20)]
            if monotonic() > until:
                break
        assert [delivery.result(PATIENCE_S).offset for delivery in sent] == list(range(len(sent)))
        while len(found) < len(sent):
            found += [record.value for record in consumer.poll(1_000)]
        assert found == [b"%d" % number for number in range(len(sent))]
        for client in (producer, consumer):
            failed = client.metrics()["request-error-total"]
            assert isinstance(failed, dict)
            assert not any(failed.values())
