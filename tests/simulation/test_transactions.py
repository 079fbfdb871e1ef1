"""Consume-transform-produce in a simulated world: the output equals the input, exactly once. Spec: E6, E9, R1"""

import asyncio

import pytest

from ottla.testing.world import BOOTSTRAP, World
from tests.support.processes.copier import Copier, check, fill, one_copy
from tests.support.seeds import each_seed
from tests.support.wire.transactional import NEW, OLD, Protocol, RawClient

PROTOCOLS = pytest.mark.parametrize("protocol", [OLD, NEW], ids=["old", "new"])
SETTINGS = {"offsets_topic_num_partitions": "2", "transaction_state_log_num_partitions": "2"}


@PROTOCOLS
@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power loss"])
@each_seed(6)
def test_the_output_equals_the_input_despite_kills_and_aborts(seed: int, power_loss: bool, protocol: Protocol) -> None:
    """Random kills, connection resets and aborts. With power loss the broker flushes before it acknowledges, and all
    unsynced data is lost."""

    async def story(world: World) -> None:
        client = RawClient(BOOTSTRAP)
        await fill(client, 2, 20)
        copier = Copier(world, protocol, 2, batch=world.random.randint(1, 4), aborts=0.2)
        copying = asyncio.ensure_future(copier.run())
        for _ in range(world.random.randint(2, 8)):
            await asyncio.sleep(world.random.uniform(0, 0.2))
            if world.random.random() < 0.3:
                world.network.cut_all()
            else:
                world.kill_broker(power_loss=power_loss)
                await asyncio.sleep(world.random.uniform(0, 0.5))
                await world.start_broker()
        await copying
        await check(client, 2, 20)

    settings = SETTINGS | ({"ottla_flush_before_ack": "true"} if power_loss else {})
    World(seed, **settings).run(story)


@pytest.mark.slow
@PROTOCOLS
@pytest.mark.parametrize("power_loss", [False, True], ids=["kill", "power loss"])
def test_the_broker_may_die_after_every_write(power_loss: bool, protocol: Protocol) -> None:
    """Spec: E6. The broker is killed after each write and sync of two transactions in turn. The next coordinator
    completes what the last one had decided."""
    settings = SETTINGS | ({"ottla_flush_before_ack": "true"} if power_loss else {})

    def run(kill_after: int | None, seed: int = 0) -> int:
        async def story(world: World) -> int:
            return await one_copy(world, protocol, kill_after, power_loss)

        try:
            return World(seed, **settings).run(story)
        except BaseException as error:
            error.add_note(f"killed after write {kill_after}")
            raise

    writes = run(None)
    assert writes > 20, "two transactions need many writes"
    for number in range(1, writes + 1):
        run(number)
