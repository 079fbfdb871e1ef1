"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): keys, proofs and messages, for both sides. Pure.

A client derives the salted password; a server stores only what is derived from it (`ScramCredential`) and cannot
log in with that elsewhere. Like Kafka, passwords and names are used as UTF-8 without SASLprep.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
"""The iterations that Kafka accepts for a new credential."""

SALT_BYTES = 26
"""The size of the salts that Kafka's tools create."""


class ScramMechanism(NamedTuple):
    name: str
    number: int
    """In AlterUserScramCredentials and DescribeUserScramCredentials."""
    hash_name: str


SCRAM_SHA_256 = ScramMechanism("SCRAM-SHA-256", 1, "sha256")
SCRAM_SHA_512 = ScramMechanism("SCRAM-SHA-512", 2, "sha512")
SCRAM_MECHANISMS: Mapping[str, ScramMechanism] = MappingProxyType(
    {each.name: each for each in (SCRAM_SHA_256, SCRAM_SHA_512)}
)


class ScramError(ValueError):
    """A message or credential that does not have the form of the RFC."""


# Keys and proofs


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, i). Slow by design (milliseconds): call it in a thread."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def client_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", mechanism.hash_name)


def stored_key(mechanism: ScramMechanism, client_key_: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, client_key_).digest()


def server_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", mechanism.hash_name)


def auth_message(client_first_bare: str, server_first: str, client_final_without_proof: str) -> bytes:
    return f"{client_first_bare},{server_first},{client_final_without_proof}".encode()


def client_proof(mechanism: ScramMechanism, salted: bytes, auth_message_: bytes) -> bytes:
    """What the client sends to prove that it knows the password."""
    key = client_key(mechanism, salted)
    signature = hmac.digest(stored_key(mechanism, key), auth_message_, mechanism.hash_name)
    return _xor(key, signature)


def is_proof_of(mechanism: ScramMechanism, stored_key_: bytes, auth_message_: bytes, proof: bytes) -> bool:
    """Whether the client knows the password behind `stored_key_`. Takes the same time for right and wrong proofs."""
    signature = hmac.digest(stored_key_, auth_message_, mechanism.hash_name)
    if len(proof) != len(signature):
        return False
    return hmac.compare_digest(stored_key(mechanism, _xor(proof, signature)), stored_key_)


def server_signature(mechanism: ScramMechanism, server_key_: bytes, auth_message_: bytes) -> bytes:
    """What the server sends to prove that it knows the credential."""
    return hmac.digest(server_key_, auth_message_, mechanism.hash_name)


def _xor(left: bytes, right: bytes) -> bytes:
    size = len(left)
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(size, "big")


# Credentials


class ScramCredential(NamedTuple):
    """What a server stores about a user's password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def from_salted_password(
        cls, mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
    ) -> "ScramCredential":
        key = stored_key(mechanism, client_key(mechanism, salted))
        return cls(salt, key, server_key(mechanism, salted), iterations)

    def to_text(self) -> str:
        """As Kafka stores it: `salt=...,stored_key=...,server_key=...,iterations=4096`."""
        salt, stored, server = map(to_base64, (self.salt, self.stored_key, self.server_key))
        return f"salt={salt},stored_key={stored},server_key={server},iterations={self.iterations}"

    @classmethod
    def from_text(cls, text: str) -> "ScramCredential":
        fields = dict(field.split("=", 1) for field in text.split(",") if "=" in field)
        try:
            iterations = int(fields["iterations"])
            salt, stored, server = (from_base64(fields[name]) for name in ("salt", "stored_key", "server_key"))
        except (KeyError, ValueError):
            raise ScramError("the stored SCRAM credential is malformed") from None
        return cls(salt, stored, server, iterations)


# Messages

_NAME = r"(?:[^,=\x00]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"[A-Za-z0-9+/]*={0,2}"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^,\x00]*)*"
_CLIENT_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_SERVER_FIRST = re.compile(
    rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE64}),i=(?P<iterations>[0-9]{{1,10}}){_EXTENSIONS}"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_SERVER_FINAL = re.compile(rf"(?:e=(?P<error>[^,]+)|v=(?P<signature>{_BASE64})){_EXTENSIONS}")


class ClientFirst(NamedTuple):
    """`n,,n=alice,r=...`"""

    name: str
    nonce: str
    bare: str
    """The message without its header: what is signed."""
    header: str = "n,,"
    authorization_id: str = ""
    extensions: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def create(cls, name: str, nonce: str, extensions: Mapping[str, str] | None = None) -> "ClientFirst":
        extensions = extensions or {}
        bare = f"n={to_sasl_name(name)},r={nonce}" + "".join(f",{key}={each}" for key, each in extensions.items())
        return cls(name, nonce, bare, extensions=extensions)

    @classmethod
    def parse(cls, message: bytes) -> "ClientFirst":
        found = _match(_CLIENT_FIRST, message, "client-first")
        pairs = (pair.partition("=") for pair in filter(None, found["extensions"].split(",")))
        return cls(
            from_sasl_name(found["name"]),
            found["nonce"],
            found["bare"],
            found["header"],
            from_sasl_name(found["authorization"] or ""),
            {key: each for key, _, each in pairs},
        )

    def encode(self) -> bytes:
        return (self.header + self.bare).encode()


class ServerFirst(NamedTuple):
    """`r=...,s=...,i=4096`"""

    nonce: str
    salt: bytes
    iterations: int
    text: str

    @classmethod
    def create(cls, nonce: str, salt: bytes, iterations: int) -> "ServerFirst":
        return cls(nonce, salt, iterations, f"r={nonce},s={to_base64(salt)},i={iterations}")

    @classmethod
    def parse(cls, message: bytes) -> "ServerFirst":
        found = _match(_SERVER_FIRST, message, "server-first")
        return cls(found["nonce"], from_base64(found["salt"]), int(found["iterations"]), found[0])


class ClientFinal(NamedTuple):
    """`c=biws,r=...,p=...`"""

    nonce: str
    proof: bytes
    without_proof: str
    binding: bytes
    """The header of the first message again."""

    @staticmethod
    def text_without_proof(nonce: str, header: str = "n,,") -> str:
        return f"c={to_base64(header.encode())},r={nonce}"

    @classmethod
    def parse(cls, message: bytes) -> "ClientFinal":
        found = _match(_CLIENT_FINAL, message, "client-final")
        return cls(found["nonce"], from_base64(found["proof"]), found["without_proof"], from_base64(found["binding"]))


class ServerFinal(NamedTuple):
    """`v=...`, or `e=...` if the exchange failed."""

    signature: bytes
    error: str = ""

    @classmethod
    def parse(cls, message: bytes) -> "ServerFinal":
        found = _match(_SERVER_FINAL, message, "server-final")
        return cls(from_base64(found["signature"] or ""), found["error"] or "")

    def encode(self) -> bytes:
        return f"e={self.error}".encode() if self.error else f"v={to_base64(self.signature)}".encode()


def to_sasl_name(name: str) -> str:
    """Escapes `=` and `,`, which separate the fields of messages."""
    return name.replace("=", "=3D").replace(",", "=2C")


def from_sasl_name(text: str) -> str:
    return text.replace("=2C", ",").replace("=3D", "=")


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ScramError("invalid base64") from None


def _match(pattern: re.Pattern[str], message: bytes, name: str) -> re.Match[str]:
    try:
        found = pattern.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise ScramError(f"Invalid SCRAM {name} message")
    return found
