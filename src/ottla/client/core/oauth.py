"""Tokens for OAUTHBEARER: from a function of the user, or from an HTTP endpoint (client credentials grant).

A token is cached until the refresh window that `sasl.login.refresh.*` sets, then replaced by the next connection that
needs one. Sessions are renewed before they expire (KIP-368), so a running client requests the next token in time.
"""

import asyncio
import base64
import binascii
import inspect
import json
import random
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from ottla.client.core.security_settings import SecurityConfig, client_credentials
from ottla.clock import Clock, system_clock
from ottla.errors import AuthenticationError, ConfigError, ErrorCode, KafkaError
from ottla.net.client.client_security import Login
from ottla.security.sasl.client_exchanges import OAUTHBEARER, ClientExchange, OauthBearerExchange, check_extensions

ANSWER_BYTES_MAX = 1 << 20
PROVIDER_HINT = "Return the token as text, or a pair of the token and when it expires, in seconds since 1970."


class Token(NamedTuple):
    """A token, when it was obtained and when it expires, in milliseconds since 1970; None if that is unknown."""

    value: str
    obtained_at: int
    expires_at: int | None
    extensions: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at})"


Fetch = Callable[[], Awaitable[Token]]


class TokenSource:
    """Caches a token and replaces it before it expires. Concurrent calls share one request."""

    def __init__(self, config: SecurityConfig, fetch: Fetch, clock: Clock = system_clock) -> None:
        self._config = config
        self._fetch = fetch
        self._clock = clock
        self._token: Token | None = None
        self._refresh_at = 0
        self._lock: asyncio.Lock | None = None

    async def token(self) -> Token:
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self._token is None or self._clock() >= self._refresh_at:
                self._token = await self._replace()
            return self._token

    async def _replace(self) -> Token:
        try:
            token = await self._fetch()
        except Exception:
            # A token that is still valid is better than none: the endpoint may be back before it expires.
            if self._token is not None and self._clock() < (self._token.expires_at or 0):
                return self._token
            raise
        jitter = random.uniform(0, self._config.sasl_login_refresh_window_jitter)
        self._refresh_at = refresh_at(token, self._config, jitter)
        return token


def refresh_at(token: Token, config: SecurityConfig, jitter: float) -> int:
    """When to replace a token, as the Java client computes it. One whose expiry is unknown is used once."""
    if token.expires_at is None:
        return 0
    life_ms = token.expires_at - token.obtained_at
    planned = token.obtained_at + round(life_ms * (config.sasl_login_refresh_window_factor + jitter))
    least_ms = config.sasl_login_refresh_min_period_seconds * 1000
    buffer_ms = config.sasl_login_refresh_buffer_seconds * 1000
    if least_ms + buffer_ms > life_ms:  # its lifetime is too short for both
        return planned
    return max(min(planned, token.expires_at - buffer_ms), token.obtained_at + least_ms)


def oauth_login(config: SecurityConfig, clock: Clock = system_clock) -> Login:
    """Raises ConfigError for a provider that cannot be called."""
    extensions = _extensions(config)
    jaas = config.find_jaas()
    subject = jaas.options.get("unsecuredLoginStringClaim_sub") if jaas is not None else None
    if config.sasl_oauth_token_provider is not None:
        fetch = _from_function(config.sasl_oauth_token_provider, clock)
    elif subject:
        fetch = _unsecured(subject, clock)
    else:
        fetch = _from_endpoint(config, clock)
    source = TokenSource(config, fetch, clock)

    async def start() -> ClientExchange:
        token = await source.token()
        return OauthBearerExchange(token.value, {**extensions, **token.extensions})

    return Login(OAUTHBEARER, "", start)


def _extensions(config: SecurityConfig) -> dict[str, str]:
    """From sasl.oauthbearer.extensions, and from options `extension_NAME` of sasl.jaas.config."""
    jaas = config.find_jaas()
    options = jaas.options if jaas is not None else {}
    found = {name.removeprefix("extension_"): value for name, value in options.items() if name.startswith("extension_")}
    for pair in config.sasl_oauthbearer_extensions:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"sasl.oauthbearer.extensions has no '=' in {pair}", "Write name=value,name=value.")
        found[name] = value
    check_extensions(found)
    return found


# --- where tokens come from -----------------------------------------------------------------------------------


def _from_function(provider: Any, clock: Clock) -> Fetch:
    function = provider if callable(provider) else getattr(provider, "token", None)
    if not callable(function):
        raise ConfigError(f"sasl.oauth.token.provider is a {type(provider).__name__}", "Pass a function.")
    arguments = _arguments(function)

    async def fetch() -> Token:
        if inspect.iscoroutinefunction(function):
            answer = await function(*arguments)
        else:
            answer = await asyncio.to_thread(function, *arguments)  # it may block on the network
            if inspect.isawaitable(answer):
                answer = await answer
        return as_token(answer, clock())

    return fetch


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    """librdkafka's oauth_cb takes one argument, the text of sasl.oauthbearer.config. Ours takes none."""
    try:
        required = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):  # written in C, without a signature
        return ()
    return ("",) if len(required) == 1 else ()


