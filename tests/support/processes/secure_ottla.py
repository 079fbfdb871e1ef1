"""Ottla with the listeners, users and certificates of the secured Apache Kafka in `secure_oracle`.

OAUTHBEARER differs: Ottla accepts signed tokens only, so here they come from an identity provider.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from ottla import Admin
from ottla.broker.embedded.broker import EmbeddedBroker
from tests.support.identity_provider import Provider, serving_tokens
from tests.support.ports import fixed_port
from tests.support.processes.secure_oracle import (
    LISTENERS,
    PASSWORDS,
    SecureKafka,
    security_settings,
    write_certificates,
)
from tests.support.waiting import stretched

VALID_S = stretched(20_000) / 1000
"""Long enough for the broker to start."""


class SecureOttla(NamedTuple):
    """The running broker."""

    shared: SecureKafka
    broker: EmbeddedBroker
    provider: Provider
    thief: Provider
    """Signs tokens with keys that the broker does not know."""
    token_url: str
    expires_at: float
    """When the certificate of the listener EXPIRED does, by time.monotonic()."""


@contextmanager
def secure_ottla(directory: Path) -> Iterator[SecureOttla]:
    # Ottla does not start with an expired certificate, so this one expires later.
    expires_at = time.monotonic() + VALID_S
    write_certificates(directory, VALID_S)
    (directory / "thief").mkdir()
    provider, thief = Provider(directory), Provider(directory / "thief")
    protocols = {"PLAINTEXT": "PLAINTEXT", **LISTENERS}
    settings = {
        name: value
        for name, value in security_settings(directory).items()
        if not name.endswith(".oauthbearer.sasl.jaas.config")
    }
    settings |= provider.settings()
    settings |= {
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "group.initial.rebalance.delay.ms": "0",
    }
    addresses = {name: f"localhost:{fixed_port()}" for name in protocols}
    listen = ",".join(f"{name}://{address}" for name, address in addresses.items())
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(settings=settings, listen=listen))
        token_url = stack.enter_context(serving_tokens(provider, thief=thief))
        with Admin({"bootstrap.servers": addresses["PLAINTEXT"]}) as admin:
            for user, password in PASSWORDS.items():
                for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                    admin.upsert_user_scram_credential(user, password, mechanism=mechanism)
        shared = SecureKafka(addresses, directory, broker.pid)
        yield SecureOttla(shared, broker, provider, thief, token_url, expires_at)
