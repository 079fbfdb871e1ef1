"""Tokens for OAUTHBEARER: functions, the token endpoint, and when a token is replaced."""

import asyncio
import base64
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest

from ottla.client.core.oauth import Token, as_token, expiry_of, oauth_login, refresh_at
from ottla.client.core.settings import AdminConfig, build
from ottla.errors import AuthenticationError, ConfigError, KafkaError

NOW = 1_000_000_000_000
SECRET = "s3cr3t-of-the-client"


def jwt(**claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.signature"


def config(**keywords: Any) -> AdminConfig:
    return build(AdminConfig, {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}, keywords)


def first_token(settings: AdminConfig, clock: Any = lambda: NOW) -> bytes:
    async def start() -> bytes:
        return (await oauth_login(settings, clock).start()).first()

    return asyncio.run(start())


async def coroutine() -> str:
    return "from a coroutine"


class Provider:
    """As kafka-python's and aiokafka's programs have it."""

    async def token(self) -> str:
        return "from an object"


@pytest.mark.parametrize(
    ("provider", "sent"),
    [
        (lambda: "plain", b"n,,\x01auth=Bearer plain\x01\x01"),
        (lambda: ("pair", NOW / 1000 + 60), b"n,,\x01auth=Bearer pair\x01\x01"),
        (
            lambda config: ("rd", NOW / 1000 + 60, "alice", {"tenant": "7"}),
            b"n,,\x01auth=Bearer rd\x01tenant=7\x01\x01",
        ),
        (coroutine, b"n,,\x01auth=Bearer from a coroutine\x01\x01"),
        (Provider(), b"n,,\x01auth=Bearer from an object\x01\x01"),
    ],
    ids=["function", "with expiry", "oauth_cb", "coroutine", "object"],
)
def test_a_function_provides_the_token(provider: Any, sent: bytes) -> None:
    assert first_token(config(sasl_oauth_token_provider=provider)) == sent
    assert first_token(config(oauth_cb=provider)) == sent


def test_extensions_are_sent_with_the_token() -> None:
    settings = config(sasl_oauth_token_provider=lambda: "t", sasl_oauthbearer_extensions="pool=a,cluster=b")
    assert first_token(settings).endswith(b"\x01pool=a\x01cluster=b\x01\x01")


@pytest.mark.parametrize("answer", [None, 7, "", (), ("t", "soon"), ("t", True), ("t", 1, "x", "y")])
def test_an_answer_that_is_no_token_is_refused(answer: Any) -> None:
    with pytest.raises(ConfigError, match="token provider returned"):
        as_token(answer, NOW)


def test_an_expired_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="expired 60 s ago"):
        as_token(("t", NOW / 1000 - 60), NOW)


def test_the_expiry_of_a_jwt_is_read_from_it() -> None:
    assert expiry_of(jwt(exp=1_700_000_000)) == 1_700_000_000_000
    assert [expiry_of(text) for text in (jwt(sub="a"), "a.b.c", "opaque", jwt(exp="x"), "a.W10.c")] == [None] * 5


@pytest.mark.parametrize(
    ("life_s", "replaced_after_s"),
    [(3_600, 2_880), (400, 100), (300, 240), (100_000, 80_000), (365, 65), (360, 60)],
)
def test_a_token_is_replaced_in_the_window_of_its_life(life_s: int, replaced_after_s: int) -> None:
    """sasl.login.refresh.*: after 80 percent, at least 60 s after it was obtained and 300 s before it expires, if its
    life is long enough for both."""
    token = Token("t", NOW, NOW + life_s * 1000, {})
    assert refresh_at(token, config(sasl_oauth_token_provider=lambda: "t"), 0.0) == NOW + replaced_after_s * 1000


def test_a_token_is_shared_by_connections_until_it_is_replaced() -> None:
    now = NOW
    calls = 0

    def provider() -> tuple[str, float]:
        nonlocal calls
        calls += 1
        return f"token-{calls}", now / 1000 + 3_600

    async def story() -> None:
        nonlocal now
        login = oauth_login(config(sasl_oauth_token_provider=provider), lambda: now)
        exchanges = await asyncio.gather(*(login.start() for _ in range(5)))
        assert {exchange.first() for exchange in exchanges} == {b"n,,\x01auth=Bearer token-1\x01\x01"}
        now += 3_500_000
        assert (await login.start()).first() == b"n,,\x01auth=Bearer token-2\x01\x01"

    asyncio.run(story())
    assert calls == 2


