"""Listeners with TLS and SASL: who gets in, what others can do, and what they cost. The real server, on a real loop."""

import asyncio
import contextlib
import logging
import os
import ssl
import struct
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.errors import ConfigError, ErrorCode
from ottla.metadata.changes.config_changes import ConfigChange, ResourceChange
from ottla.metadata.changes.scram_changes import Upsertion
from ottla.protocol.api import ApiKey
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.records.record_batch import build_batch
from ottla.protocol.wire_values import ConfigOperation, ConfigResourceType
from ottla.security.sasl.client_exchanges import PlainExchange, ScramExchange
from ottla.security.sasl.scram_math import SCRAM_SHA_512, salted_password
from tests.support.certificates import Authority
from tests.support.secure_brokers import USERS, Security, broker_jaas, connected, principals, running_broker
from tests.support.waiting import eventually_async


def run(story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story, 60))


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    return Security(tmp_path_factory.mktemp("security"))


async def add_user(broker: Broker, user: str, password: str) -> None:
    salted = salted_password(SCRAM_SHA_512, password, b"salt", 4096)
    results = await broker.services.metadata.changes.alter_user_scram_credentials(
        [], [Upsertion(user, SCRAM_SHA_512.number, 4096, b"salt", salted)]
    )
    assert [result.error for result in results] == [ErrorCode.NONE]


def sasl_settings(security: Security, *mechanisms: str, **more: str) -> dict[str, str]:
    settings = security.settings("SASL_PLAINTEXT", mechanisms)
    return settings | {"connection.failed.authentication.delay.ms": "1"} | more


# TLS


def test_large_requests_and_responses_pass_through_tls(security: Security, tmp_path: Path) -> None:
    """Also a response that is read from the file while it is sent."""

    async def story() -> None:
        async with (
            running_broker(tmp_path, security.settings("SSL")) as broker,
            connected(broker, security.client_context()) as client,
        ):
            topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 4)
            for _ in range(8):
                batch = build_batch([(1_700_000_000_000, None, os.urandom(900_000), ())])
                data = ProduceRequest.TopicProduceData(
                    name="t", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
                )
                answer = await client.ask(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[data]), 8)
                assert answer.responses[0].partition_responses[0].error_code == 0
            wanted = FetchRequest.FetchTopic(
                topic="t",
                partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2**26)],
            )
            answer = await client.ask(
                FetchRequest(replica_id=-1, max_wait_ms=100, min_bytes=1, max_bytes=2**26, topics=[wanted]), 11
            )
            records = answer.responses[0].partitions[0].records
            assert len(records) > 8 * 900_000
            assert principals(broker) == {"User:ANONYMOUS"}

    run(story())


