"""A broker's membership in the cluster: joining, changes, images, failover. Most tests run on both stores."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.settings.config import Settings, load_config
from ottla.errors import ErrorCode, OttlaError
from ottla.metadata.changes.cluster_changes import new_topic_id
from ottla.metadata.changes.config_changes import ConfigChange, ResourceChange
from ottla.metadata.changes.topic_changes import MorePartitions, NewTopic, TopicReference
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import ClusterImage
from ottla.metadata.sqlite.store import SqliteStore
from ottla.metadata.store import Create, Entry, MetadataStore, Set, StoreUnavailable
from ottla.protocol.wire_values import ConfigResourceType
from ottla.testing.memory_store import MemoryStore, MemoryTree
from ottla.types import Endpoint, uuid_to_text
from tests.support.worlds.follower_world import BrokersWorld as World
from tests.support.worlds.follower_world import recording, registration, until

NONE = ErrorCode.NONE


@pytest.fixture
def world(open_store: Callable[[], MetadataStore]) -> World:
    return World(open_store)


@pytest.fixture
def memory_world(open_memory_store: Callable[[], MetadataStore]) -> World:
    return World(open_memory_store)


def test_a_single_broker_registers_and_becomes_controller_of_a_new_cluster(world: World) -> None:
    async def story() -> None:
        follower = await world.start(3)
        image = follower.image
        assert list(image.brokers) == [3]
        assert image.controller_id == 3
        assert image.brokers[3].endpoints == {"PLAINTEXT": Endpoint("127.0.0.1", 9003)}
        assert len(image.cluster_id) == 22
        await world.stop(3)
        again = await world.start(3)
        assert again.image.cluster_id == image.cluster_id
        assert again.image.brokers[3].epoch > image.brokers[3].epoch

    world.run(story)


def test_topics_settings_and_ids_survive_a_restart_with_higher_leader_epochs(world: World) -> None:
    async def story() -> None:
        follower = await world.start(0)
        await follower.changes.create_topics([NewTopic("t", 3, configs=[("retention.ms", "7")])])
        before = follower.image.topics["t"]
        for restart in range(1, 4):
            await (world.stop(0) if restart % 2 else world.crash(0))
            follower = await world.start(0)
            after = follower.image.topics["t"]
            assert (after.topic_id, after.configs) == (before.topic_id, {"retention.ms": "7"})
            assert [(p.leader, p.leader_epoch) for p in after.partitions] == [(0, restart)] * 3

    world.run(story)


def test_all_leader_epochs_are_raised_in_one_commit(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)
        await follower.changes.create_topics([NewTopic("t", 200), NewTopic("u", 200)])
        await memory_world.stop(0)
        before = tree.commits
        follower = await memory_world.start(0)
        assert tree.commits == before + 1, "registration, new epochs and the controller election are one commit"
        assert follower.image.topics["u"].partitions[199].leader_epoch == 1

    memory_world.run(story)


def test_the_image_contains_a_change_when_the_call_returns(world: World) -> None:
    async def story() -> None:
        follower = await world.start(0)
        (created,) = await follower.changes.create_topics([NewTopic("t", 2)])
        assert created.error == NONE
        assert len(follower.image.topics["t"].partitions) == 2
        await follower.changes.create_partitions([MorePartitions("t", 5)])
        assert len(follower.image.topics["t"].partitions) == 5
        change = ResourceChange(ConfigResourceType.TOPIC, "t", [ConfigChange("retention.ms", "9")])
        await follower.changes.incremental_alter_configs([change])
        assert follower.image.topics["t"].configs == {"retention.ms": "9"}
        await follower.changes.alter_configs([ResourceChange(ConfigResourceType.TOPIC, "t", [])])
        assert follower.image.topics["t"].configs == {}
        await follower.changes.delete_topics([TopicReference("t")])
        assert follower.image.topics == {}

    world.run(story)


def test_a_deleted_topic_leaves_nothing_in_the_store(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)
        before = set(tree.entries) | {"/brokers/topics"}
        await follower.changes.create_topics([NewTopic("t", 3, configs=[("retention.ms", "7")])])
        await follower.changes.create_partitions([MorePartitions("t", 5)])
        await follower.changes.delete_topics([TopicReference("t")])
        assert set(tree.entries) == before

    memory_world.run(story)


def test_altering_a_topic_that_another_broker_deletes_leaves_no_settings(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.start(0), await world.start(1)
        await until(ann, lambda image: len(image.brokers) == 2)
        change = ResourceChange(ConfigResourceType.TOPIC, "t", [ConfigChange("retention.ms", "9")])
        for _ in range(5):
            await ann.changes.create_topics([NewTopic("t")])
            await until(bob, lambda image: "t" in image.topics)
            await asyncio.gather(
                ann.changes.delete_topics([TopicReference("t")]), bob.changes.incremental_alter_configs([change])
            )
            assert [entry.key for entry in await world.stores[0].scan("/config/topics/")] == []

    world.run(story)


def test_every_image_is_published_once_in_order(world: World) -> None:
    async def story() -> None:
        follower = await world.start(0)
        async with recording(follower) as images:
            for number in range(10):
                await follower.changes.create_topics([NewTopic(f"t{number}")])
        assert images[0].topics == {}, "a subscriber gets the current image first"
        assert [len(image.topics) for image in images] == list(range(11))
        versions = [image.version for image in images]
        assert versions == sorted(set(versions))
        assert images[-1] is follower.image

    world.run(story)


def test_the_first_published_image_contains_the_broker_and_its_new_epochs(world: World) -> None:
    async def story() -> None:
        follower = await world.start(0)
        await follower.changes.create_topics([NewTopic("t")])
        await world.stop(0)
        store = world._make()
        follower = MetadataFollower(store, Settings(load_config({})))
        images: list[ClusterImage] = []
        follower.subscribe(images.append)
        await follower.start(registration(0))
        world.followers[0] = follower
        assert list(images[0].brokers) == [0]
        assert images[0].topics["t"].partitions[0].leader_epoch == 1

    world.run(story)


def test_a_change_waits_until_the_subscribers_have_applied_it(world: World) -> None:
    async def story() -> None:
        follower = await world.start(0)
        applying: list[asyncio.Future[None]] = []

        def slow(image: ClusterImage) -> asyncio.Future[None] | None:
            if not image.topics:
                return None
            applying.append(asyncio.get_running_loop().create_future())
            return applying[-1]

        follower.subscribe(slow)
        creation = asyncio.ensure_future(follower.changes.create_topics([NewTopic("t")]))
        await until(follower, lambda image: "t" in image.topics)
        other = asyncio.ensure_future(follower.changes.create_topics([NewTopic("u")]))
        await until(follower, lambda image: "u" in image.topics)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not creation.done()
        assert not other.done(), "but another change can be committed meanwhile"
        for each in applying:
            each.set_result(None)
        assert [(await each)[0].error for each in (creation, other)] == [NONE, NONE]

    world.run(story)


def test_a_failing_subscriber_does_not_affect_the_others(world: World) -> None:
    async def story() -> None:
        follower = await world.start(0)

        def broken(image: ClusterImage) -> None:
            if image.topics:
                raise OSError("disk full")

        follower.subscribe(broken)
        async with recording(follower) as images:
            (created,) = await follower.changes.create_topics([NewTopic("t")])
        assert created.error == NONE
        assert "t" in images[-1].topics

    world.run(story)


def test_validate_only_and_rejected_requests_commit_nothing(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)
        before = tree.commits
        await follower.changes.create_topics([NewTopic("t")], validate_only=True)
        await follower.changes.create_topics([NewTopic("bad name")])
        await follower.changes.delete_topics([TopicReference("t")])
        assert tree.commits == before

    memory_world.run(story)


def test_concurrent_creations_of_one_topic_are_committed_once(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)
        before = tree.commits
        outcomes = await asyncio.gather(
            *(follower.changes.ensure_topics([NewTopic("t"), NewTopic(f"own{number % 3}")]) for number in range(50))
        )
        assert all({result.error for result in results} == {NONE} for results in outcomes)
        assert all(len(results) == 2 for results in outcomes)
        assert set(follower.image.topics) == {"t", "own0", "own1", "own2"}
        assert tree.commits <= before + 3
        (again,) = await follower.changes.ensure_topics([NewTopic("t")])
        assert again.error == ErrorCode.TOPIC_ALREADY_EXISTS
        assert follower.changes._creating == {}, "nothing is left behind"  # noqa: SLF001

    memory_world.run(story)


def test_topics_created_in_the_background_are_checked_at_once(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)
        before = tree.commits
        results = follower.changes.start_creating(
            [NewTopic("t"), NewTopic("bad name"), NewTopic("u", replication_factor=9)]
        )
        assert [result.error for result in results] == [
            NONE,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ]
        assert not follower.image.topics, "nothing has happened yet"
        assert follower.changes.start_creating([NewTopic("t")]) == [], "it is being created"
        (shared,) = await follower.changes.ensure_topics([NewTopic("t")])
        assert shared.error == NONE
        assert set(follower.image.topics) == {"t"}
        assert tree.commits == before + 1

    memory_world.run(story)


def test_a_stopping_broker_completes_the_topics_it_is_creating(memory_world: World) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)
        follower.changes.start_creating([NewTopic("t")])
        await memory_world.stop(0)
        assert "t" in (await memory_world.start(1)).image.topics

    memory_world.run(story)


def test_a_creation_in_the_background_that_fails_is_logged(
    memory_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)

        async def no_commit(operations: object) -> None:
            raise StoreUnavailable("disk full")

        memory_world.stores[0].commit = no_commit  # type: ignore[method-assign]
        follower.changes.start_creating([NewTopic("t")])
        (creation,) = follower.changes._creating.values()  # noqa: SLF001
        await asyncio.wait([creation])
        await asyncio.sleep(0)
        assert follower.changes._creating == {}  # noqa: SLF001

    memory_world.run(story)
    assert "cannot be created" in caplog.text
    assert "disk full" in caplog.text


def test_a_cancelled_creation_still_completes_for_other_callers(memory_world: World) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)
        impatient = asyncio.create_task(follower.changes.ensure_topics([NewTopic("t")]))
        patient = asyncio.create_task(follower.changes.ensure_topics([NewTopic("t")]))
        await asyncio.sleep(0)
        impatient.cancel()
        (result,) = await patient
        assert result.error == NONE
        assert "t" in follower.image.topics

    memory_world.run(story)


def test_producer_ids_are_never_allocated_twice(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.start(0), await world.start(1)
        given = [await follower.changes.allocate_producer_ids() for _ in range(1500) for follower in (ann, bob)]
        assert len(set(given)) == 3000
        block = await ann.changes.allocate_producer_ids(2500)
        await world.crash(0)
        ann = await world.start(0)
        later = await ann.changes.allocate_producer_ids()
        assert later > max(given)
        assert later >= block + 2500

    world.run(story)


def test_a_block_of_producer_ids_is_not_taken_from_an_entry_that_has_changed(tree: MemoryTree) -> None:
    """Another broker takes a block between the read and the commit, and the watch reports that before the commit."""

    class SlowStore(MemoryStore):
        async def get(self, key: str) -> Entry | None:
            found = await super().get(key)
            await meanwhile()
            return found

    async def nothing() -> None: ...

    taken: list[int] = []
    meanwhile: Callable[[], Coroutine[Any, Any, None]] = nothing
    stores: list[MemoryStore] = [SlowStore(tree), MemoryStore(tree)]
    world = World(lambda: stores.pop(0))

    async def story() -> None:
        nonlocal meanwhile
        ann, bob = await world.start(0), await world.start(1)
        taken.append(await bob.changes.allocate_producer_ids(1000))

        async def bob_is_faster() -> None:
            nonlocal meanwhile
            meanwhile = nothing
            taken.append(await bob.changes.allocate_producer_ids(1000))
            await asyncio.sleep(0.01)

        meanwhile = bob_is_faster
        taken.append(await ann.changes.allocate_producer_ids(1000))
        assert len(set(taken)) == 3, "the same block was given to two brokers"

    world.run(story)


def test_concurrent_producer_id_requests_get_different_ids(world: World) -> None:
    async def story() -> None:
        follower = await world.start(0)
        given = await asyncio.gather(*(follower.changes.allocate_producer_ids() for _ in range(1100)))
        assert len(set(given)) == 1100

    world.run(story)


# Several brokers


def test_brokers_see_each_other_join_and_leave(world: World) -> None:
    async def story() -> None:
        ann = await world.start(0)
        bob = await world.start(1)
        assert set(bob.image.brokers) == {0, 1}
        await until(ann, lambda image: set(image.brokers) == {0, 1})
        assert ann.image.controller_id == bob.image.controller_id == 0
        await world.stop(1)
        await until(ann, lambda image: set(image.brokers) == {0})

    world.run(story)


def test_any_broker_can_change_topics_and_all_see_the_change(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.start(0), await world.start(1)
        await until(ann, lambda image: set(image.brokers) == {0, 1})
        assert (await bob.changes.create_topics([NewTopic("t", 2, 2)]))[0].error == NONE
        await until(ann, lambda image: "t" in image.topics)
        await ann.changes.delete_topics([TopicReference("t")])
        await until(bob, lambda image: "t" not in image.topics)

    world.run(story)


def test_only_one_of_two_concurrent_colliding_topics_is_created(world: World) -> None:
    async def story() -> None:
        ann, bob = await world.start(0), await world.start(1)
        await until(ann, lambda image: set(image.brokers) == {0, 1})
        for round_ in range(5):
            (a,), (b,) = await asyncio.gather(
                ann.changes.create_topics([NewTopic(f"x.{round_}")]),
                bob.changes.create_topics([NewTopic(f"x_{round_}")]),
            )
            assert sorted([a.error, b.error]) == [NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]
            (a,), (b,) = await asyncio.gather(
                ann.changes.create_topics([NewTopic(f"same{round_}")]),
                bob.changes.create_topics([NewTopic(f"same{round_}")]),
            )
            assert sorted([a.error, b.error]) == [NONE, ErrorCode.TOPIC_ALREADY_EXISTS]

    world.run(story)


def test_a_crashed_broker_is_replaced_as_leader_and_as_controller(world: World) -> None:
    """Spec: B10."""

    async def story() -> None:
        ann, bob, cid = await world.start(0), await world.start(1), await world.start(2)
        await until(ann, lambda image: len(image.brokers) == 3)
        await ann.changes.create_topics([NewTopic("t", assignments=[(0, (0, 1, 2)), (1, (1, 2, 0))])])
        await world.crash(0)

        def healed(image: ClusterImage) -> bool:
            topic = image.topics.get("t")
            return topic is not None and [set(p.isr) for p in topic.partitions] == [{1, 2}, {1, 2}]

        for survivor in (bob, cid):
            image = await until(survivor, healed)
            assert image.controller_id in (1, 2)
            assert [p.leader for p in image.topics["t"].partitions] == [1, 1]
            assert [p.leader_epoch for p in image.topics["t"].partitions] == [1, 0]

    world.run(story)


def test_a_stopping_broker_transfers_leadership_first(memory_world: World) -> None:
    async def story() -> None:
        ann, bob = await memory_world.start(0), await memory_world.start(1)
        await until(ann, lambda image: len(image.brokers) == 2)
        await ann.changes.create_topics([NewTopic("t", assignments=[(0, (0, 1))])])
        await until(bob, lambda image: "t" in image.topics)
        async with recording(bob) as images:
            await memory_world.stop(0)
            await until(bob, lambda image: set(image.brokers) == {1})
        handed_over = [image for image in images if image.topics["t"].partitions[0].leader == 1]
        assert 0 in handed_over[0].brokers, "leadership moved while the old leader was still there"

    memory_world.run(story)


def test_a_single_replica_becomes_leader_again_after_a_restart(world: World) -> None:
    async def story() -> None:
        ann, _ = await world.start(0), await world.start(1)
        await until(ann, lambda image: len(image.brokers) == 2)
        await ann.changes.create_topics([NewTopic("t", assignments=[(0, (1,))])])
        await world.crash(1)
        await until(ann, lambda image: image.topics["t"].partitions[0].leader == -1)
        await world.start(1)
        image = await until(ann, lambda image: image.topics["t"].partitions[0].leader == 1)
        assert image.topics["t"].partitions[0].leader_epoch == 2

    world.run(story)


def test_a_node_id_in_use_is_rejected_with_a_hint(world: World) -> None:
    async def story() -> None:
        await world.start(0)
        with pytest.raises(OttlaError, match="id 0") as caught:
            await world.start(0)
        assert "node.id" in caught.value.hint

    world.run(story)


def test_unreadable_metadata_is_reported_with_its_key(memory_world: World, tree: MemoryTree) -> None:
    async def story() -> None:
        await memory_world.start(0)
        await memory_world.stop(0)
        entry = tree.entries["/cluster/id"]
        tree.entries["/cluster/id"] = entry._replace(value=b"{")
        with pytest.raises(OttlaError, match="/cluster/id"):
            await memory_world.start(0)

    memory_world.run(story)


def test_a_running_broker_ignores_unreadable_entries(memory_world: World) -> None:
    async def story() -> None:
        follower = await memory_world.start(0)
        await follower.changes.create_topics([NewTopic("t")])
        before = follower.image.topics["t"]
        await memory_world.stores[0].commit(
            [Set("/brokers/topics/t/partitions/0/state", b"rubbish"), Create("/brokers/topics/broken", b"{")]
        )
        (created,) = await follower.changes.create_topics([NewTopic("u")])
        assert created.error == NONE
        assert follower.image.topics["t"] == before
        assert set(follower.image.topics) == {"t", "u"}

    memory_world.run(story)


# Size


def test_a_thousand_partitions_are_created_and_loaded_quickly(tmp_path: Path) -> None:
    """Measures CPU time, not elapsed time: detects work per partition that should be work per commit."""
    commits: list[int] = []

    class Counted(SqliteStore):
        def _commit(self, operations: Any, *more: Any) -> None:
            commits.append(len(operations))
            super()._commit(operations, *more)

    async def story() -> None:
        world = World(lambda: Counted(str(tmp_path / "metadata.sqlite")))
        follower = await world.start(0)
        commits.clear()
        began = time.process_time()
        await follower.changes.create_topics([NewTopic("t", 1000)])
        created = time.process_time() - began
        assert len(commits) == 1
        assert commits[0] >= 1000
        await world.stop(0)
        began = time.process_time()
        follower = await world.start(0)
        loaded = time.process_time() - began
        assert len(follower.image.topics["t"].partitions) == 1000
        await world.stop(0)
        assert max(created, loaded) < 1.0, (created, loaded)

    asyncio.run(story())


def test_topic_ids_are_random_uuids_without_a_leading_dash() -> None:
    ids = {new_topic_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not any(uuid_to_text(id_).startswith("-") for id_ in ids)
    assert all(id_[6] >> 4 == 4 and id_[8] >> 6 == 2 for id_ in ids)
