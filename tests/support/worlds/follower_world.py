"""Brokers that share one metadata store, without anything but their follower."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from ottla.broker.settings.config import Settings, load_config
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import BrokerRegistration, ClusterImage
from ottla.metadata.store import MetadataStore
from ottla.types import Endpoint

TIMEOUT_S = 60.0


class FollowerWorld:
    """The followers that run, and their stores, by the id of their broker."""

    def __init__(self, make: Callable[[], MetadataStore]) -> None:
        self._make = make
        self.followers: dict[int, MetadataFollower] = {}
        self.stores: dict[int, MetadataStore] = {}

    async def stop(self, broker_id: int) -> None:
        await self.followers.pop(broker_id).stop()

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a story, and stops every broker that runs at its end."""

        async def whole() -> None:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await story()
            finally:
                for broker_id in list(self.followers):
                    await self.stop(broker_id)

        asyncio.run(whole())


class BrokersWorld(FollowerWorld):
    """Followers with the settings of a broker, which hand over leadership before they stop."""

    async def start(self, broker_id: int, **settings: str) -> MetadataFollower:
        config = load_config({name.replace("_", "."): value for name, value in settings.items()})
        store = self._make()
        follower = MetadataFollower(store, Settings(config))
        await follower.start(registration(broker_id))
        self.followers[broker_id], self.stores[broker_id] = follower, store
        return follower

    async def stop(self, broker_id: int) -> None:
        follower = self.followers.pop(broker_id)
        await follower.leave(5_000)
        await follower.stop()

    async def crash(self, broker_id: int) -> None:
        """The process is killed: no transfer of leadership, and its session ends."""
        follower = self.followers.pop(broker_id)
        duties = follower._duties  # noqa: SLF001 (a crash stops it without the steps of stop())
        assert duties is not None
        duties.cancel()
        await asyncio.gather(duties, return_exceptions=True)
        follower._stop_watching()  # noqa: SLF001
        await self.stores[broker_id].close()


def registration(broker_id: int) -> BrokerRegistration:
    return BrokerRegistration(broker_id, 0, {"PLAINTEXT": Endpoint("127.0.0.1", 9000 + broker_id)})


async def until(follower: MetadataFollower, check: Callable[[ClusterImage], bool]) -> ClusterImage:
    """Waits for an image for which `check` returns true."""
    arrived = asyncio.Event()
    end = follower.subscribe(lambda image: arrived.set() if check(image) else None)
    await arrived.wait()
    end()
    return follower.image


@contextlib.asynccontextmanager
async def recording(follower: MetadataFollower) -> AsyncIterator[list[ClusterImage]]:
    """The images that are published inside the `async with`, starting with the current one."""
    images: list[ClusterImage] = []
    end = follower.subscribe(images.append)
    yield images
    end()