def test_many_requests_at_once_are_answered_in_order_through_tls(security: Security, tmp_path: Path) -> None:
    """More than the broker handles in one turn, from a client that reads nothing until all are sent."""
    count = 4000

    async def story() -> None:
        async with (
            running_broker(tmp_path, security.settings("SSL")) as broker,
            connected(broker, security.client_context()) as client,
        ):
            requests = (encode_request(3, 1, number, "x" * 200, MetadataRequest(topics=[])) for number in range(count))
            client.writer.write(b"".join(requests))
            await client.writer.drain()
            for number in range(count):
                assert decode_response(ApiKey.METADATA, 1, await client.frame())[0] == number

    run(story())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_owner_of_a_client_certificate_is_the_user(
    security: Security, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    async def story() -> None:
        settings = security.settings("SSL") | {
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
        }
        context = security.client_context(security.client_file("Alice"))
        context.maximum_version = version
        async with running_broker(tmp_path, settings) as broker:
            async with connected(broker, context) as client:
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers
                assert principals(broker) == {"User:alice"}
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                async with connected(broker, security.client_context()) as client:
                    # In TLS 1.3 a client learns only now that its certificate is missing.
                    client.writer.write(encode_request(3, 1, 5, "test", MetadataRequest(topics=[])))
                    assert await client.reader.read(100) == b""
            assert broker.server is not None
            assert broker.server.failed_handshakes == 1
            assert len(broker.server.newcomers) == 0

    run(story())


def test_a_client_without_tls_is_recognised_in_the_log(
    security: Security, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with running_broker(tmp_path, security.settings("SSL")) as broker, connected(broker) as client:
            client.writer.write(encode_request(18, 0, 5, "test", ApiVersionsRequest()))
            assert await client.is_closed()

    caplog.set_level(logging.INFO)
    run(story())
    assert "TLS handshake failed: the client does not use TLS" in caplog.text


def test_a_client_that_hangs_up_on_the_certificate_is_in_the_log(
    security: Security, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio's TLS sends no alert. A connection that began no handshake, such as a health check, is not logged."""

    async def story() -> None:
        async with running_broker(tmp_path, security.settings("SSL")) as broker:
            async with connected(broker):
                pass
            with pytest.raises(ssl.SSLCertVerificationError):
                async with connected(broker, ssl.create_default_context()):
                    pass
            server = broker.server
            assert server is not None
            await eventually_async(lambda: server.failed_handshakes > 0)

    caplog.set_level(logging.INFO)
    run(story())
    assert caplog.text.count("TLS handshake failed") == 1
    assert "the client disconnected; it may not accept this broker's certificate" in caplog.text


def test_new_certificates_are_used_without_a_restart(security: Security, tmp_path: Path) -> None:
    """Connections that exist go on; a broken file changes nothing."""

    async def story() -> None:
        file = tmp_path / "changing.pem"
        security.broker.write(file)
        settings = security.settings("SSL") | {"ssl.keystore.location": str(file)}
        other = Authority("CN=Other")
        async with (
            running_broker(tmp_path / "data", settings) as broker,
            connected(broker, security.client_context()) as old,
        ):
            assert broker.listener_security is not None
            file.write_text("broken")
            broker.listener_security.reload()
            async with connected(broker, security.client_context()) as client:
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers
            other.issue().write(file)
            broker.listener_security.reload()
            with pytest.raises(ssl.SSLCertVerificationError):
                async with connected(broker, security.client_context()):
                    pass
            context = ssl.create_default_context(cadata=other.pem)
            async with connected(broker, context) as client:
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers
            assert (await old.ask(MetadataRequest(topics=[]), 1)).brokers

    run(story())


def test_a_key_store_can_be_replaced_with_incremental_alter_configs(security: Security, tmp_path: Path) -> None:
    async def story() -> None:
        other = Authority("CN=Other")
        new = other.issue().write(tmp_path / "new.pem")
        async with running_broker(tmp_path / "data", security.settings("SSL", listener="INSIDE")) as broker:
            name = "listener.name.inside.ssl.keystore.location"
            change = ResourceChange(ConfigResourceType.BROKER, "0", [ConfigChange(name, new)])
            results = await broker.services.metadata.changes.incremental_alter_configs([change])
            assert [result.error for result in results] == [ErrorCode.NONE]
            async with connected(broker, ssl.create_default_context(cadata=other.pem)) as client:
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers

    run(story())


SECRET = "not-to-be-shown"


def broken_stores(security: Security, directory: Path) -> dict[str, tuple[dict[str, str], str]]:
    """(settings of the listener, what the error says) of key stores and trust stores that cannot be used."""
    new = security.broker
    garbage, mixed = directory / "garbage.pem", directory / "mixed.pem"
    garbage.write_text("garbage")
    mixed.write_text(Authority("CN=Other").issue().key_pem() + new.certificate_pem)
    files = {
        "encrypted": new.write(directory / "encrypted.pem", "right"),
        "pkcs12": new.write_pkcs12(directory / "broker.p12", "right"),
        "good": new.write(directory / "good.pem"),
    }
    name = "listener.name.inside.ssl."
    return {
        "missing file": (
            {"keystore.location": str(directory / "none.pem")},
            f"{name}keystore.location: cannot read {directory / 'none.pem'}: No such file or directory",
        ),
        "garbage": ({"keystore.location": str(garbage)}, f"{name}keystore.location: {garbage} is neither PEM nor"),
        "key of another certificate": (
            {"keystore.location": str(mixed)},
            f"{name}keystore.location: {mixed}: the private key does not belong to the certificate",
        ),
        "wrong password of the key": (
            {"keystore.location": files["encrypted"], "key.password": SECRET},
            f"{files['encrypted']}: {name}key.password is wrong. Check {name}key.password.",
        ),
        "no password of the key": (
            {"keystore.location": files["encrypted"]},
            f"{files['encrypted']}: the private key is encrypted. Set ssl.key.password.",
        ),
        "wrong password of PKCS#12": (
            {"keystore.location": files["pkcs12"], "keystore.type": "PKCS12", "keystore.password": SECRET},
            f"{name}keystore.location: cannot open {files['pkcs12']}: ",
        ),
        "wrong type": (
            {"keystore.location": files["good"], "keystore.type": "PKCS12"},
            f"{name}keystore.type is PKCS12, but {files['good']} is a PEM file. Set {name}keystore.type=PEM.",
        ),
        "missing trust store": (
            {"truststore.location": str(directory / "none.pem")},
            f"{name}truststore.location: cannot read {directory / 'none.pem'}",
        ),
    }


@pytest.mark.parametrize("is_incremental", [True, False])
def test_a_key_store_that_cannot_be_used_is_rejected_and_the_old_one_stays(
    security: Security, tmp_path: Path, is_incremental: bool
) -> None:
    """As Kafka, which answers INVALID_REQUEST, also if the request asks only to validate."""

    async def story() -> None:
        async with running_broker(tmp_path / "data", security.settings("SSL", listener="INSIDE")) as broker:
            metadata = broker.services.metadata
            alter = metadata.changes.incremental_alter_configs if is_incremental else metadata.changes.alter_configs
            for settings, message in broken_stores(security, tmp_path).values():
                changes = [ConfigChange(f"listener.name.inside.ssl.{name}", value) for name, value in settings.items()]
                for validate_only in (True, False):
                    (result,) = await alter(
                        [ResourceChange(ConfigResourceType.BROKER, "0", changes)], validate_only=validate_only
                    )
                    assert result.error == ErrorCode.INVALID_REQUEST, settings
                    assert result.message is not None
                    assert message in result.message
                    assert result.message.startswith("listener INSIDE: ")
                    assert SECRET not in result.message
                    assert not broker.image.broker_configs.get("0")
            async with connected(broker, security.client_context()) as client:
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers

    run(story())


def test_a_key_store_that_broke_later_does_not_stop_other_changes(security: Security, tmp_path: Path) -> None:
    async def story() -> None:
        file = security.broker.write(tmp_path / "own.pem")
        async with running_broker(tmp_path / "data", security.settings("SSL", listener="INSIDE")) as broker:

            async def change(name: str, value: str | None, operation: int = 0) -> ErrorCode:
                resource = ResourceChange(ConfigResourceType.BROKER, "0", [ConfigChange(name, value, operation)])
                (result,) = await broker.services.metadata.changes.incremental_alter_configs([resource])
                return result.error

            name = "listener.name.inside.ssl.keystore.location"
            assert await change(name, file) == ErrorCode.NONE
            os.unlink(file)
            assert await change("log.cleaner.threads", "2") == ErrorCode.NONE
            assert await change("listener.name.inside.ssl.client.auth", "required") == ErrorCode.INVALID_REQUEST
            assert await change(name, None, ConfigOperation.DELETE) == ErrorCode.NONE

    run(story())


# SASL


@pytest.mark.parametrize(
    ("name", "is_needed"), [("ssl.client.auth", False), ("listener.name.sasl_ssl.ssl.client.auth", True)]
)
def test_a_login_needs_a_certificate_only_if_its_listener_says_so(
    security: Security, tmp_path: Path, name: str, is_needed: bool
) -> None:
    """KIP-684."""

    async def story() -> None:
        settings = security.settings("SASL_SSL", ["PLAIN"]) | {name: "required"}
        async with running_broker(tmp_path, settings) as broker:
            async with connected(broker, security.client_context(security.client_file("bob"))) as client:
                assert (await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))).error_code == 0
                assert principals(broker) == {"User:alice"}
            try:
                async with connected(broker, security.client_context()) as client:
                    await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))
                    was_needed = False
            except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
                was_needed = True
            assert was_needed is is_needed

    run(story())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_with_the_right_password_gets_in(security: Security, tmp_path: Path, version: int) -> None:
    async def story() -> None:
        async with running_broker(tmp_path, sasl_settings(security, "PLAIN", "SCRAM-SHA-512")) as broker:
            await add_user(broker, "carol", "secret")
            for mechanism, exchange, user in (
                ("PLAIN", PlainExchange("alice", USERS["alice"]), "User:alice"),
                ("SCRAM-SHA-512", ScramExchange("SCRAM-SHA-512", "carol", "secret"), "User:carol"),
            ):
                async with connected(broker) as client:
                    assert (await client.ask(ApiVersionsRequest(), 0)).error_code == 0
                    assert (await client.log_in(mechanism, exchange, version)).error_code == 0
                    assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers
                    assert user in principals(broker)

    run(story())


