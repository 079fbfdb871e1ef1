"""TLS contexts from Kafka's settings, and the errors for settings that cannot work."""

import os
import ssl
import tempfile
from pathlib import Path

import pytest

from ottla.errors import ConfigError
from ottla.security.certificates import read_pem_certificates
from ottla.security.tls import client_context, files_of, openssl_cipher, server_context
from tests.support.certificates import Authority, Issued

UNREADABLE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue()


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """Connects the two in memory; returns the server's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        done = True
        for side in (near, far):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                done = False
        if done:
            return far
    raise AssertionError("the handshake did not end")


def test_a_key_store_in_pem_may_be_a_file_or_a_value(authority: Authority, issued: Issued, tmp_path: Path) -> None:
    in_a_file = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": issued.write(tmp_path / "key.pem", "secret"),
        "ssl.key.password": "secret",
    }
    as_values = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": issued.key_pem("secret"),
        "ssl.keystore.certificate.chain": issued.certificate_pem,
        "ssl.key.password": "secret",
    }
    trust_file = {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority.write(tmp_path / "ca.pem")}
    trust_value = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.pem}
    for keys in (in_a_file, as_values):
        for trust in (trust_file, trust_value):
            assert handshake(server_context(keys), client_context(trust)).version() == "TLSv1.3"
    assert files_of({**in_a_file, **trust_file}) == (str(tmp_path / "key.pem"), str(tmp_path / "ca.pem"))


@pytest.mark.parametrize("type_", ["PKCS12", "JKS", None])
def test_a_key_store_of_java_is_read_under_either_name(
    authority: Authority, issued: Issued, tmp_path: Path, type_: str | None
) -> None:
    """keytool writes PKCS#12 since Java 9, and Java reads it as JKS too."""
    keys = {
        "ssl.keystore.type": type_,
        "ssl.keystore.location": issued.write_pkcs12(tmp_path / "keystore.jks", "secret"),
        "ssl.keystore.password": "secret",
    }
    assert handshake(server_context(keys), client_context({"ssl.truststore.certificates": authority.pem}))
    with pytest.raises(ConfigError, match=r"cannot open .*keystore.jks.* Check ssl.keystore.password"):
        server_context({**keys, "ssl.keystore.password": "wrong"})


def test_an_old_java_key_store_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    store = tmp_path / "old.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    with pytest.raises(ConfigError, match=r"JKS file.* keytool -importkeystore -srckeystore .*old.jks"):
        server_context({"ssl.keystore.location": str(store)})


def test_mutual_tls_wants_the_clients_certificate(authority: Authority, issued: Issued) -> None:
    server = {
        "ssl.keystore.key": issued.key_pem(),
        "ssl.keystore.certificate.chain": issued.certificate_pem,
        "ssl.truststore.certificates": authority.pem,
        "ssl.client.auth": "required",
    }
    alice = authority.issue("CN=alice,O=Example", hosts=())
    client = {
        "ssl.truststore.certificates": authority.pem,
        "ssl.keystore.key": alice.key_pem(),
        "ssl.keystore.certificate.chain": alice.certificate_pem,
    }
    assert handshake(server_context(server), client_context(client)).getpeercert()
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server_context(server), client_context({"ssl.truststore.certificates": authority.pem}))
    requested = {**server, "ssl.client.auth": "requested"}
    assert not handshake(
        server_context(requested), client_context({"ssl.truststore.certificates": authority.pem})
    ).getpeercert()


def test_client_certificates_need_somebody_to_trust(issued: Issued) -> None:
    settings = {"ssl.keystore.key": issued.key_pem(), "ssl.keystore.certificate.chain": issued.certificate_pem}
    with pytest.raises(ConfigError, match=r"Set ssl.truststore.location"):
        server_context({**settings, "ssl.client.auth": "required"})


def test_host_names_are_verified_unless_that_is_switched_off(authority: Authority) -> None:
    elsewhere = authority.issue("CN=elsewhere", hosts=("elsewhere",))
    server = {"ssl.keystore.key": elsewhere.key_pem(), "ssl.keystore.certificate.chain": elsewhere.certificate_pem}
    trust = {"ssl.truststore.certificates": authority.pem}
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(server_context(server), client_context(trust))
    handshake(server_context(server), client_context({**trust, "ssl.endpoint.identification.algorithm": ""}))


