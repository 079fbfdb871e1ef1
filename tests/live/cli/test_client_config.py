"""The commands and a broker with TLS and SASL: a client.properties, the environment, and one line for every mistake."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Broker, Producer
from ottla.cli.client_config import read_client_properties
from ottla.errors import ConfigError
from tests.support.command_line import Run
from tests.support.waiting import PATIENCE_S

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def secure() -> Iterator[Any]:
    with Broker.embedded(secure=True) as broker:
        yield broker


@pytest.fixture
def properties(secure: Any, tmp_path: Path) -> Path:
    """As in a Java program, with settings that only its other clients need."""
    settings = secure.client_settings
    path = tmp_path / "client.properties"
    path.write_text(
        f"# of the shop\nbootstrap.servers={secure.bootstrap}\nsecurity.protocol=SASL_SSL\n"
        f"sasl.mechanism = SCRAM-SHA-512\nsasl.jaas.config={MODULE} required \\\n"
        f'    username="ottla" \\\n    password="{settings["sasl.password"]}";\n'
        f"ssl.truststore.location: {settings['ssl.ca.location']}\nssl.truststore.type=PEM\n"
        "acks=all\ngroup.id=billing\nenable.auto.commit=true\n"
        "key.serializer=org.apache.kafka.common.serialization.StringSerializer\n"
    )
    path.chmod(0o600)
    return path


@pytest.fixture
def bootstrap() -> None:
    """The tests name the address in a file or on the command line."""


def test_every_command_works_with_the_file_alone(
    secure: Any, properties: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("topic", "create", "orders", "-c", "retention.ms=-1", "--command-config", str(properties)).status == 0
    monkeypatch.setenv("OTTLA_CONFIG", str(properties))
    records = tmp_path / "records"
    records.write_text("hello\nworld\n")
    assert run("produce", "orders", "--file", str(records)).status == 0
    assert run("consume", "orders", "--exit-at-end").out == "hello\nworld\n"
    assert run("consume", "orders", "--group", "g", "--exit-at-end").out == "hello\nworld\n"
    for words in (
        ("topic", "list"),
        ("topic", "describe", "orders"),
        ("group", "list"),
        ("group", "describe", "g"),
        ("group", "history", "g"),
        ("txn", "list"),
        ("cluster",),
        ("config", "describe", "topic", "orders"),
        ("user", "list"),
    ):
        ran = run(*words)
        assert (ran.status, ran.err) == (0, ""), words


def test_the_address_of_the_command_line_comes_before_that_of_the_file(properties: Path, run: Run) -> None:
    ran = run("topic", "list", "--config", str(properties), "--bootstrap", "127.0.0.1:1")
    assert ran.status == 1
    assert "cannot connect to 127.0.0.1:1" in ran.err


def test_settings_of_security_on_the_command_line_reach_every_client_of_a_command(secure: Any, run: Run) -> None:
    settings = secure.client_settings
    with Producer(settings) as producer:
        producer.send("by-hand", b"x").result(PATIENCE_S)
    given = [
        word for name, value in settings.items() for word in ("--set", f"{name}={value}") if "bootstrap" not in name
    ]
    assert run("consume", "by-hand", "-e", "-b", secure.bootstrap, *given).out == "x\n"


def test_mistakes_are_one_line_with_a_hint(secure: Any, properties: Path, run: Run) -> None:
    password = secure.client_settings["sasl.password"]
    text = properties.read_text()
    for changed, status, said in (
        (text.replace(password, "guess"), 1, "rejected SCRAM-SHA-512 as ottla: Authentication failed"),
        (text.replace("sasl.mechanism", "sasl.mechanizm"), 2, "Unknown setting sasl.mechanizm (Did you mean sasl.mech"),
        (text.replace("SASL_SSL", "SASL_PLAINTEXT"), 1, "uses TLS, but this client does not"),
        (text.replace("ssl.truststore", "# "), 1, "is not signed by a CA that this client trusts"),
        (text.replace(";\n", "\n"), 2, "sasl.jaas.config does not end with a semicolon"),
    ):
        properties.write_text(changed)
        ran = run("topic", "list", "--config", str(properties))
        assert (ran.status, ran.out) == (status, "")
        assert said in ran.err
        assert ran.err.count("\n") == 1
        assert password not in ran.err
    ran = run("topic", "list", "-b", secure.bootstrap)
    assert "uses TLS, but this client does not (Set security.protocol" in ran.err
    assert "no such file" in run("topic", "list", "--config", "/no/such/file").err


def test_a_file_with_secrets_that_others_can_read_gives_a_warning(properties: Path, run: Run) -> None:
    properties.chmod(0o644)
    ran = run("topic", "list", "--config", str(properties))
    assert ran.status == 0
    assert "every user of this machine can read it (mode 0644) (run: chmod 600" in ran.err
    properties.chmod(0o640)
    assert run("topic", "list", "--config", str(properties)).err == ""


@pytest.mark.parametrize(
    "text",
    [
        "ssl.keystore.key=-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n",
        "ssl.keystore.key=-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7==\n",
    ],
)
def test_a_key_that_was_pasted_wrongly_is_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as raised:
        read_client_properties(path)
    assert "MIIE" not in str(raised.value)


def test_the_file_is_read_as_java_does(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_bytes(b"! comment\nsasl.username=J\\u00fcrgen\nclient.id:caf\xe9\nssl.key.password=a\\\n   b\\=c\n")
    path.chmod(0o600)
    assert read_client_properties(path) == {"sasl.username": "Jürgen", "client.id": "café", "ssl.key.password": "ab=c"}


def test_a_pipeline_reaches_the_brokers_and_shows_no_secret(
    secure: Any, properties: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With references in its file, and with the settings of a client.properties."""
    settings = secure.client_settings
    with Producer(settings) as producer:
        producer.send("sold", b"{}").result(PATIENCE_S)
        producer.send("earned", b"{}").result(PATIENCE_S)
    text = "source: {topic: sold, schema: id bigint}\nsql: SELECT id FROM sold\nsink: {topic: earned}\n"
    file = tmp_path / "revenue.yaml"
    file.write_text(text)
    monkeypatch.setenv("SHOP_PASSWORD", settings["sasl.password"])
    own = "".join(f"  {name}: {value}\n" for name, value in settings.items() if name[:2] != "bo")
    own = own.replace(settings["sasl.password"], "${env:SHOP_PASSWORD}")
    for written, options in (
        (f"{text}bootstrap: {secure.bootstrap}\nkafka:\n{own}", []),
        (text, ["--command-config", str(properties)]),
    ):
        file.write_text(written)
        assert run("pipeline", "validate", str(file), "--no-spark", *options).status == 0
        ran = run("pipeline", "status", str(file), "--json", *options)
        assert ran.status == 0
        assert '"notes": []' in ran.out  # the lag is known
        assert settings["sasl.password"] not in ran.out + ran.err
    file.write_text(f"{text}bootstrap: {secure.bootstrap}\nkafka:\n{own}")
    monkeypatch.delenv("SHOP_PASSWORD")
    ran = run("pipeline", "validate", str(file), "--no-spark")
    assert ran.status != 0
    assert "kafka.sasl.password" in ran.out + ran.err
    assert "environment variable SHOP_PASSWORD is not set" in ran.out + ran.err
