"""Random faults for a simulated cluster. Each one ends by itself after a while; a few can overlap."""

import asyncio
import random

from ottla.testing.cluster_world import ClusterWorld, SimBroker

KILL, STOP, POWER, PAUSE, LONG_PAUSE = "kill", "stop", "power", "pause", "long pause"
PART, ISOLATE, PART_STORE, PART_CLIENTS, CUT = "part", "isolate", "part store", "part clients", "cut"
STORE_AWAY, CLOCK = "store away", "clock"

PROCESSES = (KILL, STOP)
NETWORK = (PART, ISOLATE, PART_STORE, PART_CLIENTS, CUT, STORE_AWAY)
ALL = (KILL, KILL, STOP, PAUSE, LONG_PAUSE, PART, ISOLATE, PART_STORE, PART_CLIENTS, CUT, STORE_AWAY, CLOCK)


class Faults:
    """Makes things fail, chosen by the seed."""

    def __init__(self, world: ClusterWorld, kinds: tuple[str, ...], *, at_once: int = 1) -> None:
        self.world = world
        self.kinds = kinds
        self.random = random.Random(world.random.random())
        self._slots = asyncio.Semaphore(at_once)
        self._running: set[asyncio.Task[None]] = set()
        self._busy: set[int] = set()
        """Brokers to which something is happening."""

    async def strike(self, times: int, *, every_s: tuple[float, float] = (0.05, 1.5)) -> None:
        """Lets `times` faults happen one after the other, and returns when the last one is over."""
        for _ in range(times):
            await asyncio.sleep(self.random.uniform(*every_s))
            await self._slots.acquire()
            task = asyncio.get_running_loop().create_task(self._one(self.random.choice(self.kinds)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        for task in list(self._running):
            await task

    async def _one(self, kind: str) -> None:
        try:
            free = [broker for broker in self.world.brokers.values() if broker.id not in self._busy and broker.is_up]
            if kind == CUT:
                self.world.note("all connections are cut")
                self.world.network.cut_all()
            elif kind == STORE_AWAY:
                await self._store_away()
            elif free:
                victim = self.random.choice(free)
                self._busy.add(victim.id)
                try:
                    await self._happens(kind, victim)
                finally:
                    self._busy.discard(victim.id)
        finally:
            self._slots.release()

    async def _store_away(self) -> None:
        self.world.note("the store is away")
        self.world.hub.is_away = True
        await self._a_while(0.5, 2 * self.world.session_timeout_ms / 1000)
        self.world.note("the store is back")
        self.world.hub.is_away = False

    async def _happens(self, kind: str, victim: SimBroker) -> None:
        world, session_s = self.world, self.world.session_timeout_ms / 1000
        if kind in (KILL, POWER):
            victim.kill(power_loss=kind == POWER)
            await self._a_while(0, 2.5)
            await victim.start()
        elif kind == STOP:
            await victim.stop()
            await self._a_while(0, 1)
            if not victim.is_up:
                await victim.start()
        elif kind in (PAUSE, LONG_PAUSE):
            victim.pause()
            await self._a_while(*((0.1, session_s * 0.9) if kind == PAUSE else (session_s, session_s * 3)))
            victim.resume()
        elif kind == CLOCK:
            jump_ms = self.random.choice((-60_000, -1_000, 1_000, 60_000))
            world.note(f"the clock of {victim} jumps by {jump_ms} ms")
            victim.clock.jump(jump_ms)
        else:
            others = [other.name for other in world.brokers.values() if other is not victim]
            parted = {
                PART: [self.random.choice(others)],
                ISOLATE: others,
                PART_STORE: [world.store],
                PART_CLIENTS: [world.clients],
            }[kind]
            for other in parted:
                world.part(victim, other)
            await self._a_while(0.2, session_s * 3)
            world.note(f"{victim} is connected again")
            for other in parted:
                world.network.heal(victim.name, other)

    async def _a_while(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.random.uniform(least_s, most_s))
