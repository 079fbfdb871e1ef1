"""Other Kafka clients with TLS and SASL: each logs in, sends and reads records, or reports in its own words why not.

>>> attempt("kcat", Login("localhost:9093", "SSL", authority="ca.pem"), "topic")
Outcome(kind='ok', text='')
"""

import asyncio
import base64
import json
import logging
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.clients.java import JavaClient
from tests.support.waiting import PATIENCE_S, slowness, stretched

RECORDS = [b"%d" % number for number in range(5)]
TIMEOUT_S = PATIENCE_S
REFUSAL_S = 20.0
"""Every client fails within this time: none of these mistakes goes away by waiting."""
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
MODULES = "org.apache.kafka.common.security"


class Login(NamedTuple):
    """How a client connects."""

    bootstrap: str
    protocol: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    token_url: str = ""
    """Of an OAuth provider that gives the token of (user, password), for OAUTHBEARER."""
    token: str = ""
    authority: str = ""
    certificate: str = ""
    """A file with the client's key and certificate."""


class Outcome(NamedTuple):
    """`kind` is ok; or who refused: `authentication` (the broker's answer), `tls` (a certificate, or a peer that does
    not speak TLS), `connection` (it was closed without a reason)."""

    kind: str
    text: str = ""


OK = Outcome("ok")

KINDS = [
    (
        "authentication",
        r"SASL_AUTHENTICATION_FAILED|_AUTHENTICATION|SASL authentication error|AuthenticationFailed",
    ),
    ("tls", r"_SSL\b|SSL|certificate|Handshake|handshake|TLS"),
    ("connection", r"."),
]


def kind_of(text: str) -> str:
    # The names of kafka-python's classes, and of the protocol in addresses, tell nothing.
    said = re.sub(r"KafkaSSLTransport|(sasl_)?ssl://", "", text)
    return next(kind for kind, pattern in KINDS if re.search(pattern, said, re.S))


def attempt(client: str, login: Login, topic: str) -> Outcome:
    """Sends RECORDS to the topic's partition 0 and reads them. The topic is empty."""
    # Clients get timeouts that fit the load at the start. It may be lower at the end.
    slowness_before, started = slowness(), time.monotonic()
    error = CLIENTS[client](login, topic)
    seconds = time.monotonic() - started
    if error is None:
        return OK
    limit = REFUSAL_S * max(slowness_before, slowness())
    assert seconds < limit, f"{client} needed {seconds:.0f} s to fail: {error}"
    return Outcome(kind_of(error), error)


# --- librdkafka -------------------------------------------------------------------------------------------


def librdkafka_settings(login: Login) -> dict[str, Any]:
    settings = {"bootstrap.servers": login.bootstrap, "security.protocol": login.protocol}
    if "SSL" in login.protocol:
        settings["ssl.ca.location"] = login.authority
    if login.certificate:
        settings |= {"ssl.certificate.location": login.certificate, "ssl.key.location": login.certificate}
    if login.mechanism:
        settings["sasl.mechanisms"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            settings |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": login.user,
                "sasl.oauthbearer.client.secret": login.password,
                "sasl.oauthbearer.token.endpoint.url": login.token_url,
            }
        else:
            settings |= {"sasl.username": login.user, "sasl.password": login.password}
    return settings


