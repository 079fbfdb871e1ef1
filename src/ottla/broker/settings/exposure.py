"""Whether a broker would be open to everyone who can reach its machine: addresses without TLS or SASL. Pure."""

import ipaddress
from collections.abc import Iterator

from ottla.broker.settings.config import BrokerConfig
from ottla.broker.settings.listener_security import PREFIX, ListenerSettings, listener_of
from ottla.broker.settings.listeners import parse_listeners, parse_metrics_listen, security_protocols
from ottla.errors import ConfigError
from ottla.security.protocols import SecurityProtocol
from ottla.types import Endpoint

LISTENERS, METRICS = "listeners", "metrics"
UNENCRYPTED = "unencrypted"
"""SASL without TLS: allowed, with a warning."""
ANONYMOUS = "anonymous"
"""TLS without client certificates and without ACLs: the same."""


def check_exposure(config: BrokerConfig) -> list[str]:
    """Warnings about what is exposed with permission (--insecure). Raises ConfigError for what is exposed without."""
    found = list(_exposed(config))
    for what, address in found:
        if what in _FIXES and what not in config.insecure:
            raise ConfigError(_danger(what, address), _FIXES[what])
    return [*(_danger(what, address) for what, address in found), *_without_listener(config)]


def _exposed(config: BrokerConfig) -> Iterator[tuple[str, str]]:
    """What is reachable from other machines without protection: LISTENERS or METRICS, and the address."""
    protocols = security_protocols(config)
    for listener in parse_listeners(config):
        protocol = protocols[listener.name]
        address = f"{listener.name}://{_shown(listener.host, listener.port)}"
        if is_loopback(listener.host):
            continue
        if protocol is SecurityProtocol.PLAINTEXT:
            yield LISTENERS, address
        elif protocol is SecurityProtocol.SASL_PLAINTEXT:
            yield UNENCRYPTED, address
        elif (
            protocol is SecurityProtocol.SSL
            and not config.authorizer_class_name
            and not _needs_certificate(config, listener.name)
        ):
            yield ANONYMOUS, address
    if config.metrics_listen is not None:
        host, port = parse_metrics_listen(config.metrics_listen)
        if not is_loopback(host):
            yield METRICS, _shown(host, port)


def _needs_certificate(config: BrokerConfig, listener: str) -> bool:
    return bool(ListenerSettings(config.given, listener).value("ssl.client.auth") == "required")


def _without_listener(config: BrokerConfig) -> Iterator[str]:
    """Settings of listeners that this broker does not have: perhaps a protection with a misspelled name."""
    known = {listener.name.lower() for listener in parse_listeners(config)}
    known |= {name.lower() for name in config.controller_listener_names}
    for name in config.given:
        if name.startswith(PREFIX) and listener_of(name) not in known:
            yield f"{name} has no effect: there is no listener {listener_of(name)}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than localhost counts as public.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("localhost"), is_loopback("")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _shown(host: str, port: int) -> str:
    return str(Endpoint(host or "0.0.0.0", port))


def _danger(what: str, address: str) -> str:
    if what == UNENCRYPTED:
        return f"{address} uses SASL without TLS: anyone on the network path can read all records, and PLAIN passwords"
    if what == ANONYMOUS:
        return (
            f"everyone who can reach {address} can read, write and delete everything: it has TLS, but clients need no "
            "certificate (ssl.client.auth=required), and there are no ACLs (authorizer.class.name)"
        )
    if what == METRICS:
        return f"everyone who can reach {address} can read the metrics: the endpoint has neither TLS nor authentication"
    return (
        f"everyone who can reach {address} can read, write and delete everything: the listener has neither TLS nor SASL"
    )


_FIXES = {
    LISTENERS: "Listen on 127.0.0.1, set up TLS or SASL, or pass --insecure if you trust the network "
    "(ottla.insecure=listeners).",
    METRICS: "Use 127.0.0.1, or pass --insecure if you trust the network (ottla.insecure=metrics).",
}
