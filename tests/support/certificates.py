"""Throw-away certificates for tests: an authority, and certificates that it signs."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

DAY = datetime.timedelta(days=1)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip
"""Python 3.13 and newer require this of an authority by default (ssl.VERIFY_X509_STRICT)."""


def name_of(subject: str) -> x509.Name:
    """`CN=alice,OU=shop,O=Example` (RFC 2253: the last component of the certificate first)."""
    return x509.Name.from_rfc4514_string(subject)


class Issued:
    """A key with its certificate chain."""

    def __init__(self, key: Key, certificate: x509.Certificate, chain: Sequence[x509.Certificate] = ()) -> None:
        self.key = key
        self.certificate = certificate
        self.chain = chain

    def key_pem(self, password: str | None = None) -> str:
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    @property
    def certificate_pem(self) -> str:
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in (self.certificate, *self.chain))

    def pem(self, password: str | None = None) -> str:
        """What Kafka expects in a PEM key store: the key and the chain."""
        return self.key_pem(password) + self.certificate_pem

    def write(self, path: Path, password: str | None = None) -> str:
        path.write_text(self.pem(password))
        return str(path)

    def write_pkcs12(self, path: Path, password: str) -> str:
        encryption = BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(b"key", self.key, self.certificate, self.chain, encryption)
        )
        return str(path)


class Authority:
    """A certificate authority. Those made by `openssl req -x509` have no key usage."""

    def __init__(self, subject: str = "CN=Test authority", *, has_key_usage: bool = True) -> None:
        self._has_key_usage = has_key_usage
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(name_of(subject), self.key, is_authority=True, days=(-1, 365), hosts=())

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def write(self, path: Path) -> str:
        path.write_text(self.pem)
        return str(path)

    def issue(
        self,
        subject: str = "CN=localhost",
        *,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        days: tuple[float, float] = (-1, 30),
        uses_rsa: bool = False,
    ) -> Issued:
        """`days` are the beginning and the end of its validity, counted from today."""
        key: Key = rsa.generate_private_key(65537, 2048) if uses_rsa else ec.generate_private_key(ec.SECP256R1())
        return Issued(key, self._sign(name_of(subject), key, is_authority=False, days=days, hosts=hosts))

    def _sign(
        self, subject: x509.Name, key: Key, *, is_authority: bool, days: tuple[float, float], hosts: Sequence[str]
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        issuer = subject if is_authority else self.certificate.subject
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        if is_authority:
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            if self._has_key_usage:
                builder = builder.add_extension(SIGNS_CERTIFICATES, critical=True)
        else:
            builder = builder.add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        return builder.sign(self.key, hashes.SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


__all__ = ["Authority", "Issued", "name_of"]