def confluent(login: Login, topic: str) -> str | None:
    import confluent_kafka

    errors: list[str] = []
    is_down = threading.Event()

    def on_error(error: confluent_kafka.KafkaError) -> None:
        # This one only sums up; where a connection is closed without a reason, it is the only one.
        if error.name() == "_ALL_BROKERS_DOWN":
            is_down.set()
        else:
            errors.append(f"{error.name()}: {error.str()}")

    common = {**librdkafka_settings(login), "error_cb": on_error, "log_level": 0}
    producer = confluent_kafka.Producer(common)
    for value in RECORDS:
        producer.produce(topic, value, partition=0)
    deadline = time.monotonic() + TIMEOUT_S
    while producer.flush(0.1) and not errors and time.monotonic() < deadline:
        if is_down.is_set():
            producer.poll(0.5)
            errors.append("all brokers are down")
    if errors:
        producer.purge()
        return errors[0]
    consumer = confluent_kafka.Consumer({**common, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = consumer.consume(len(RECORDS), TIMEOUT_S)
    consumer.close()
    assert [message.value() for message in found] == RECORDS, errors
    return None


def kcat(login: Login, topic: str) -> str | None:
    options = [word for name, value in librdkafka_settings(login).items() for word in ("-X", f"{name}={value}")]
    command = ["kcat", *options, "-t", topic, "-p", "0"]
    lines = b"\n".join(RECORDS) + b"\n"
    sent = subprocess.run([*command, "-P"], input=lines, capture_output=True, timeout=TIMEOUT_S, check=False)
    if sent.returncode:
        return sent.stderr.decode()
    read = subprocess.run(
        [*command, "-C", "-o", "beginning", "-c", str(len(RECORDS))], capture_output=True, timeout=TIMEOUT_S, check=True
    )
    assert read.stdout == lines
    return None


# --- Java -------------------------------------------------------------------------------------------------


def java_settings(login: Login) -> dict[str, str]:
    settings = {"security.protocol": login.protocol}
    if "SSL" in login.protocol:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": login.authority}
    if login.certificate:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": login.certificate}
    if login.mechanism == "OAUTHBEARER":
        settings |= {
            "sasl.mechanism": login.mechanism,
            "sasl.login.callback.handler.class": f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": login.token_url,
            "sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required"
            f' clientId="{login.user}" clientSecret="{login.password}";',
        }
    elif login.mechanism:
        module = "plain.PlainLoginModule" if login.mechanism == "PLAIN" else "scram.ScramLoginModule"
        jaas = f'{MODULES}.{module} required username="{login.user}" password="{login.password}";'
        settings |= {"sasl.mechanism": login.mechanism, "sasl.jaas.config": jaas}
    return settings


class _Java:
    """The driver's process. It must know where tokens come from when it starts: the system property
    org.apache.kafka.sasl.oauthbearer.allowed.urls lists the permitted URLs."""

    client: JavaClient | None = None
    token_url = ""

    def __call__(self, login: Login, topic: str) -> str | None:
        call = self.driver(login.token_url).call
        where: dict[str, Any] = {"bootstrap": login.bootstrap, "topic": topic, "partition": 0}
        config = {**java_settings(login), "max.block.ms": stretched(10_000), "linger.ms": 0}
        for value in RECORDS:
            (result,) = call("produce", config=config, records=[{"value": base64.b64encode(value).decode()}], **where)
            if "error" in result:
                return f"{result['error']}: {result['message']}"
        config = {**java_settings(login), "auto.offset.reset": "none"}
        found = call("consume", config=config, count=len(RECORDS), timeout_ms=int(TIMEOUT_S * 1000), **where)
        assert [base64.b64decode(record["value"]) for record in found] == RECORDS
        return None

    def driver(self, token_url: str) -> JavaClient:
        if self.client is None or token_url not in ("", self.token_url):
            self.close()
            self.client, self.token_url = JavaClient(f"-D{ALLOWED_URLS}={token_url}"), token_url
        return self.client

    def close(self) -> None:
        if self.client is not None:
            self.client.close()


java = _Java()


# --- Python ------------------------------------------------------------------------------------------------


@contextmanager
def captured(logger: str) -> Iterator[list[str]]:
    """The log of a library that reports the reason of a failure nowhere else."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(logger).removeHandler(handler)


def in_its_own_process(client: str) -> Callable[[Login, str], str | None]:
    """For clients that leave sockets open when they cannot connect."""

    def attempt_there(login: Login, topic: str) -> str | None:
        command = [sys.executable, "-m", __name__, json.dumps([client, login, topic])]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
        assert ended.returncode == 0, ended.stderr
        error: str | None = json.loads(ended.stdout)
        return error

    return attempt_there


def kafka_python(login: Login, topic: str) -> str | None:
    import kafka
    from kafka.errors import KafkaError

    security: dict[str, Any] = {"bootstrap_servers": login.bootstrap, "security_protocol": login.protocol}
    if login.authority:
        security["ssl_cafile"] = login.authority
    if login.certificate:
        security |= {"ssl_certfile": login.certificate, "ssl_keyfile": login.certificate}
    if login.mechanism == "OAUTHBEARER":
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):
            def token(self) -> str:
                return login.token

        provider = Provider()  # type: ignore[no-untyped-call]
        security |= {"sasl_mechanism": login.mechanism, "sasl_oauth_token_provider": provider}
    elif login.mechanism:
        security |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": login.user,
            "sasl_plain_password": login.password,
        }
    with captured("kafka") as lines:
        try:
            producer = kafka.KafkaProducer(
                **security, max_block_ms=stretched(8_000), bootstrap_timeout_ms=stretched(4_000)
            )
            sent = [producer.send(topic, value, partition=0) for value in RECORDS]
            for delivery in sent:
                delivery.get(TIMEOUT_S)
            producer.close()
        except KafkaError as error:
            said = "\n".join([repr(error), *lines])
        else:
            said = ""
    if said:
        return said
    consumer = kafka.KafkaConsumer(
        **security,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(TIMEOUT_S * 1000),
        bootstrap_timeout_ms=int(TIMEOUT_S * 1000),
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    assert [next(consumer).value for _ in RECORDS] == RECORDS
    consumer.close()
    return None


def aiokafka(login: Login, topic: str) -> str | None:
    with captured("aiokafka") as lines:
        error = asyncio.run(asyncio.wait_for(_aiokafka(login, topic), TIMEOUT_S))
        return None if error is None else "\n".join([error, *lines])


async def _aiokafka(login: Login, topic: str) -> str | None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.abc import AbstractTokenProvider
    from aiokafka.errors import KafkaError

    security: dict[str, Any] = {"bootstrap_servers": login.bootstrap, "security_protocol": login.protocol}
    if "SSL" in login.protocol:
        context = security["ssl_context"] = ssl.create_default_context(cafile=login.authority)
        if login.certificate:
            context.load_cert_chain(login.certificate)
    if login.mechanism == "OAUTHBEARER":

        class Provider(AbstractTokenProvider):
            async def token(self) -> str:
                return login.token

        security |= {"sasl_mechanism": login.mechanism, "sasl_oauth_token_provider": Provider()}
    elif login.mechanism:
        security |= {
            "sasl_mechanism": login.mechanism,
            "sasl_plain_username": login.user,
            "sasl_plain_password": login.password,
        }
    producer = AIOKafkaProducer(**security, request_timeout_ms=stretched(8_000))
    try:
        await producer.start()
        for value in RECORDS:
            await producer.send_and_wait(topic, value, partition=0)
    except KafkaError as error:
        return repr(error)
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(**security)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert [(await consumer.getone()).value for _ in RECORDS] == RECORDS
    finally:
        await consumer.stop()
    return None


CLIENTS: dict[str, Callable[[Login, str], str | None]] = {
    "librdkafka": confluent,
    "java": java,
    "aiokafka": in_its_own_process("aiokafka"),
    "kafka-python": in_its_own_process("kafka-python"),
    "kcat": kcat,
}


if __name__ == "__main__":
    chosen, words, name = json.loads(sys.argv[1])
    run = {"aiokafka": aiokafka, "kafka-python": kafka_python}[chosen]
    print(json.dumps(run(Login(*words), name)))
