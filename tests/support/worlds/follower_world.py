"""Brokers that share one metadata store, without anything but their follower."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

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


def registration(broker_id: int) -> BrokerRegistration:
    return BrokerRegistration(broker_id, 0, {"PLAINTEXT": Endpoint("127.0.0.1", 9000 + broker_id)})


async def until(follower: MetadataFollower, check: Callable[[ClusterImage], bool]) -> ClusterImage:
    """Waits for an image for which `check` returns true."""
    arrived = asyncio.Event()
    end = follower.subscribe(lambda image: arrived.set() if check(image) else None)
    await arrived.wait()
    end()
    return follower.image