@pytest.mark.parametrize(
    ("settings", "version"),
    [
        ({}, "TLSv1.3"),
        ({"ssl.enabled.protocols": "TLSv1.2"}, "TLSv1.2"),
        ({"ssl.protocol": "TLSv1.2"}, "TLSv1.2"),
        ({"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, "TLSv1.2"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "TLSv1.3"),
    ],
)
def test_versions_and_cipher_suites_are_restricted(
    authority: Authority, issued: Issued, settings: dict[str, str], version: str
) -> None:
    keys = {"ssl.keystore.key": issued.key_pem(), "ssl.keystore.certificate.chain": issued.certificate_pem}
    trust = {"ssl.truststore.certificates": authority.pem}
    server = handshake(server_context({**keys, **settings}), client_context(trust))
    assert server.version() == version
    cipher = server.cipher()
    if version == "TLSv1.2" and "ssl.cipher.suites" in settings:
        assert cipher is not None
        assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


def test_the_standards_cipher_names_become_openssls() -> None:
    known = {each["name"] for each in ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).get_ciphers()}
    for name in (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    ):
        assert openssl_cipher(name) in known, name
    assert openssl_cipher("ECDHE-RSA-AES128-GCM-SHA256") == "ECDHE-RSA-AES128-GCM-SHA256"


def test_each_mistake_has_its_own_error(authority: Authority, issued: Issued, tmp_path: Path) -> None:
    other = authority.issue("CN=other")
    expired = authority.issue("CN=old", days=(-30, -3))
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"no key")
    for settings, error in (
        ({}, "needs a private key and a certificate"),
        ({"ssl.keystore.location": "/no/such/file"}, "cannot read /no/such/file: No such file"),
        ({"ssl.keystore.location": str(garbage)}, "neither PEM nor PKCS#12"),
        (
            {"ssl.keystore.location": issued.write(tmp_path / "a.pem"), "ssl.keystore.type": "PKCS12"},
            "ssl.keystore.type is PKCS12, but .*a.pem is a PEM file. Set ssl.keystore.type=PEM.",
        ),
        ({"ssl.keystore.location": issued.write(tmp_path / "b.pem", "x")}, "is encrypted. Set ssl.key.password"),
        (
            {"ssl.keystore.location": issued.write(tmp_path / "c.pem", "x"), "ssl.key.password": "y"},
            "ssl.key.password is wrong",
        ),
        ({"ssl.keystore.key": issued.key_pem()}, "ssl.keystore.certificate.chain is not set"),
        (
            {"ssl.keystore.key": issued.key_pem(), "ssl.keystore.certificate.chain": other.certificate_pem},
            "the private key does not belong to the certificate",
        ),
        (
            {"ssl.keystore.location": expired.write(tmp_path / "d.pem")},
            r"d.pem: the certificate of CN=old expired 3 days ago",
        ),
        ({"ssl.keystore.location": authority.write(tmp_path / "e.pem")}, "no usable private key"),
    ):
        with pytest.raises(ConfigError, match=error):
            server_context(settings)
    unreadable = tmp_path / "unreadable.pem"
    unreadable.write_text(UNREADABLE)
    for settings, error in (
        ({"ssl.enabled.protocols": "TLSv1.1"}, "Invalid value TLSv1.1"),
        ({"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.2"}, "leave no TLS version enabled"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NONSENSE"}, "no such cipher suite"),
        ({"ssl.truststore.certificates": "nonsense"}, "has no certificate"),
        (
            {"ssl.truststore.certificates": UNREADABLE},
            r"^ssl\.truststore\.certificates has a certificate that",
        ),
        (
            {"ssl.truststore.location": str(unreadable)},
            r"^ssl\.truststore\.location: .*unreadable\.pem has a",
        ),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "Invalid value ldap"),
    ):
        with pytest.raises(ConfigError, match=error):
            client_context(settings)


def test_a_subject_is_written_as_java_writes_it(authority: Authority) -> None:
    """The form of X500Principal.getName(), which mapping rules and ACLs refer to."""
    for subject in (
        "CN=alice,OU=shop,O=Example,L=Delft,ST=ZH,C=NL",
        r"CN=Doe\, Jane,O=A \+ B",
        "CN=a+UID=b,DC=example,DC=org",
    ):
        issued = authority.issue(subject, hosts=())
        assert read_pem_certificates(issued.certificate_pem)[0].subject == subject
    with_mail = authority.issue("1.2.840.113549.1.9.1=a@b.c,CN=x", hosts=())
    assert read_pem_certificates(with_mail.certificate_pem)[0].subject.startswith("1.2.840.113549.1.9.1=#")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has files in memory")
def test_no_private_key_is_written_to_a_disk(issued: Issued, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed in that moment would leave it there, also the key of an encrypted PKCS#12 file."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    open_files = len(os.listdir("/proc/self/fd"))
    server_context({"ssl.keystore.key": issued.key_pem(), "ssl.keystore.certificate.chain": issued.certificate_pem})
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_systems_without_files_in_memory_use_one_that_only_this_user_can_read(
    issued: Issued, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server_context({"ssl.keystore.key": issued.key_pem(), "ssl.keystore.certificate.chain": issued.certificate_pem})
    assert list(tmp_path.iterdir()) == []


def test_an_authority_without_key_usage_is_trusted_with_every_python(tmp_path: Path) -> None:
    """Kafka's documentation creates such authorities, with `openssl req -x509`. Python 3.13 rejects them by default."""
    authority = Authority(has_key_usage=False)
    keys = {"ssl.keystore.type": "PEM", "ssl.keystore.location": authority.issue().write(tmp_path / "key.pem")}
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority.write(tmp_path / "ca.pem")}
    assert handshake(
        server_context({**keys, **trust, "ssl.client.auth": "required"}), client_context({**keys, **trust})
    )
