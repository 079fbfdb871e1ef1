"""SASL on a client's connection: handshake, tokens, and reauthentication (KIP-43, KIP-152, KIP-368)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ottla.errors import AuthenticationError, ErrorCode, KafkaError, OttlaError, error_text_with_type
from ottla.net.client.client_security import Login
from ottla.protocol.api import API, ApiKey
from ottla.types import Endpoint

if TYPE_CHECKING:
    from ottla.security.sasl.client_exchanges import ClientExchange

ROUNDS_MAX = 8
"""No mechanism needs more than three. A broker that never ends the exchange must not keep the client busy."""

Ask = Callable[[int, Any], Awaitable[Any]]
"""Sends a request (API key, message) and returns the response."""

NO_SASL_HINT = "Set security.protocol to PLAINTEXT or SSL, or connect to the port of a listener with SASL."
LOGIN_HINTS = {
    "PLAIN": "Check the user name and password (sasl.jaas.config, or sasl.username and sasl.password).",
    "OAUTHBEARER": "Check the token: its issuer, audience, expiry and signature must be what the broker accepts.",
}
SCRAM_HINT = (
    "Check the user name and password (sasl.jaas.config, or sasl.username and sasl.password), and that the user has "
    "credentials for this mechanism."
)


async def authenticate(ask: Ask, endpoint: Endpoint, login: Login) -> int:
    """Returns the milliseconds until the client must reauthenticate; 0 for never. Raises AuthenticationError."""
    from ottla.security.sasl.client_exchanges import SaslError  # with the first login, for a quick start

    handshake = await ask(ApiKey.SASL_HANDSHAKE, API[ApiKey.SASL_HANDSHAKE].request(mechanism=login.mechanism))
    _check_handshake(handshake, endpoint, login)
    exchange = await _start(endpoint, login)
    token: bytes | None = exchange.first()
    lifetime_ms = 0
    for _ in range(ROUNDS_MAX):
        if token is None:
            return lifetime_ms
        answer = await ask(ApiKey.SASL_AUTHENTICATE, API[ApiKey.SASL_AUTHENTICATE].request(auth_bytes=token))
        if answer.error_code != ErrorCode.NONE:
            said = " ".join(filter(None, (answer.error_message, exchange.refusal()))) or "no reason given"
            hint = LOGIN_HINTS.get(login.mechanism, SCRAM_HINT)
            raise AuthenticationError(f"{endpoint} rejected {login}: {said}", hint, ErrorCode(answer.error_code))
        try:
            token = await asyncio.to_thread(exchange.next, bytes(answer.auth_bytes))  # SCRAM is slow by design
        except SaslError as error:
            raise AuthenticationError(f"{endpoint} and {login}: {error.message}", error.hint) from None
        lifetime_ms = answer.session_lifetime_ms
    detail = f"{endpoint} did not complete the exchange of {login}"
    raise AuthenticationError(detail, "Check which broker listens there.")


async def _start(endpoint: Endpoint, login: Login) -> "ClientExchange":
    """Begins an exchange, which may call user code that provides tokens."""
    try:
        return await login.start()
    except KafkaError:
        raise
    except Exception as error:
        said = error.message if isinstance(error, OttlaError) else error_text_with_type(error)
        hint = error.hint if isinstance(error, OttlaError) else "Fix the function that provides the token."
        raise AuthenticationError(f"cannot authenticate at {endpoint} with {login}: {said}", hint) from error


def _check_handshake(answer: Any, endpoint: Endpoint, login: Login) -> None:
    code = ErrorCode(answer.error_code)
    if code == ErrorCode.NONE:
        return
    if code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        detail = f"{endpoint} does not offer {login.mechanism}; it offers {offered}"
        raise AuthenticationError(detail, "Set sasl.mechanism to one of them.", code)
    if code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationError(f"{endpoint} does not use SASL", NO_SASL_HINT, code)
    raise KafkaError(code, f"{endpoint} rejected the SASL handshake")


def check_serves_sasl(api_versions: dict[int, tuple[int, int]], endpoint: Endpoint) -> None:
    """Raises for a broker without SASL, and for one older than Kafka 1.0, which expects tokens without headers."""
    _, newest = api_versions.get(ApiKey.SASL_HANDSHAKE, (0, -1))
    if newest < 0:
        raise AuthenticationError(f"{endpoint} does not use SASL", NO_SASL_HINT, ErrorCode.ILLEGAL_SASL_STATE)
    if newest < 1 or ApiKey.SASL_AUTHENTICATE not in api_versions:
        raise AuthenticationError(
            f"{endpoint} is older than Kafka 1.0: it has no SaslAuthenticate", "Use a newer broker.",
            ErrorCode.UNSUPPORTED_VERSION,
        )  # fmt: skip


async def check_needs_no_sasl(ask: Ask, endpoint: Endpoint) -> None:
    """Raises if the listener requires SASL. Called only if the last connection was closed at its first request.

    A listener with SASL answers an unknown mechanism with those that it offers; any other rejects the handshake.
    """
    answer = await ask(ApiKey.SASL_HANDSHAKE, API[ApiKey.SASL_HANDSHAKE].request(mechanism=""))
    if ErrorCode(answer.error_code) == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationError(
            f"{endpoint} requires SASL ({offered}), but this client does not authenticate",
            "Set security.protocol to SASL_SSL or SASL_PLAINTEXT, sasl.mechanism, and sasl.jaas.config or "
            "sasl.username and sasl.password.",
        )


def reauthentication_delay_ms(session_lifetime_ms: int, jitter: float) -> int:
    """When to reauthenticate: after 85 to 95 percent of the session, like the Java client (KIP-368).

    `jitter` is between -1 and 1. It spreads clients that connected at the same time.

    >>> reauthentication_delay_ms(60_000, -1), reauthentication_delay_ms(60_000, 1)
    (51000, 57000)
    """
    return round(session_lifetime_ms * (0.90 + 0.05 * jitter))
