"""Failed authentications are counted and logged once, whatever the client does after the failure."""

import asyncio
import logging
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


async def rejected() -> tuple[SaslListener, SaslConnection]:
    """A client whose token was rejected, and that has to acknowledge this (RFC 7628)."""
    mechanisms = {OAUTHBEARER: Mechanism(lambda: OauthBearerServer(expired))}
    listener = SaslListener(
        "SASL",
        mechanisms,
        dispatch=lambda frame, connection: None,
        clock=lambda: 0,
        monotonic=monotonic_ms,
        failure_delay_ms=0,
    )
    peer: Any = SimpleNamespace(client_host="/10.0.0.7", client_port=4711, end=lambda: None)
    connection = listener.authenticator(peer)
    connection.handshake(OAUTHBEARER, 1)
    outcome, _ = await connection.authenticate(TOKEN)
    assert b"invalid_token" in outcome.challenge
    return listener, connection


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