def test_tokens_may_come_as_bare_frames(security: Security, tmp_path: Path) -> None:
    """After v0 of SaslHandshake, as clients older than Kafka 1.0 send them (KIP-43)."""

    async def story() -> None:
        async with running_broker(tmp_path, sasl_settings(security, "PLAIN", "SCRAM-SHA-512")) as broker:
            await add_user(broker, "carol", "secret")
            async with connected(broker) as client:
                assert (await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)).error_code == 0
                assert await client.bare(b"\0alice\0" + USERS["alice"].encode()) == b""
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers
            async with connected(broker) as client:
                await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 0)
                exchange = ScramExchange("SCRAM-SHA-512", "carol", "secret")
                proof = exchange.next(await client.bare(exchange.first()))
                assert proof is not None
                assert exchange.next(await client.bare(proof)) is None
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers
            async with connected(broker) as client:
                await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
                with pytest.raises(asyncio.IncompleteReadError):
                    await client.bare(b"\0alice\0wrong")

    run(story())


def test_a_wrong_password_is_answered_late_and_ends_the_connection(security: Security, tmp_path: Path) -> None:
    async def story() -> None:
        settings = sasl_settings(security, "PLAIN", "SCRAM-SHA-512")
        settings["connection.failed.authentication.delay.ms"] = "150"
        async with running_broker(tmp_path, settings) as broker:
            await add_user(broker, "carol", "secret")
            said = set()
            for mechanism, exchange in (
                ("PLAIN", PlainExchange("alice", "wrong")),
                ("PLAIN", PlainExchange("nobody", "wrong")),
                ("SCRAM-SHA-512", ScramExchange("SCRAM-SHA-512", "carol", "wrong")),
                ("SCRAM-SHA-512", ScramExchange("SCRAM-SHA-512", "nobody", "secret")),
            ):
                async with connected(broker) as client:
                    began = asyncio.get_running_loop().time()
                    answer = await client.log_in(mechanism, exchange)
                    assert asyncio.get_running_loop().time() - began >= 0.14
                    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                    said.add(answer.error_message)
                    assert await client.is_closed()
            assert len(said) == 2, "one for each mechanism, whether the user exists or not"
            assert broker.listener_security is not None
            assert broker.listener_security.sasl["SASL_PLAINTEXT"].counters.failed == 4

    run(story())


