"""Brokers whose listeners use TLS and SASL, and what clients need to connect to them.

>>> security = Security(tmp_path)
>>> async with running_broker(tmp_path, security.settings("SASL_SSL", ["PLAIN"])) as broker: ...
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from tests.support.certificates import Authority, Issued

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
MODULES = {"PLAIN": PLAIN_MODULE, "SCRAM-SHA-256": SCRAM_MODULE, "SCRAM-SHA-512": SCRAM_MODULE}

USERS = {"admin": "admin-secret", "alice": "alice-secret", "bob": "bob-secret"}
"""The users of PLAIN. Brokers log in to each other as admin."""


class Security:
    """An authority with certificates for one test, and settings that use them."""

    def __init__(self, directory: Path, *, hosts: Sequence[str] = ("localhost", "127.0.0.1")) -> None:
        self.directory = directory
        self.authority = Authority()
        self.broker = self.authority.issue("CN=broker,O=Ottla", hosts=hosts)
        self.authority_file = self.authority.write(directory / "authority.pem")
        self.broker_file = self.broker.write(directory / "broker.pem")

    def settings(
        self, protocol: str, mechanisms: Sequence[str] = (), *, listener: str | None = None, port: int = 0
    ) -> dict[str, str]:
        """The settings of a broker with one listener."""
        name = listener or protocol
        found = {
            "listeners": f"{name}://127.0.0.1:{port}",
            "listener.security.protocol.map": f"{name}:{protocol}",
            "inter.broker.listener.name": name,
        }
        if "SSL" in protocol:
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": self.broker_file,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self.authority_file,
            }
        if mechanisms:
            found |= {
                "sasl.enabled.mechanisms": ",".join(mechanisms),
                "sasl.mechanism.inter.broker.protocol": next(each for each in mechanisms if each in MODULES),
            }
            for mechanism in mechanisms:
                if mechanism in MODULES:
                    found[f"listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"] = broker_jaas(mechanism)
        return found

    def client(self, subject: str = "CN=alice,O=Ottla", *, days: tuple[int, int] = (-1, 30)) -> Issued:
        """A certificate for a client; `days` as in Authority.issue."""
        return self.authority.issue(subject, hosts=(), days=days)

    def client_file(self, name: str = "alice") -> str:
        return self.client(f"CN={name},O=Ottla").write(self.directory / f"{name}.pem")


def broker_jaas(mechanism: str) -> str:
    login = f'{MODULES[mechanism]} required username="admin" password="{USERS["admin"]}"'
    users = "".join(f' user_{name}="{password}"' for name, password in USERS.items()) if mechanism == "PLAIN" else ""
    return f"{login}{users};"


@asynccontextmanager
async def running_broker(data: Path, settings: Mapping[str, str]) -> AsyncIterator[Broker]:
    """A broker on the running loop."""
    broker = Broker(load_config({"log.dirs": str(data), **settings}))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
