"""A stage for stories about clusters: three brokers with two replicated topics, clients, and all checks at the end."""

from collections.abc import Awaitable, Callable
from typing import Any

from ottla.metadata.image import PartitionImage
from ottla.testing.cluster_world import ClusterWorld, SimBroker
from tests.support.worlds.cluster_check import Contents, check_all
from tests.support.worlds.cluster_ledger import watching
from tests.support.worlds.cluster_load import BOUND, PLAIN, Load

SETTINGS = {
    "default_replication_factor": "3",
    "min_insync_replicas": "2",
    "replica_lag_time_max_ms": "4000",
    "offsets_topic_num_partitions": "2",
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_num_partitions": "2",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "500",
    "group_initial_rebalance_delay_ms": "200",
}

Story = Callable[[ClusterWorld, Load], Awaitable[Any]]


def run_cluster(
    seed: int,
    story: Story,
    *,
    brokers: int = 3,
    partitions: int = 2,
    topics: tuple[str, ...] = (PLAIN, BOUND),
    loss_allowed: bool = False,
    topic_configs: dict[str, str] | None = None,
    **settings: Any,
) -> Contents:
    """Runs a story with a topic for idempotent and one for transactional senders, then checks everything."""
    world = ClusterWorld(seed, brokers=brokers, **SETTINGS | settings)

    async def whole(world: ClusterWorld) -> Contents:
        load = Load(world, ledger, partitions=partitions)
        async with world.admin() as admin:
            for topic in topics:
                await admin.create_topic(topic, partitions=partitions, configs=topic_configs or {})
        await story(world, load)
        return await check_all(world, load, loss_allowed=loss_allowed)

    with watching() as ledger:
        ledger.now = world.loop.time
        if loss_allowed:
            ledger.loss_allowed.update(topics)
        return world.run(whole)


def by_seed(seed: int) -> dict[str, Any]:
    """Details of a world that a seed chooses: how fast a death is noticed, and how far the clocks differ."""
    return {"notices_death": seed % 3 != 0, "clock_skew_ms": (0, 200, 60_000)[seed // 3 % 3]}


# --- what stories ask and wait for ---------------------------------------------------------------------------


def partition(world: ClusterWorld, number: int = 0, topic: str = PLAIN) -> PartitionImage:
    return world.image.topics[topic].partitions[number]


def isr(world: ClusterWorld, number: int = 0) -> set[int]:
    return set(partition(world, number).isr)


def busy(load: Load, *, count: int = 60, senders: int = 3) -> None:
    """Senders and readers, as in most stories."""
    for _ in range(senders):
        load.sends(count)
    load.reads(committed=True)


async def new_leader(world: ClusterWorld, old: SimBroker) -> SimBroker:
    """The broker that takes over partition 0."""
    await world.until(
        lambda: partition(world).leader not in (-1, old.id), f"somebody else than {old} leads the partition", 30
    )
    return world.leader_of(PLAIN)


async def in_sync(world: ClusterWorld, broker: SimBroker, wanted: bool) -> None:
    await world.until(lambda: (broker.id in isr(world)) is wanted, f"{broker} is {'' if wanted else 'not '}in sync", 30)
