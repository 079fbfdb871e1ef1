"""The transactional producer and a whole broker in a simulated world: the output equals the input exactly once,
whatever is killed or disconnected. Spec: E9, R1.
"""

# ruff: noqa: SLF001  (sets up or checks internal state)

import asyncio
from typing import Any

import pytest

from ottla.client.transactions.errors import TransactionAbortable
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.testing.world import BOOTSTRAP, World
from ottla.types import TopicPartition
from tests.support.processes.copier import ABORTED, GROUP, INPUT, OUTPUT, check, fill
from tests.support.seeds import each_seed
from tests.support.wire.transactional import RawClient

SETTINGS = {"offsets_topic_num_partitions": "2", "transaction_state_log_num_partitions": "2"}
VERSIONS = pytest.mark.parametrize("version", [1, 2], ids=["added by request", "added by writing"])
# Killed hosts leave coroutines behind that never finish; Python warns when it deletes them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]
QUICK = {"request_timeout_ms": 2_000, "max_block_ms": 20_000, "delivery_timeout_ms": 10_000, "linger_ms": 0}


class ClientCopier:
    """Copies INPUT to OUTPUT; a new instance starts at the last commit."""

    def __init__(self, world: World, version: int, partitions: int, aborts: float = 0.0) -> None:
        self.world = world
        self.version = version
        self.places = [TopicPartition(INPUT, p) for p in range(partitions)]
        self.aborts = aborts
        self.instances = 0
        self.aborted = 0

    async def run(self) -> None:
        for _ in range(100):
            self.instances += 1
            try:
                if await self._instance():
                    return
            except KafkaError:
                await asyncio.sleep(0.05)  # fenced or timed out: the next instance continues
        raise AssertionError("no instance came to the end")

    async def _instance(self) -> bool:
        producer = self.world.producer(transactional_id="copier", **QUICK)
        consumer = self.world.consumer(isolation_level="read_committed", request_timeout_ms=2_000)
        admin = self.world.admin()
        assert producer._transactional.manager is not None
        if self.version == 1:
            producer._transactional.manager.transaction_version = lambda: 1
        try:
            # First the producer, which ends the last transaction, then the offset that it may have committed.
            await producer.init_transactions()
            stored = await admin.list_group_offsets(GROUP, require_stable=True)
            positions = {p: stored[p].offset if p in stored else 0 for p in self.places}
            await consumer.assign(self.places)
            ends = await consumer.end_offsets(self.places)
            for place, offset in positions.items():
                await consumer.seek(place, offset)
            while any(positions[p] < ends[p] for p in self.places):
                try:
                    positions = await self._transaction(producer, consumer, positions)
                except TransactionAbortable:
                    self.aborted += 1
                    await producer.abort_transaction()
                    for place, offset in positions.items():
                        await consumer.seek(place, offset)
            return True
        finally:
            await consumer.close()
            await admin.close()
            # As after a crash: nothing is closed.
            await producer.close(timeout_ms=0)

    async def _transaction(self, producer: Any, consumer: Any, positions: dict[Any, int]) -> dict[Any, int]:
        records = await consumer.poll(500, max_records=self.world.random.randint(1, 5))
        following = {p: await consumer.position(p) for p in self.places}
        await producer.begin_transaction()
        doomed = self.world.random.random() < self.aborts
        for record in records:
            value = ABORTED if doomed else record.value
            await producer.send(OUTPUT, value, partition=record.partition)
        await producer.send_offsets_to_transaction(following, GROUP)
        if doomed:
            await producer.abort_transaction()
            for place, offset in positions.items():
                await consumer.seek(place, offset)
            return positions
        await producer.commit_transaction()
        return following


@VERSIONS
@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power loss"])
@each_seed(5)
def test_the_copy_is_exact_despite_kills(seed: int, power_loss: bool, version: int) -> None:
    async def story(world: World) -> None:
        client = RawClient(BOOTSTRAP)
        await fill(client, 2, 20)
        copier = ClientCopier(world, version, 2, aborts=0.2)
        copying = asyncio.ensure_future(copier.run())
        for _ in range(world.random.randint(2, 8)):
            await asyncio.sleep(world.random.uniform(0, 0.3))
            chance = world.random.random()
            if chance < 0.3:
                world.network.cut_all()
            elif chance < 0.5:
                world.network.partition("outside", "broker")
                await asyncio.sleep(world.random.uniform(0.1, 6))
                world.network.heal()
            else:
                world.kill_broker(power_loss=power_loss)
                await asyncio.sleep(world.random.uniform(0, 0.5))
                await world.start_broker()
        await copying
        await check(client, 2, 20)

    settings = SETTINGS | ({"ottla_flush_before_ack": "true"} if power_loss else {})
    World(seed, **settings).run(story)


@VERSIONS
@each_seed(5)
def test_instances_that_replace_each_other_never_duplicate_output(seed: int, version: int) -> None:
    """Spec: E9. Every instance is replaced while it works, and the old one runs until it is fenced."""

    async def story(world: World) -> None:
        client = RawClient(BOOTSTRAP)
        await fill(client, 2, 20)
        copiers = [ClientCopier(world, version, 2) for _ in range(3)]
        zombies = []
        for copier in copiers:
            zombies.append(asyncio.ensure_future(copier._instance()))
            await asyncio.sleep(world.random.uniform(0.01, 0.3))
        await asyncio.gather(*zombies, return_exceptions=True)
        await ClientCopier(world, version, 2).run()
        await check(client, 2, 20)
        for zombie in zombies:
            error = zombie.exception()
            assert error is None or (isinstance(error, KafkaError) and error.code == ErrorCode.PRODUCER_FENCED), error

    World(seed, **SETTINGS).run(story)


@each_seed(5)
def test_a_prepared_transaction_survives_broker_kills_and_time(seed: int) -> None:
    """KIP-939: the broker is killed, the producer is gone, hours pass; the transaction can still be ended."""

    async def story(world: World) -> None:
        client = RawClient(BOOTSTRAP)
        await client.create_topic(OUTPUT, 1)
        expected = []
        settings = {"transactional_id": "sink", "transaction_two_phase_commit_enable": True, **QUICK}
        for number in range(4):
            producer = world.producer(**settings)
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send(OUTPUT, f"{number}", partition=0)
            prepared = await producer.prepare_transaction()
            await producer.close()
            world.kill_broker()
            await asyncio.sleep(world.random.uniform(0, 1))
            await world.start_broker()
            await asyncio.sleep(7_200)
            commit = world.random.random() < 0.5
            if commit:
                expected.append(b"%d" % number)
            if world.random.random() < 0.5:
                admin = world.admin()
                await (admin.commit_prepared(prepared) if commit else admin.abort_prepared(prepared))
                await admin.close()
            else:
                successor = world.producer(**settings)
                assert await successor.init_transactions(keep_prepared=True) == prepared
                with pytest.raises(OttlaError):
                    await successor.begin_transaction()
                await (successor.commit_transaction() if commit else successor.abort_transaction())
                await successor.close()
        found, _ = await client.read(OUTPUT, 0)
        assert [value for _, value in found] == expected

    World(seed, **SETTINGS, transaction_two_phase_commit_enable="true").run(story)
