"""Attempts to log in, or to do more than a user may, on listeners with SASL and TLS."""

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from ottla.broker.authentication import listeners
from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.security import tls
from ottla.security.sasl.client_exchanges import PlainExchange
from ottla.security.sasl.server_exchanges import Outcome, PlainServer
from tests.support.certificates import Authority
from tests.support.secure_brokers import USERS, Security, connected, principals, running_broker
from tests.support.waiting import eventually_async


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    return Security(tmp_path_factory.mktemp("security"))


def sasl_settings(security: Security, *mechanisms: str) -> dict[str, str]:
    return security.settings("SASL_PLAINTEXT", mechanisms) | {"connection.failed.authentication.delay.ms": "1"}


METADATA = encode_request(3, 1, 77, "test", MetadataRequest(topics=[]))


@pytest.mark.parametrize("password", ["alice-secret", "wrong"])
def test_a_request_in_the_same_packet_as_the_token_is_not_served(
    security: Security, tmp_path: Path, password: str
) -> None:
    """Not even after a correct token: a client must wait for the answer first."""

    async def story() -> None:
        async with running_broker(tmp_path, sasl_settings(security, "PLAIN")) as broker, connected(broker) as client:
            await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            token = SaslAuthenticateRequest(auth_bytes=PlainExchange("alice", password).first())
            client.writer.write(encode_request(36, 1, 5, "test", token) + METADATA + METADATA)
            answers = await client.reader.read()
            assert (77).to_bytes(4, "big") not in answers

    asyncio.run(asyncio.wait_for(story(), 60))


def test_nothing_is_served_between_the_handshake_and_a_bare_token(security: Security, tmp_path: Path) -> None:
    """After SaslHandshake v0 every frame is a token, also one that looks like a request."""

    async def story() -> None:
        async with running_broker(tmp_path, sasl_settings(security, "PLAIN")) as broker, connected(broker) as client:
            await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
            client.writer.write(METADATA)
            assert await client.reader.read() == b""

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_session_keeps_its_mechanism_and_its_user(security: Security, tmp_path: Path) -> None:
    """KIP-368: a client authenticates again as the same user, with the same mechanism. One that fails is out."""
    now = 0

    async def story() -> None:
        nonlocal now
        settings = sasl_settings(security, "PLAIN", "SCRAM-SHA-512")
        broker = Broker(load_config({"log.dirs": str(tmp_path), **settings}), monotonic=lambda: now)  # type: ignore[arg-type, return-value]
        await broker.start()
        try:
            async with connected(broker) as client:
                assert (await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))).error_code == 0
                now = 5_000
                answer = await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
                assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                assert principals(broker) == {"User:alice"}
                answer = await client.log_in("PLAIN", PlainExchange("alice", "wrong"))
                assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert await client.is_closed()
            async with connected(broker) as client:
                assert (await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))).error_code == 0
                now = 10_000
                token = SaslAuthenticateRequest(auth_bytes=PlainExchange("admin", USERS["admin"]).first())
                answer = await client.ask(token, 1)
                assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE, "a token without a handshake"
                assert await client.is_closed()
        finally:
            await broker.stop()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_bug_in_a_mechanism_keeps_the_client_out(
    security: Security, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no second attempt on the same connection either."""

    def broken(server: PlainServer, token: bytes) -> Outcome:
        raise ZeroDivisionError("a bug")

    async def story() -> None:
        monkeypatch.setattr(PlainServer, "answer", broken)
        async with running_broker(tmp_path, sasl_settings(security, "PLAIN")) as broker, connected(broker) as client:
            answer = await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert await client.is_closed()

    asyncio.run(asyncio.wait_for(story(), 20))


def test_certificates_are_watched_also_after_a_failure_of_the_system(
    security: Security, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many open files, or a full disk, in the moment in which a new certificate is loaded. It is tried again."""
    load, failures = tls.server_context, [OSError(24, "Too many open files")] * 2

    def load_later(settings: tls.Settings) -> ssl.SSLContext:
        if failures:
            raise failures.pop()
        return load(settings)

    async def story() -> None:
        file = tmp_path / "changing.pem"
        security.broker.write(file)
        settings = security.settings("SSL") | {"ssl.keystore.location": str(file)}
        async with running_broker(tmp_path / "data", settings) as broker:
            assert broker.listener_security is not None
            (listener,) = broker.listener_security.tls.values()
            old = listener.context
            monkeypatch.setattr(listeners, "server_context", load_later)
            Authority("CN=Other").issue().write(file)
            await eventually_async(lambda: listener.context is not old)

    monkeypatch.setattr(listeners, "CHECK_FILES_SECONDS", 0.01)
    caplog.set_level(logging.ERROR)
    asyncio.run(asyncio.wait_for(story(), 60))
    (line,) = [r.message for r in caplog.records if "keeping the old ones" in r.message]
    assert "Too many open files" in line
