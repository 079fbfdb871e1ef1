"""Where a broker listens, and the addresses that clients get: `listeners` and `advertised.listeners`. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ottla.broker.settings.config import BrokerConfig
from ottla.broker.settings.listener_security import LISTENER_SETTINGS, PREFIX, RATE_SETTING
from ottla.checks import endpoint_from_text
from ottla.errors import ConfigError
from ottla.security.protocols import SecurityProtocol
from ottla.types import INT32_MAX, Endpoint

WILDCARDS = frozenset({"", "0.0.0.0", "::"})
"""Hosts that stand for every interface; clients cannot connect to them."""
EXAMPLE = "Write NAME://HOST:PORT, for example PLAINTEXT://127.0.0.1:9092."


class Listener(NamedTuple):
    """A named address to listen on."""

    name: str
    host: str
    port: int

    @property
    def is_wildcard(self) -> bool:
        return self.host in WILDCARDS


def connection_rates(config: BrokerConfig, texts: Mapping[str, str]) -> dict[str, float]:
    """The most connections per second of each listener that has a limit; of the broker under the empty name.

    `texts` are the broker's settings as text, with those that were changed at run time.
    """
    rates: dict[str, float] = {}
    if config.max_connection_creation_rate < INT32_MAX:
        rates[""] = config.max_connection_creation_rate
    for listener in parse_listeners(config):
        name = f"{PREFIX}{listener.name.lower()}.{RATE_SETTING}"
        if name in texts:
            rates[listener.name] = LISTENER_SETTINGS[RATE_SETTING].parse(texts[name])
    return rates


def parse_listeners(config: BrokerConfig) -> list[Listener]:
    """The listeners of a broker. Raises ConfigError."""
    protocols = _protocols(config.listener_security_protocol_map)
    found = []
    for listener in _parse("listeners", config.listeners):
        if listener.name in config.controller_listener_names:
            continue
        protocol = protocols.get(listener.name)
        if protocol is None:
            raise ConfigError(
                f"No security protocol defined for listener {listener.name}",
                f"Add {listener.name}:PLAINTEXT to listener.security.protocol.map.",
            )
        if protocol not in SecurityProtocol.__members__:
            raise ConfigError(
                f"listener.security.protocol.map: {protocol} is not a security protocol",
                f"Use one of {', '.join(SecurityProtocol.__members__)}.",
            )
        found.append(listener)
    if not found:
        raise ConfigError("listeners has no address to listen on", EXAMPLE)
    ports = [listener.port for listener in found if listener.port != 0]
    for port in ports:
        if ports.count(port) > 1:
            raise ConfigError(f"listeners has the same port twice: {port}", "Use a different port for each listener.")
    inter_broker = config.inter_broker_listener_name
    if inter_broker is not None and inter_broker.upper() not in {listener.name for listener in found}:
        raise ConfigError(
            f"inter.broker.listener.name is {inter_broker}, which is not in listeners",
            f"Use one of {', '.join(listener.name for listener in found)}.",
        )
    return found


def security_protocols(config: BrokerConfig) -> dict[str, SecurityProtocol]:
    """The protocol of each listener, by its name. Raises ConfigError."""
    protocols = _protocols(config.listener_security_protocol_map)
    return {listener.name: SecurityProtocol[protocols[listener.name]] for listener in parse_listeners(config)}


def inter_broker_listener(config: BrokerConfig) -> str | None:
    """The listener that other brokers use; None for the first one of each. Raises ConfigError."""
    name, wanted = config.inter_broker_listener_name, config.security_inter_broker_protocol
    if name is not None:
        if wanted is not None:
            raise ConfigError(
                "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
                "Remove one of them.",
            )
        return name.upper()
    if wanted is None:
        return None
    for listener, protocol in security_protocols(config).items():
        if protocol is SecurityProtocol[wanted]:
            return listener
    raise ConfigError(
        f"security.inter.broker.protocol is {wanted}, which no listener uses",
        f"Add a listener such as {wanted}://:9093, or set inter.broker.listener.name.",
    )


def advertised_endpoints(
    config: BrokerConfig, bound: Mapping[str, Listener], host_name: Callable[[], str]
) -> dict[str, Endpoint]:
    """The address for clients of each listener, once the real ports are known.

    Without `advertised.listeners` it is where the broker listens, with this machine's name in place of a wildcard. An
    advertised port of 0 means the port of the listener.
    """
    addresses = {
        listener.name: Endpoint(host_name() if listener.is_wildcard else listener.host, listener.port)
        for listener in bound.values()
    }
    if config.advertised_listeners:
        given = _parse("advertised.listeners", config.advertised_listeners)
        for name, host, port in given:
            if name not in bound:
                raise ConfigError(
                    f"advertised.listeners has {name}, which is not in listeners", f"Use one of {', '.join(bound)}."
                )
            if host in WILDCARDS:
                raise ConfigError(
                    f"advertised.listeners cannot use {host or 'an empty host'}: no client could connect to it",
                    "Use a host name or address at which clients reach this broker.",
                )
            addresses[name] = Endpoint(host, port or bound[name].port)
    return addresses


def check_advertised(config: BrokerConfig) -> None:
    """Checks `advertised.listeners` before anything is started."""
    advertised_endpoints(config, {listener.name: listener for listener in parse_listeners(config)}, lambda: "localhost")


def parse_metrics_listen(text: str) -> tuple[str, int]:
    """The host and port of `ottla.metrics.listen`. Raises ConfigError."""
    endpoint = endpoint_from_text(text)
    if endpoint is None:
        raise ConfigError(
            f"Invalid value {text} for configuration ottla.metrics.listen",
            "Write HOST:PORT, for example 127.0.0.1:9308.",
        )
    return endpoint


def _parse(setting: str, items: Sequence[str]) -> list[Listener]:
    found: dict[str, Listener] = {}
    for item in items:
        name, separator, address = item.partition("://")
        endpoint = endpoint_from_text(address)
        if not (separator and name) or endpoint is None:
            raise ConfigError(f"Invalid value {item} for configuration {setting}", EXAMPLE)
        # Kafka ignores the case of listener names.
        name = name.upper()
        if name in found:
            raise ConfigError(f"{setting} has {name} twice", "Use a different name for each listener.")
        found[name] = Listener(name, *endpoint)
    return list(found.values())


def _protocols(text: str) -> dict[str, str]:
    found = {}
    for item in filter(None, text.split(",")):
        name, colon, protocol = item.partition(":")
        if not colon:
            raise ConfigError(
                f"Invalid value {item} for configuration listener.security.protocol.map", "Write NAME:PROTOCOL."
            )
        found[name.strip().upper()] = protocol.strip().upper()
    return found
