"""The security of embedded brokers: a throwaway certificate authority, and a user with a random password.

Needs the library `cryptography` (`pip install 'ottla[tls]'`). No secret is on a command line, where others can see it.
"""

import datetime
import ipaddress
import os
import secrets
import tempfile
from pathlib import Path

from ottla.errors import OttlaError

PROTOCOL = "SASL_SSL"
MECHANISM = "SCRAM-SHA-512"
USER = "ottla"
VALID_DAYS = 365
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


class EmbeddedSecurity:
    """The files of a secure broker or cluster, in a temporary directory that only this user can read."""

    protocol = PROTOCOL

    def __init__(self, host: str) -> None:
        """`host` is where the brokers listen: their certificate is for it, and for localhost."""
        self._directory = tempfile.TemporaryDirectory(prefix="ottla-security-")
        self.directory = Path(self._directory.name)
        self.password = secrets.token_urlsafe(24)
        self.authority_file = self.directory / "ca.pem"
        self.config_file = self.directory / "server.properties"
        self.users_file = self.directory / "users"
        authority, key_store = _create_certificates({host, "localhost", "127.0.0.1", "::1"} - {"", "0.0.0.0", "::"})
        self._write(self.authority_file, authority)
        self._write(self.directory / "broker.pem", key_store)
        jaas = f'{_MODULE} required username="{USER}" password="{self.password}";'
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority_file),
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.{PROTOCOL.lower()}.{MECHANISM.lower()}.sasl.jaas.config": jaas,
        }
        self._write(self.config_file, "".join(f"{name}={value}\n" for name, value in settings.items()))
        self._write(self.users_file, f"{MECHANISM}=[name={USER},password={self.password}]\n")

    @property
    def options(self) -> list[str]:
        """For the command line of `ottla serve`."""
        return ["--config", str(self.config_file), "--add-scram", f"@{self.users_file}"]

    def client_settings(self, bootstrap: str) -> dict[str, str]:
        """The settings of a client: Ottla's own, and librdkafka's (confluent-kafka)."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": PROTOCOL,
            "sasl.mechanism": MECHANISM,
            "sasl.username": USER,
            "sasl.password": self.password,
            "ssl.ca.location": str(self.authority_file),
        }

    def close(self) -> None:
        self._directory.cleanup()

    def _write(self, path: Path, text: str) -> None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)


def _create_certificates(hosts: set[str]) -> tuple[str, str]:
    """The certificate of a new authority, and a key with the certificate that the authority signed; in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise OttlaError("secure=True needs the package cryptography", "pip install 'ottla[tls]'") from None

    now = datetime.datetime.now(datetime.UTC)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Ottla throwaway authority")])

    def builder(name: x509.Name, public_key: ec.EllipticCurvePublicKey, is_authority: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), False)
        )

    def general_name(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    # Python 3.13 and newer reject authorities without this extension (ssl.VERIFY_X509_STRICT).
    signs_certificates = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority = (
        builder(authority_name, authority_key.public_key(), True)
        .add_extension(signs_certificates, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([general_name(host) for host in sorted(hosts)])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Ottla embedded broker")])
    certificate = (
        builder(subject, key.public_key(), False)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key_text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return (
        authority.public_bytes(Encoding.PEM).decode(),
        key_text + certificate.public_bytes(Encoding.PEM).decode(),
    )
