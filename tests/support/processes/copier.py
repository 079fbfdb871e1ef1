"""Consume, transform, produce: copies one topic into another in transactions, despite failures of the broker.

`Copier` is the transactional copier with raw requests (Spec: R1). `FatefulDisk` kills the broker at a chosen write.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from ottla.errors import KafkaError
from ottla.testing.sim_disk import SimDisk, SimPlatter
from ottla.testing.world import BOOTSTRAP, World
from tests.support.wire.transactional import Protocol, RawClient, TransactionalProducer

INPUT, OUTPUT, GROUP = "input", "output", "copiers"
ABORTED = b"must never be seen"


class FatefulDisk(SimDisk):
    """Calls `fate` once, right after the n-th write or sync of this life."""

    def __init__(self, platter: SimPlatter, countdown: int | None, fate: Callable[[], None]) -> None:
        super().__init__(platter)
        self.countdown = countdown
        self.steps = 0
        self._fate = fate

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.countdown:
            self._fate()

    def append(self, handle: int, buffers: Any) -> int:
        written = super().append(handle, buffers)
        self._step()
        return written

    def sync(self, handle: int) -> None:
        super().sync(handle)
        self._step()


class Copier:
    """Copies `INPUT` to `OUTPUT`, by partition. After a fatal error it continues from the committed offset."""

    def __init__(
        self,
        world: World,
        protocol: Protocol,
        partitions: int,
        *,
        transactional_id: str = "copier",
        batch: int = 3,
        aborts: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        self.world = world
        self.protocol = protocol
        self.partitions = partitions
        self.transactional_id = transactional_id
        self.batch = batch
        self.aborts = aborts
        self.random = rng or world.random
        self.instances = 0

    async def run(self) -> None:
        """Until everything is copied."""
        for _ in range(200):
            client = RawClient(BOOTSTRAP, self.transactional_id)
            try:
                self.instances += 1
                if await self._instance(client):
                    return
            except KafkaError:
                pass  # fenced, or must abort: the next instance continues from the last commit
            finally:
                client.close()
        raise AssertionError("no instance copied everything")

    async def _instance(self, client: RawClient) -> bool:
        producer = TransactionalProducer(client, self.transactional_id, self.protocol, clock=self.world.loop.clock)
        # The producer first: it ends the last instance's transaction, which may commit the position read next.
        await producer.start()
        await client.find_coordinator(GROUP, 0)
        positions = {
            partition: max(0, await client.committed_offset(GROUP, INPUT, partition))
            for partition in range(self.partitions)
        }
        ends = {p: await client.end_offset(INPUT, p, isolation=1) for p in range(self.partitions)}
        while any(positions[p] < ends[p] for p in ends):
            following = dict(positions)
            doomed = self.random.random() < self.aborts
            for partition in range(self.partitions):
                if positions[partition] >= ends[partition]:
                    continue
                records, following[partition] = await client.read(
                    INPUT, partition, positions[partition], limit=self.batch
                )
                values = [ABORTED if doomed else value for _, value in records]
                await producer.send(OUTPUT, partition, values)
            await producer.send_offsets(GROUP, {(INPUT, p): offset for p, offset in following.items()})
            if doomed:
                await producer.abort()
            else:
                await producer.commit()
                positions = following
        return True


async def fill(client: RawClient, partitions: int, count: int) -> None:
    """The input: `count` records in each partition, each value once, some aborted ones between them."""
    await client.create_topic(INPUT, partitions)
    await client.create_topic(OUTPUT, partitions)
    writer = TransactionalProducer(client, "filler")
    await writer.start()
    for partition in range(partitions):
        half = count // 2
        await writer.send(INPUT, partition, [b"%d-%d" % (partition, i) for i in range(half)])
        await writer.commit()
        await writer.send(INPUT, partition, [ABORTED])
        await writer.abort()
        await writer.send(INPUT, partition, [b"%d-%d" % (partition, i) for i in range(half, count)])
        await writer.commit()


async def check(client: RawClient, partitions: int, count: int) -> None:
    """Exactly once, in order, nothing aborted, nothing left open."""
    for partition in range(partitions):
        await settle(client, OUTPUT, partition)
        found = [value for _, value in (await client.read(OUTPUT, partition))[0]]
        assert found == [b"%d-%d" % (partition, i) for i in range(count)], f"partition {partition}: {found}"
        assert await client.committed_offset(GROUP, INPUT, partition) == await client.end_offset(
            INPUT, partition, isolation=1
        )


async def settle(client: RawClient, topic: str, partition: int) -> None:
    """The last stable offset reaches the end: no transaction hangs."""
    for _ in range(300):
        stable = await client.end_offset(topic, partition, isolation=1)
        if stable == await client.end_offset(topic, partition, isolation=0):
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"{topic}-{partition}: the last stable offset stays at {stable}")


async def one_copy(world: World, protocol: Protocol, kill_after: int | None, power_loss: bool) -> int:
    """Copies two transactions while the broker is killed after its n-th write; returns the number of writes."""
    client = RawClient(BOOTSTRAP)
    await fill(client, 2, 4)
    died = asyncio.Event()

    def die() -> None:
        world.kill_broker(power_loss=power_loss)
        died.set()

    disk = FatefulDisk(world.platter, kill_after, die)
    await world.stop_broker()
    world.platter.disk = lambda: disk  # type: ignore[method-assign]
    await world.start_broker()
    del world.platter.disk
    started = disk.steps
    if kill_after is not None:
        disk.countdown = started + kill_after

    async def revive() -> None:
        await died.wait()
        await asyncio.sleep(0.05)
        await world.start_broker()

    reviving = asyncio.ensure_future(revive())
    await Copier(world, protocol, 2, batch=2).run()
    if kill_after is not None and not died.is_set():
        # The fatal write came after the copy: a marker or a completion.
        await asyncio.sleep(1)
    reviving.cancel() if not died.is_set() else await reviving
    await check(client, 2, 4)
    return disk.steps - started
