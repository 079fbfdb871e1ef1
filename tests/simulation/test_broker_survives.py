"""Broker and clients in a simulated world: no acknowledged record is lost or stored twice. Spec: R6."""

import asyncio

from ottla.errors import KafkaError
from ottla.testing.world import World
from tests.support.seeds import each_seed

FOREVER_MS = 3_600_000


async def produce(world: World, producer_name: str, count: int, acknowledged: dict[bytes, int]) -> None:
    """Sends numbered values and records the offset of each acknowledged one."""
    async with world.producer(delivery_timeout_ms=FOREVER_MS, request_timeout_ms=5_000, linger_ms=2) as producer:
        deliveries = []
        for number in range(count):
            value = f"{producer_name}-{number}".encode()
            deliveries.append((value, await producer.send("t", value, partition=0)))
            if number % 5 == 0:
                await asyncio.sleep(world.random.uniform(0, 0.05))
        for value, delivery in deliveries:
            acknowledged[value] = (await delivery).offset


def check(found: list[tuple[int, bytes | None]], acknowledged: dict[bytes, int], senders: int, count: int) -> None:
    offsets = [offset for offset, _ in found]
    values = [value for _, value in found]
    assert offsets == list(range(len(offsets))), "offsets must have no gaps"
    assert len(set(values)) == len(values), "every value must be stored once"
    places = {value: offset for offset, value in found}
    for value, offset in acknowledged.items():
        assert places.get(value) == offset, f"{value!r} was acknowledged at {offset}, found at {places.get(value)}"
    for sender in range(senders):
        own = [value for value in values if value is not None and value.startswith(f"{sender}-".encode())]
        assert own == [f"{sender}-{number}".encode() for number in range(count)], "a sender's records must be in order"


@each_seed(12)
def test_kills_and_connection_resets_lose_and_duplicate_nothing(seed: int) -> None:
    """SIGKILL, connection resets and network partitions, with idempotent producers."""

    async def story(world: World) -> None:
        acknowledged: dict[bytes, int] = {}
        senders = [asyncio.ensure_future(produce(world, str(i), 60, acknowledged)) for i in range(3)]
        for _ in range(world.random.randint(2, 5)):
            await asyncio.sleep(world.random.uniform(0.01, 0.4))
            chance = world.random.random()
            if chance < 0.3:
                world.network.cut_all()
            elif chance < 0.6:
                world.network.partition("outside", "broker")  # bytes in flight wait, and no end gets an error
                await asyncio.sleep(world.random.uniform(0.1, 12))
                world.network.heal()
            else:
                world.kill_broker()
                await asyncio.sleep(world.random.uniform(0, 2))
                await world.start_broker()
        await asyncio.gather(*senders)
        check(await world.read_all("t"), acknowledged, 3, 60)
        assert len(acknowledged) == 180

    World(seed).run(story)


@each_seed(12)
def test_power_loss_loses_nothing_that_was_flushed_before_its_ack(seed: int) -> None:
    """acks=all with ottla.flush.before.ack: acknowledged records survive the loss of all unsynced data."""

    async def story(world: World) -> None:
        acknowledged: dict[bytes, int] = {}
        senders = [asyncio.ensure_future(produce(world, str(i), 40, acknowledged)) for i in range(2)]
        for _ in range(world.random.randint(1, 4)):
            await asyncio.sleep(world.random.uniform(0.01, 0.4))
            world.kill_broker(power_loss=True)
            await asyncio.sleep(world.random.uniform(0, 2))
            await world.start_broker()
        await asyncio.gather(*senders)
        check(await world.read_all("t"), acknowledged, 2, 40)
        assert len(acknowledged) == 80

    World(seed, ottla_flush_before_ack="true").run(story)


def test_the_check_finds_records_lost_without_a_flush() -> None:
    """Spec: R7. Without ottla.flush.before.ack, a power loss does lose acknowledged records for some seed."""
    lost = 0
    for seed in range(8):

        async def story(world: World) -> int:
            acknowledged: dict[bytes, int] = {}
            await produce(world, "0", 20, acknowledged)
            world.kill_broker(power_loss=True)
            await world.start_broker()
            try:
                found = {value: offset for offset, value in await world.read_all("t")}
            except KafkaError:
                found = {}
            return sum(found.get(value) != offset for value, offset in acknowledged.items())

        lost += World(seed).run(story)
    assert lost > 0


@each_seed(12)
def test_a_clean_restart_keeps_everything(seed: int) -> None:
    async def story(world: World) -> None:
        acknowledged: dict[bytes, int] = {}
        for round_number in range(3):
            await produce(world, str(round_number), 20, acknowledged)
            await world.stop_broker()
            await world.start_broker()
        check(await world.read_all("t"), acknowledged, 3, 20)

    World(seed).run(story)


@each_seed(1)
def test_hundreds_of_partitions_can_be_used_as_soon_as_their_creation_is_answered(seed: int) -> None:
    """The partitions are opened in slices; the response waits for the last one."""

    async def story(world: World) -> None:
        async with world.admin() as admin:
            await admin.create_topic("many", partitions=300)
        broker = world.broker
        assert broker is not None
        assert sum(1 for _ in broker.services.replicas.replicas()) == 300
        async with world.producer(retries=0) as producer:
            await (await producer.send("many", b"last", partition=299))
        assert await world.read_all("many", 299) == [(0, b"last")]
        async with world.admin() as admin:
            await admin.delete_topics(["many"])
            await admin.create_topic("many", partitions=300)
        assert await world.read_all("many", 299) == []
        world.kill_broker()
        await world.start_broker()
        broker = world.broker
        assert broker is not None
        assert sum(1 for _ in broker.services.replicas.replicas()) == 300

    World(seed).run(story)
