"""What the metrics page shows about TLS and SASL."""

import asyncio
from pathlib import Path

import pytest

from ottla.broker.monitoring.metrics import Metrics
from ottla.security.sasl.client_exchanges import PlainExchange
from tests.support.secure_brokers import USERS, Security, connected, running_broker

pytest.importorskip("prometheus_client")


def test_logins_failures_and_certificates_are_counted(tmp_path: Path) -> None:
    async def story() -> None:
        security = Security(tmp_path)
        settings = security.settings("SASL_SSL", ["PLAIN"]) | {"connection.failed.authentication.delay.ms": "0"}
        settings["listeners"] += ",SASL_PLAINTEXT://127.0.0.1:0"
        settings["listener.security.protocol.map"] += ",SASL_PLAINTEXT:SASL_PLAINTEXT"
        jaas = settings["listener.name.sasl_ssl.plain.sasl.jaas.config"]
        settings["listener.name.sasl_plaintext.plain.sasl.jaas.config"] = jaas
        async with running_broker(tmp_path / "data", settings) as broker:
            assert broker.server is not None
            metrics = Metrics(broker.dispatcher, broker.server, broker.services)
            metrics.security = broker.listener_security
            async with connected(broker, security.client_context()) as client:
                await client.log_in("PLAIN", PlainExchange("alice", USERS["alice"]))
                async with connected(broker, security.client_context()) as stranger:
                    await stranger.log_in("PLAIN", PlainExchange("alice", "wrong"))
                async with connected(broker) as plain:
                    plain.writer.write(b"\0" * 64)
                    await plain.is_closed()
                page = metrics.page().body.decode()
        for line in (
            'ottla_authentications_total{listener="SASL_SSL",result="success"} 1.0',
            'ottla_authentications_total{listener="SASL_SSL",result="failure"} 1.0',
            'ottla_authentications_total{listener="SASL_PLAINTEXT",result="success"} 0.0',
            "ottla_tls_handshake_failures_total 1.0",
            "ottla_unauthenticated_connections 0.0",
            'ottla_certificate_expiry_timestamp_seconds{listener="SASL_SSL"} 1.',
        ):
            assert line in page, page

    asyncio.run(asyncio.wait_for(story(), 60))
