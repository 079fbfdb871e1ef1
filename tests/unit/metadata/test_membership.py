"""Brokers of one cluster: in-sync sets, leaving, restarts, cold starts. Spec: B10."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.settings.config import Settings, load_config
from ottla.errors import ErrorCode, KafkaError, OttlaError
from ottla.metadata import records
from ottla.metadata.changes.topic_changes import NewTopic
from ottla.metadata.config import ControllerConfig
from ottla.metadata.controller.duties import ControllerDuties, awaited_brokers
from ottla.metadata.controller.isr_changes import IsrChange
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.follower_state import TRANSITIONS, FollowerState, move
from ottla.metadata.image import BrokerRegistration, ClusterImage, PartitionImage
from ottla.metadata.store import Conflict, MetadataStore, Operation, StoreUnavailable
from ottla.testing.memory_store import MemoryStore, MemoryTree
from ottla.types import TopicPartition
from tests.support.worlds.follower_world import FollowerWorld, registration, until

NONE = ErrorCode.NONE
T0 = TopicPartition("t", 0)


class World(FollowerWorld):
    async def start(self, broker_id: int, *, settings: dict[str, str] | None = None, **more: Any) -> MetadataFollower:
        config = load_config({"ottla.leader.rebalance.delay.ms": "600000", **(settings or {})})
        store = self._make()
        follower = MetadataFollower(store, Settings(config), config=config)
        self.followers[broker_id], self.stores[broker_id] = follower, store
        try:
            await follower.start(registration(broker_id), **more)
        except BaseException:
            del self.followers[broker_id]
            raise
        return follower

    async def three(self) -> list[MetadataFollower]:
        """Three brokers and a topic `t` with one partition, led by broker 0."""
        started = [await self.start(broker_id) for broker_id in range(3)]
        for follower in started:
            await until(follower, lambda image: len(image.brokers) == 3)
        (created,) = await started[0].changes.create_topics([NewTopic("t", assignments=[(0, (0, 1, 2))])])
        assert created.error == NONE
        for follower in started:
            await until(follower, lambda image: "t" in image.topics)
        return started

    async def crash(self, broker_id: int) -> None:
        """The process is killed: no transfer of leadership, and its session ends."""
        follower = self.followers.pop(broker_id)
        follower.freeze()
        follower._stop_watching()  # noqa: SLF001
        await self.stores[broker_id].close()


@pytest.fixture
def world(open_store: Callable[[], MetadataStore]) -> World:
    return World(open_store)


@pytest.fixture
def memory_world(open_memory_store: Callable[[], MetadataStore]) -> World:
    return World(open_memory_store)


def t0(follower: MetadataFollower) -> PartitionImage:
    return follower.image.topics["t"].partitions[0]


def change(follower: MetadataFollower, *isr: int) -> IsrChange:
    """What the leader proposes, from its own image."""
    image, partition = follower.image, t0(follower)
    members = tuple((broker_id, image.brokers[broker_id].epoch) for broker_id in isr)
    return IsrChange(T0, image.topics["t"].topic_id, partition.leader_epoch, partition.partition_epoch, members)


# In-sync sets


def test_a_leader_changes_its_in_sync_set_and_all_see_it(world: World) -> None:
    async def story() -> None:
        leader, _, third = await world.three()
        before = t0(leader)
        assert await leader.alter_partition(change(leader, 0, 2)) == NONE
        assert t0(leader).isr == (0, 2), "its own image has it already"
        assert t0(leader).partition_epoch == before.partition_epoch + 1
        assert t0(leader).leader_epoch == before.leader_epoch
        await until(third, lambda image: image.topics["t"].partitions[0].isr == (0, 2))
        assert await leader.alter_partition(change(leader, 0, 1, 2)) == NONE
        stale = change(leader, 0)._replace(partition_epoch=before.partition_epoch)
        assert await leader.alter_partition(stale) == ErrorCode.INVALID_UPDATE_VERSION

    world.run(story)


def test_the_proposals_of_one_tick_are_one_commit_of_at_most_100_keys(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        leader = await memory_world.start(0)
        await memory_world.start(1)
        await until(leader, lambda image: len(image.brokers) == 2)
        await leader.changes.create_topics([NewTopic("t", assignments=[(index, (0, 1)) for index in range(150)])])
        topic = leader.image.topics["t"]
        changes = [
            IsrChange(TopicPartition("t", p.index), topic.topic_id, p.leader_epoch, p.partition_epoch, ((0, -1),))
            for p in topic.partitions
        ]
        commits = tree.commits
        assert set(await asyncio.gather(*map(leader.alter_partition, changes))) == {NONE}
        assert tree.commits - commits == 2
        assert {p.isr for p in leader.image.topics["t"].partitions} == {(0,)}

    memory_world.run(story)


def test_a_follower_that_restarted_meanwhile_is_not_added(memory_world: World) -> None:
    """The leader's image still has the old registration when it proposes (KIP-903, hazard of a bounced follower)."""

    async def story() -> None:
        leader, _, _ = await memory_world.three()
        assert await leader.alter_partition(change(leader, 0, 2)) == NONE
        proposal = change(leader, 0, 1, 2)
        store, commit = memory_world.stores[0], memory_world.stores[0].commit

        async def commit_late(operations: Any) -> None:
            store.commit = commit  # type: ignore[method-assign]
            await memory_world.crash(1)
            await memory_world.start(1)
            await commit(operations)

        store.commit = commit_late  # type: ignore[method-assign]
        assert await leader.alter_partition(proposal) == ErrorCode.INELIGIBLE_REPLICA
        assert t0(leader).isr == (0, 2)

    memory_world.run(story)


