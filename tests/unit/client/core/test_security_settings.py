"""TLS and SASL from the settings of Java, librdkafka and Python programs, and the errors for mistakes."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from ottla.client.core.security import client_security
from ottla.client.core.settings import AdminConfig, ConsumerConfig, ProducerConfig, build
from ottla.config import describe, settings_of
from ottla.errors import ConfigError
from ottla.net.client.client_security import ClientSecurity
from tests.support.certificates import Authority

MODULES = "org.apache.kafka.common.security"
SECRET = "s3cr3t-of-alice"


def jaas(module: str, **options: str) -> str:
    return f"{MODULES}.{module} required " + " ".join(f'{name}="{value}"' for name, value in options.items()) + ";"


JAVA_SCRAM = jaas("scram.ScramLoginModule", username="alice", password=SECRET)
JAVA_PLAIN = jaas("plain.PlainLoginModule", username="alice", password=SECRET)
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}


def secured(settings: dict[str, Any]) -> ClientSecurity:
    keywords = {name: value for name, value in settings.items() if "_" in name}  # as in Python programs
    dotted = {name: value for name, value in settings.items() if "_" not in name}
    found = client_security(build(AdminConfig, dotted, keywords))
    assert found is not None
    return found


def login_of(settings: dict[str, Any]) -> str:
    return str(secured(settings).login)


def test_a_client_without_security_settings_uses_plain_tcp() -> None:
    assert client_security(build(ProducerConfig, {}, {})) is None
    assert client_security(build(ConsumerConfig, {"security.protocol": "plaintext"}, {})) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAVA_SCRAM},
        {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": SECRET,
        },
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "alice",
            "sasl_plain_password": SECRET,
        },
    ],
    ids=["java", "librdkafka", "kafka-python"],
)
def test_the_settings_of_each_client_give_the_same_login(settings: dict[str, Any]) -> None:
    assert login_of(settings) == "SCRAM-SHA-512 as alice"


def test_settings_may_be_keywords() -> None:
    config = build(
        ConsumerConfig,
        None,
        {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_jaas_config": JAVA_PLAIN},
    )
    assert str(client_security(config)) == "ClientSecurity(SASL_PLAINTEXT, PLAIN as alice)"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    authority = Authority()
    alice = authority.issue("CN=alice")
    found = {"ca": authority.pem, "key": alice.key_pem(), "locked": alice.key_pem("pw"), "chain": alice.certificate_pem}
    for name, text in found.items():
        (tmp_path / f"{name}.pem").write_text(text)
    paths = {name: str(tmp_path / f"{name}.pem") for name in found}
    return paths | {"both": alice.write(tmp_path / "both.pem"), "p12": alice.write_pkcs12(tmp_path / "alice.p12", "pw")}


def test_tls_reads_files_and_text_under_the_names_of_each_client(files: dict[str, str]) -> None:
    texts = {name: Path(path).read_text() for name, path in files.items() if name != "p12"}
    for settings in (
        {"ssl.truststore.location": files["ca"], "ssl.truststore.type": "PEM", "ssl.keystore.location": files["both"]},
        {"ssl.truststore.location": files["ca"], "ssl.keystore.location": files["p12"], "ssl.keystore.password": "pw"},
        {
            "ssl.truststore.certificates": texts["ca"],
            "ssl.keystore.key": texts["locked"],
            "ssl.keystore.certificate.chain": texts["chain"],
            "ssl.key.password": "pw",
        },
        {
            "ssl.ca.location": files["ca"],
            "ssl.certificate.location": files["chain"],
            "ssl.key.location": files["locked"],
            "ssl.key.password": "pw",
        },
        {"ssl.ca.pem": texts["ca"], "ssl.certificate.pem": texts["chain"], "ssl.key.pem": texts["key"]},
        {"ssl_cafile": files["ca"], "ssl_certfile": files["chain"], "ssl_keyfile": files["key"]},
    ):
        context = secured({"security.protocol": "SSL", **settings}).context
        assert context is not None
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("settings", "checks_name", "verifies"),
    [
        ({}, True, True),
        ({"ssl.endpoint.identification.algorithm": ""}, False, True),
        ({"ssl.endpoint.identification.algorithm": "none"}, False, True),
        ({"ssl_check_hostname": False}, False, True),
        ({"enable.ssl.certificate.verification": "false"}, False, False),
    ],
)
def test_how_much_is_verified_can_be_chosen(settings: dict[str, Any], checks_name: bool, verifies: bool) -> None:
    context = secured({"security.protocol": "SSL", **settings}).context
    assert context is not None
    assert (context.check_hostname, context.verify_mode is ssl.CERT_REQUIRED) == (checks_name, verifies)


def test_a_program_may_bring_its_own_context() -> None:
    own = ssl.create_default_context()
    assert secured({"security.protocol": "SSL", "ssl_context": own}).context is own
    with pytest.raises(ConfigError, match=r"ssl\.context is a str"):
        secured({"security.protocol": "SSL", "ssl_context": "own"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"security.protocol": "TLS"}, r"Invalid value TLS.*must be one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl.mechanism": "PLAIN"}, r"sasl\.mechanism has no effect.*Set security\.protocol"),
        ({"security.protocol": "SASL_SSL"}, "GSSAPI is not supported. Set it to PLAIN, SCRAM-SHA-256"),
        (SASL, r"needs a user and a password: sasl\.username is not set"),
        (SASL | {"sasl.username": "alice"}, r"sasl\.password is not set"),
        (SASL | {"sasl.jaas.config": "nonsense"}, r"sasl\.jaas\.config"),
        (SASL | {"sasl.jaas.config": JAVA_PLAIN}, r"PlainLoginModule, but sasl\.mechanism is SCRAM.*is for PLAIN"),
        (SASL | {"sasl.jaas.config": JAVA_SCRAM, "sasl.username": "bob"}, "are both set"),
        (SASL | {"sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs a token"),
        (
            SASL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://idp.example/token"},
            "needs a client id and a client secret",
        ),
        (
            SASL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "idp.example"},
            "is not an HTTP address",
        ),
        ({"security.protocol": "SSL", "ssl.key.location": "key.pem"}, r"ssl\.certificate\.location is not set"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/no/such/file"}, "cannot read /no/such/file"),
        (
            {"security.protocol": "SSL", "ssl.key.location": "/no/key", "ssl.certificate.location": "/no/chain"},
            "cannot read /no/key",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_reported_when_the_client_is_created(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        client_security(build(AdminConfig, settings, {}))
    assert SECRET not in str(raised.value)


def test_settings_never_show_secrets() -> None:
    settings = SASL | {"sasl.jaas.config": JAVA_SCRAM, "ssl.key.password": SECRET, "ssl.truststore.password": SECRET}
    config = build(ProducerConfig, settings, {})
    security = client_security(config)
    for shown in (repr(config), str(config), str(describe(config)), repr(security), repr(security and security.login)):
        assert SECRET not in shown
    with pytest.raises(ConfigError, match=r"Invalid value \[hidden\] for configuration sasl\.password"):
        build(ProducerConfig, {"sasl.password": {SECRET: 1}}, {})


def test_every_setting_that_holds_a_secret_is_marked_as_one() -> None:
    for name, known in settings_of(ProducerConfig).items():
        is_secret = name.endswith((".password", ".secret", ".key", "jaas.config", "certificates", "certificate.chain"))
        assert known.is_sensitive == is_secret, name
