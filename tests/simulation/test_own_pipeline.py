"""A group of Ottla's own consumers and transactional producers copies a topic in a simulated world. Spec: E9, R1

Members and the broker die, pause and lose their connections in the middle of transactions (KIP-447). The output equals
the input, exactly once.
"""

import asyncio
from typing import Any

import pytest

from ottla.client.transactions.errors import TransactionAbortable
from ottla.errors import KafkaError
from ottla.testing.sim_loop import SimHost
from ottla.testing.world import BOOTSTRAP, World
from tests.support.processes.copier import GROUP, INPUT, OUTPUT, fill, settle
from tests.support.seeds import each_seed
from tests.support.wire.transactional import RawClient

PARTITIONS, COUNT = 4, 40
SETTINGS = {
    "offsets_topic_num_partitions": "2",
    "transaction_state_log_num_partitions": "2",
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "500",
    "group_initial_rebalance_delay_ms": "500",
}
WRITING = {
    "request_timeout_ms": 2_000,
    "max_block_ms": 15_000,
    "delivery_timeout_ms": 8_000,
    "linger_ms": 0,
}
READING = {
    "group_id": GROUP,
    "isolation_level": "read_committed",
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 1_000,
    "max_poll_interval_ms": 12_000,
    "request_timeout_ms": 2_000,
}


class Member:
    """Consumes, transforms and produces on its own machine. After a fatal error it starts over with new clients."""

    def __init__(self, world: World, name: str, strategy: str) -> None:
        self.world, self.name, self.strategy = world, name, strategy
        self.host = SimHost(world.loop, name)
        self.pause_s = 0.0
        self.stops = False
        self.aborted = self.instances = 0
        self.failure: BaseException | None = None
        self.host.start(self.run())

    async def run(self) -> None:
        try:
            while not self.stops:
                self.instances += 1
                try:
                    await self._instance()
                except KafkaError:
                    await asyncio.sleep(0.1)  # fenced or timed out: the next instance continues
        except BaseException as error:
            self.failure = error

    async def _instance(self) -> None:
        # A short timeout aborts the open transaction of a zombie; with a long one, the group generation must fence it.
        timeout_ms = self.world.random.choice((4_000, 60_000))
        producer = self.world.producer(transactional_id=self.name, transaction_timeout_ms=timeout_ms, **WRITING)
        strategy: dict[str, Any] = {"client_id": self.name, "partition_assignment_strategy": self.strategy}
        consumer = self.world.consumer(**READING, **strategy)
        is_dead = False
        try:
            await producer.init_transactions()
            await consumer.subscribe([INPUT])
            while not self.stops:
                records = list(await consumer.poll(200, max_records=self.world.random.randint(1, 4)))
                if records:
                    await self._copy(producer, consumer, records)
        except GeneratorExit:  # the machine is dead, and the simulation has ended
            is_dead = True
            raise
        finally:
            if not is_dead:
                await producer.close(timeout_ms=0)  # like a crash: the open transaction is not aborted
                await consumer.close(timeout_ms=1_000)

    async def _copy(self, producer: Any, consumer: Any, records: list[Any]) -> None:
        following = {(record.topic, record.partition): record.offset + 1 for record in records}
        await producer.begin_transaction()
        try:
            for record in records:
                await producer.send(OUTPUT, record.value, partition=record.partition)
            await self._pause()
            await producer.send_offsets_to_transaction(following, await consumer.group_metadata())
            await self._pause()
            await producer.commit_transaction()
        except TransactionAbortable:
            self.aborted += 1
            await producer.abort_transaction()
            mine = await consumer.assignment()
            for record in reversed(records):
                if (record.topic, record.partition) in mine:
                    await consumer.seek((record.topic, record.partition), record.offset)

    async def _pause(self) -> None:
        """Works for a while, or pauses in the middle of a transaction when the story asks for it."""
        await asyncio.sleep(self.world.random.uniform(0, 0.8))
        if self.pause_s and self.world.random.random() < 0.5:
            pause_s, self.pause_s = self.pause_s, 0.0
            await asyncio.sleep(pause_s)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@each_seed(5, fast=1)
def test_a_group_copies_exactly_once_despite_faults(seed: int, strategy: str) -> None:
    """Zombies are fenced by the group generation; other members complete the work of crashed ones."""

    async def story(world: World) -> None:
        rng, client, members = world.random, RawClient(BOOTSTRAP), []
        await fill(client, PARTITIONS, COUNT)
        members += [Member(world, f"m{number}", strategy) for number in range(3)]
        for _ in range(10):
            await asyncio.sleep(rng.uniform(0.1, 5))
            living = [member for member in members if member.host.alive]
            victim = rng.choice(living)
            action = rng.choice(["pause", "long pause", "die", "cut", "part", "broker", "join"])
            if action == "pause":
                victim.pause_s = rng.uniform(1, 5)
            elif action == "long pause":
                victim.pause_s = rng.uniform(13, 25)
            elif action == "die":
                victim.host.kill()
                members.append(
                    Member(world, victim.name, strategy)
                )  # the same name: its open transaction is aborted at once
            elif action == "cut":
                world.network.cut(victim.name)
            elif action == "part":
                world.network.partition(victim.name, "broker")
                await asyncio.sleep(rng.uniform(1, 12))
                world.network.heal()
            elif action == "broker":
                world.kill_broker()
                await asyncio.sleep(rng.uniform(0, 3))
                await world.start_broker()
            else:
                members.append(Member(world, f"m{len(members)}", strategy))
        await all_copied(world, client)
        for member in members:
            member.stops = True
        await asyncio.sleep(60)  # the members that are alive leave the group
        for member in members:
            if member.host.alive and member.failure is not None:
                raise member.failure
        for partition in range(PARTITIONS):
            await settle(client, OUTPUT, partition)
            found = [value for _, value in (await client.read(OUTPUT, partition))[0]]
            assert found == [b"%d-%d" % (partition, number) for number in range(COUNT)], "each once, in order"

    World(seed, **SETTINGS).run(story)


async def all_copied(world: World, client: RawClient, patience_s: float = 300) -> None:
    deadline = world.loop.time() + patience_s
    left = set(range(PARTITIONS))
    while left:
        assert world.loop.time() < deadline, f"partitions {left} were never finished"
        for partition in list(left):
            if len((await client.read(OUTPUT, partition))[0]) >= COUNT:
                left.discard(partition)
        await asyncio.sleep(0.5)
