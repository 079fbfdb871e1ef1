"""A whole broker and its clients in one simulated world: seeded time, network and disk.

>>> def story(world):
...     ...
>>> World(seed=7).run(story)
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.producer.producer import AsyncProducer
from ottla.testing.memory_store import MemoryStore, MemoryTree
from ottla.testing.sim_disk import SimDisk, SimPlatter
from ottla.testing.sim_loop import SimHost, SimLoop
from ottla.testing.sim_network import SimNetwork

DATA = "/data"
PORT = 9092
BOOTSTRAP = f"127.0.0.1:{PORT}"


class World:
    """One broker, any number of clients. What a story does to them depends on the seed alone."""

    def __init__(self, seed: int, **settings: str) -> None:
        self.seed = seed
        self.loop = SimLoop(seed)
        self.random = random.Random(seed)
        self.network = SimNetwork(self.loop)
        self.platter = SimPlatter(self.loop)
        self.tree = MemoryTree()
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.broker: Broker | None = None
        self._host: SimHost | None = None
        self._disk: SimDisk | None = None
        self._store: MemoryStore | None = None
        self.starts = 0

    def run(self, story: Callable[["World"], Awaitable[Any]]) -> Any:
        """Tells a story; a failure names the seed that repeats it."""

        async def whole() -> Any:
            await self.start_broker()
            return await story(self)

        try:
            return self.loop.run(whole())
        except BaseException as error:
            error.add_note(f"seed {self.seed}")
            raise

    # --- the broker ---------------------------------------------------------------------------------------

    async def start_broker(self) -> None:
        self.starts += 1
        self._host = SimHost(self.loop, "broker")
        self._disk = self.platter.disk()
        self._store = MemoryStore(self.tree)
        config = load_config(
            {"listeners": f"PLAINTEXT://127.0.0.1:{PORT}", "log.dirs": DATA, "node.id": "0", **self.settings}
        )
        self.broker = Broker(config, disk=self._disk, store=self._store, clock=self.loop.clock)
        await self._host.start(self.broker.start())

    def kill_broker(self, *, power_loss: bool = False) -> None:
        """SIGKILL: what was written stays. With power loss only what was synced is sure to."""
        assert self._host is not None and self._disk is not None and self._store is not None
        self._host.kill()
        self._disk.detach()
        self.tree.end_session(self._store.session_id)
        if power_loss:
            self.platter.power_loss()

    async def stop_broker(self) -> None:
        assert self._host is not None and self.broker is not None and self._disk is not None
        await self._host.start(self.broker.stop())
        self._host.kill()
        self._disk.detach()

    # --- clients ------------------------------------------------------------------------------------------

    def producer(self, **settings: Any) -> AsyncProducer:
        return AsyncProducer(
            {"bootstrap.servers": BOOTSTRAP}, clock=self.loop.clock, rng=random.Random(self.random.random()), **settings
        )

    def consumer(self, **settings: Any) -> AsyncConsumer:
        return AsyncConsumer(
            {"bootstrap.servers": BOOTSTRAP}, clock=self.loop.clock, rng=random.Random(self.random.random()), **settings
        )

    def admin(self) -> AsyncAdmin:
        return AsyncAdmin({"bootstrap.servers": BOOTSTRAP})

    async def read_all(self, topic: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
        """(offset, value) of every record that a reader sees from the beginning to the end of now."""
        async with self.consumer(auto_offset_reset="earliest") as consumer:
            ends = await consumer.end_offsets([(topic, partition)])
            end = next(iter(ends.values()))
            await consumer.assign([(topic, partition)])
            await consumer.seek_to_beginning([(topic, partition)])
            found: list[tuple[int, bytes | None]] = []
            for _ in range(10_000):
                if (found and found[-1][0] >= end - 1) or end == 0:
                    break
                found += [(record.offset, record.value) for record in await consumer.poll(1000)]
            return found
