"""TLS contexts from Kafka's `ssl.*` settings, for brokers and clients. Reads key stores and trust stores from files.

Stores may be PEM (`ssl.keystore.type=PEM`, in a file or in the setting itself) or PKCS#12, which is what Java's keytool
writes since Java 9, whatever the file is called. PKCS#12 needs the library `cryptography`. The old JKS format cannot be
read; the error has the command that converts it.
"""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.clock import system_clock
from ottla.errors import ConfigError
from ottla.security.certificates import CertificateError, read_pem_certificates

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate as X509Certificate

Settings = Mapping[str, str | None]
"""Kafka's names, such as `ssl.keystore.location`, with their values as text."""

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
FILE_SETTINGS = ("ssl.keystore.location", "ssl.truststore.location")
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_BEGIN = "-----BEGIN "
_INSTALL = "pip install 'ottla[tls]'"


class KeyMaterial(NamedTuple):
    """A private key and its certificate chain, in PEM."""

    key: str
    chain: str
    password: str | None


def server_context(settings: Settings) -> ssl.SSLContext:
    """The context of a listener. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions_and_ciphers(context, settings)
    # With renegotiation, a peer could exhaust the server's CPU.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    key = read_key_material(settings)
    if key is None:
        raise ConfigError(
            "a listener with TLS needs a private key and a certificate",
            "Set ssl.keystore.location, or ssl.keystore.type=PEM with ssl.keystore.key and "
            "ssl.keystore.certificate.chain.",
        )
    _load_key(context, key, _key_source(settings))
    context.verify_mode = _choice(settings, "ssl.client.auth", "none", CLIENT_AUTH)
    authorities = read_authorities(settings)
    if authorities is not None:
        _load_authorities(context, authorities, settings)
    elif context.verify_mode != ssl.CERT_NONE:
        raise ConfigError(
            f"ssl.client.auth={settings.get('ssl.client.auth')} needs the certificates of the authorities that sign "
            "client certificates",
            "Set ssl.truststore.location or ssl.truststore.certificates.",
        )
    return context


def client_context(settings: Settings) -> ssl.SSLContext:
    """The context of a client; also of a broker that connects to another. Raises ConfigError.

    Without a trust store, the system's certificate authorities are trusted. Host names are verified unless
    `ssl.endpoint.identification.algorithm` is empty.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_versions_and_ciphers(context, settings)
    algorithm = settings.get("ssl.endpoint.identification.algorithm")
    if algorithm is None:
        algorithm = "https"
    if algorithm.lower() not in ("https", "", "none"):
        raise ConfigError(
            f"Invalid value {algorithm} for configuration ssl.endpoint.identification.algorithm",
            "Use https to verify host names, or an empty value to skip the check.",
        )
    context.check_hostname = algorithm.lower() == "https"
    authorities = read_authorities(settings)
    if authorities is None:
        context.load_default_certs()
    else:
        _load_authorities(context, authorities, settings)
    key = read_key_material(settings)
    if key is not None:
        _load_key(context, key, _key_source(settings))
    return context


def files_of(settings: Settings) -> tuple[str, ...]:
    """The files that a context is built from: when one of them changes, it must be rebuilt."""
    return tuple(path for name in FILE_SETTINGS if (path := settings.get(name)))


# Stores


def read_key_material(settings: Settings) -> KeyMaterial | None:
    """The private key and certificate chain; None if there are none."""
    key, chain = settings.get("ssl.keystore.key"), settings.get("ssl.keystore.certificate.chain")
    location = settings.get("ssl.keystore.location")
    password = settings.get("ssl.key.password")
    if location:
        if key or chain:
            raise ConfigError(
                "ssl.keystore.location and ssl.keystore.key contradict each other", "Set only one of them."
            )
        data = read_setting_file("ssl.keystore.location", location)
        found = _format(data, location, settings.get("ssl.keystore.type"), "ssl.keystore")
        if found == PKCS12:
            return _key_from_pkcs12(data, location, settings.get("ssl.keystore.password") or "")
        text = data.decode(errors="replace")
        return KeyMaterial(text, text, password)
    if not key and not chain:
        return None
    if not key or not chain:
        missing = "ssl.keystore.certificate.chain" if key else "ssl.keystore.key"
        raise ConfigError(f"{missing} is not set", "A PEM key store needs the private key and the certificate chain.")
    return KeyMaterial(key, chain, password)


def read_authorities(settings: Settings) -> str | None:
    """The trusted certificates in PEM; None if there is no trust store."""
    certificates = settings.get("ssl.truststore.certificates")
    location = settings.get("ssl.truststore.location")
    if location:
        if certificates:
            raise ConfigError(
                "ssl.truststore.location and ssl.truststore.certificates contradict each other", "Set only one of them."
            )
        data = read_setting_file("ssl.truststore.location", location)
        found = _format(data, location, settings.get("ssl.truststore.type"), "ssl.truststore")
        if found == PKCS12:
            return _authorities_from_pkcs12(data, location, settings.get("ssl.truststore.password") or "")
        certificates = data.decode(errors="replace")
    if certificates is None or not certificates.strip():
        return None
    if "-----BEGIN CERTIFICATE-----" not in certificates:
        source = location or "ssl.truststore.certificates"
        raise ConfigError(f"{source} has no certificate", "A trust store has -----BEGIN CERTIFICATE----- sections.")
    return certificates


