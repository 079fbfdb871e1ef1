"""The client's side of SASL: the tokens of PLAIN, SCRAM and OAUTHBEARER. Pure.

An exchange is used for one authentication. `first()` returns the initial token; `next(challenge)` returns the answer to
the broker's token, or None when the exchange is complete.
"""

import hmac
import json
import re
import secrets
from collections.abc import Mapping
from typing import Protocol

from ottla.errors import ConfigError, OttlaError
from ottla.security.sasl.scram_math import (
    SCRAM_MECHANISMS,
    ClientFinal,
    ClientFirst,
    ScramError,
    ServerFinal,
    ServerFirst,
    auth_message,
    client_proof,
    salted_password,
    server_key,
    server_signature,
    to_base64,
)

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
CLIENT_MECHANISMS = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)

SCRAM_ITERATIONS_MIN, SCRAM_ITERATIONS_MAX = 4_096, 1_000_000
"""With fewer, a rogue broker could brute-force the password from the proof. More would keep the client busy."""

CHECK_ADDRESS = "It may be an impostor: check the address, and use TLS with verified certificates."

_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


class SaslError(OttlaError):
    """The broker's side of the exchange is wrong: it may not be the broker that it claims to be."""


class ClientExchange(Protocol):
    """One authentication."""

    def first(self) -> bytes:
        """The initial token."""
        ...

    def next(self, challenge: bytes) -> bytes | None:
        """The answer to the broker's token; None when the exchange is complete. Raises SaslError. May take a while."""
        ...

    def refusal(self) -> str:
        """Why the broker rejected the credentials, if it said so within the exchange."""
        ...


class PlainExchange:
    """PLAIN (RFC 4616): the password itself. Only TLS hides it from the network."""

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username + password:
            raise ConfigError(
                "user name and password must not contain a NUL character",
                "Remove it from them.",
            )
        self._token = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._token

    def next(self, challenge: bytes) -> bytes | None:
        return None

    def refusal(self) -> str:
        return ""


class ScramExchange:
    """SCRAM (RFC 5802): each side proves that it knows the password (or what is derived from it) without sending it."""

    def __init__(
        self,
        mechanism: str,
        username: str,
        password: str,
        *,
        is_delegation_token: bool = False,
        nonce: str | None = None,
    ) -> None:
        self._mechanism = SCRAM_MECHANISMS[mechanism]
        self._password = password
        extensions = {"tokenauth": "true"} if is_delegation_token else None
        self._first = ClientFirst.create(username, nonce or secrets.token_urlsafe(24), extensions)
        self._expected: bytes | None = None
        self._is_complete = False

    def first(self) -> bytes:
        return self._first.encode()

    def next(self, challenge: bytes) -> bytes | None:
        if self._is_complete:
            raise SaslError("the broker continues an exchange that is complete", CHECK_ADDRESS)
        try:
            if self._expected is None:
                return self._prove(ServerFirst.parse(challenge))
            self._verify(ServerFinal.parse(challenge), self._expected)
        except ScramError as error:
            raise SaslError(f"the broker sent an invalid message: {error}", CHECK_ADDRESS) from None
        self._is_complete = True
        return None

    def _prove(self, answer: ServerFirst) -> bytes:
        if not answer.nonce.startswith(self._first.nonce) or answer.nonce == self._first.nonce:
            raise SaslError("the broker did not continue the nonce of this client", CHECK_ADDRESS)
        if not SCRAM_ITERATIONS_MIN <= answer.iterations <= SCRAM_ITERATIONS_MAX:
            raise SaslError(
                f"the broker requires {answer.iterations} iterations "
                f"(allowed: {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX})",
                "Recreate the user's credentials with an allowed number.",
            )
        mechanism = self._mechanism
        without_proof = ClientFinal.text_without_proof(answer.nonce, self._first.header)
        signed = auth_message(self._first.bare, answer.text, without_proof)
        salted = salted_password(mechanism, self._password, answer.salt, answer.iterations)
        self._expected = server_signature(mechanism, server_key(mechanism, salted), signed)
        return f"{without_proof},p={to_base64(client_proof(mechanism, salted, signed))}".encode()

    def _verify(self, answer: ServerFinal, expected: bytes) -> None:
        if answer.error:
            raise SaslError(f"the broker rejected the proof: {answer.error}", "Check the user name and password.")
        if not hmac.compare_digest(answer.signature, expected):
            raise SaslError(
                "the broker could not prove that it knows this user's credentials",
                CHECK_ADDRESS,
            )

    def refusal(self) -> str:
        return ""


class OauthBearerExchange:
    """OAUTHBEARER (RFC 7628): a token of an identity provider, and extensions for the broker's logs and quotas."""

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        check_extensions(extensions or {})
        pairs = "".join(f"{name}={value}\x01" for name, value in (extensions or {}).items())
        self._token = f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()
        self._refusal = ""

    def first(self) -> bytes:
        return self._token

    def next(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # The reason comes as JSON. The client acknowledges it with one byte, then the broker ends the exchange.
        self._refusal = _refusal(challenge)
        return b"\x01"

    def refusal(self) -> str:
        return self._refusal


def _refusal(challenge: bytes) -> str:
    try:
        status = json.loads(challenge)["status"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f"(status {str(status)[:80]})"


def check_extensions(extensions: Mapping[str, str]) -> None:
    """Raises ConfigError for extensions that the mechanism cannot carry (KIP-342)."""
    for name, value in extensions.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(
                f"{name} is not a valid SASL extension", "Names are letters (not auth); values are printable ASCII."
            )
