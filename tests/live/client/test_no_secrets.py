"""No secret appears anywhere: logs of broker and client at DEBUG, exceptions, reprs, settings, metadata, dumps."""

import asyncio
import base64
import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import AsyncAdmin, AsyncConsumer, AsyncProducer, AuthenticationError, ErrorCode, KafkaError, OttlaError
from ottla.config import describe
from ottla.spark.sink.options import SinkOptions
from ottla.spark.source.options import SourceOptions
from tests.support.secure_brokers import USERS, Security, running_broker

MODULES = "org.apache.kafka.common.security"
WRONG = "wrong-s3cr3t"
TOKEN = "tok3n-of-alice"


class Watch:
    """Collects everything that is printed, logged or raised, and searches it."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.caplog = caplog
        self.seen: list[str] = []

    def look(self, *objects: Any) -> None:
        self.seen += [f"{each!r} {each}" for each in objects]

    def raised(self, error: BaseException) -> None:
        self.look(error, error.__dict__, error.args, pickle.dumps(error))
        self.seen.append("".join(traceback.format_exception(error)))

    def find(self, secrets: dict[str, str]) -> list[str]:
        formatter = logging.Formatter("%(message)s %(exc_text)s")
        everything = [*self.seen, *(f"{formatter.format(r)} {r.args!r} {r.__dict__!r}" for r in self.caplog.records)]
        assert len(self.caplog.records) > 20, "the logs were not captured"
        found = []
        for name, secret in secrets.items():
            shapes = (secret, base64.b64encode(secret.encode()).decode().rstrip("="), secret.encode().hex())
            found += [f"{name} in: {text[:300]}" for text in everything for shape in shapes if shape in text]
        return found


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> Iterator[Watch]:
    # asyncio's own debug mode logs too, for example the arguments of slow callbacks.
    with caplog.at_level(logging.DEBUG):
        yield Watch(caplog)


def jaas(mechanism: str, password: str) -> str:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return f'{MODULES}.{module} required username="alice" password="{password}";'


def test_no_secret_appears_in_logs_errors_or_reprs(tmp_path: Path, watch: Watch) -> None:
    security = Security(tmp_path)
    alice = security.client("CN=alice,O=Ottla")
    key_password = "k3y-passw0rd"
    key_file = alice.write(tmp_path / "alice.pem", key_password)
    secrets = {
        **{f"the password of {name}": password for name, password in USERS.items()},
        "a wrong password": WRONG,
        "a token": TOKEN,
        "the key's password": key_password,
        "the broker's private key": security.broker.key_pem().splitlines()[1],
        "the client's private key": alice.key_pem().splitlines()[1],
    }

    async def story() -> None:
        asyncio.get_running_loop().set_debug(True)
        async with running_broker(
            tmp_path / "data", security.settings("SASL_SSL", ["PLAIN", "SCRAM-SHA-512"])
        ) as broker:
            settings = {
                "bootstrap.servers": broker.address,
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": jaas("PLAIN", USERS["alice"]),
                "ssl.truststore.location": security.authority_file,
                "ssl.keystore.location": key_file,
                "ssl.key.password": key_password,
                "default.api.timeout.ms": "300000",
            }
            watch.look(broker, broker.config, broker.services, describe(broker.config))
            async with AsyncAdmin(settings) as admin, AsyncProducer(settings) as producer:
                await admin.create_topic("orders", partitions=1)
                await producer.send_and_wait("orders", b"x")
                for client in (admin, producer):
                    watch.look(client, client.config, describe(client.config), vars(client))
                watch.look(await admin.describe_configs("broker", str(broker.config.node_id)))
            for changed in (
                {"sasl.jaas.config": jaas("PLAIN", WRONG)},
                {"sasl.jaas.config": jaas("SCRAM-SHA-512", WRONG), "sasl.mechanism": "SCRAM-SHA-512"},
                {"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": None, "sasl.oauth.token.provider": lambda: TOKEN},
            ):
                async with AsyncConsumer({**settings, **changed, "group.id": "g"}) as consumer:
                    await consumer.subscribe(["orders"])
                    with pytest.raises(AuthenticationError) as refused:
                        await consumer.poll(300_000)
                    watch.raised(refused.value)
            for changed in (
                {"ssl.key.password": WRONG},
                {"sasl.jaas.config": f'nonsense "{WRONG}"'},
                {"sasl.jaas.config": jaas("PLAIN", WRONG)[:-1]},
                {"sasl.password": WRONG},
                {"ssl.keystore.key": f"-----BEGIN PRIVATE KEY----- {WRONG}"},
                {"sasl.pasword": WRONG},
            ):
                with pytest.raises(OttlaError) as mistaken:
                    AsyncAdmin({**settings, **changed})
                watch.raised(mistaken.value)
            _look_at_spark(watch, settings)

    asyncio.run(story())
    assert not watch.find(secrets)


def _look_at_spark(watch: Watch, settings: dict[str, Any]) -> None:
    options = {f"kafka.{name}": value for name, value in settings.items()}
    watch.look(SourceOptions.parse({**options, "subscribe": "orders"}), SinkOptions.parse({**options}, streaming=True))
    for changed in ({"kafka.sasl.jaas.config": f'nonsense "{WRONG}"'}, {"kafka.sasl.pasword": WRONG}):
        with pytest.raises(OttlaError) as of_source:
            SourceOptions.parse({**options, "subscribe": "orders", **changed})
        with pytest.raises(OttlaError) as of_sink:
            SinkOptions.parse({**options, **changed}, streaming=True)
        watch.raised(of_source.value)
        watch.raised(of_sink.value)


def test_the_search_finds_a_secret_that_was_logged(watch: Watch) -> None:
    """Otherwise the test above could not fail."""
    for number in range(30):
        logging.getLogger("ottla.test").debug("line %d with %s", number, "nothing")
    assert not watch.find({"a password": "hunter2"})
    logging.getLogger("ottla.test").debug("logged in with %s", "hunter2")
    watch.raised(KafkaError(ErrorCode.NETWORK_EXCEPTION, "hunter3"))
    assert len(watch.find({"a password": "hunter2", "another": "hunter3"})) >= 2
