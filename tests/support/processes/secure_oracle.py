"""A real Apache Kafka with TLS and SASL, to compare with and to connect our client to.

In a test, take the session fixture `secure_kafka`: all workers of a run share one broker.

>>> def test_a_client_logs_in(secure_kafka: SecureKafka) -> None:
...     with Admin(secure_kafka.client_settings("SASL_SSL", "SCRAM-SHA-512")) as admin: ...

Its listeners, by name (`secure_kafka.addresses[name]` is host:port on localhost):

- `PLAINTEXT`: no security; the fixture's own, and a place to make a mistake
- `SSL`: TLS; `MTLS`: TLS with a required client certificate
- `SASL_SSL`, `SASL_PLAINTEXT`: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER (tokens without signature)
- `EXPIRED`, `ELSEWHERE`: TLS with a certificate that has expired, or that is for another host
- `BRIEF`: SASL_PLAINTEXT with sessions of 2 seconds, longer on a busy machine (connections.max.reauth.ms, KIP-368)

The users ADMIN and ALICE have their password in `PASSWORDS` for PLAIN and SCRAM. The certificates are in
`secure_kafka.directory`: `ca.pem`, `alice.pem` (key and chain of CN=alice), `stranger.pem` (of another CA,
`another-ca.pem`).
There is no authorizer, unless SecureKafkaProcess gets `overrides` with one.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.certificates import Authority
from tests.support.processes.oracle import SHARED_OVERRIDES, RealKafka, keep, kept
from tests.support.waiting import stretched

ADMIN, ALICE = "admin", "alice"
PASSWORDS = {ADMIN: "admin-s3cr3t", ALICE: "alice-s3cr3t"}
LISTENERS = {
    "SSL": "SSL",
    "MTLS": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "SASL_SSL": "SASL_SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "BRIEF": "SASL_PLAINTEXT",
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SESSION_MS = stretched(2_000)
"""Of the broker that this process starts; the shared one tells its own."""
_MODULES = "org.apache.kafka.common.security"


def jaas_config(mechanism: str, user: str = ALICE, password: str | None = None) -> str:
    """`sasl.jaas.config` of a client, as a Java program has it."""
    secret = PASSWORDS[user] if password is None else password
    if mechanism == "OAUTHBEARER":
        return f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{user}";'
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return f'{_MODULES}.{module} required username="{user}" password="{secret}";'


class SecureKafka(NamedTuple):
    """Where the shared broker is, and the settings of clients for it."""

    addresses: Mapping[str, str]
    directory: Path
    pid: int
    session_ms: int = SESSION_MS
    """Of the listener BRIEF."""

    def client_settings(
        self, listener: str, mechanism: str = "", user: str = ALICE, password: str | None = None
    ) -> dict[str, str]:
        """The settings of a client in the form that a Java program has them in its client.properties."""
        protocol = LISTENERS.get(listener, listener)
        settings = {"bootstrap.servers": self.addresses[listener], "security.protocol": protocol}
        if protocol.endswith("SSL"):
            settings |= {"ssl.truststore.location": str(self.directory / "ca.pem"), "ssl.truststore.type": "PEM"}
        if listener == "MTLS":
            settings |= {"ssl.keystore.location": str(self.directory / "alice.pem"), "ssl.keystore.type": "PEM"}
        if protocol.startswith("SASL"):
            settings |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas_config(mechanism, user, password)}
        return settings


class SecureKafkaProcess(RealKafka):
    """One secured broker for the length of a `with` block; `directory` gets the certificates."""

    def __init__(self, directory: Path, overrides: Mapping[str, str] | None = None, **options: Any) -> None:
        write_certificates(directory)
        users = [
            f"{mechanism}=[name={user},password={password}]"
            for user, password in PASSWORDS.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]
        super().__init__(
            {**SHARED_OVERRIDES, **security_settings(directory), **(overrides or {})},
            listeners=LISTENERS,
            format_options=[word for user in users for word in ("--add-scram", user)],
            **options,
        )


def security_settings(directory: Path) -> dict[str, str]:
    """The broker's settings. Ottla's broker takes the same, apart from the users of SCRAM."""
    settings = {
        "ssl.keystore.location": str(directory / "broker.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        "ssl.truststore.type": "PEM",
        "listener.name.expired.ssl.keystore.location": str(directory / "expired.pem"),
        "listener.name.elsewhere.ssl.keystore.location": str(directory / "elsewhere.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.brief.connections.max.reauth.ms": str(SESSION_MS),
    }
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    plain = f"{_MODULES}.plain.PlainLoginModule required {users};"
    scram = f"{_MODULES}.scram.ScramLoginModule required;"
    oauth = f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{ADMIN}";'
    for name, protocol in LISTENERS.items():
        if protocol.startswith("SASL"):
            prefix = f"listener.name.{name.lower()}"
            settings |= {
                f"{prefix}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
                f"{prefix}.plain.sasl.jaas.config": plain,
                f"{prefix}.scram-sha-256.sasl.jaas.config": scram,
                f"{prefix}.scram-sha-512.sasl.jaas.config": scram,
                f"{prefix}.oauthbearer.sasl.jaas.config": oauth,
            }
    return settings


def write_certificates(directory: Path, expired_after_s: float = -60) -> None:
    """`expired.pem` expires so many seconds from now."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    authority.write(directory / "ca.pem")
    authority.issue("CN=broker").write(directory / "broker.pem")
    authority.issue("CN=broker", days=(-30, expired_after_s / 86_400)).write(directory / "expired.pem")
    authority.issue("CN=broker", hosts=["elsewhere.example"]).write(directory / "elsewhere.pem")
    authority.issue(f"CN={ALICE}").write(directory / "alice.pem")
    another = Authority("CN=another authority")
    another.write(directory / "another-ca.pem")
    another.issue("CN=stranger").write(directory / "stranger.pem")


def shared_secure_kafka(directory: Path, owner_pid: int) -> SecureKafka:
    """One secured Kafka per test run, as `shared_kafka`."""
    published = kept(directory, "secure_oracle", owner_pid)
    addresses = {name: published[name] for name in LISTENERS} | {"PLAINTEXT": published["bootstrap"]}
    return SecureKafka(addresses, directory / "secure_oracle", published["pid"], published["session_ms"])


if __name__ == "__main__":
    address_file = Path(sys.argv[1])
    keep(
        address_file, int(sys.argv[2]), lambda: SecureKafkaProcess(address_file.with_suffix("")), session_ms=SESSION_MS
    )