def test_nothing_else_is_served_before_authentication(security: Security, tmp_path: Path) -> None:
    async def story() -> None:
        async with running_broker(tmp_path, sasl_settings(security, "PLAIN")) as broker:
            for frames in (
                encode_request(3, 1, 5, "test", MetadataRequest(topics=[])),
                struct.pack(">i", 1) + b"x",
                struct.pack(">i", 524_289),  # a larger request than clients may send now
                b"GET / HTTP/1.1\r\n\r\n",
            ):
                async with connected(broker) as client:
                    client.writer.write(frames)
                    assert await client.is_closed()
            async with connected(broker) as client:
                answer = await client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
                assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert answer.mechanisms == ["PLAIN"]
                assert await client.is_closed()
            async with connected(broker) as client:
                answer = await client.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 1)
                assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
                assert await client.is_closed()
            async with connected(broker) as client:
                await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                client.writer.write(encode_request(3, 1, 5, "test", MetadataRequest(topics=[])))
                assert await client.is_closed()

    run(story())


def test_sasl_requests_on_a_plain_listener_are_an_illegal_state(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running_broker(tmp_path, {"listeners": "PLAINTEXT://127.0.0.1:0"}) as broker,
            connected(broker) as client,
        ):
            answer = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            answer = await client.ask(SaslAuthenticateRequest(auth_bytes=b""), 2)
            assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers

    run(story())


