"""A broker's admin side in memory: the real follower, settings and handlers, without sockets or logs."""

import asyncio
import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ottla.broker.dispatch import SERVED, handler_for
from ottla.broker.services import Context, Services
from ottla.broker.settings.config import Settings, load_config
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import BrokerRegistration, ClusterImage
from ottla.protocol.api import API
from ottla.security.principal import ANONYMOUS
from ottla.testing.memory_store import MemoryStore, MemoryTree
from ottla.types import Endpoint

ENDPOINTS = {"PLAINTEXT": Endpoint("127.0.0.1", 9092), "OUTSIDE": Endpoint("kafka.example.com", 19092)}


class AdminWorld:
    """Brokers that share a metadata store. Requests and responses go through their wire form.

    >>> with AdminWorld() as world:
    ...     response = world.ask(MetadataRequest(topics=None), 12)
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.runner = asyncio.Runner()
        self.tree = MemoryTree()
        self.principal = ANONYMOUS
        """Who asks."""
        self.followers: dict[int, MetadataFollower] = {}
        self.services = self.add_broker(0, settings or {})

    def __enter__(self) -> "AdminWorld":
        return self

    def __exit__(self, *_: object) -> None:
        for broker_id in list(self.followers):
            self.remove_broker(broker_id)
        self.runner.close()

    def add_broker(
        self,
        broker_id: int,
        settings: Mapping[str, str] | None = None,
        endpoints: Mapping[str, Endpoint] = ENDPOINTS,
        rack: str | None = None,
    ) -> Services:
        config = load_config({**(settings or {}), "node.id": str(broker_id)})
        known = Settings(config)
        follower = MetadataFollower(MemoryStore(self.tree), known)
        self.runner.run(follower.start(BrokerRegistration(broker_id, 0, endpoints, rack)))
        self.followers[broker_id] = follower
        self.settle()
        parts: dict[str, Any] = dict.fromkeys(inspect.signature(Services).parameters)
        parts |= {"broker_id": broker_id, "config": config, "settings": known, "metadata": follower}
        return Services(**parts)

    def remove_broker(self, broker_id: int) -> None:
        self.runner.run(self.followers.pop(broker_id).stop())
        self.settle()

    def settle(self) -> None:
        """Lets every broker apply all changes and the controller act on them."""

        async def turns() -> None:
            for _ in range(50):
                await asyncio.sleep(0)

        self.runner.run(turns())

    @property
    def image(self) -> ClusterImage:
        return self.services.image

    def ask(self, request: Any, version: int, *, listener: str = "PLAINTEXT", broker: Services | None = None) -> Any:
        """The response to `request` in `version`."""
        return self.runner.run(self.answer(request, version, listener=listener, broker=broker))

    async def answer(
        self, request: Any, version: int, *, listener: str = "PLAINTEXT", broker: Services | None = None
    ) -> Any:
        api = API[request.api_key]
        assert version in SERVED[request.api_key].versions
        received = api.request.decode(request.encode(version), version)
        connection: Any = SimpleNamespace(client_host="/127.0.0.1", listener=listener, principal=self.principal)
        context = Context(broker or self.services, version, "test", connection, request.api_key)
        response = handler_for(request.api_key)(received, context)
        if not isinstance(response, api.response):
            response = await response
        return api.response.decode(response.encode(version), version)
