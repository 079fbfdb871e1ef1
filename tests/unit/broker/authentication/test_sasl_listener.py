"""Failed authentications are counted and logged once, whatever the client does during and after them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.authentication.sasl_listener import Mechanism, SaslConnection, SaslListener
from ottla.clock import monotonic_ms
from ottla.errors import ErrorCode, KafkaError
from ottla.net.server.server import Disconnect
from ottla.protocol.api import ApiKey
from ottla.security.sasl.server_exchanges import OAUTHBEARER, OauthBearerServer, SaslFailure, Token

TOKEN = b"n,,\x01auth=Bearer abc\x01\x01"
ACKNOWLEDGED = b"\x01"
LINE = "authentication of 10.0.0.7:4711 on listener SASL failed: Authentication failed: the token has expired"


async def expired(token: str) -> Token:
    raise SaslFailure("the token has expired")


def listener_of(check: Callable[[str], Awaitable[Token]]) -> tuple[SaslListener, SaslConnection]:
    mechanisms = {OAUTHBEARER: Mechanism(lambda: OauthBearerServer(check))}
    listener = SaslListener(
        "SASL",
        mechanisms,
        dispatch=lambda frame, connection: None,
        clock=lambda: 0,
        monotonic=monotonic_ms,
        failure_delay_ms=0,
    )
    peer: Any = SimpleNamespace(
        client_host="/10.0.0.7", client_port=4711, end=lambda: None, authenticated=lambda principal, handle: None
    )
    return listener, listener.authenticator(peer)


async def rejected() -> tuple[SaslListener, SaslConnection]:
    """A client whose token was rejected, and that has to acknowledge this (RFC 7628)."""
    listener, connection = listener_of(expired)
    connection.handshake(OAUTHBEARER, 1)
    outcome, _ = await connection.authenticate(TOKEN)
    assert b"invalid_token" in outcome.challenge
    return listener, connection


def test_a_second_token_while_the_first_is_checked_fails_the_authentication() -> None:
    """The first one cannot make it succeed later."""

    async def story() -> None:
        started, checked = asyncio.Event(), asyncio.Event()

        async def slow(token: str) -> Token:
            started.set()
            await checked.wait()
            return Token("alice", 2**40)

        listener, connection = listener_of(slow)
        connection.handshake(OAUTHBEARER, 1)
        first = asyncio.create_task(connection.authenticate(TOKEN))
        await started.wait()
        with pytest.raises(Disconnect, match="a request before the authentication was complete"):
            connection(ApiKey.SASL_AUTHENTICATE.to_bytes(2), None)  # type: ignore[arg-type]
        with pytest.raises(KafkaError, match="SaslHandshake in the middle of an authentication"):
            connection.handshake(OAUTHBEARER, 1)
        with pytest.raises(KafkaError) as caught:
            await connection.authenticate(TOKEN)
        assert caught.value.code is ErrorCode.ILLEGAL_SASL_STATE
        checked.set()
        with pytest.raises(KafkaError):
            await first
        assert not connection.is_authenticated
        assert (listener.counters.failed, listener.counters.successful) == (1, 0)

    asyncio.run(story())


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ottla.security"]


def test_a_rejected_token_is_logged_even_if_the_client_just_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """As aiokafka does: it takes every answer for a success, and sends Metadata."""
    caplog.set_level(logging.INFO, "ottla.security")

    async def story() -> None:
        listener, connection = await rejected()
        assert logged(caplog) == [LINE]
        assert listener.counters.failed == 1
        with pytest.raises(Disconnect, match="Metadata before authentication"):
            connection(ApiKey.METADATA.to_bytes(2), None)  # type: ignore[arg-type]

    asyncio.run(story())


def test_a_rejected_token_is_logged_once_if_the_client_acknowledges_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.security")

    async def story() -> None:
        listener, connection = await rejected()
        with pytest.raises(KafkaError, match="the token has expired") as caught:
            await connection.authenticate(ACKNOWLEDGED)
        assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert logged(caplog) == [LINE]
        assert listener.counters.failed == 1

    asyncio.run(story())
