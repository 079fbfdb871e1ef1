"""Metadata moves from one store to another: whole, compared, and never while somebody uses it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ottla.broker.settings.config import Settings, load_config
from ottla.errors import OttlaError
from ottla.metadata import records
from ottla.metadata.follower import MetadataFollower
from ottla.metadata.image import BrokerRegistration, ClusterImage
from ottla.metadata.migration import migrate
from ottla.metadata.store import Change, Create, Delete, Operation, Set
from ottla.testing.memory_store import MemoryStore, MemoryTree
from ottla.types import Endpoint

RULES = Settings(load_config({}))
OLD, NEW = "/srv/old", "etcd://new:2379/ottla"
BROKER = records.write_broker({"PLAINTEXT": Endpoint("a", 1)}, None, 0)
CLUSTER: list[Operation] = [
    Create(records.CLUSTER_ID, records.write_cluster_id("abc")),
    Create(records.known_broker_key(1), BROKER),
    Create(records.topic_key("t"), records.write_topic(b"1" * 16, [(1,)])),
    Create(records.partition_state_key("t", 0), records.write_partition_state(1, 5, (1,))),
]


class Stage:
    """Two stores, each with a session for the migration and one for a broker."""

    def __init__(self) -> None:
        self.trees = MemoryTree(), MemoryTree()
        self.old, self.new = map(MemoryStore, self.trees)
        self.reports: list[str] = []

    async def migrate(self, *, replace: bool = False, back: bool = False) -> Any:
        if back:
            return await migrate(self.new, self.old, (NEW, OLD), replace=replace, report=self.reports.append)
        return await migrate(self.old, self.new, (OLD, NEW), replace=replace, report=self.reports.append)


def on_stage(story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        stage = Stage()
        await stage.old.start()
        await stage.new.start()
        await stage.old.commit(CLUSTER)
        await story(stage)

    asyncio.run(whole())


def values(tree: MemoryTree) -> dict[str, bytes]:
    return {key: entry.value for key, entry in tree.entries.items() if key != records.MIGRATED_TO}


def image_of(tree: MemoryTree) -> ClusterImage:
    return ClusterImage().apply([Change(e.key, e, e.modified) for e in tree.entries.values()], tree.revision)


def test_everything_is_copied_in_one_commit_and_brokers_keep_their_epochs() -> None:
    async def story(stage: Stage) -> None:
        await stage.old.commit([Set(records.known_broker_key(1), BROKER)])
        before = image_of(stage.trees[0])
        commits = stage.trees[1].commits
        done = await stage.migrate()
        assert (done.keys, done.removed, done.topics) == (4, 0, 1)
        assert stage.trees[1].commits == commits + 1
        after = image_of(stage.trees[1])
        assert after.topics == before.topics
        assert after.known_brokers == before.known_brokers, "its clean shutdown is proved by this epoch"
        assert len(stage.reports) == 3

    on_stage(story)


def test_the_old_metadata_is_refused_by_brokers_until_it_is_moved_back() -> None:
    async def story(stage: Stage) -> None:
        registration = BrokerRegistration(1, 0, {"PLAINTEXT": Endpoint("a", 1)})
        await stage.migrate()
        with pytest.raises(OttlaError, match="this metadata was moved to etcd://new:2379/ottla"):
            await MetadataFollower(MemoryStore(stage.trees[0]), RULES).start(registration)
        follower = MetadataFollower(MemoryStore(stage.trees[1]), RULES)
        await follower.start(registration)
        await follower.stop()
        await stage.migrate(back=True)
        assert values(stage.trees[0]).keys() == values(stage.trees[1]).keys()
        with pytest.raises(OttlaError, match="this metadata was moved to /srv/old"):
            await MetadataFollower(MemoryStore(stage.trees[1]), RULES).start(registration)
        follower = MetadataFollower(MemoryStore(stage.trees[0]), RULES)
        await follower.start(registration)
        await follower.stop()

    on_stage(story)


@pytest.mark.parametrize("side", [0, 1])
def test_nothing_is_moved_while_a_broker_runs(side: int) -> None:
    async def story(stage: Stage) -> None:
        broker = MemoryStore(stage.trees[side])
        await broker.start()
        await broker.commit([Create(records.broker_key(7), BROKER, ephemeral=True)])
        with pytest.raises(OttlaError, match="broker 7 is using " + (OLD, NEW)[side]):
            await stage.migrate(replace=True)
        assert records.CLUSTER_ID not in stage.trees[1].entries
        await broker.close()
        await stage.migrate(replace=True)

    on_stage(story)


def test_a_target_that_is_not_empty_is_overwritten_only_on_request() -> None:
    async def story(stage: Stage) -> None:
        await stage.new.commit([Create(records.CLUSTER_ID, records.write_cluster_id("other")), Create("/extra", b"{}")])
        before = values(stage.trees[1])
        with pytest.raises(OttlaError, match=r"is not empty: it has 2 keys of cluster other") as caught:
            await stage.migrate()
        assert "--replace" in caught.value.hint
        assert values(stage.trees[1]) == before
        done = await stage.migrate(replace=True)
        assert (done.keys, done.removed) == (4, 1)
        assert image_of(stage.trees[1]).cluster_id == "abc"

    on_stage(story)


def test_an_interrupted_migration_is_completed_by_running_it_again() -> None:
    """It was interrupted after its commit, before the source got its mark."""

    async def story(stage: Stage) -> None:
        await stage.migrate()
        await stage.old.commit([Delete(records.MIGRATED_TO)])
        done = await stage.migrate()
        assert done.was_complete
        assert records.MIGRATED_TO in stage.trees[0].entries

    on_stage(story)


def test_a_source_that_was_moved_elsewhere_is_not_copied_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.old.commit([Create(records.MIGRATED_TO, records.write_migrated_to("etcd://elsewhere/x"))])
        with pytest.raises(OttlaError, match="was moved to etcd://elsewhere/x earlier"):
            await stage.migrate()

    on_stage(story)


def test_a_source_without_a_cluster_is_refused() -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(OttlaError, match="has no metadata of a cluster"):
            await stage.migrate(back=True, replace=True)
        assert records.CLUSTER_ID in stage.trees[0].entries

    on_stage(story)


def test_a_target_that_differs_after_the_copy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that compares nothing would pass every other test."""

    async def story(stage: Stage) -> None:
        commit = stage.new.commit

        async def wrong(operations: Any) -> None:
            await commit([*operations[:-1], operations[-1]._replace(value=b"{}")])

        monkeypatch.setattr(stage.new, "commit", wrong)
        with pytest.raises(OttlaError, match="differs from /srv/old in 1 keys, the first is /cluster/id"):
            await stage.migrate()
        assert records.MIGRATED_TO not in stage.trees[0].entries

    on_stage(story)