def test_a_valid_token_is_kept_while_a_new_one_cannot_be_had() -> None:
    now = NOW
    answers: list[Any] = [("token-1", NOW / 1000 + 3_600), OSError("away"), OSError("away")]

    def provider() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def story() -> None:
        nonlocal now
        login = oauth_login(config(sasl_oauth_token_provider=provider), lambda: now)
        await login.start()
        now += 3_500_000
        assert b"token-1" in (await login.start()).first()
        now += 200_000
        with pytest.raises(OSError, match="away"):
            await login.start()

    asyncio.run(story())


def test_a_token_without_signature_is_made_for_development() -> None:
    """The default of Kafka's OAuthBearerLoginModule."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    settings = config(sasl_jaas_config=f'{module} required unsecuredLoginStringClaim_sub="alice";')
    token = first_token(settings).split(b"Bearer ")[1].split(b"\x01")[0].decode()
    header, claims, signature = token.split(".")
    assert json.loads(base64.urlsafe_b64decode(claims + "=="))["sub"] == "alice"
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    assert signature == ""


class Endpoint(http.server.BaseHTTPRequestHandler):
    """A token endpoint that answers as the test says."""

    status, answer, location = 200, b"", ""
    asked: list[tuple[str, dict[str, list[str]]]]

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        type(self).asked.append((self.headers["Authorization"], form))
        self.send_response(self.status)
        if self.location:
            self.send_header("Location", self.location)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[tuple[type[Endpoint], dict[str, str]]]:
    handler = type("OneEndpoint", (Endpoint,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        settings = {
            "sasl_oauthbearer_token_endpoint_url": f"http://127.0.0.1:{server.server_port}/token",
            "sasl_oauthbearer_client_credentials_client_id": "shop",
            "sasl_oauthbearer_client_credentials_client_secret": SECRET,
        }
        yield handler, settings
        server.shutdown()
        thread.join()


def test_a_token_comes_from_the_endpoint(endpoint: Any) -> None:
    handler, settings = endpoint
    handler.answer = json.dumps({"access_token": "from-idp", "expires_in": 300}).encode()
    assert first_token(config(**settings, sasl_oauthbearer_scope="kafka")) == b"n,,\x01auth=Bearer from-idp\x01\x01"
    ((authorization, form),) = handler.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == f"shop:{SECRET}"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}


def test_client_id_and_secret_may_be_in_the_jaas_config(endpoint: Any) -> None:
    handler, settings = endpoint
    handler.answer = json.dumps({"access_token": "from-idp"}).encode()
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    url = {"sasl_oauthbearer_token_endpoint_url": settings["sasl_oauthbearer_token_endpoint_url"]}
    line = f'{module} required clientId="c" clientSecret="{SECRET}" scope="s" extension_pool="a";'
    assert first_token(config(**url, sasl_jaas_config=line)) == b"n,,\x01auth=Bearer from-idp\x01pool=a\x01\x01"
    ((authorization, form),) = handler.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == f"c:{SECRET}"
    assert form["scope"] == ["s"]


@pytest.mark.parametrize(
    ("status", "answer", "said", "retriable"),
    [
        (
            401,
            b'{"error":"invalid_client","error_description":"no such client"}',
            r"HTTP 401 \(invalid_client: no",
            False,
        ),
        (400, b"<html>", "HTTP 400", False),
        (503, b"", "cannot issue tokens now: HTTP 503", True),
        (200, b"<html>", "did not answer with JSON", False),
        (200, b"[]", "did not answer with a JSON object", False),
        (200, b"{}", "without access_token", False),
    ],
)
def test_a_refusal_of_the_endpoint_is_reported_without_the_secret(
    endpoint: Any, status: int, answer: bytes, said: str, retriable: bool
) -> None:
    handler, settings = endpoint
    handler.status, handler.answer = status, answer
    with pytest.raises(KafkaError, match=said) as raised:
        first_token(config(**settings))
    assert raised.value.retriable == retriable
    assert SECRET not in str(raised.value)


def test_the_secret_does_not_follow_a_redirect(endpoint: Any) -> None:
    handler, settings = endpoint
    handler.status, handler.location = 302, "http://127.0.0.1:1/elsewhere"
    with pytest.raises(AuthenticationError, match="HTTP 302"):
        first_token(config(**settings))


def test_an_endpoint_that_is_away_is_retried() -> None:
    away = {
        "sasl_oauthbearer_token_endpoint_url": "http://127.0.0.1:1/token",
        "sasl_oauthbearer_client_id": "c",
        "sasl_oauthbearer_client_secret": SECRET,
    }
    with pytest.raises(KafkaError, match=r"cannot get a token from http://127\.0\.0\.1:1/token") as raised:
        first_token(config(**away))
    assert raised.value.retriable
