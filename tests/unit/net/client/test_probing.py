"""The probe for TLS behind an error message, on a loop that has no TLS."""

import asyncio

from ottla.net.client.probing import uses_tls
from ottla.testing import SimLoop
from ottla.types import Endpoint


def test_a_simulated_broker_that_drops_connections_does_not_use_tls() -> None:
    """The client reports the dropped connection, and not that the simulation has no TLS."""

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def main() -> bool:
        await asyncio.start_server(drop, "127.0.0.1", 9092)
        return await uses_tls(Endpoint("127.0.0.1", 9092))

    assert SimLoop(seed=1).run(main()) is False
