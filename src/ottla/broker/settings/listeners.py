"""Where a broker listens and what it tells clients: Kafka's `listeners` and `advertised.listeners`. Pure."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.broker.settings.config import BrokerConfig
from ottla.checks import port_from_text
from ottla.errors import ConfigError
from ottla.types import Endpoint

WILDCARDS = frozenset({"", "0.0.0.0", "::"})
"""Hosts that mean every interface: fine to listen on, of no use to a client."""
EXAMPLE = "for example PLAINTEXT://127.0.0.1:9092"


class Listener(NamedTuple):
    """One address to listen on, by its name."""

    name: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        return self.host in WILDCARDS


def parse_listeners(config: BrokerConfig) -> list[Listener]:
    """The listeners of a broker, the first being its own name for itself. Raises ConfigError."""
    protocols = _protocols(config.listener_security_protocol_map)
    found = []
    for listener in _parse("listeners", config.listeners):
        if listener.name in config.controller_listener_names:
            continue
        protocol = protocols.get(listener.name)
        if protocol is None:
            raise ConfigError(
                f"No security protocol defined for listener {listener.name}",
                f"add {listener.name}:PLAINTEXT to listener.security.protocol.map",
            )
        if protocol != "PLAINTEXT":
            raise ConfigError(f"listener {listener.name} wants {protocol}", "only PLAINTEXT is offered")
        found.append(listener)
    if not found:
        raise ConfigError("listeners names no address to listen on", EXAMPLE)
    ports = [listener.port for listener in found if listener.port != 0]
    if len(ports) != len(set(ports)):
        raise ConfigError("listeners names one port twice", "give each listener its own port")
    inter_broker = config.inter_broker_listener_name
    if inter_broker is not None and inter_broker not in {listener.name for listener in found}:
        raise ConfigError(
            f"inter.broker.listener.name is {inter_broker}, which listeners does not have",
            f"one of {', '.join(listener.name for listener in found)}",
        )
    return found


def advertised_endpoints(
    config: BrokerConfig, bound: Mapping[str, Listener], host_name: Callable[[], str]
) -> dict[str, Endpoint]:
    """What clients of each listener are told, once the real ports are known.

    Without `advertised.listeners` that is where the broker listens, and this machine's name where that is every
    interface. An advertised port of 0 is the one listened on.
    """
    told = {
        listener.name: Endpoint(host_name() if listener.is_wildcard else listener.host, listener.port)
        for listener in bound.values()
    }
    if config.advertised_listeners:
        given = _parse("advertised.listeners", config.advertised_listeners)
        for name, host, port in given:
            if name not in bound:
                raise ConfigError(
                    f"advertised.listeners has {name}, which listeners does not", f"one of {', '.join(bound)}"
                )
            if host in WILDCARDS:
                raise ConfigError(
                    f"advertised.listeners cannot use {host or 'an empty host'}: no client could connect to it",
                    "give the name or address clients reach this broker by",
                )
            told[name] = Endpoint(host, port or bound[name].port)
    return told


def check_advertised(config: BrokerConfig) -> None:
    """Finds faults of `advertised.listeners` before anything is started."""
    advertised_endpoints(config, {listener.name: listener for listener in parse_listeners(config)}, lambda: "localhost")


def _parse(setting: str, text: str) -> list[Listener]:
    found: dict[str, Listener] = {}
    for item in text.split(","):
        name, separator, address = item.strip().partition("://")
        host, colon, number = address.rpartition(":")
        port = port_from_text(number)
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        if not (separator and name and colon) or port is None:
            raise ConfigError(f"Invalid value {item.strip()} for configuration {setting}", EXAMPLE)
        # Kafka takes listener names in any case.
        name = name.upper()
        if name in found:
            raise ConfigError(f"{setting} has {name} twice", "give each listener its own name")
        found[name] = Listener(name, host, port)
    return list(found.values())


def _protocols(text: str) -> dict[str, str]:
    found = {}
    for item in filter(None, text.split(",")):
        name, colon, protocol = item.strip().partition(":")
        if not colon:
            raise ConfigError(
                f"Invalid value {item} for configuration listener.security.protocol.map", "write NAME:PROTOCOL"
            )
        found[name.strip().upper()] = protocol.strip().upper()
    return found
