"""Stories about replication and elections, one for each way in which brokers have lost records before. Spec: R1, R2, R6

Each ends with all checks of tests/support/worlds/cluster_check.py.
"""

import asyncio

from ottla.metadata.changes.config_changes import ConfigChange, ResourceChange
from ottla.protocol.wire_values import ConfigResourceType
from ottla.testing.cluster_world import ClusterWorld, SimBroker
from tests.support.seeds import each_seed
from tests.support.worlds.cluster_check import find_replica, settle
from tests.support.worlds.cluster_load import PLAIN, Load
from tests.support.worlds.cluster_stage import busy, by_seed, in_sync, isr, new_leader, partition, run_cluster

# --- leaders and controllers ----------------------------------------------------------------------------------


@each_seed(2)
def test_a_killed_leader_is_replaced_and_returns(seed: int) -> None:
    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        load.watches_ends()
        await asyncio.sleep(0.5)
        leader = world.leader_of(PLAIN)
        leader.kill()
        await new_leader(world, leader)
        await asyncio.sleep(world.random.uniform(0, 2))
        await leader.start()

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_a_leader_that_was_paused_past_its_session_acknowledges_nothing_more(seed: int) -> None:
    """It still believes that it leads when it goes on, and has requests in its sockets."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        await asyncio.sleep(0.3)
        leader = world.leader_of(PLAIN)
        leader.pause()
        await new_leader(world, leader)
        await asyncio.sleep(world.random.uniform(0, 3))
        leader.resume()
        await asyncio.sleep(2)

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_a_controller_that_was_paused_past_its_session_decides_nothing_more(seed: int) -> None:
    """Meanwhile another broker dies, and the next controller elects leaders for its partitions."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        await asyncio.sleep(0.3)
        controller = world.controller
        assert controller is not None
        controller.pause()
        await world.until(lambda: world.controller not in (None, controller), "there is another controller", 30)
        # Two of three are away now: nothing is acknowledged with min.insync.replicas=2 until one of them returns.
        other = next(broker for broker in world.up if broker is not world.controller)
        other.kill()
        await asyncio.sleep(world.random.uniform(0, 4))
        controller.resume()
        await other.start()

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_a_leader_parted_from_its_followers_cannot_acknowledge_alone(seed: int) -> None:
    """It reaches the store and the clients, but no follower: the in-sync set shrinks below min.insync.replicas."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        await asyncio.sleep(0.3)
        leader = world.leader_of(PLAIN)
        for follower in world.followers_of(PLAIN):
            world.part(leader, follower)
        await world.until(lambda: isr(world) == {leader.id}, "the followers have left the in-sync set", 30)
        acknowledged, waiting = load.deliveries(partition=0)
        assert waiting, "the senders have records for the partition"
        await asyncio.sleep(world.random.uniform(1, 5))
        assert load.deliveries(partition=0)[0] == acknowledged
        replica = find_replica(world, leader.id, PLAIN, 0)
        assert replica is not None
        assert not replica.has_enough_in_sync

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_a_leader_parted_from_the_store_stops_acknowledging_before_the_next_one_starts(seed: int) -> None:
    """It still reaches its followers and the clients. Its session expires, others elect a leader."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load, count=100)
        await asyncio.sleep(0.3)
        leader = world.leader_of(PLAIN)
        world.part(leader, world.store)
        await new_leader(world, leader)
        await asyncio.sleep(world.random.uniform(0, 4))

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_brokers_keep_serving_while_the_store_is_away(seed: int) -> None:
    """For less than a session timeout, acks=all goes on; after that it waits; then it goes on again."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load, count=100)
        await asyncio.sleep(0.3)
        world.note("the store is away")
        world.hub.is_away = True
        before = world.image
        await asyncio.sleep(world.random.uniform(0.5, 8))
        assert world.image.topics == before.topics
        world.hub.is_away = False

    run_cluster(seed, story, **by_seed(seed))


# --- truncation and in-sync sets ------------------------------------------------------------------------------


@each_seed(3)
def test_elections_without_records_in_between_leave_no_disagreement(seed: int) -> None:
    """A, B and A lead one after the other, and some of their epochs have no record (KIP-279, KAFKA-10706)."""

    async def story(world: ClusterWorld, load: Load) -> None:
        for _ in range(3):
            load.sends(world.random.randint(0, 12))
            await asyncio.sleep(world.random.choice((0.0, 0.05, 1.0)))
            for _ in range(world.random.randint(1, 3)):
                leader = world.leader_of(PLAIN) if partition(world).leader >= 0 else world.brokers[0]
                if world.random.random() < 0.5:
                    leader.kill()
                    await asyncio.sleep(world.random.uniform(0, 1))
                    await leader.start()
                else:
                    world.part(leader, world.store)
                    await new_leader(world, leader)
                    world.heal()
                await world.until(lambda: partition(world).leader >= 0, "the partition has a leader", 30)
                await world.until(lambda: len(isr(world)) > 1, "two replicas are in sync", 30)

    run_cluster(seed, story, **by_seed(seed))


@each_seed(3)
def test_a_follower_that_joins_under_load_never_misses_a_committed_record(seed: int) -> None:
    """The high watermark waits for a joiner from the moment it is proposed (KIP-497). The store is slow, so that the
    proposal is out for a long time, and the leader dies as soon as the joiner is in."""

    async def story(world: ClusterWorld, load: Load) -> None:
        world.hub.delay_ms = (20, 200)
        busy(load, count=100)
        for _ in range(3):
            leader = world.leader_of(PLAIN)
            joiner = world.random.choice([broker for broker in world.followers_of(PLAIN) if broker.is_up])
            joiner.kill()
            await in_sync(world, joiner, False)
            await joiner.start()
            await in_sync(world, joiner, True)
            await asyncio.sleep(world.random.choice((0.0, 0.01, 0.3)))
            leader.kill()
            await new_leader(world, leader)
            await leader.start()
            await settle(world)

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_records_that_only_a_dead_leader_had_are_dropped_when_it_returns(seed: int) -> None:
    """Its followers never got them, and the next leader wrote others at the same offsets (KIP-101)."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        await asyncio.sleep(0.3)
        leader = world.leader_of(PLAIN)
        for follower in world.followers_of(PLAIN):
            world.part(leader, follower)
        await asyncio.sleep(world.random.uniform(0.3, 1))
        leader.kill()
        await new_leader(world, leader)
        await asyncio.sleep(world.random.uniform(0, 2))
        world.heal()
        await leader.start()

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_a_follower_that_is_cut_off_while_it_joins_misses_no_committed_record(seed: int) -> None:
    """Its proposal is out when it stops fetching, and it is the only one left when it is in (KIP-497)."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(100)
        await asyncio.sleep(0.3)
        leader, (joiner, other) = world.leader_of(PLAIN), world.followers_of(PLAIN)
        joiner.kill()
        await in_sync(world, joiner, False)
        load.sends(100)
        await joiner.start()
        world.hub.delay_ms = (100, 300)
        replica = find_replica(world, leader.id, PLAIN, 0)
        assert replica is not None
        await world.until(lambda: replica.proposed is not None or joiner.id in isr(world), "it is proposed", 30)
        world.part(leader, joiner)
        await in_sync(world, joiner, True)
        leader.kill()
        other.kill()
        await new_leader(world, leader)
        world.hub.delay_ms = (0.2, 5)

    run_cluster(seed, story, **by_seed(seed) | {"notices_death": True})


@each_seed(2)
def test_a_new_leader_that_cannot_know_the_end_does_not_tell_one(seed: int) -> None:
    """It learns the high watermark from its followers' fetches. Until then its own is older than what readers saw."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        load.watches_ends()
        await asyncio.sleep(0.4)
        leader, (one, other) = world.leader_of(PLAIN), world.followers_of(PLAIN)
        world.part(one, other)
        leader.kill()
        await new_leader(world, leader)
        await asyncio.sleep(2)
        world.heal()
        await leader.start()

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_a_slow_follower_leaves_the_in_sync_set_and_comes_back(seed: int) -> None:
    """Parted from the leader only: it is alive, but lags. Producers go on with the other two."""

    async def story(world: ClusterWorld, load: Load) -> None:
        busy(load)
        leader, follower = world.leader_of(PLAIN), world.followers_of(PLAIN)[0]
        world.part(leader, follower)
        await world.until(lambda: follower.id not in isr(world), "it has left the in-sync set", 30)
        before = len(load.acknowledged)
        load.sends(20)
        await world.until(lambda: len(load.acknowledged) > before, "records are acknowledged without it", 30)
        world.heal()
        await world.until(lambda: follower.id in isr(world), "it is back in the in-sync set", 30)

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_the_dead_do_not_hold_the_high_watermark_back(seed: int) -> None:
    """KAFKA-15021: acks=all goes on within a moment after a follower's death, not after replica.lag.time.max.ms."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(10)
        await asyncio.sleep(1)
        world.followers_of(PLAIN)[0].kill()
        await world.until(lambda: len(isr(world)) == 2, "the dead has left the in-sync set", 5)
        began = world.loop.time()
        load.sends(10, pause_s=0.001)
        await world.until(lambda: len(load.acknowledged) == 20, "all are acknowledged", 20)
        assert world.loop.time() - began < 2

    run_cluster(seed, story, replica_lag_time_max_ms="15000", **by_seed(seed))


# --- the start of the log, deleted topics ---------------------------------------------------------------------


@each_seed(2)
def test_records_are_deleted_while_a_follower_is_away(seed: int) -> None:
    """Also in the middle of a batch: the follower continues where the leader's log starts (KAFKA-6975, 7104)."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(60)
        await asyncio.sleep(0.3)
        away = world.followers_of(PLAIN)[-1]
        away.kill()
        load.sends(60)
        await world.until(lambda: len(load.acknowledged) >= 120, "all are acknowledged", 30)
        async with world.admin() as admin:
            for number in range(load.partitions):
                replica = find_replica(world, world.leader_of(PLAIN, number).id, PLAIN, number)
                assert replica is not None
                before = world.random.randint(1, replica.log.high_watermark)
                await admin.delete_records({(PLAIN, number): before})
                load.forget_below(PLAIN, number, before)
        await away.start()

    run_cluster(seed, story, **by_seed(seed))


