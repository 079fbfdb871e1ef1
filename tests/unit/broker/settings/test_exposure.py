"""A broker without TLS and SASL serves only its own machine, unless somebody says otherwise."""

import doctest
from pathlib import Path

import pytest

from ottla.broker.settings import exposure
from ottla.broker.settings.config import load_config
from ottla.broker.settings.exposure import check_exposure
from ottla.cli.serve.command import serve
from ottla.cli.serve.options import parse_options
from ottla.errors import ConfigError


def dangers(**settings: str) -> list[str]:
    return check_exposure(load_config({name.replace("_", "."): value for name, value in settings.items()}))


def test_the_examples_in_docstrings_work() -> None:
    assert doctest.testmod(exposure).failed == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "[::1]", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    assert dangers(listeners=f"PLAINTEXT://{host}:9092", ottla_metrics_listen=f"{host}:9308") == []


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]", "192.168.1.5", "broker.example.org"])
def test_an_address_that_others_can_reach_needs_permission(host: str) -> None:
    listeners = f"PLAINTEXT://{host}:9092"
    with pytest.raises(ConfigError, match="read, write and delete everything") as caught:
        dangers(listeners=listeners)
    assert "--insecure" in caught.value.hint
    (danger,) = dangers(listeners=listeners, ottla_insecure="listeners")
    assert f"{host.strip() or '0.0.0.0'}:9092" in danger


def test_one_open_listener_is_enough() -> None:
    with pytest.raises(ConfigError, match=r"OPEN://0\.0\.0\.0:9093"):
        dangers(
            listeners="SAFE://127.0.0.1:9092,OPEN://:9093",
            listener_security_protocol_map="SAFE:PLAINTEXT,OPEN:PLAINTEXT",
        )


@pytest.mark.parametrize("protocol_map", ["open:PLAINTEXT", "OPEN:plaintext", " Open : Plaintext "])
def test_the_case_of_names_and_protocols_does_not_hide_an_open_listener(protocol_map: str) -> None:
    with pytest.raises(ConfigError, match=r"OPEN://0\.0\.0\.0:9093"):
        dangers(listeners="open://:9093", listener_security_protocol_map=protocol_map)
    (danger,) = dangers(
        listeners="OPEN://:9093",
        listener_security_protocol_map=protocol_map.replace("PLAINTEXT", "SASL_PLAINTEXT")
        .replace("plaintext", "sasl_plaintext")
        .replace("Plaintext", "Sasl_Plaintext"),
        sasl_enabled_mechanisms="SCRAM-SHA-512",
    )
    assert "uses SASL without TLS" in danger


@pytest.mark.parametrize("address", ["0.0.0.0:http", "0.0.0.0:99999", "0.0.0.0"])
def test_a_bad_address_for_metrics_is_a_config_error(address: str) -> None:
    with pytest.raises(ConfigError, match=r"for configuration ottla\.metrics\.listen"):
        dangers(listeners="PLAINTEXT://127.0.0.1:9092", ottla_metrics_listen=address)


def test_sasl_without_tls_is_allowed_with_a_warning() -> None:
    settings = {
        "listener_security_protocol_map": "OPEN:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "SCRAM-SHA-512",
    }
    (danger,) = dangers(listeners="OPEN://:9093", **settings)
    assert "can read all records" in danger
    assert dangers(listeners="OPEN://127.0.0.1:9093", **settings) == []


def test_metrics_need_a_permission_of_their_own() -> None:
    local = "PLAINTEXT://127.0.0.1:9092"
    with pytest.raises(ConfigError, match="can read the metrics"):
        dangers(listeners=local, ottla_metrics_listen=":9308", ottla_insecure="listeners")
    assert len(dangers(listeners=local, ottla_metrics_listen=":9308", ottla_insecure="metrics")) == 1
    with pytest.raises(ConfigError, match="read, write and delete"):
        dangers(listeners="PLAINTEXT://:9092", ottla_insecure="metrics")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen", "0.0.0.0:0"],
        ["--listen", ":0"],
        ["--set", "listeners=PLAINTEXT://:0"],
        ["--config", "FILE"],
        ["--metrics", "0.0.0.0:0"],
    ],
)
def test_serve_refuses_in_one_line_with_the_risk_and_the_fix(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://:0\n")
    words = [str(file) if word == "FILE" else word for word in arguments]
    assert serve([*words, "--data", str(tmp_path / "data")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ottla: everyone who can reach ")
    assert "--insecure" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_the_option_stands_for_both_permissions() -> None:
    assert parse_options(["--insecure"]).values["ottla.insecure"] == "listeners,metrics"
    config = load_config(parse_options(["--insecure", "--listen", ":0", "--metrics", ":0"]).values)
    assert len(check_exposure(config)) == 2


def test_tls_alone_says_nothing_about_who_may_connect() -> None:
    """Everyone can begin a TLS session: only certificates, logins and ACLs keep strangers out."""
    settings = {"listener_security_protocol_map": "OPEN:SSL,SAFE:SSL"}
    (danger,) = dangers(listeners="OPEN://:9093", **settings)
    assert "clients need no certificate" in danger
    (requested,) = dangers(listeners="OPEN://:9093", ssl_client_auth="requested", **settings)
    assert requested == danger
    assert dangers(listeners="OPEN://127.0.0.1:9093", **settings) == []
    assert dangers(listeners="OPEN://:9093", ssl_client_auth="required", **settings) == []
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    assert dangers(listeners="OPEN://:9093", authorizer_class_name=authorizer, **settings) == []
    for_one = {"listener.name.safe.ssl.client.auth": "required"}
    (danger,) = dangers(listeners="OPEN://:9093,SAFE://:9094", **settings, **for_one)
    assert "OPEN://0.0.0.0:9093" in danger


def test_a_protection_of_a_listener_that_does_not_exist_is_named() -> None:
    listeners = {"listeners": "INSIDE://127.0.0.1:9092", "listener.security.protocol.map": "INSIDE:SSL"}
    (warning,) = dangers(**listeners, **{"listener.name.insid.ssl.client.auth": "required"})
    assert warning == "listener.name.insid.ssl.client.auth has no effect: there is no listener insid"
    with pytest.raises(ConfigError, match="must be in lower case") as caught:
        dangers(**listeners, **{"listener.name.INSIDE.ssl.client.auth": "required"})
    assert "listener.name.inside.ssl.client.auth" in caught.value.hint