def test_a_session_ends_unless_the_client_authenticates_again(security: Security, tmp_path: Path) -> None:
    """KIP-368. The test does not wait: it moves the broker's clock."""
    now = 0

    async def story() -> None:
        nonlocal now
        settings = sasl_settings(security, "PLAIN") | {"connections.max.reauth.ms": "60000"}
        broker = Broker(load_config({"log.dirs": str(tmp_path), **settings}), monotonic=lambda: now)  # type: ignore[arg-type, return-value]
        await broker.start()
        try:
            async with connected(broker) as client, connected(broker) as lazy:
                answer = await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))
                assert answer.session_lifetime_ms == 60_000
                await lazy.log_in("PLAIN", PlainExchange("bob", USERS["bob"]), version=0)
                early = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE, "not within a second"
                now = 59_000
                again = await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))
                assert (again.error_code, again.session_lifetime_ms) == (0, 60_000)
                now = 61_000
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers
                lazy.writer.write(encode_request(3, 1, 5, "test", MetadataRequest(topics=[])))
                assert await lazy.is_closed()
                now = 180_000
                again = await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))
                assert again.error_code == 0, "an expired session can be renewed, but not used"
                now = 182_000
                other = await client.log_in("PLAIN", PlainExchange("bob", USERS["bob"]))
                assert other.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, "as somebody else"
                assert await client.is_closed()
            assert broker.listener_security is not None
            counters = broker.listener_security.sasl["SASL_PLAINTEXT"].counters
            assert (counters.successful, counters.successful_again, counters.expired) == (2, 2, 1)
        finally:
            await broker.stop()

    run(story())


# Newcomers


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SSL"])
def test_connections_that_do_not_authenticate_are_few_and_short(
    security: Security, tmp_path: Path, protocol: str
) -> None:
    async def story() -> None:
        mechanisms = ["PLAIN"] if "SASL" in protocol else []
        settings = security.settings(protocol, mechanisms) | {
            "ottla.max.unauthenticated.connections": "5",
            "ottla.authentication.timeout.ms": "1000",
        }
        async with running_broker(tmp_path, settings) as broker, contextlib.AsyncExitStack() as stack:
            assert broker.server is not None
            silent = [await stack.enter_async_context(connected(broker)) for _ in range(8)]
            for client in silent[:3]:
                assert await client.is_closed(), "the oldest ones make room"
            assert len(broker.server.newcomers) == 5
            context = security.client_context() if protocol == "SSL" else None
            async with connected(broker, context) as served:
                if mechanisms:
                    await served.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))
                assert (await served.ask(MetadataRequest(topics=[]), 1)).brokers
                for client in silent[3:]:
                    assert await client.is_closed(), "the others have had their time"
                assert len(broker.server.newcomers) == 0
                assert (await served.ask(MetadataRequest(topics=[]), 1)).brokers

    run(story())


# Settings


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, "a listener with TLS needs a private key"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, "uses SASL with GSSAPI, which is not supported"),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"},
            "offers PLAIN, but has no users. Set listener.name.sasl_plaintext.plain.sasl.jaas.config=",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "SCRAM-SHA-256"},
            "sasl.mechanism.inter.broker.protocol is GSSAPI",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            },
            "this broker has no user to log in to the others with SCRAM-SHA-256",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "OAUTHBEARER"},
            "sasl.oauthbearer.jwks.endpoint.url is not set",
        ),
        (
            {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": broker_jaas("SCRAM-SHA-256"),
            },
            "is not a login module for PLAIN",
        ),
        ({"security.inter.broker.protocol": "SSL"}, "security.inter.broker.protocol is SSL, which no listener uses"),
        (
            {"security.inter.broker.protocol": "PLAINTEXT", "inter.broker.listener.name": "PLAINTEXT"},
            "Only one of inter.broker.listener.name",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(
    settings: dict[str, str], error: str, tmp_path: Path
) -> None:
    async def story() -> None:
        config = load_config({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0", **settings})
        with pytest.raises(ConfigError, match=error):
            await Broker(config).start()

    run(story())