def as_token(answer: Any, now: int) -> Token:
    """What a function returned: a token, or a tuple of token and expiry (in seconds), followed as in librdkafka by the
    principal and extensions."""
    expires: Any = None
    extensions: Any = {}
    if isinstance(answer, tuple) and 2 <= len(answer) <= 4:
        value, expires = answer[:2]
        extensions = answer[3] if len(answer) == 4 else {}
    else:
        value = answer
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if not isinstance(value, str) or not value.strip() or not isinstance(extensions, Mapping):
        raise ConfigError(f"the token provider returned a {type(answer).__name__} that is not a token", PROVIDER_HINT)
    if isinstance(expires, bool) or not isinstance(expires, int | float | None):
        raise ConfigError(f"the token provider returned the expiry {expires!r}", PROVIDER_HINT)
    expires_at = round(expires * 1000) if expires is not None else expiry_of(value)
    if expires_at is not None and expires_at <= now:
        raise ConfigError(
            f"the token provider returned a token that expired {(now - expires_at) // 1000} s ago",
            "The expiry is in seconds since 1970. Check the clock of this machine.",
        )
    return Token(value.strip(), now, expires_at, extensions)


def expiry_of(token: str) -> int | None:
    """When a JWT expires, in milliseconds since 1970. None if the token does not contain it.

    >>> expiry_of("opaque") is None
    True
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires = claims.get("exp")
    except (ValueError, binascii.Error, AttributeError):
        return None
    return round(expires * 1000) if isinstance(expires, int | float) and not isinstance(expires, bool) else None


def _unsecured(subject: str, clock: Clock) -> Fetch:
    """A token without a signature, for brokers in development: the default of Kafka's OAuthBearerLoginModule."""

    async def fetch() -> Token:
        now = clock()
        header = _base64({"alg": "none"})
        claims = _base64({"sub": subject, "iat": now / 1000, "exp": (now + 3_600_000) / 1000})
        return Token(f"{header}.{claims}.", now, now + 3_600_000, {})

    return fetch


def _base64(content: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def _from_endpoint(config: SecurityConfig, clock: Clock) -> Fetch:
    url = config.sasl_oauthbearer_token_endpoint_url or ""
    client_id, client_secret = client_credentials(config)
    jaas = config.find_jaas()
    scope = config.sasl_oauthbearer_scope or (jaas.options.get("scope") if jaas is not None else None)
    form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
    basic = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
    request = urllib.request.Request(
        url,
        data=urllib.parse.urlencode(form).encode(),
        headers={
            "Authorization": f"Basic {basic}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )
    timeout_s = (config.sasl_login_connect_timeout_ms + config.sasl_login_read_timeout_ms) / 1000

    async def fetch() -> Token:
        answer = await asyncio.to_thread(_ask_endpoint, request, timeout_s)
        now = clock()
        value, expires_in = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(value, str) or not value:
            raise AuthenticationError(
                f"{url} answered without access_token", "Check sasl.oauthbearer.token.endpoint.url."
            )
        lives_ms = round(expires_in * 1000) if isinstance(expires_in, int | float) else None
        return Token(value, now, expiry_of(value) if lives_ms is None else now + lives_ms, {})

    return fetch


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The request carries the client secret: it goes to the configured address only."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _ask_endpoint(request: urllib.request.Request, timeout_s: float) -> dict[str, Any]:
    """Runs in a thread. Errors name the address, never the request: it contains the client secret."""
    url = request.full_url
    hint = "Check sasl.oauthbearer.token.endpoint.url, the client id and the client secret."
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s) as response:
            answer = json.loads(response.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            if error.code >= 500 or error.code == 429:
                detail = f"{url} cannot issue tokens now: HTTP {error.code}"
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, detail) from None
            text = _error_text(error.read(4_096))
        raise AuthenticationError(f"{url} refused to issue a token: HTTP {error.code}{text}", hint) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"cannot get a token from {url}: {reason}") from None
    except ValueError:
        raise AuthenticationError(f"{url} did not answer with JSON", hint) from None
    if not isinstance(answer, dict):
        raise AuthenticationError(f"{url} did not answer with a JSON object", hint)
    return answer


def _error_text(body: bytes) -> str:
    """The `error` and `error_description` of RFC 6749, which are meant for people."""
    try:
        answer = json.loads(body)
        parts = [str(answer[name])[:200] for name in ("error", "error_description") if name in answer]
    except (ValueError, TypeError):
        return ""
    return f" ({': '.join(parts)})" if parts else ""
