"""A broker with TLS and SASL in a child process, and the clients of others on it."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping

import aiokafka
import confluent_kafka
import kafka
import pytest

import ottla
from ottla.broker.embedded.broker import EmbeddedBroker
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with ottla.Broker.embedded(secure=True, settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


def read_all(settings: Mapping[str, str], topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    found: list[bytes] = []
    try:
        eventually(lambda: _poll(consumer, found) or len(found) == count)
    finally:
        consumer.close()
    return found


def _poll(consumer: confluent_kafka.Consumer, found: list[bytes]) -> bool:
    message = consumer.poll(0.5)
    if message is not None:
        assert message.error() is None
        found.append(message.value() or b"")
    return False


def test_confluent_kafka_with_the_settings_of_the_broker(broker: EmbeddedBroker) -> None:
    producer = confluent_kafka.Producer(broker.client_settings)
    for number in range(20):
        producer.produce("confluent", str(number))
    assert producer.flush(PATIENCE_S) == 0
    assert len(read_all(broker.client_settings, "confluent", 20)) == 20


def test_kafka_python(broker: EmbeddedBroker) -> None:
    settings = broker.client_settings
    security = {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": settings["ssl.ca.location"],
        "sasl_mechanism": settings["sasl.mechanism"],
        "sasl_plain_username": settings["sasl.username"],
        "sasl_plain_password": settings["sasl.password"],
    }
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, **security)
    producer.send("kafka-python", b"x" * 700_000).get(PATIENCE_S)
    producer.close()
    assert read_all(settings, "kafka-python", 1) == [b"x" * 700_000]


def test_aiokafka(broker: EmbeddedBroker) -> None:
    settings = broker.client_settings
    context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on

    async def story() -> None:
        security = {
            "security_protocol": "SASL_SSL",
            "ssl_context": context,
            "sasl_mechanism": settings["sasl.mechanism"],
            "sasl_plain_username": settings["sasl.username"],
            "sasl_plain_password": settings["sasl.password"],
        }
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **security)
        await producer.start()
        for _ in range(5):
            await producer.send_and_wait("aiokafka", b"x" * 900_000)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "aiokafka", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", **security
        )
        await consumer.start()
        try:
            for _ in range(5):
                assert (await consumer.getone()).value == b"x" * 900_000
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_nobody_gets_in_without_the_password(broker: EmbeddedBroker) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    settings = {**broker.client_settings, "sasl.password": "wrong", "error_cb": errors.append, "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    eventually(lambda: producer.poll(0.2) is None or bool(errors))
    assert errors[0].name() == "_AUTHENTICATION"
    assert "invalid credentials" in errors[0].str()


def test_a_broker_without_tls_and_sasl_imports_neither() -> None:
    """They would delay its start."""
    code = "import sys, ottla.broker.broker; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    security = {
        "ottla.net.server.tls_transport",
        "ottla.broker.authentication",
        "ottla.security.tls",
        "ottla.security.sasl",
    }
    assert not {*security, "cryptography", "jwt"} & {*found}


def test_secrets_are_on_no_command_line(broker: EmbeddedBroker) -> None:
    command = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(broker.pid)], capture_output=True, check=True)
    assert broker.client_settings["sasl.password"] not in command.stdout.decode()
    assert broker.client_settings["sasl.password"] not in broker.log


def test_a_secure_broker_restarts_with_its_user(broker: EmbeddedBroker) -> None:
    broker.restart()
    assert "created user" in broker.log
    producer = confluent_kafka.Producer(broker.client_settings)
    producer.produce("again", b"x")
    assert producer.flush(PATIENCE_S) == 0


def test_three_brokers_replicate_elect_and_commit_over_tls_and_sasl() -> None:
    with ottla.Broker.embedded(brokers=3, secure=True) as cluster:
        producer = confluent_kafka.Producer(
            {**cluster.client_settings, "transactional.id": "t", "log_level": 0, "acks": "all"}
        )
        producer.init_transactions(PATIENCE_S)
        for round_ in range(2):
            producer.begin_transaction()
            for number in range(10):
                producer.produce("replicated", str(number))
            producer.commit_transaction(PATIENCE_S)
            if round_ == 0:
                cluster.kill(0)
        settings = {**cluster.client_settings, "log_level": "0", "isolation.level": "read_committed"}
        assert len(read_all(settings, "replicated", 20)) == 20
        assert "authentication of" not in cluster.log


def test_a_user_is_added_before_the_first_start_and_by_the_command(tmp_path: object) -> None:
    words = [sys.executable, "-m", "ottla", "user", "add", "alice", "--data", str(tmp_path)]
    subprocess.run(words, input=b"secret\n", check=True, capture_output=True)
    with ottla.Broker.embedded(str(tmp_path)) as broker:

        def command(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
            line = [sys.executable, "-m", "ottla", "user", *words, "-b", broker.bootstrap]
            return subprocess.run(line, input=text, capture_output=True, text=True, check=False)

        assert "alice" in command("list").stdout
        assert command("add", "bob", "--mechanism", "SCRAM-SHA-256", text="hush\n").returncode == 0
        assert '"SCRAM-SHA-256"' in command("list", "--json").stdout
        assert command("delete", "alice").returncode == 0
        again = command("delete", "alice")
        assert again.returncode != 0
        assert "user alice has no credentials" in again.stderr
        assert "the password of carol is empty" in command("add", "carol", text="\n").stderr
        assert "alice" not in command("list").stdout
