"""OWNER of an identity provider's keys: reads them in a thread, and verifies tokens with them (OAUTHBEARER).

Needs PyJWT (`pip install 'ottla[oauth]'`).
"""

import asyncio
import json
import logging
import urllib.parse
import urllib.request
from typing import Any

from ottla.broker.settings.listener_security import ListenerSettings
from ottla.clock import Clock
from ottla.errors import ConfigError
from ottla.security.sasl.server_exchanges import OAUTHBEARER, SaslFailure, Token

log = logging.getLogger("ottla.security")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with public keys. Not `none`, and not HMAC: the key document is public."""
MAX_DOCUMENT_BYTES = 1024 * 1024
TIMEOUT_SECONDS = 10.0
MIN_REFRESH_SECONDS = 10.0
"""A token with an unknown key triggers a refresh of the keys, but not more often than this."""
MAX_SHOWN = 100
"""How many characters of a key id an error shows. It is part of a token that was not verified."""
_URL = "sasl.oauthbearer.jwks.endpoint.url"


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects from TLS to plain HTTP: anyone who can change the keys can log in as any user."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme != "https":
            raise OSError(f"it redirects to {newurl}, which has no TLS")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class OauthTokens:
    """Verifies tokens for one listener."""

    def __init__(self, settings: ListenerSettings, clock: Clock) -> None:
        """Raises ConfigError."""
        try:
            import jwt
        except ImportError:
            raise ConfigError("OAUTHBEARER needs the package PyJWT", "pip install 'ottla[oauth]'") from None
        self._jwt = jwt
        self._clock = clock

        def value(name: str) -> Any:
            return settings.value(f"sasl.oauthbearer.{name}", OAUTHBEARER)

        url: str | None = value("jwks.endpoint.url")
        if not url:
            raise ConfigError(
                f"listener {settings.listener} offers OAUTHBEARER, but {_URL} is not set",
                "Set it to the https:// or file:// URL of the identity provider's keys (JWKS). Unsigned tokens are "
                "not accepted.",
            )
        if urllib.parse.urlsplit(url).scheme not in ("https", "file", "http"):
            raise ConfigError(f"Invalid value {url} for configuration {_URL}", "Use an https:// or file:// URL.")
        self._url = url
        self._refresh_seconds = max(1.0, value("jwks.endpoint.refresh.ms") / 1000)
        self._audience: tuple[str, ...] = value("expected.audience")
        self._issuer: str | None = value("expected.issuer")
        self._user_claim: str = value("sub.claim.name")
        self._leeway: int = value("clock.skew.seconds")
        self._keys: dict[str | None, Any] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh_forever())

    def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def verify(self, token: str) -> Token:
        """Raises SaslFailure."""
        jwt = self._jwt
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise SaslFailure(f"the token is malformed: {error}") from None
        key = await self._key(header.get("kid"))
        try:
            # PyJWT reads the system's clock, which is the broker's too.
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=list(self._audience) if self._audience else None,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp"], "verify_aud": bool(self._audience), "verify_sub": False},
            )
            expires_ms = int(float(claims["exp"]) * 1000)
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as error:
            raise SaslFailure(f"the token was rejected: {error}") from None
        user = claims.get(self._user_claim)
        if not isinstance(user, str) or not user.strip():
            raise SaslFailure(f"the token has no claim {self._user_claim} with the name of the user")
        return Token(user.strip(), expires_ms)

    async def _key(self, key_id: str | None) -> Any:
        if key_id not in self._keys:
            # Perhaps the provider has new keys, or they are being read for the first time.
            is_due = asyncio.get_running_loop().time() - self._read_at >= MIN_REFRESH_SECONDS
            if is_due or self._reading is not None:
                await self.refresh()
            if key_id is None and len(self._keys) == 1:
                return next(iter(self._keys.values()))
            if key_id not in self._keys:
                # The text names the setting, not its value: clients see it before they have logged in.
                if key_id is None:
                    raise SaslFailure(f"the token has no key id, but {_URL} has {len(self._keys)} keys")
                shown = repr(key_id[:MAX_SHOWN])
                raise SaslFailure(f"the token is signed with the unknown key {shown}, which {_URL} does not have")
        return self._keys[key_id]

    async def refresh(self) -> None:
        """Reads the keys. If that fails, the previous ones are kept."""
        loop = asyncio.get_running_loop()
        if self._reading is None:
            self._read_at = loop.time()
            self._reading = loop.run_in_executor(None, self._read)
            self._reading.add_done_callback(self._has_read)
        await asyncio.wait([self._reading])

    def _has_read(self, reading: "asyncio.Future[None]") -> None:
        self._reading = None
        if not reading.cancelled() and (error := reading.exception()) is not None:
            log.error("OAUTHBEARER: cannot read the keys from %s: %s", self._url, error)

    def _read(self) -> None:
        opener = urllib.request.build_opener(_SafeRedirects)
        with opener.open(self._url, timeout=TIMEOUT_SECONDS) as response:
            document = json.loads(response.read(MAX_DOCUMENT_BYTES))
        keys: dict[str | None, Any] = {}
        for each in document["keys"]:
            if each.get("use", "sig") == "sig" and each.get("kty") != "oct":
                try:
                    keys[each.get("kid")] = self._jwt.PyJWK(each).key
                except self._jwt.PyJWTError as error:
                    log.warning("OAUTHBEARER: ignoring a key of %s: %s", self._url, error)
        if keys.keys() != self._keys.keys():
            log.info("OAUTHBEARER: %d keys from %s", len(keys), self._url)
        self._keys = keys

    async def _refresh_forever(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(self._refresh_seconds)
