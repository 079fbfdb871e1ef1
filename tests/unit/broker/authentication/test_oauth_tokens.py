"""OAUTHBEARER on a listener: which tokens are accepted, and where the keys come from."""

import asyncio
import base64
import json
import logging
import re
import threading
import time
import urllib.request
from collections.abc import Coroutine
from email.message import Message
from pathlib import Path
from typing import Any

import jwt
import pytest

from ottla.broker.authentication.oauth_tokens import OauthTokens, _SafeRedirects
from ottla.broker.settings.listener_security import ListenerSettings
from ottla.clock import system_clock
from ottla.errors import ConfigError
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.security.sasl.client_exchanges import OauthBearerExchange
from ottla.security.sasl.server_exchanges import SaslFailure
from tests.support.identity_provider import Provider
from tests.support.secure_brokers import connected, principals, running_broker


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path)


def tokens(provider: Provider, **more: str) -> OauthTokens:
    return OauthTokens(ListenerSettings(provider.settings(**more), "INSIDE"), system_clock)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


@pytest.mark.parametrize("uses_rsa", [False, True])
def test_a_signed_token_says_who_the_client_is(provider: Provider, uses_rsa: bool) -> None:
    async def story() -> None:
        provider.rotate("other", uses_rsa=uses_rsa)
        found = await tokens(provider).verify(provider.token())
        assert found.user == "alice"
        assert 290_000 < found.expires_ms - system_clock() < 310_000
        by_client = tokens(provider, sub_claim_name="client_id")
        assert (await by_client.verify(provider.token(client_id="shop"))).user == "shop"

    run(story())


def test_other_tokens_are_rejected(provider: Provider, tmp_path: Path) -> None:
    (tmp_path / "thief").mkdir()
    thief = Provider(tmp_path / "thief")
    unsigned = jwt.encode({"sub": "alice", "exp": time.time() + 99}, "", "none", headers={"kid": "first"})
    secret = "x" * 64
    hmac_signed = jwt.encode({"sub": "alice", "exp": time.time() + 99}, secret, "HS256", headers={"kid": "first"})

    async def story() -> None:
        verifier = tokens(provider)
        for token, reason in (
            (provider.token(exp=time.time() - 31), "expired"),
            (provider.token(exp=None), 'missing the "exp" claim'),
            (provider.token(exp=float("inf")), "must be an integer"),
            (provider.token(nbf=time.time() + 60), "not yet valid"),
            (provider.token(aud="elsewhere"), "Audience"),
            (provider.token(iss="https://thief"), "issuer"),
            (provider.token(sub=None), "no claim sub"),
            (provider.token(sub=" "), "no claim sub"),
            (thief.token(), "Signature verification failed"),
            (unsigned, "rejected"),
            (hmac_signed, "rejected"),
            ("junk", "malformed"),
        ):
            with pytest.raises(SaslFailure, match=reason):
                await verifier.verify(token)
        assert (await verifier.verify(provider.token(exp=time.time() - 5))).user == "alice", "clocks may differ a bit"
        as_text = await verifier.verify(provider.token(exp=str(int(time.time()) + 300)))
        assert as_text.expires_ms - system_clock() < 310_000

    run(story())


