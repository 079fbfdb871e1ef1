"""Requests from one broker to another: addresses come from the image, and follow it."""

import asyncio
from pathlib import Path

import pytest
import uvloop

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.errors import ErrorCode, KafkaError
from ottla.metadata.image import BrokerRegistration, ClusterImage
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.replication.broker_peers import BrokerPeers
from ottla.types import Endpoint

NOWHERE = Endpoint("127.0.0.1", 1)


def image_of(broker_id: int, **endpoints: Endpoint) -> ClusterImage:
    return ClusterImage(brokers={broker_id: BrokerRegistration(broker_id, 1, endpoints)})


async def ask(peers: BrokerPeers, broker_id: int) -> list[int]:
    """The ids of the brokers that the asked one knows."""
    answer = await peers.send(broker_id, ApiKey.METADATA, lambda version: MetadataRequest(topics=[]))
    return [broker.node_id for broker in answer.message.brokers]


def test_requests_go_to_the_address_in_the_image(tmp_path: Path) -> None:
    async def story() -> None:
        config = load_config(
            {"node.id": "7", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "data")}
        )
        broker = Broker(config)
        await broker.start()
        address = broker.endpoints["PLAINTEXT"]
        peers, named = BrokerPeers(1), BrokerPeers(1, "INSIDE")
        try:
            with pytest.raises(KafkaError) as unknown:
                await ask(peers, 7)
            assert unknown.value.code is ErrorCode.NETWORK_EXCEPTION
            peers.apply(image_of(7, PLAINTEXT=address))
            assert peers.is_known(7)
            assert await ask(peers, 7) == [7]
            # inter.broker.listener.name chooses; a broker without that listener is reached on its first one.
            named.apply(image_of(7, OUTSIDE=NOWHERE, INSIDE=address))
            assert await ask(named, 7) == [7]
            named.apply(image_of(7, PLAINTEXT=address))
            assert await ask(named, 7) == [7]
            # The broker's own peers know it from its own image.
            assert broker.services.peers is not None
            assert await ask(broker.services.peers, 7) == [7]
        finally:
            await peers.close()
            await named.close()
            await broker.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story(), 60))


def test_requests_to_a_broker_that_left_fail_at_once() -> None:
    async def story() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(60), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        peers = BrokerPeers(1)
        peers.apply(image_of(7, PLAINTEXT=Endpoint("127.0.0.1", port)))
        waiting = asyncio.ensure_future(ask(peers, 7))
        await asyncio.sleep(0)
        peers.apply(ClusterImage())
        with pytest.raises(KafkaError) as lost:
            await waiting
        assert lost.value.code is ErrorCode.NETWORK_EXCEPTION
        assert not peers.is_known(7)
        await peers.close()
        silent.close()

    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(story(), 20))
