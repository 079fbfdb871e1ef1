"""A broker and its clients in one simulated world: time, network and disk depend on a seed.

>>> async def story(world):
...     async with world.producer() as producer:
...         await (await producer.send("orders", b"42 apples"))
...     world.kill_broker(power_loss=True)
...     await world.start_broker()
...     return await world.read_all("orders")
>>> World(seed=7, ottla_flush_before_ack="true").run(story)
[(0, b'42 apples')]
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.producer.producer import AsyncProducer
from ottla.clock import BootClock
from ottla.testing.memory_store import MemoryStore, MemoryTree
from ottla.testing.sim_disk import SimDisk, SimPlatter
from ottla.testing.sim_loop import SimClock, SimHost, SimLoop
from ottla.testing.sim_network import SimNetwork

Result = TypeVar("Result")

DATA = "/data"
PORT = 9092
BOOTSTRAP = f"127.0.0.1:{PORT}"


class World:
    """One broker and any number of clients. A run depends on its seed alone."""

    def __init__(self, seed: int, **settings: str) -> None:
        self.seed = seed
        self.loop = SimLoop(seed)
        self.random = random.Random(seed)
        self.broker_clock = SimClock(self.loop)
        """The wall clock of the broker's machine: `world.broker_clock.jump(-60_000)` sets it back by a minute."""
        self.client_clock = SimClock(self.loop)
        """The wall clock of the machine that the clients run on."""
        self.network = SimNetwork(self.loop)
        self.platter = SimPlatter(self.loop)
        self.tree = MemoryTree()
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.broker: Broker | None = None
        self._host: SimHost | None = None
        self._disk: SimDisk | None = None
        self._store: MemoryStore | None = None
        self.starts = 0
        self._boots = 0

    def run(self, story: Callable[["World"], Awaitable[Result]]) -> Result:
        """Starts the broker and runs `story`. If it fails, the exception has a note with the seed that replays it."""

        async def whole() -> Result:
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
        self.broker = Broker(
            config,
            disk=self._disk,
            store=self._store,
            clock=self.broker_clock,
            monotonic=self.loop.monotonic,
            boot=BootClock(f"boot {self._boots}", self.loop.monotonic),
        )
        await self._host.start(self.broker.start())

    def kill_broker(self, *, power_loss: bool = False) -> None:
        """Like SIGKILL: everything that was written stays. With `power_loss`, only synced data is guaranteed."""
        assert self._host is not None
        assert self._disk is not None
        assert self._store is not None
        self._host.kill()
        self._disk.detach()
        self.tree.end_session(self._store.session_id)
        if power_loss:
            self._boots += 1
            self.platter.power_loss()

    async def stop_broker(self) -> None:
        """A clean shutdown."""
        assert self._host is not None
        assert self.broker is not None
        assert self._disk is not None
        await self._host.start(self.broker.stop())
        self._host.kill()
        self._disk.detach()

    # --- clients ------------------------------------------------------------------------------------------

    def producer(self, **settings: Any) -> AsyncProducer:
        return AsyncProducer(
            {"bootstrap.servers": BOOTSTRAP},
            clock=self.client_clock,
            rng=random.Random(self.random.random()),
            **settings,
        )

    def consumer(self, **settings: Any) -> AsyncConsumer:
        return AsyncConsumer(
            {"bootstrap.servers": BOOTSTRAP},
            clock=self.client_clock,
            rng=random.Random(self.random.random()),
            **settings,
        )

    def admin(self) -> AsyncAdmin:
        return AsyncAdmin({"bootstrap.servers": BOOTSTRAP})

    async def read_all(self, topic: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
        """(offset, value) of every record from the beginning to the current end of the partition."""
        async with self.consumer(auto_offset_reset="earliest") as consumer:
            ends = await consumer.end_offsets([(topic, partition)])
            end = next(iter(ends.values()))
            await consumer.assign([(topic, partition)])
            await consumer.seek_to_beginning([(topic, partition)])
            found: list[tuple[int, bytes | None]] = []
            # Not until the last record: control records of transactions may follow it.
            for _ in range(10_000):
                if await consumer.position((topic, partition)) >= end:
                    break
                found += [(record.offset, record.value) for record in await consumer.poll(1000)]
            return found
