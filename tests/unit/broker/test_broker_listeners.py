"""Listeners and advertised listeners, and the errors for invalid ones."""

import pytest

from ottla.broker.settings.config import load_config
from ottla.broker.settings.listeners import Listener, advertised_endpoints, parse_listeners
from ottla.errors import ConfigError
from ottla.types import Endpoint


def listeners(text: str, **settings: str) -> list[Listener]:
    return parse_listeners(load_config({"listeners": text} | {k.replace("_", "."): v for k, v in settings.items()}))


def endpoints(text: str, bound_port: int = 9000, **settings: str) -> dict[str, Endpoint]:
    config = load_config({"listeners": text} | {k.replace("_", "."): v for k, v in settings.items()})
    bound = {name: Listener(name, host, port or bound_port) for name, host, port in parse_listeners(config)}
    return advertised_endpoints(config, bound, lambda: "this-machine")


def test_one_listener() -> None:
    assert listeners("PLAINTEXT://127.0.0.1:9092") == [Listener("PLAINTEXT", "127.0.0.1", 9092)]


def test_every_interface_and_ipv6() -> None:
    assert listeners("PLAINTEXT://:9092")[0].is_wildcard
    assert listeners("PLAINTEXT://0.0.0.0:9092")[0].is_wildcard
    assert listeners("PLAINTEXT://[::1]:9092") == [Listener("PLAINTEXT", "::1", 9092)]


def test_several_named_listeners() -> None:
    found = listeners(
        "INSIDE://127.0.0.1:1, outside://:2", listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"
    )
    assert found == [Listener("INSIDE", "127.0.0.1", 1), Listener("OUTSIDE", "", 2)]


def test_the_controllers_listener_of_a_kafka_config_is_left_out() -> None:
    found = listeners(
        "PLAINTEXT://:9092,CONTROLLER://:9093",
        controller_listener_names="CONTROLLER",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    )
    assert [listener.name for listener in found] == ["PLAINTEXT"]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "listeners"),
        ("127.0.0.1:9092", {}, "Invalid value 127.0.0.1:9092 for configuration listeners"),
        ("PLAINTEXT://127.0.0.1", {}, "Invalid value"),
        ("PLAINTEXT://127.0.0.1:x", {}, "Invalid value"),
        ("PLAINTEXT://127.0.0.1:65536", {}, "Invalid value"),
        ("PLAINTEXT://:1,PLAINTEXT://:2", {}, "has PLAINTEXT twice"),
        ("UNKNOWN://:1", {}, "No security protocol defined for listener UNKNOWN"),
        ("A://:1", {"listener_security_protocol_map": "A:TLS"}, "TLS is not a security protocol"),
        ("A://:1,B://:1", {"listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT"}, "the same port twice"),
        ("PLAINTEXT://:1", {"listener_security_protocol_map": "PLAINTEXT"}, "listener.security.protocol.map"),
        ("PLAINTEXT://:1", {"inter_broker_listener_name": "X"}, "inter.broker.listener.name is X"),
        ("CONTROLLER://:1", {"controller_listener_names": "CONTROLLER"}, "has no address"),
    ],
)
def test_invalid_listeners_are_refused_with_a_reason(text: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        listeners(text, **settings)


def test_the_broker_advertises_where_it_listens() -> None:
    assert endpoints("PLAINTEXT://127.0.0.1:9092") == {"PLAINTEXT": Endpoint("127.0.0.1", 9092)}


def test_a_port_chosen_by_the_system_is_advertised() -> None:
    assert endpoints("PLAINTEXT://127.0.0.1:0", 41_000) == {"PLAINTEXT": Endpoint("127.0.0.1", 41_000)}


@pytest.mark.parametrize("host", ["", "0.0.0.0", "[::]"])
def test_a_wildcard_listener_is_advertised_as_the_machines_name(host: str) -> None:
    assert endpoints(f"PLAINTEXT://{host}:9092") == {"PLAINTEXT": Endpoint("this-machine", 9092)}


def test_advertised_listeners_override_listeners() -> None:
    assert endpoints("PLAINTEXT://:9092", advertised_listeners="PLAINTEXT://kafka.example:19092") == {
        "PLAINTEXT": Endpoint("kafka.example", 19092)
    }
    assert endpoints("PLAINTEXT://:0", 41_000, advertised_listeners="PLAINTEXT://kafka.example:0") == {
        "PLAINTEXT": Endpoint("kafka.example", 41_000)
    }


@pytest.mark.parametrize(
    ("advertised", "message"),
    [
        ("PLAINTEXT://0.0.0.0:1", "cannot use 0.0.0.0"),
        ("PLAINTEXT://:1", "cannot use an empty host"),
        ("OTHER://a:1", "advertised.listeners has OTHER"),
        ("a:1", "Invalid value a:1 for configuration advertised.listeners"),
    ],
)
def test_advertised_addresses_no_client_could_use_are_refused(advertised: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        endpoints("PLAINTEXT://:9092", advertised_listeners=advertised)
