"""A cluster of three to five brokers under random faults. Spec: R1, R2, R6

Every story ends with all checks of tests/support/worlds/cluster_check.py: acknowledged records are there once and in
order, replicas are equal up to the high watermark, nothing committed was ever lost or changed, the history of all
clients has no anomaly, and a fresh load equals the live state.
"""

import asyncio

from ottla.testing.cluster_world import ClusterWorld
from tests.support.seeds import each_seed
from tests.support.worlds.cluster_check import settle
from tests.support.worlds.cluster_faults import ALL, KILL, LONG_PAUSE, NETWORK, PAUSE, POWER, STOP, Faults
from tests.support.worlds.cluster_load import Load
from tests.support.worlds.cluster_stage import Story, by_seed, run_cluster


def under(*kinds: str, times: int = 4, at_once: int = 1) -> Story:
    """A story: senders, transactions, readers and a group, while faults of these kinds happen."""

    async def story(world: ClusterWorld, load: Load) -> None:
        clients(load)
        await asyncio.sleep(world.random.uniform(0, 0.5))
        await Faults(world, kinds, at_once=at_once).strike(times)

    return story


def clients(load: Load) -> None:
    for _ in range(2):
        load.sends(60)
    load.sends_transactions(15)
    load.reads(committed=True)
    load.reads(committed=False)
    load.joins_group("m1")


@each_seed(2)
def test_brokers_are_killed_and_restarted(seed: int) -> None:
    run_cluster(seed, under(KILL, KILL, STOP), **by_seed(seed))


@each_seed(2)
def test_brokers_are_paused(seed: int) -> None:
    """Some of them past the end of their session: they believe that they still lead."""
    run_cluster(seed, under(PAUSE, LONG_PAUSE, LONG_PAUSE), **by_seed(seed))


@each_seed(2)
def test_the_network_is_parted(seed: int) -> None:
    """Between brokers, between brokers and clients, between brokers and the store."""
    run_cluster(seed, under(*NETWORK), **by_seed(seed))


@each_seed(2)
def test_brokers_lose_power_one_at_a_time(seed: int) -> None:
    """Without flush before the acknowledgement: a replica that lost its tail gets it back before the next loss."""

    async def story(world: ClusterWorld, load: Load) -> None:
        clients(load)
        faults = Faults(world, (POWER,))
        for _ in range(3):
            await faults.strike(1)
            await settle(world)

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_everything_happens_at_once_to_five_brokers(seed: int) -> None:
    run_cluster(seed, under(*ALL, times=8, at_once=2), brokers=5, **by_seed(seed))


@each_seed(1)
def test_a_run_depends_on_its_seed_alone(seed: int) -> None:
    """The same seed gives the same history, byte for byte: every failure can be replayed."""
    story = under(*ALL, times=3)
    assert run_cluster(seed, story) == run_cluster(seed, story)