def test_an_unknown_outcome_is_reported_as_such(memory_world: World) -> None:
    async def story() -> None:
        leader, _, _ = await memory_world.three()
        store, commit = memory_world.stores[0], memory_world.stores[0].commit

        async def lost_answer(operations: Any) -> None:
            raise StoreUnavailable("no answer")

        store.commit = lost_answer  # type: ignore[method-assign]
        assert await leader.alter_partition(change(leader, 0, 2)) == ErrorCode.KAFKA_STORAGE_ERROR
        store.commit = commit  # type: ignore[method-assign]

    memory_world.run(story)


# A controller that was replaced


def test_a_controller_that_was_replaced_cannot_elect(memory_world: World, tree: MemoryTree) -> None:
    """It decides from an old image, in which it is still the controller: the commit is rejected."""

    async def story() -> None:
        first, second, _ = await memory_world.three()
        assert first.image.controller_id == 0
        store, commit = memory_world.stores[0], memory_world.stores[0].commit_repeatable
        rejected: list[Operation] = []

        async def commit_late(operations: Any) -> None:
            # Before the commit of the old controller arrives, another broker takes over. The session of the first
            # one is still alive: only the controller's key was lost, as after a delay in the store.
            store.commit_repeatable = commit  # type: ignore[method-assign]
            value = records.write_controller(1, 0)
            epoch = tree.entries[records.CONTROLLER_EPOCH]
            tree.entries[records.CONTROLLER] = tree.entries[records.CONTROLLER]._replace(value=value, created=99)
            tree.entries[records.CONTROLLER_EPOCH] = epoch._replace(value=b"2", version=epoch.version + 1)
            try:
                await commit(operations)
            except Conflict as error:
                rejected.append(error.operation)
                raise

        store.commit_repeatable = commit_late  # type: ignore[method-assign]
        await memory_world.crash(2)
        await until(first, lambda image: 2 not in image.brokers)
        while not rejected:  # noqa: ASYNC110 (the duties run in another task)
            await asyncio.sleep(0)
        assert rejected[0].key in (records.CONTROLLER, records.CONTROLLER_EPOCH)
        assert 2 in t0(second).isr

    memory_world.run(story)


# Leaving


def test_a_leaving_broker_hands_over_while_it_still_serves(world: World) -> None:
    async def story() -> None:
        first, second, _ = await world.three()
        await first.leave(5_000)
        assert (t0(first).leader, set(t0(first).isr)) == (1, {1, 2})
        assert first.image.brokers[0].is_leaving
        image = await until(second, lambda image: image.topics["t"].partitions[0].leader == 1)
        assert 0 in image.brokers, "it is still there"
        epoch = first.image.brokers[0].epoch
        add_it = IsrChange(
            T0, image.topics["t"].topic_id, t0(second).leader_epoch, t0(second).partition_epoch,
            ((0, epoch), (1, -1), (2, -1)),
        )  # fmt: skip
        assert await second.alter_partition(add_it) == ErrorCode.INELIGIBLE_REPLICA, "it cannot join again"

    world.run(story)