def read_setting_file(name: str, path: str) -> bytes:
    """The content of the file that a setting names. Raises ConfigError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"{name}: cannot read {path}: {error.strerror or error}", "Check the path, and that this user may read it."
        ) from None


def _format(data: bytes, path: str, type_: str | None, prefix: str) -> str:
    """PEM or PKCS12, detected from the content. Java, too, reads JKS and PKCS12 whichever of them the type names."""
    if data[:4] in (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"):
        raise ConfigError(
            f"{prefix}.location: {path} is a JKS file, which is not supported",
            f"Convert it: keytool -importkeystore -srckeystore {path} -destkeystore {os.path.splitext(path)[0]}.p12 "
            "-deststoretype PKCS12",
        )
    is_pem = _BEGIN.encode() in data
    if not is_pem and data[:1] != b"\x30":
        raise ConfigError(
            f"{prefix}.location: {path} is neither PEM nor PKCS#12",
            f"A PEM file has {_BEGIN}… lines; keytool and openssl pkcs12 create PKCS#12 files.",
        )
    wanted = (type_ or "").upper()
    if wanted not in ("", PEM, PKCS12, JKS):
        raise ConfigError(f"Invalid value {type_} for configuration {prefix}.type", "Use PEM or PKCS12.")
    if (wanted == PEM) != is_pem and wanted:
        raise ConfigError(
            f"{prefix}.type is {wanted}, but {path} is a {PEM if is_pem else PKCS12} file",
            f"Set {prefix}.type={PEM if is_pem else PKCS12}.",
        )
    return PEM if is_pem else PKCS12


def _key_from_pkcs12(data: bytes, path: str, password: str) -> KeyMaterial:
    key, certificate, others = _open_pkcs12(data, path, password, "ssl.keystore")
    if key is None or certificate is None:
        raise ConfigError(
            f"ssl.keystore.location: {path} has no private key with a certificate",
            "A key store needs the private key and its certificate chain: `keytool -list` shows its entries.",
        )
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key_text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    chain = "".join(each.public_bytes(Encoding.PEM).decode() for each in (certificate, *others))
    return KeyMaterial(key_text, chain, None)


def _authorities_from_pkcs12(data: bytes, path: str, password: str) -> str:
    _, certificate, others = _open_pkcs12(data, path, password, "ssl.truststore")
    from cryptography.hazmat.primitives.serialization import Encoding

    found = [each for each in (certificate, *others) if each is not None]
    if not found:
        raise ConfigError(
            f"ssl.truststore.location: {path} has no certificate",
            "Add the certificates of trusted authorities: `keytool -list` shows its entries.",
        )
    return "".join(each.public_bytes(Encoding.PEM).decode() for each in found)


def _open_pkcs12(
    data: bytes, path: str, password: str, prefix: str
) -> "tuple[PrivateKeyTypes | None, X509Certificate | None, list[X509Certificate]]":
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_key_and_certificates
    except ImportError:
        raise ConfigError(
            f"{prefix}.location: reading the PKCS#12 file {path} needs the package cryptography",
            f"{_INSTALL}, or convert the file: openssl pkcs12 -in {path} -nodes -out "
            f"{os.path.splitext(path)[0]}.pem, and set {prefix}.type=PEM",
        ) from None
    try:
        return load_key_and_certificates(data, password.encode() if password else None)
    except ValueError as error:
        raise ConfigError(f"{prefix}.location: cannot open {path}: {error}", f"Check {prefix}.password.") from None


# Contexts


def _set_versions_and_ciphers(context: ssl.SSLContext, settings: Settings) -> None:
    enabled = [name.strip() for name in (settings.get("ssl.enabled.protocols") or "TLSv1.2,TLSv1.3").split(",")]
    highest = settings.get("ssl.protocol") or "TLSv1.3"
    for name, setting in [*((each, "ssl.enabled.protocols") for each in enabled), (highest, "ssl.protocol")]:
        if name not in VERSIONS and not (name == "TLS" and setting == "ssl.protocol"):
            raise ConfigError(f"Invalid value {name} for configuration {setting}", "Use TLSv1.2 or TLSv1.3.")
    versions = [VERSIONS[name] for name in enabled]
    lowest, last = min(versions), min(max(versions), VERSIONS.get(highest, ssl.TLSVersion.TLSv1_3))
    suites = [each.strip() for each in (settings.get("ssl.cipher.suites") or "").replace(":", ",").split(",")]
    suites = [each for each in suites if each]
    if suites:
        # TLS 1.3 has its own suites. Python cannot choose among them, but can disable the version.
        modern = [each for each in suites if each.startswith("TLS_") and "_WITH_" not in each]
        older = [each for each in suites if each not in modern]
        if not modern:
            last = min(last, ssl.TLSVersion.TLSv1_2)
        if older:
            try:
                context.set_ciphers(":".join(map(openssl_cipher, older)))
            except ssl.SSLError:
                raise ConfigError(
                    f"Invalid value {','.join(older)} for configuration ssl.cipher.suites: no such cipher suite",
                    "`openssl ciphers -stdname` lists them.",
                ) from None
        else:
            lowest = ssl.TLSVersion.TLSv1_3
    if lowest > last:
        raise ConfigError(
            "ssl.enabled.protocols, ssl.protocol and ssl.cipher.suites leave no TLS version enabled",
            "Use versions of ssl.enabled.protocols up to ssl.protocol, and a cipher suite for one of them.",
        )
    context.minimum_version, context.maximum_version = lowest, last


def openssl_cipher(name: str) -> str:
    """OpenSSL's name of a cipher suite of TLS 1.2; Java uses the names of the standard.

    >>> openssl_cipher("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    'ECDHE-RSA-AES128-GCM-SHA256'
    """
    if "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_POLY1305_SHA256", "_POLY1305")
    cipher = cipher.replace("AES128_CBC", "AES128").replace("AES256_CBC", "AES256")
    exchange = "" if exchange == "RSA" else exchange + "_"
    return (exchange + cipher).replace("_", "-")


def _load_key(context: ssl.SSLContext, key: KeyMaterial, source: str) -> None:
    check_validity(key.chain, source)
    asked = False

    def password() -> str:
        # Without this callback OpenSSL would prompt on the terminal.
        nonlocal asked
        asked = True
        return key.password or ""

    try:
        with _as_file(key.key + "\n" + key.chain if key.key != key.chain else key.key) as path:
            context.load_cert_chain(path, password=password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{source}: the private key does not belong to the certificate",
                "The first certificate must be the one of the key, followed by its intermediates.",
            ) from None
        if asked:
            problem = "ssl.key.password is wrong" if key.password else "the private key is encrypted"
            hint = "Check ssl.key.password." if key.password else "Set ssl.key.password."
            raise ConfigError(f"{source}: {problem}", hint) from None
        missing = "certificate" if "CERTIFICATE-----" not in key.chain else "private key"
        raise ConfigError(
            f"{source}: no usable {missing} ({error.reason or 'PEM'})",
            "The file needs the private key (-----BEGIN PRIVATE KEY-----) and the certificate chain.",
        ) from None


def _load_authorities(context: ssl.SSLContext, certificates: str, settings: Settings) -> None:
    try:
        context.load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError):
        location = settings.get("ssl.truststore.location")
        source = f"ssl.truststore.location: {location}" if location else "ssl.truststore.certificates"
        raise ConfigError(
            f"{source} has a certificate that cannot be read",
            "Replace it: `openssl x509 -noout -text` must be able to read each certificate.",
        ) from None


def check_validity(chain: str, source: str) -> None:
    """Raises ConfigError if the first certificate has expired: no client would accept it."""
    try:
        certificates = read_pem_certificates(chain)
    except CertificateError as error:
        raise ConfigError(
            f"{source}: {error}", "Replace it: `openssl x509 -noout -text` must be able to read each certificate."
        ) from None
    if not certificates:
        raise ConfigError(f"{source} has no certificate", "Add the -----BEGIN CERTIFICATE----- sections of the chain.")
    first, now = certificates[0], system_clock() // 1000
    if first.not_after < now:
        raise ConfigError(
            f"{source}: the certificate of {first.subject} expired {_ago(now - first.not_after)} ago",
            "Replace it with a new one.",
        )


def _ago(seconds: int) -> str:
    return f"{seconds // 86_400} days" if seconds >= 2 * 86_400 else f"{max(1, seconds // 3600)} hours"


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """OpenSSL reads keys from files only. On Linux the file is in memory, so that no key ever reaches a disk. Elsewhere
    only this user can read it, and it is deleted at the end."""
    if os.path.isdir("/proc/self/fd") and hasattr(os, "memfd_create"):
        with open(os.memfd_create("ottla-key"), "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile("w", prefix="ottla-", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


def _key_source(settings: Settings) -> str:
    location = settings.get("ssl.keystore.location")
    return f"ssl.keystore.location: {location}" if location else "ssl.keystore.key"


def _choice(settings: Settings, name: str, default: str, choices: Mapping[str, ssl.VerifyMode]) -> ssl.VerifyMode:
    chosen = (settings.get(name) or default).lower()
    if chosen not in choices:
        raise ConfigError(
            f"Invalid value {settings.get(name)} for configuration {name}: String must be one of: {', '.join(choices)}"
        )
    return choices[chosen]
