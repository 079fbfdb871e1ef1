"""Requests that any broker can answer go to the one with the fewest requests in flight. Spec: B2."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from ottla.client.core.coordinator_lookup import CoordinatorFinder
from ottla.client.core.network import Network
from ottla.client.core.settings import ClientConfig
from ottla.net.backoff import Backoff
from ottla.net.server.server import Connection, Server
from ottla.protocol.api import API, ApiKey
from ottla.protocol.framing import decode_request_header, encode_response
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataResponse

SERVED = (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.LIST_GROUPS)


class Cluster:
    """Three brokers that answer what a client needs to know about them, and never answer ListGroups."""

    def __init__(self) -> None:
        self.servers: dict[int, Server] = {}
        self.ports: dict[int, int] = {}
        self.found_by: list[int] = []
        """The brokers that were asked for a coordinator."""

    async def start(self) -> None:
        for node_id in (1, 2, 3):
            self.servers[node_id] = server = Server(self._handler(node_id))
            self.ports[node_id] = await server.listen("127.0.0.1", 0)

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.close()

    def _handler(self, node_id: int) -> Any:
        def handle(frame: bytes | memoryview, connection: Connection) -> bytes | Awaitable[bytes | None]:
            header = decode_request_header(frame)
            if header.api_key == ApiKey.LIST_GROUPS:
                return asyncio.get_running_loop().create_future()
            return encode_response(
                header.api_key, header.api_version, header.correlation_id, self._answer(node_id, header.api_key)
            )

        return handle

    def _answer(self, node_id: int, api_key: int) -> Any:
        if api_key == ApiKey.API_VERSIONS:
            made = ApiVersionsResponse.ApiVersion
            ranges = [(key, API[key].min_version, API[key].max_version) for key in SERVED]
            return ApiVersionsResponse(
                api_keys=[made(api_key=key, min_version=low, max_version=high) for key, low, high in ranges]
            )
        if api_key == ApiKey.METADATA:
            brokers = [
                MetadataResponse.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
                for node, port in self.ports.items()
            ]
            return MetadataResponse(brokers=brokers, controller_id=1)
        self.found_by.append(node_id)
        found = FindCoordinatorResponse.Coordinator(key="g", node_id=2, host="127.0.0.1", port=self.ports[2])
        return FindCoordinatorResponse(coordinators=[found])


@pytest.mark.parametrize("least", [1, 2, 3])
def test_the_coordinator_is_asked_of_the_least_loaded_broker(least: int) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        network = Network(ClientConfig(bootstrap_servers=(f"127.0.0.1:{cluster.ports[1]}",)))
        network.random = random.Random(least)
        assert await network.until(lambda: len(network.view.brokers) == 3, 60_000)
        # The others have one and two requests that wait for their answers.
        waiting = [
            asyncio.ensure_future(
                network.request(ApiKey.LIST_GROUPS, lambda version: ListGroupsRequest(), destination=node)
            )
            for number, node in enumerate(node for node in (1, 2, 3) if node != least)
            for _ in range(number + 1)
        ]
        await asyncio.sleep(0)
        for _ in range(5):
            finder = CoordinatorFinder("g", network.view, backoff=Backoff(1, 1))
            network.add(finder)
            network.wake()
            assert await network.until(lambda finder=finder: finder.find() == 2, 60_000)  # type: ignore[misc]
            network.remove(finder)
        assert cluster.found_by == [least] * 5
        await network.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        await cluster.stop()

    asyncio.run(asyncio.wait_for(story(), 60))