@each_seed(2)
def test_segments_expire_while_a_follower_is_away(seed: int) -> None:
    """The leader's log starts after the end of the follower's when it returns: it starts over there (KAFKA-7414)."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(40)
        await asyncio.sleep(1)
        away = world.followers_of(PLAIN)[-1]
        away.kill()
        for _ in range(3):
            load.sends(20)
            await asyncio.sleep(6)
        await away.start()
        await asyncio.sleep(1)
        async with world.admin() as admin:
            await admin.alter_configs("topic", PLAIN, {"retention.ms": "-1"})
        await world.until(lambda: len(load.acknowledged) == 100, "all are acknowledged", 60)
        await settle(world)
        for number in range(load.partitions):
            replica = find_replica(world, world.leader_of(PLAIN, number).id, PLAIN, number)
            assert replica is not None
            assert replica.log.log_start_offset > 0, "nothing has expired"
            load.forget_below(PLAIN, number, replica.log.log_start_offset)

    expiring = {"retention.ms": "5000", "segment.ms": "2000", "file.delete.delay.ms": "1000"}
    # Records expire by their timestamps: clocks that differ by a minute would keep them longer.
    details = by_seed(seed) | {"clock_skew_ms": 200, "log_retention_check_interval_ms": "1000"}
    run_cluster(seed, story, topic_configs=expiring, **details)


@each_seed(2)
def test_a_topic_is_deleted_and_created_again_while_a_broker_is_away(seed: int) -> None:
    """The broker returns with records of the deleted topic; none of them gets into the new one of the same name."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(30)
        await world.until(lambda: len(load.acknowledged) == 30, "all are acknowledged", 30)
        away = world.random.choice([broker for broker in world.brokers.values() if broker is not world.controller])
        async with world.admin() as admin:
            # Still registered for a while, so that the new topic is placed on it too.
            away.kill(power_loss=world.random.random() < 0.5)
            await admin.delete_topics([PLAIN])
            load.forget_all()
            await admin.create_topic(PLAIN, partitions=load.partitions)
        assert all(away.id in each.replicas for each in world.image.topics[PLAIN].partitions)
        load.sends(30)
        await asyncio.sleep(1)
        await away.start()

    run_cluster(seed, story, session_timeout_ms=20_000, **by_seed(seed) | {"notices_death": False})


