"""The server's side of SASL: the answer to each token, and the authenticated user at the end. Pure.

An exchange is used for one authentication. A client that fails learns only that it failed: an unknown user gets the
same answers, after the same work, as a wrong password.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from ottla.security.sasl.scram_math import (
    MIN_ITERATIONS,
    SALT_BYTES,
    ClientFinal,
    ClientFirst,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ServerFinal,
    ServerFirst,
    auth_message,
    is_proof_of,
    server_signature,
)
from ottla.types import compact_json

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
_KEY_VALUE = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]+)")


class SaslFailure(Exception):
    """The client is not who it claims to be, or violates the mechanism. The text is sent to the client."""


class Outcome(NamedTuple):
    """The server's answer to one token. The exchange is complete when it has a user."""

    challenge: bytes
    user: str | None = None
    expires_ms: int | None = None
    """When the client's credential expires, in milliseconds since 1970."""
    failure: str = ""
    """Why the client was rejected, if `challenge` says so and the client still has to acknowledge it."""


class PlainServer:
    """PLAIN (RFC 4616): one token with user name and password."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    def answer(self, token: bytes) -> Outcome:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslFailure("Authentication failed: the message is not UTF-8") from None
        if len(parts) != 3:
            raise SaslFailure(
                f"Authentication failed: Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            )
        authorization_id, user, password = parts
        if not user:
            raise SaslFailure("Authentication failed: username not specified")
        if not password:
            raise SaslFailure("Authentication failed: password not specified")
        expected = self._users.get(user)
        # Digests have one length, so that the comparison takes the same time for every password.
        is_right = hmac.compare_digest(_digest(expected or ""), _digest(password))
        if expected is None or not is_right:
            raise SaslFailure("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return Outcome(b"", user)


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


class ScramServer:
    """SCRAM (RFC 5802). `find` looks a user up; `secret` derives a fake but stable credential for unknown ones."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        secret: bytes,
        *,
        iterations: Callable[[], Sequence[int]] = tuple,
        nonce: str | None = None,
    ) -> None:
        """`iterations` returns those of all existing users."""
        self._mechanism = mechanism
        self._find = find
        self._secret = secret
        self._iterations = iterations
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._client_first: ClientFirst | None = None
        self._server_first: ServerFirst
        self._credential: ScramCredential
        self._is_known = False

    def answer(self, token: bytes) -> Outcome:
        try:
            return self._begin(token) if self._client_first is None else self._finish(token, self._client_first)
        except ScramError as error:
            raise SaslFailure(f"Authentication failed: {error}") from None

    def _begin(self, token: bytes) -> Outcome:
        first = self._client_first = ClientFirst.parse(token)
        if first.extensions.get("tokenauth") == "true":
            raise SaslFailure("Authentication failed: delegation tokens are not supported")
        found = self._find(first.name)
        self._is_known = found is not None
        self._credential = found or self._made_up(first.name)
        if first.authorization_id not in ("", first.name):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        nonce = first.nonce + self._nonce
        self._server_first = ServerFirst.create(nonce, self._credential.salt, self._credential.iterations)
        return Outcome(self._server_first.text.encode())

    def _finish(self, token: bytes, first: ClientFirst) -> Outcome:
        final = ClientFinal.parse(token)
        # Only our part of the nonce is compared, as in Kafka: librdkafka before 2.6.1 repeats its own. Ours prevents
        # replays.
        if not final.nonce.endswith(self._nonce) or final.binding != first.header.encode():
            raise SaslFailure("Authentication failed: Invalid client nonce in the final client message")
        signed = auth_message(first.bare, self._server_first.text, final.without_proof)
        is_right = is_proof_of(self._mechanism, self._credential.stored_key, signed, final.proof)
        if not (is_right and self._is_known):
            raise SaslFailure(
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                + self._mechanism.name
            )
        signature = server_signature(self._mechanism, self._credential.server_key, signed)
        return Outcome(ServerFinal(signature).encode(), first.name)

    def _made_up(self, name: str) -> ScramCredential:
        """For a user that does not exist. The same name gets the same salt each time, as an existing user would."""
        salt = hmac.digest(self._secret, name.encode(), "sha512")[:SALT_BYTES]
        key = hmac.digest(self._secret, b"key" + name.encode(), self._mechanism.hash_name)
        existing = self._iterations() or (MIN_ITERATIONS,)
        return ScramCredential(salt, key, key, existing[int.from_bytes(key[:4], "big") % len(existing)])


class Token(NamedTuple):
    """A token that was verified."""

    user: str
    expires_ms: int


class OauthBearerServer:
    """OAUTHBEARER (RFC 7628). `verify` checks a token and raises SaslFailure with the reason."""

    def __init__(self, verify: Callable[[str], Awaitable[Token]]) -> None:
        self._verify = verify
        self._failure: str | None = None

    async def answer(self, token: bytes) -> Outcome:
        if self._failure is not None:
            # The client has acknowledged the error.
            raise SaslFailure(self._failure)
        authorization_id, encoded = _read_bearer(token)
        try:
            verified = await self._verify(encoded)
            if authorization_id not in ("", verified.user):
                raise SaslFailure("the authorization id is different from the user of the token")
        except SaslFailure as failure:
            self._failure = f"Authentication failed: {failure}"
            challenge = compact_json({"status": "invalid_token"})
            return Outcome(challenge, failure=self._failure)
        return Outcome(b"", verified.user, verified.expires_ms)


def _read_bearer(message: bytes) -> tuple[str, str]:
    """The authorization id and the token of the client's first message."""
    try:
        header, _, rest = message.decode("ascii").partition("\x01")
        flag, authorization, empty = header.split(",")
    except ValueError:
        raise SaslFailure("Authentication failed: Invalid OAUTHBEARER client first message") from None
    pairs = rest.removesuffix("\x01\x01").split("\x01")
    matches = [_KEY_VALUE.fullmatch(pair) for pair in pairs]
    if flag != "n" or empty or not rest.endswith("\x01\x01") or not all(matches):
        raise SaslFailure("Authentication failed: Invalid OAUTHBEARER client first message")
    scheme, _, token = next((each[2] for each in matches if each and each[1] == "auth"), "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise SaslFailure("Authentication failed: Invalid OAUTHBEARER client first message: no bearer token")
    return authorization.removeprefix("a="), token.strip()
