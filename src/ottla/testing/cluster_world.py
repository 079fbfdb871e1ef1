"""A cluster of brokers and its clients in one simulated world: every machine, disk and connection can fail.

>>> async def story(world):
...     async with world.admin() as admin:
...         await admin.create_topic("orders", partitions=3, replication_factor=3)
...     async with world.producer() as producer:
...         await (await producer.send("orders", b"42 apples"))
...         world.leader_of("orders", 0).kill()
...         await (await producer.send("orders", b"7 pears"))
>>> ClusterWorld(seed=7, brokers=3).run(story)
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ottla.broker.broker import Broker
from ottla.broker.settings.config import load_config
from ottla.client.admin.admin import AsyncAdmin
from ottla.client.consumer.consumer import AsyncConsumer
from ottla.client.producer.producer import AsyncProducer
from ottla.clock import BootClock, MonotonicMs
from ottla.errors import KafkaError, OttlaError
from ottla.metadata.image import NO_IMAGE, ClusterImage
from ottla.metadata.store import Change, SessionExpired, StoreUnavailable
from ottla.testing.sim_disk import SimDisk, SimPlatter
from ottla.testing.sim_loop import SimClock, SimHost, SimLoop
from ottla.testing.sim_network import OUTSIDE, SimNetwork
from ottla.testing.sim_store import STORE, SimStore, SimStoreHub

Result = TypeVar("Result")

DATA = "/data"
PORT = 9092
PAUSE_S = 0.02
"""The interval in which a condition that a story waits for is checked."""
RESTART_S = 0.5
"""How long a supervisor waits before it retries a failed start."""
STARTS_MAX = 600
EVENTS_SHOWN = 60


class SimBroker:
    """One machine with a disk and a broker. The machine can be killed, paused and cut off; the disk stays."""

    def __init__(self, world: "ClusterWorld", broker_id: int) -> None:
        self.world = world
        self.id = broker_id
        self.name = f"broker-{broker_id}"
        self.address = f"10.0.0.{broker_id}"
        self.platter = SimPlatter(world.loop)
        skew_ms = world.clock_skew_ms
        self.clock = SimClock(world.loop, world.random.randint(-skew_ms, skew_ms))
        """The wall clock of this machine."""
        self._started_ms = world.random.randint(0, 10_000_000)
        self.broker: Broker | None = None
        """The running broker, or None."""
        self.host: SimHost | None = None
        self._disk: SimDisk | None = None
        self._store: SimStore | None = None
        self._boots = 0
        self.starts = 0

    def __repr__(self) -> str:
        return self.name

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    @property
    def is_paused(self) -> bool:
        return self.host is not None and self.host.is_paused

    def monotonic(self) -> MonotonicMs:
        """Every machine counts from a different start: a time of one is meaningless on another."""
        return MonotonicMs(self.world.loop.monotonic() + self._started_ms)

    async def start(self) -> None:
        """Starts the broker, and retries until it runs, as a supervisor does. Does nothing if it is running."""
        if self.is_up:
            return
        for _ in range(STARTS_MAX):
            self.starts += 1
            self.world.note(f"{self} starts")
            self.host = host = SimHost(self.world.loop, self.name)
            self._disk = self.platter.disk()
            self._store = self.world.hub.session(self.name, session_timeout_ms=self.world.session_timeout_ms)
            self.broker = broker = self._make()
            try:
                await self._run(broker.start())
            except (OttlaError, KafkaError, StoreUnavailable, SessionExpired) as error:
                self.world.note(f"{self} cannot start: {error!r}")
                if self.host is host:
                    self._power_off()
                await asyncio.sleep(RESTART_S)
                if self.is_up:
                    return  # started by another task
            else:
                self.world.note(f"{self} is up" if host.alive else f"{self} was killed while it started")
                return
        raise AssertionError(f"{self} did not start in {STARTS_MAX} attempts")

    def _make(self) -> Broker:
        config = load_config(
            {
                "listeners": f"PLAINTEXT://{self.address}:{PORT}",
                "log.dirs": DATA,
                "node.id": str(self.id),
                **self.world.settings,
                **self.world.settings_of.get(self.id, {}),
            }
        )
        return Broker(
            config,
            disk=self._disk,
            store=self._store,
            clock=self.clock,
            monotonic=self.monotonic,
            boot=BootClock(f"{self.name} boot {self._boots}", self.monotonic),
            rng=random.Random(self.world.random.random()),
        )

    def kill(self, *, power_loss: bool = False) -> None:
        """Like SIGKILL: everything that was written stays. With `power_loss`, only synced data is guaranteed."""
        if not self.is_up:
            return
        self.world.note(f"{self} {'loses power' if power_loss else 'is killed'}")
        assert self._store is not None
        self.world.before_kill(self)
        self._power_off()
        self.world.hub.died(self._store)
        if power_loss:
            self._boots += 1
            self.platter.power_loss()

    def _power_off(self) -> None:
        assert self.host is not None
        assert self._disk is not None
        self.host.kill()
        self._disk.detach()
        self.broker = None

    async def stop(self) -> None:
        """A clean shutdown."""
        assert self.broker is not None
        self.world.note(f"{self} stops")
        host = self.host
        await self._run(self.broker.stop())
        if self.host is host and self.is_up:
            self.world.note(f"{self} has stopped")
            self._power_off()

    def pause(self) -> None:
        """Like SIGSTOP: its callbacks wait, its connections stay open, its session expires after a while."""
        if self.host is not None and self.is_up:
            self.world.note(f"{self} is paused")
            self.host.pause()

    def resume(self) -> None:
        if self.host is not None and self.host.is_paused:
            self.world.note(f"{self} is resumed")
            self.host.resume()

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine on this machine. Returns when it is done or the machine is dead."""
        assert self.host is not None
        over: asyncio.Future[None] = self.world.loop.create_future()

        def end(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        task = self.host.start(coroutine)
        task.add_done_callback(end)
        self.host.on_kill(end)
        await over
        if task.done():
            task.result()


class ClusterWorld:
    """Several brokers, a metadata store and any number of clients. A run depends on its seed alone."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        session_timeout_ms: int = 3_000,
        notices_death: bool = True,
        clock_skew_ms: int = 0,
        settings_of: dict[int, dict[str, str]] | None = None,
        **settings: str,
    ) -> None:
        self.seed = seed
        self.loop = SimLoop(seed)
        self.random = random.Random(seed)
        self.network = SimNetwork(self.loop)
        self.hub = SimStoreHub(self.network, notices_death=notices_death)
        self.session_timeout_ms = session_timeout_ms
        self.clock_skew_ms = clock_skew_ms
        """The wall clocks of two brokers differ by up to twice this."""
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings_of = settings_of or {}
        """Further settings of single brokers, by id."""
        self.client_clock = SimClock(self.loop)
        self.events: list[str] = []
        """What happened to the machines, in order."""
        self.brokers = {broker_id: SimBroker(self, broker_id) for broker_id in range(brokers)}
        self.before_kill: Callable[[SimBroker], None] = lambda broker: None
        """Called before a broker is killed, for checks on its state."""
        self._image = (-1, NO_IMAGE)

    def run(self, story: Callable[["ClusterWorld"], Awaitable[Result]]) -> Result:
        """Starts all brokers and runs `story`. If it fails, the exception has a note with the seed and the events."""

        async def whole() -> Result:
            await self.start_all()
            return await story(self)

        urandom, os.urandom = os.urandom, self.loop.random.randbytes  # topic and member ids depend on the seed too
        try:
            return self.loop.run(whole())
        except BaseException as error:
            error.add_note("\n".join([f"seed {self.seed}, the last events:", *self.events[-EVENTS_SHOWN:]]))
            raise
        finally:
            os.urandom = urandom

    def note(self, event: str) -> None:
        self.events.append(f"{self.loop.time():9.3f} {event}")

    # --- machines -----------------------------------------------------------------------------------------

    async def start_all(self) -> None:
        """Starts every broker that is not running."""
        down = [broker for broker in self.brokers.values() if not broker.is_up]
        await asyncio.gather(*(broker.start() for broker in down))

    @property
    def up(self) -> list[SimBroker]:
        """The brokers that run and are not paused."""
        return [broker for broker in self.brokers.values() if broker.is_up and not broker.is_paused]

    def part(self, one: "SimBroker | str", other: "SimBroker | str") -> None:
        """No byte passes between two machines; `world.clients` and `world.store` are machines too."""
        self.note(f"{one} and {other} are partitioned")
        self.network.partition(str(one), str(other))

    clients = OUTSIDE
    store = STORE

    def heal(self) -> None:
        """Ends all partitions, and resumes paused machines."""
        self.note("all connections are healed")
        self.network.heal()
        self.hub.is_away = False
        for broker in self.brokers.values():
            broker.resume()

    # --- the cluster --------------------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        """The cluster as the store has it now."""
        tree = self.hub.tree
        if self._image[0] != tree.revision:
            changes = [Change(entry.key, entry, entry.modified) for entry in tree.entries.values()]
            self._image = (tree.revision, NO_IMAGE.apply(changes, tree.revision))
        return self._image[1]

    @property
    def controller(self) -> SimBroker | None:
        return self.brokers.get(self.image.controller_id)

    def leader_of(self, topic: str, partition: int = 0) -> SimBroker:
        """The broker that leads a partition according to the store."""
        return self.brokers[self.image.topics[topic].partitions[partition].leader]

    def followers_of(self, topic: str, partition: int = 0) -> list[SimBroker]:
        found = self.image.topics[topic].partitions[partition]
        return [self.brokers[replica] for replica in found.replicas if replica != found.leader]

    async def until(self, condition: Callable[[], bool], what: str, patience_s: float = 60) -> None:
        """Waits for a condition, in simulated time."""
        deadline = self.loop.time() + patience_s
        while not condition():
            assert self.loop.time() < deadline, f"timed out after {patience_s} s: {what}"
            await asyncio.sleep(PAUSE_S)

    # --- clients ------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{broker.address}:{PORT}" for broker in self.brokers.values())

    def producer(self, **settings: Any) -> AsyncProducer:
        return AsyncProducer({"bootstrap.servers": self.bootstrap}, **self._of_a_client(), **settings)

    def consumer(self, **settings: Any) -> AsyncConsumer:
        return AsyncConsumer({"bootstrap.servers": self.bootstrap}, **self._of_a_client(), **settings)

    def admin(self, **settings: Any) -> AsyncAdmin:
        return AsyncAdmin({"bootstrap.servers": self.bootstrap}, **self._of_a_client(), **settings)

    def _of_a_client(self) -> dict[str, Any]:
        return {"clock": self.client_clock, "rng": random.Random(self.random.random())}