@each_seed(2)
def test_changes_that_two_brokers_make_at_once_are_both_kept(seed: int) -> None:
    """Each decides from what it knows. The slower one gets a conflict, and decides again."""

    async def story(world: ClusterWorld, load: Load) -> None:
        world.hub.delay_ms = (20, 60)
        settings = {"retention.ms": "1000000", "segment.ms": "2000000", "flush.ms": "3000000"}

        async def change(broker: SimBroker, name: str, value: str) -> None:
            assert broker.broker is not None
            asked = ResourceChange(ConfigResourceType.TOPIC, PLAIN, (ConfigChange(name, value),))
            await broker.broker.services.metadata.changes.incremental_alter_configs([asked])

        changes = zip(world.brokers.values(), settings.items(), strict=True)
        await asyncio.gather(*(change(broker, name, value) for broker, (name, value) in changes))
        assert settings.items() <= dict(world.image.topics[PLAIN].configs).items()
        world.hub.delay_ms = (0.2, 5)

    run_cluster(seed, story, **by_seed(seed))


# --- unclean elections ----------------------------------------------------------------------------------------


@each_seed(3)
def test_an_unclean_election_may_lose_records_but_replicas_do_not_diverge(seed: int) -> None:
    """The in-sync leader is away; a replica that misses records leads. Then the old leader returns."""

    async def story(world: ClusterWorld, load: Load) -> None:
        load.sends(30)
        await asyncio.sleep(0.5)
        leader, followers = world.leader_of(PLAIN), world.followers_of(PLAIN)
        for follower in followers:
            follower.kill()
        await world.until(lambda: isr(world) == {leader.id}, "the leader is alone in sync", 30)
        load.sends(20)
        await asyncio.sleep(1)
        leader.kill()
        for follower in followers:
            await follower.start()
        await world.until(lambda: partition(world).leader in {f.id for f in followers}, "an unclean leader", 60)
        load.sends(20)
        await asyncio.sleep(1)
        await leader.start()

    run_cluster(
        seed,
        story,
        loss_allowed=True,
        topics=(PLAIN,),
        topic_configs={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
        **by_seed(seed),
    )


# --- restarts -------------------------------------------------------------------------------------------------


@each_seed(2)
def test_a_rolling_restart_goes_unnoticed(seed: int) -> None:
    """Every broker stops cleanly and returns, one after the other: no error, no rebalance."""

    async def story(world: ClusterWorld, load: Load) -> None:
        for _ in range(2):
            load.sends(300, pause_s=0.1)
        load.reads(committed=True)
        load.joins_group("m1")
        load.joins_group("m2")
        await asyncio.sleep(3)
        assert load.seen_by_group
        load.generations.clear()
        load.failed_commits = 0
        for broker in world.brokers.values():
            await broker.stop()
            await broker.start()
            await world.until(lambda: all(len(isr(world, n)) == 3 for n in range(2)), "all are in sync again", 60)
        assert load.is_sending, "the senders were done before the last restart"
        # The restarts may be over before the next commit.
        await world.until(lambda: bool(load.generations), "the group has committed", 60)
        assert len(load.generations) == 1, "the group has rebalanced"
        assert not load.failed_commits

    run_cluster(seed, story, **by_seed(seed))