def test_a_broker_alone_leaves_without_a_commit(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        only = await memory_world.start(0)
        await only.changes.create_topics([NewTopic("t")])
        commits = tree.commits
        await only.leave(5_000)
        assert tree.commits == commits
        assert t0(only).leader == 0

    memory_world.run(story)


def test_leaving_gives_up_after_its_timeout(memory_world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        first, _, _ = await memory_world.three()
        store, commit = memory_world.stores[0], memory_world.stores[0].commit_repeatable

        async def never(operations: Any) -> None:
            await asyncio.Event().wait()

        store.commit_repeatable = never  # type: ignore[method-assign]
        await first.leave(20)
        store.commit_repeatable = commit  # type: ignore[method-assign]

    memory_world.run(story)
    assert "cannot transfer leadership" in caplog.text


def test_a_broker_leaves_once_and_not_at_all_once_it_is_frozen(memory_world: World) -> None:
    async def story() -> None:
        first, second, third = await memory_world.three()
        assert await first.leave(5_000) == 1
        assert await first.leave(5_000) == 0
        await until(second, lambda image: image.topics["t"].partitions[0].leader == 1)
        second.freeze()
        second.freeze()
        assert await second.leave(5_000) == 0
        assert await second.alter_partition(change(second, 1)) == ErrorCode.NOT_CONTROLLER
        assert t0(third).leader == 1, "the last brokers keep their partitions"

    memory_world.run(story)


def test_the_states_of_a_follower_only_advance() -> None:
    order = list(FollowerState)
    for current in FollowerState:
        for new in FollowerState:
            if new in TRANSITIONS[current]:
                assert order.index(current) < order.index(new)
                assert move(current, new) is new
            else:
                with pytest.raises(AssertionError, match=f"from {current.name} to {new.name}"):
                    move(current, new)
    assert move(FollowerState.NEW, FollowerState.FROZEN) is FollowerState.FROZEN, "stopped before it has joined"


def test_brokers_that_stop_together_do_not_elect_around_each_other(memory_world: World) -> None:
    async def story() -> None:
        started = await memory_world.three()
        for follower in started:
            follower.freeze()
        for broker_id in (0, 1, 2):
            await memory_world.followers.pop(broker_id).stop()
        again = await memory_world.start(0)
        assert (t0(again).leader, t0(again).isr) != (0, (0,)), "the in-sync set was not cut to the last one"

    memory_world.run(story)


# Restarts


def test_an_expired_session_is_not_an_unclean_restart(memory_world: World, tree: MemoryTree) -> None:
    """The process still has everything: its place in in-sync sets is lost only if somebody noticed its absence."""

    async def story() -> None:
        first, second, _ = await memory_world.three()
        epoch = second.broker_epoch
        first.freeze()  # nobody elects
        memory_world.followers[2].freeze()
        tree.expire(memory_world.stores[1])  # type: ignore[arg-type]
        await until(second, lambda image: 1 in image.brokers and image.brokers[1].epoch > epoch)
        assert t0(second).isr == (0, 1, 2)
        assert second.broker_epoch > epoch

    memory_world.run(story)


def test_a_crashed_broker_proves_nothing_and_a_stopped_one_does(world: World) -> None:
    async def story() -> None:
        first, second, third = await world.three()
        for follower in (first, third):
            follower.freeze()  # nobody elects: the rule of registration is tested alone
        epoch = second.broker_epoch
        await world.crash(1)
        await until(first, lambda image: 1 not in image.brokers)
        await world.start(1, previous_epoch=epoch)
        await until(first, lambda image: 1 in image.brokers)
        assert t0(first).isr == (0, 1, 2)
        await world.crash(1)
        await until(first, lambda image: 1 not in image.brokers)
        await world.start(1, previous_epoch=None)
        await until(first, lambda image: 1 in image.brokers)
        assert t0(first).isr == (0, 2)

    world.run(story)


def test_a_directory_of_another_cluster_is_rejected_before_anything_is_written(
    memory_world: World, tree: MemoryTree
) -> None:
    async def story() -> None:
        await memory_world.start(0)
        commits = tree.commits
        with pytest.raises(OttlaError, match="belongs to cluster theirs") as caught:
            await memory_world.start(1, cluster_id="theirs")
        assert "data directory" in caught.value.hint
        assert tree.commits == commits

    memory_world.run(story)


# Cold start


def test_brokers_that_were_never_seen_are_awaited_for_a_while() -> None:
    known = {broker_id: BrokerRegistration(broker_id, 1, {}) for broker_id in (0, 1, 2)}
    image = ClusterImage(known_brokers=known)
    assert awaited_brokers(image, seen={0}, startup_left_s=2) == {1, 2}
    assert awaited_brokers(image, seen={0, 1, 2}, startup_left_s=2) == set(), "1 and 2 died"
    assert not awaited_brokers(image, seen={0}, startup_left_s=0)


def test_nobody_is_awaited_after_the_last_look_at_them() -> None:
    """The controller looks again exactly when the wait is over: whatever rounding does, it finds it over then."""
    known = {broker_id: BrokerRegistration(broker_id, 1, {}) for broker_id in (0, 1)}
    image = ClusterImage(known_brokers=known)
    times = [0.0]
    for thousandth in range(1, 3000):
        times[0] = joined_at = thousandth / 1000
        duties = ControllerDuties(
            0,
            None,  # type: ignore[arg-type]  # no election takes place
            ControllerConfig(startup_wait_ms=3000),
            submit=lambda decide: asyncio.sleep(0, 0),
            clock=lambda: 0,
            now=lambda: times[0],
        )
        times[0] = joined_at + 3
        assert not duties.awaited(image), f"joined at {joined_at}"


def test_at_a_cold_start_the_first_broker_does_not_take_everything(memory_world: World) -> None:
    async def story() -> None:
        epochs = {follower.broker_id: follower.broker_epoch for follower in await memory_world.three()}
        for follower in memory_world.followers.values():
            follower.freeze()
        for broker_id in (0, 1, 2):
            await memory_world.crash(broker_id)
        second = await memory_world.start(1, previous_epoch=epochs[1])
        third = await memory_world.start(2, previous_epoch=epochs[2])
        await until(second, lambda image: set(image.brokers) == {1, 2})
        for _ in range(20):
            await asyncio.sleep(0)
        assert (t0(second).leader, t0(second).isr) == (0, (0, 1, 2))
        first = await memory_world.start(0, previous_epoch=epochs[0])
        assert (t0(first).leader, t0(first).isr) == (0, (0, 1, 2))
        assert third.image.controller_id == 1

    memory_world.run(story)


def test_a_broker_that_does_not_come_is_awaited_only_for_a_while(memory_world: World) -> None:
    async def story() -> None:
        epochs = {follower.broker_id: follower.broker_epoch for follower in await memory_world.three()}
        for follower in memory_world.followers.values():
            follower.freeze()
        for broker_id in (0, 1, 2):
            await memory_world.crash(broker_id)
        patience = {"ottla.startup.wait.ms": "50"}
        second = await memory_world.start(1, previous_epoch=epochs[1], settings=patience)
        await until(second, lambda image: image.topics["t"].partitions[0].leader == 1)
        assert t0(second).isr == (1,)

    memory_world.run(story)


# Failback


def test_leadership_returns_after_the_preferred_replica_was_in_sync_for_a_while(memory_world: World) -> None:
    async def story() -> None:
        delay = {"ottla.leader.rebalance.delay.ms": "20"}
        started = [await memory_world.start(broker_id, settings=delay) for broker_id in (1, 0)]
        controller, preferred = started
        await until(controller, lambda image: len(image.brokers) == 2)
        await controller.changes.create_topics([NewTopic("t", assignments=[(0, (0, 1))])])
        await until(preferred, lambda image: "t" in image.topics)
        epoch = preferred.broker_epoch
        await memory_world.crash(0)
        await until(controller, lambda image: image.topics["t"].partitions[0].leader == 1)
        await memory_world.start(0, settings=delay, previous_epoch=epoch)
        await until(controller, lambda image: 0 in image.brokers)
        assert await controller.alter_partition(change(controller, 1, 0)) == NONE
        assert t0(controller).leader == 1
        await until(controller, lambda image: image.topics["t"].partitions[0].leader == 0)
        assert t0(controller).isr == (0, 1)

    memory_world.run(story)


def test_leadership_does_not_return_if_that_is_disabled(memory_world: World) -> None:
    async def story() -> None:
        settings = {"ottla.leader.rebalance.delay.ms": "0", "auto.leader.rebalance.enable": "false"}
        for broker_id in (1, 0):
            follower = await memory_world.start(broker_id, settings=settings)
        await follower.changes.create_topics([NewTopic("t", assignments=[(0, (0, 1))])])
        await follower.leave(1_000)
        other = memory_world.followers[1]
        await until(other, lambda image: image.topics["t"].partitions[0].leader == 1)
        await memory_world.crash(0)
        await memory_world.start(0, settings=settings)
        await until(other, lambda image: 0 in image.brokers)
        assert await other.alter_partition(change(other, 0, 1)) == NONE
        for _ in range(20):
            await asyncio.sleep(0)
        assert t0(other).leader == 1

    memory_world.run(story)


def test_a_store_that_goes_away_after_a_conflict_is_an_error_that_clients_retry(tree: MemoryTree) -> None:
    """The commit did not happen, and the newest state cannot be read."""

    class Away(MemoryStore):
        is_away = False

        async def commit(self, operations: Any) -> None:
            if self.is_away:
                raise Conflict(operations[0], "changed by another broker")
            await super().commit(operations)

        async def sync(self) -> None:
            if self.is_away:
                raise StoreUnavailable("etcd does not answer")
            await super().sync()

    world = World(lambda: Away(tree))

    async def story() -> None:
        follower = await world.start(1)
        store = world.stores[1]
        assert isinstance(store, Away)
        store.is_away = True
        with pytest.raises(KafkaError, match="etcd does not answer") as caught:
            await follower.changes.create_topics([NewTopic("t", 1)])
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        store.is_away = False
        (created,) = await follower.changes.create_topics([NewTopic("t", 1)])
        assert created.error == ErrorCode.NONE

    world.run(story)
