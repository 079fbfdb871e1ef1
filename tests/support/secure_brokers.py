"""Brokers whose listeners use TLS and SASL, and what clients need to connect to them.

>>> security = Security(tmp_path)
>>> async with running_broker(tmp_path, security.settings("SASL_SSL", ["PLAIN"])) as broker: ...
"""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.protocol.api import ApiKey
from ottla.protocol.framing import decode_response, encode_request
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.security.sasl.client_exchanges import ClientExchange
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

    def client_context(self, certificate: str | None = None) -> ssl.SSLContext:
        """Trusts the authority; `certificate` is the file with the client's own."""
        context = ssl.create_default_context(cafile=self.authority_file)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

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


class Client:
    """One connection that speaks the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: Any, version: int) -> Any:
        self.writer.write(encode_request(request.api_key, version, 5, "test", request))
        frame = await self.frame()
        return decode_response(ApiKey(request.api_key), version, frame)[1]

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def bare(self, token: bytes) -> bytes:
        self.writer.write(struct.pack(">i", len(token)) + token)
        return await self.frame()

    async def log_in(self, mechanism: str, exchange: ClientExchange, version: int = 2) -> Any:
        """The last answer."""
        handshake = await self.ask(SaslHandshakeRequest(mechanism=mechanism), 1)
        if handshake.error_code:
            return handshake
        token: bytes | None = exchange.first()
        while token is not None:
            answer = await self.ask(SaslAuthenticateRequest(auth_bytes=token), version)
            if answer.error_code:
                return answer
            token = exchange.next(bytes(answer.auth_bytes))
        return answer

    async def is_closed(self) -> bool:
        """Waits for the end of the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(4096):
                pass
        return True


@asynccontextmanager
async def connected(broker: Broker, context: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    host, _, port = broker.address.rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(port), ssl=context, limit=2**26))
    try:
        yield client
    finally:
        client.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await client.writer.wait_closed()


def principals(broker: Broker) -> set[str]:
    assert broker.server is not None
    return {str(connection.principal) for connection in broker.server.connections}