def test_new_keys_are_found_when_a_token_needs_them(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.authentication.oauth_tokens.MIN_REFRESH_SECONDS", 0.0)

    async def story() -> None:
        verifier = tokens(provider)
        await verifier.verify(provider.token())
        provider.rotate("second")
        assert (await verifier.verify(provider.token())).user == "alice"
        old = provider.token()
        provider.file.write_text("broken")
        await verifier.refresh()
        assert (await verifier.verify(old)).user == "alice", "keys that were read stay"

    run(story())


def test_a_token_waits_for_keys_that_are_being_read(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first client of a broker may be quicker than the identity provider."""

    async def story() -> None:
        verifier = tokens(provider)
        may_read = threading.Event()
        read = verifier._read  # noqa: SLF001

        def slow() -> None:
            assert may_read.wait(30)
            read()

        monkeypatch.setattr(verifier, "_read", slow)
        verifier.start()
        await asyncio.sleep(0)  # the first reading has begun
        first, second = (asyncio.ensure_future(verifier.verify(provider.token())) for _ in range(2))
        await asyncio.sleep(0.01)
        may_read.set()
        assert [(await each).user for each in (first, second)] == ["alice", "alice"]
        verifier.stop()

    run(story())


def test_unknown_keys_do_not_make_the_broker_ask_again_and_again(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        verifier = tokens(provider)
        reads = 0
        read = verifier._read  # noqa: SLF001

        def counted() -> None:
            nonlocal reads
            reads += 1
            read()

        monkeypatch.setattr(verifier, "_read", counted)
        provider.key_id = "unknown"
        expected = "with the unknown key 'unknown', which sasl.oauthbearer.jwks.endpoint.url does not have"
        for _ in range(20):
            with pytest.raises(SaslFailure, match=re.escape(expected)):
                await verifier.verify(provider.token())
        assert reads == 1

    run(story())


@pytest.mark.parametrize(
    ("url", "error"), [("", "is not set"), ("ftp://idp/keys", "Invalid value ftp://idp/keys"), ("idp", "Invalid value")]
)
def test_the_place_of_the_keys_must_be_a_url(url: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        OauthTokens(ListenerSettings({"sasl.oauthbearer.jwks.endpoint.url": url}, "INSIDE"), system_clock)


def test_an_address_with_tls_does_not_lead_to_keys_without() -> None:
    handler, request = _SafeRedirects(), urllib.request.Request("https://idp/keys")
    with pytest.raises(OSError, match="redirects to http://idp/keys, which has no TLS"):
        handler.redirect_request(request, None, 302, "Found", Message(), "http://idp/keys")
    followed = handler.redirect_request(request, None, 302, "Found", Message(), "https://other/keys")
    assert followed.full_url == "https://other/keys"


def test_a_token_cannot_write_lines_into_the_log(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of a malformed token quotes it."""
    header = {"alg": "ES256", "kid": "first", "crit": ["x\n2030-01-01 INFO ottla.security: all is well"]}
    token = ".".join(base64.urlsafe_b64encode(part).decode() for part in (json.dumps(header).encode(), b"{}", b""))

    async def story() -> None:
        settings = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "connection.failed.authentication.delay.ms": "1",
            **provider.settings(),
        }
        async with running_broker(tmp_path / "data", settings) as broker, connected(broker) as stranger:
            await stranger.log_in("OAUTHBEARER", OauthBearerExchange(token))
            assert await stranger.is_closed()

    caplog.set_level(logging.INFO, "ottla.security")
    run(story())
    (line,) = [record.getMessage() for record in caplog.records if "authentication of" in record.getMessage()]
    assert line.isprintable()


def test_a_token_opens_a_listener_until_it_expires(provider: Provider, tmp_path: Path) -> None:
    """The session is as long as the token, if connections.max.reauth.ms allows that much."""

    async def story() -> None:
        settings = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "connection.failed.authentication.delay.ms": "1",
            "connections.max.reauth.ms": "3600000",
            **provider.settings(),
        }
        async with running_broker(tmp_path / "data", settings) as broker:
            async with connected(broker) as client:
                answer = await client.log_in("OAUTHBEARER", OauthBearerExchange(provider.token()))
                assert answer.error_code == 0
                assert 250_000 < answer.session_lifetime_ms <= 300_000
                assert (await client.ask(MetadataRequest(topics=[]), 1)).brokers
                assert "User:alice" in principals(broker)
            async with connected(broker) as stranger:
                answer = await stranger.log_in("OAUTHBEARER", OauthBearerExchange(provider.token(aud="x")))
                assert "the token was rejected: Audience doesn't match" in answer.error_message
                assert await stranger.is_closed()

    run(story())
